"""Near misses: patterns that fit a graph but for one op that is another, or but for ops that stand between theirs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import islice
from typing import Any

from dovetail import ops as primitives
from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp, Variant
from dovetail.derive.missed import BETWEEN, NEAR, Applied, Missed
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType
from dovetail.ir.value import Op, Value
from dovetail.match import Bound, Mismatch, Outlines, match, matches
from dovetail.ops.view import VIEW_OPS

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
    passing = _Passing(swallowed)
    for round in rounds:
        left = [v for v in round.before.values if v not in swallowed]
        misses += _among(left, round.ops)
        misses += [miss for op in round.ops for miss in _interposed(op, left, passing)]
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
            if isinstance(bound, Bound) and bound.forgiven is not None and _is_whole(variant, bound, bound.forgiven):
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


def _is_whole(variant: Variant, bound: Bound, forgiven: Mismatch) -> bool:
    """Return whether all ops of a pattern are there but for one that is another."""
    return len(bound.covered) == variant.size - (forgiven.kind == "op")


def _missed(op: FusedOp[...], root: Value, tries: list[tuple[Variant, Bound]]) -> Missed:
    variant, bound = tries[0]
    expected = ", ".join(dict.fromkeys(b.forgiven.expected for _, b in tries if b.forgiven is not None))
    actual = bound.forgiven.found if bound.forgiven is not None else ""
    covers = tuple(dict.fromkeys([root, *bound.covered.values()]))
    kind = bound.forgiven.kind if bound.forgiven is not None else "op"
    message = f"all but one {kind} match: found {actual}, where {op.name} takes {expected}"
    caught: dict[str, Any] = {**variant.fixed, **bound.names}
    return Missed(op.name, variant.label, root, covers, NEAR, message, "", caught=caught, results=(root,))


@dataclass(slots=True)
class _Passing:
    """For a value what is computed from it by ops that may have come between two of a pattern: casts, views, other
    orders of its elements, elementwise ops of it and constants. What a declared op has taken up is no such op."""

    swallowed: Collection[Value]
    known: dict[Value, tuple[Value, ...]] = field(default_factory=dict[Value, tuple[Value, ...]])

    def __call__(self, value: Value) -> Sequence[Value]:
        chain_ = self.known.get(value)
        if chain_ is None:
            chain = [value]
            while len(chain) <= _MOST_BETWEEN and (below := self.under(chain[-1])) is not None:
                chain.append(below)
            chain_ = self.known[value] = tuple(chain)
        return chain_

    def under(self, value: Value) -> Value | None:
        """Return the operand under an op that could be left out; None for any other op."""
        if value in self.swallowed or not isinstance(value.type, TensorType) or value.op in leaf.LEAVES:
            return None
        computed = [v for v in value.operands if v.op is not leaf.CONST]
        if len(computed) != 1 or computed[0].op in leaf.LEAVES:
            return None
        (under,) = computed
        passes = value.op.elementwise or value.op in _ORDERS
        return under if passes and value.tensor.count == under.tensor.count else None


def moves_out(value: Value) -> bool:
    """Return whether an op that stands between two of a pattern may stand elsewhere, and the model computes the same
    but for rounding: a cast, another order of the elements, a product with a number.
    """
    scales = value.op in (primitives.mul, primitives.div) and any(leaf.scalar_of(v) is not None for v in value.operands)
    return value.op is primitives.cast or value.op in _ORDERS or scales


def _interposed(op: FusedOp[...], values: Sequence[Value], passing: _Passing) -> list[Missed]:
    """Return for each root among the values the largest pattern that fits if ops between its ops are left out."""
    best_at: dict[Value, tuple[int, Missed]] = {}
    outlines = Outlines()
    variants = [(v, outlines.number(v.outline)) for v in op.patterns if v.size > 1]
    roots = {v.pattern.op for v, _ in variants}
    for root in values:
        if root.op is op or root.op not in roots:
            continue
        fitting = outlines.fitting(root, equal=passing)
        for variant, number in variants:
            best = best_at.get(root)
            if number not in fitting or variant.pattern.op is not root.op or (best and best[0] >= variant.size):
                continue
            for bound in islice(matches(variant.pattern, root, equal=passing), _MOST_ORDERS):
                edges = _edges_between(bound, passing)
                if edges:
                    best_at[root] = variant.size, _missed_between(op, variant, root, bound, edges)
                    break
    return [miss for _, miss in best_at.values()]


def _edges_between(bound: Bound, passing: _Passing) -> list[tuple[Value, Sequence[Value], Value]]:
    """Return the pairs of ops of a match with others in between: the producer, these, the reader."""
    edges: list[tuple[Value, Sequence[Value], Value]] = []
    for pattern, reader in bound.covered.items():
        for inner in pattern.operands:
            producer = bound.covered.get(inner)
            if producer is None or producer in reader.operands:
                continue
            for operand in reader.operands:
                chain = passing(operand)
                if producer in chain:
                    edges.append((producer, chain[: chain.index(producer)][::-1], reader))
                    break
    return edges


def _missed_between(
    op: FusedOp[...],
    variant: Variant,
    root: Value,
    bound: Bound,
    edges: Sequence[tuple[Value, Sequence[Value], Value]],
) -> Missed:
    obstacles = [
        f"{', '.join(v.op.name for v in chain)} stands in between {producer.op.name} and {reader.op.name}"
        for producer, chain, reader in edges
    ]
    between = tuple(dict.fromkeys(v for _, chain, _ in edges for v in chain))
    covers = tuple(dict.fromkeys([root, *bound.covered.values(), *between]))
    caught: dict[str, Any] = {**variant.fixed, **bound.names}
    message = f"all its ops are there; {', '.join(dict.fromkeys(obstacles))}"
    return Missed(
        op.name, variant.label, root, covers, BETWEEN, message, "", caught=caught, results=(root,), between=between
    )


_MOST_BETWEEN = 8
"""Ops that are looked through, one after the other."""
_MOST_ORDERS = 8
_ORDERS = (*(op for op in VIEW_OPS if op is not primitives.expand), primitives.flip, primitives.gather)
"""Ops that put elements in another order, where as many come out as went in."""
_LEAVES = (leaf.HOLE, leaf.NUMBER, leaf.CONST)
