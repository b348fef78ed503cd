"""An `If` whose branches differ in rank by data: the rest of the model is imported once for each branch.

Tensors have one rank here, so what follows such an `If` is two programs. Both become branches that end at the outputs
of the model, or of the body that the `If` is part of; there the ranks must agree. What both have in common is computed
once, before the branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dovetail import ops
from dovetail.errors import UnsupportedError
from dovetail.frontends.onnx.file.proto import messages
from dovetail.frontends.onnx.importing.scope import Scope
from dovetail.ir import leaf, origin
from dovetail.ir.dim import Dim, symbols
from dovetail.ir.graph import Subgraph
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops import tracing
from dovetail.ops.control import differing
from dovetail.ops.primitive import Primitive
from dovetail.passes.specialize import fresh_symbols
from dovetail.progress import Phase

MOST_FORKS = 6
"""Such branches one after the other: each doubles what follows it."""


class ForkError(UnsupportedError):
    """A branch of two ranks. The import of a list of nodes catches it and imports the rest once for each side."""

    def __init__(
        self, told: UnsupportedError, node: messages.NodeProto, condition: Value, sides: Sequence[Side]
    ) -> None:
        super().__init__(told.message, hint=told.hint, where=told.where)
        self.told = told
        self.node = node
        self.condition = condition
        self.sides = sides


Side = Callable[[], Sequence[Value]]
"""Imports a branch and gives its results."""


class Importing(Protocol):
    """What imports nodes."""

    def nodes(self, nodes: Sequence[messages.NodeProto], scope: Scope, told: Phase | None = None) -> None: ...

    def fresh(self, name: str) -> Dim: ...


def results_of(
    around: Importing,
    nodes: Sequence[messages.NodeProto],
    scope: Scope,
    results: Callable[[Scope], list[Value]],
    told: Phase | None = None,
    forks: int = 0,
) -> list[Value]:
    """What nodes and a function of their scope give; where a branch has two ranks, both sides selected at the end."""
    try:
        around.nodes(nodes, scope, told)
        return results(scope)
    except ForkError as fork:
        place = next((i for i, node in enumerate(nodes) if node is fork.node), None)
        if place is None or forks == MOST_FORKS:
            raise fork.told from None
        sides: list[list[Value]] = []
        for side in fork.sides:
            inner = Scope(scope.opsets, outer=scope.outer, captured=scope.captured, attrs=scope.attrs)
            inner.values |= scope.values
            inner.values |= dict(zip(fork.node.output, side(), strict=False))
            sides.append(results_of(around, nodes[place + 1 :], inner, results, told, forks + 1))
        return _selected(around, fork, *sides)


def _selected(around: Importing, fork: ForkError, yes: list[Value], no: list[Value]) -> list[Value]:
    """The results of the side that the condition chooses."""
    apart = [i for i, (a, b) in enumerate(zip(yes, no, strict=True)) if a is not b]
    if not apart:
        return yes
    for i in apart:
        if yes[i].rank != no[i].rank or yes[i].dtype is not no[i].dtype:
            error = fork.told
            error.message += f"; so does a result at the end: {yes[i].type} and {no[i].type}"
            error.hint = "reshape it to one rank before it is an output, or " + error.hint
            raise error from None
    sides = [[side[i] for i in apart] for side in (yes, no)]
    reached = [walk(side) for side in sides]
    common = set(reached[0]) & set(reached[1])
    operands = _read_from(reached, sides, common)
    bodies = [_body(side, operands) for side in sides]
    types = [[v.tensor for v in body.results] for body in bodies]
    bound = {name for values in reached for v in values if v not in common for name in fresh_symbols(v)}
    flat = [[size for t in listed for size in t.shape] for listed in types]
    inside = {p for p, size in enumerate(flat[0]) if isinstance(size, Dim) and not bound.isdisjoint(symbols(size))}
    places = tuple(sorted({*differing(*types), *inside}))
    sizes = tuple(around.fresh(f"{fork.node.name or 'if'}_{p}") for p in places)
    chosen = ops.if_(fork.condition, *operands, then=bodies[0], otherwise=bodies[1], sizes=sizes, places=places)
    found = list(yes)
    for i, value in zip(apart, tracing.items(chosen), strict=True):
        found[i] = value
    return found


def _read_from(reached: Sequence[Sequence[Value]], sides: Sequence[Sequence[Value]], common: set[Value]) -> list[Value]:
    """What the sides read of the values before the branch, and inputs and parameters that one side alone reads."""
    read = {x for values in reached for v in values if v not in common for x in v.operands}
    read |= {v for side in sides for v in side}
    met = dict.fromkeys(v for values in reached for v in values if v in read and v.op is not leaf.CONST)
    return [v for v in met if v in common or not (v.operands or isinstance(v.op, Primitive))]


def _body(results: Sequence[Value], operands: Sequence[Value]) -> Subgraph:
    recorder = origin.active()

    def traced(*slots: Value) -> tuple[Value, ...]:
        new = dict(zip(operands, slots, strict=True))
        for v in walk(results, until=new):
            if v not in new:
                new[v] = v.with_operands(tuple([new[x] for x in v.operands]))
                if recorder is not None and (known := recorder.origins.get(v)):
                    recorder.origins[new[v]] = known
        return tuple(new[v] for v in results)

    return ops.subgraph(traced, [v.tensor for v in operands])


__all__ = ["ForkError", "Side", "results_of"]
