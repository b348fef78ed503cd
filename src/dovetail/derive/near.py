"""Near misses: patterns that fit a graph but for one op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp, Variant
from dovetail.derive.missed import NEAR, Applied, Missed
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.value import Op, Value
from dovetail.match import Bound, Outlines, match

_SMALLEST = 3
"""A pattern of two ops with one of them wrong says nothing."""


@dataclass(frozen=True, slots=True)
class Round:
    """A graph as one stratum of fusing found it, the ops of that stratum, and where the values went."""

    before: Graph
    ops: Sequence[FusedOp[...]]
    moved: Mapping[Value, Value]


def near_misses(rounds: Sequence[Round], applied: Iterable[Applied]) -> list[Missed]:
    """Return what each round nearly matched, followed to the end of the last, without what rules have fused since."""
    rules = {op.name for round in rounds for op in round.ops}
    swallowed = {v for fusion in applied if fusion.rule in rules for v in fusion.covers}
    misses: list[Missed] = []
    for round in rounds:
        misses += _among([v for v in round.before.values if v not in swallowed], round.ops)
        misses = [m.follow(round.moved) for m in misses]
    return misses


def _among(values: Iterable[Value], ops: Sequence[FusedOp[...]]) -> list[Missed]:
    """Return for each root among the values the largest pattern of each op that fits but for one op."""
    by_op: dict[Op, list[Value]] = {}
    by_operand: dict[Op, list[Value]] = {}
    for value in values:
        by_op.setdefault(value.op, []).append(value)
        for operand in dict.fromkeys([v.op for v in value.operands]):
            by_operand.setdefault(operand, []).append(value)
    misses: list[Missed] = []
    for op in ops:
        misses += _of_op(op, by_op, by_operand)
    return misses


def _of_op(op: FusedOp[...], by_op: dict[Op, list[Value]], by_operand: dict[Op, list[Value]]) -> list[Missed]:
    attempts: dict[Value, list[tuple[Variant, Bound]]] = {}
    outlines = Outlines()
    numbered = [(v, outlines.number(v.outline)) for v in op.patterns if v.size >= _SMALLEST]
    fitting: dict[Value, set[int]] = {}
    for variant, number in numbered:
        for root in _roots(variant.pattern, by_op, by_operand):
            if root.op is op or (root in attempts and attempts[root][0][0].size > variant.size):
                continue
            near = fitting.get(root)
            if near is None:
                near = fitting[root] = outlines.fitting(root, but=1)
            if number not in near:
                continue
            bound = match(variant.pattern, root, forgive=True)
            if isinstance(bound, Bound) and bound.forgiven is not None and len(bound.covered) == variant.size - 1:
                attempts.setdefault(root, []).append((variant, bound))
    return [_missed(op, root, tries) for root, tries in attempts.items() if _guards_hold(op, tries[0])]


def _roots(pattern: Value, by_op: dict[Op, list[Value]], by_operand: dict[Op, list[Value]]) -> list[Value]:
    """Values of the op of the root, and those that could stand for it: one elementwise op for another."""
    same = by_op.get(pattern.op, [])
    inner = next((v.op for v in pattern.operands if v.op not in _LEAVES), None)
    if inner is None or not pattern.op.elementwise:
        return same
    count = len(pattern.operands)
    others = [v for v in by_operand.get(inner, ()) if v.op.elementwise and len(v.operands) == count]
    return list(dict.fromkeys([*same, *others]))


def _guards_hold(op: FusedOp[...], attempt: tuple[Variant, Bound]) -> bool:
    variant, bound = attempt
    return all(g.check({**variant.fixed, **bound.names}) for g in op.guards if "result" not in g.asks)


def _missed(op: FusedOp[...], root: Value, tries: list[tuple[Variant, Bound]]) -> Missed:
    variant, bound = tries[0]
    expected = ", ".join(dict.fromkeys(b.forgiven.expected for _, b in tries if b.forgiven is not None))
    actual = bound.forgiven.found if bound.forgiven is not None else ""
    covers = tuple(dict.fromkeys([root, *bound.covered.values()]))
    message = f"all but one op match: found {actual}, where {op.name} takes {expected}"
    caught: dict[str, Any] = {**variant.fixed, **bound.names}
    return Missed(op.name, variant.label, root, covers, NEAR, message, "", caught=caught, results=(root,))


_LEAVES = (leaf.HOLE, leaf.NUMBER, leaf.CONST)
