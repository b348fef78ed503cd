"""Biases of positions that are added to scores whose queries or keys are cut into rows and columns of an image."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.value import Value
from dovetail.passes.canonical.arithmetic import are_scores
from dovetail.passes.canonical.rule import listed, rule

_MOST = 4
"""How many terms are looked at."""
_LONGEST = 8
"""How many views are looked under."""


@rule(ops.merge, numerics="reassociated")
def bias_of_rows_and_columns(value: Value) -> Value | None:
    """Scores that are cut apart, added to and joined again are scores plus what was added, joined."""
    if value.known_type is None:
        return None
    joins, total = _under(value, ops.merge)
    terms = _terms(total)
    for at, term in enumerate(terms):
        cuts, found = _under(term, ops.split)
        if cuts and term.shape == total.shape and found.shape == value.shape and are_scores(found):
            others = terms[:at] + terms[at + 1 :]
            return ops.add(found, _joined(others, total, joins)) if others else None
    return None


def _under(value: Value, op: object) -> tuple[list[Value], Value]:
    """Values of one op of one operand from above, and what stands under them."""
    above: list[Value] = []
    while value.op is op and len(above) < _LONGEST:
        above.append(value)
        (value,) = value.operands
    return above, value


def _terms(total: Value) -> list[Value]:
    """What a sum of sums is made of, the first few of them."""
    found = [total]
    while len(found) < _MOST:
        at = next((i for i, v in enumerate(found) if v.op is ops.add), None)
        if at is None:
            break
        found[at : at + 1] = found[at].operands
    return found


def _joined(terms: list[Value], total: Value, joins: list[Value]) -> Value:
    """The sum of terms as it stretches to a total, joined like it; along axes that it lacks as a whole it stays 1."""
    bias = terms[0]
    for term in terms[1:]:
        bias = ops.add(bias, term)
    if bias.rank < total.rank:
        bias = ops.unsqueeze(bias, axes=tuple(range(-total.rank, -bias.rank)))
    for join in reversed(joins):
        last: int = join.attrs["axis"]
        axes = range(last - join.attrs["count"] + 1, last + 1)
        whole = join.operands[0].shape
        if any(bias.shape[axis] != 1 for axis in axes):
            for axis in axes:
                if bias.shape[axis] != whole[axis]:
                    bias = ops.expand(bias, axis=axis, size=whole[axis])
        bias = join.with_operands((bias,))
    return bias


RULES = listed(globals())
