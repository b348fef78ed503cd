"""What stands between the scores of an attention, their softmax, and the values."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.dtype import f16
from dovetail.ir.value import Value
from dovetail.ops.view import VIEW_OPS
from dovetail.passes.canonical.arithmetic import are_scores, masks
from dovetail.passes.canonical.rule import listed, number_in, number_like, rule

_LONGEST = 8
"""How many views are looked under."""


@rule(ops.sub)
def mask_subtracted(value: Value) -> Value | None:
    """q @ kᵀ - m is q @ kᵀ + -m, and q @ kᵀ - m * c is q @ kᵀ + m * -c: a mask is added."""
    total, mask = value.operands
    if value.known_type is None or not value.dtype.is_float or not masks(total, mask):
        return None
    if mask.op in (ops.mul, ops.div):
        x, factor = mask.operands
        number = number_in(factor)
        if number is not None and x.rank:
            return ops.add(total, mask.with_operands((x, number_like(-number, factor))))
    return ops.add(total, ops.neg(mask))


@rule(ops.matmul, numerics="reassociated")
def zeroed_where_filled(value: Value) -> Value | None:
    """0 in place of the weights of hidden keys changes them only where a query sees no key at all."""
    chosen, values = value.operands
    if value.known_type is None or chosen.op is not ops.where:
        return None
    hidden, *sides = chosen.operands
    for at in (0, 1):
        scores = softmax_of(sides[1 - at])
        if number_in(sides[at]) != 0 or scores is None or not _is_filled(scores, hidden, at):
            continue
        seen = ops.bit_not(hidden) if at == 0 else hidden
        found = ops.matmul(sides[1 - at], values)
        return ops.where(ops.reduce_any(seen, axes=(-1,)), found, number_like(0.0, value))
    return None


def _is_filled(scores: Value, hidden: Value, at: int) -> bool:
    """Whether a number that hides stands in place of scores, as the one or the other side of a choice."""
    if scores.op is not ops.where or scores.operands[0] is not hidden:
        return False
    fill = number_in(scores.operands[1 + at])
    return fill is not None and fill <= (-4e3 if scores.dtype is f16 else -6e7)


def softmax_of(value: Value) -> Value | None:
    """x, of a softmax of x along the last axis."""
    if value.op is not ops.div or value.operands[1].op is not ops.reduce_sum:
        return None
    raised, total = value.operands
    if total.operands[0] is not raised or total.attrs["axes"] != (-1,) or raised.op is not ops.exp:
        return None
    (lowered,) = raised.operands
    if lowered.op is not ops.sub or lowered.operands[1].op is not ops.reduce_max:
        return None
    x, largest = lowered.operands
    return x if largest.operands[0] is x and largest.attrs["axes"] == (-1,) else None


@rule(ops.div)
def lowered_twice(value: Value) -> Value | None:
    """A softmax of what its largest was taken from already is that of what it was before."""
    x = softmax_of(value)
    if x is None or x.op is not ops.sub or x.operands[1].op is not ops.reduce_max:
        return None
    source, largest = x.operands
    if largest.operands[0] is not source or largest.attrs["axes"] != (-1,):
        return None
    return ops.div(ops.exp(x), ops.reduce_sum(ops.exp(x), axes=(-1,)))


@rule(ops.matmul, numerics="reassociated")
def weights_on_the_left(value: Value) -> Value | None:
    """vᵀ @ pᵀ is (p @ v)ᵀ, where p is a softmax of rows."""
    values, turned = value.operands
    if value.known_type is None or turned.op is not ops.permute or turned.attrs["order"] != (-1, -2):
        return None
    (weights,) = turned.operands
    if softmax_of(weights) is None or values.rank != weights.rank:
        return None
    found = ops.matmul(weights, ops.permute(values, order=(-1, -2)))
    return ops.permute(found, order=(-1, -2))


@rule(ops.matmul)
def keys_cast_before_swapped(value: Value) -> Value | None:
    """Keys that are swapped and then cast are cast first."""
    left, right = value.operands
    if value.known_type is None or right.rank < 3:
        return None
    above, cast = _under_views(right)
    if cast.op is not ops.cast:
        return None
    below, source = _under_views(cast.operands[0])
    if all(view.op is not ops.permute for view in below):
        return None
    keys = cast.with_operands((source,))
    for view in (*reversed(below), *reversed(above)):
        keys = view.with_operands((keys,))
    return ops.matmul(left, keys)


def _under_views(value: Value) -> tuple[list[Value], Value]:
    """What stands under views, and these from above."""
    above: list[Value] = []
    while value.op in VIEW_OPS and len(above) < _LONGEST:
        above.append(value)
        (value,) = value.operands
    return above, value


@rule(ops.mul, on_constant=True, numerics="reassociated", final=True)
def cap_beside_tanh(value: Value) -> Value | None:
    """tanh(q @ kᵀ * c) * s is tanh(q @ kᵀ * (c * s) / s) * s: scores are scaled, then bent at s."""
    bent, number = value.operands
    cap = number_in(number)
    if value.known_type is None or bent.op is not ops.tanh or cap is None or cap <= 1 or value.dtype is f16:
        return None
    (scaled,) = bent.operands
    if scaled.op is not ops.mul or scaled.operands[0].op is not ops.matmul or not are_scores(scaled):
        return None
    factor = number_in(scaled.operands[1])
    if factor is None or abs(factor) * cap > 1:
        return None
    inner = ops.div(ops.mul(scaled.operands[0], number_like(factor * cap, value)), number)
    return ops.mul(ops.tanh(inner), number)


RULES = listed(globals())
