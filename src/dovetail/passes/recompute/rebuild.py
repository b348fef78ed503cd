"""The graph of a choice: the backward pass reads what is saved, and computes the rest again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dovetail import ops
from dovetail.derive.edit import Log
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.origin import Origin
from dovetail.ir.rewrite import rebuild
from dovetail.ir.value import Value
from dovetail.passes.recompute.choice import Choice, Halves, is_view

RECOMPUTE = "recompute"
MARK = "again "
"""In front of the place of what is computed again."""


def with_choice(halves: Halves, choice: Choice, log: Log | None = None) -> Graph:
    """The graph in which the backward pass reads the forward pass through `again` alone."""
    graph, forward = halves.graph, halves.forward
    copies = _Copies(halves, frozenset(choice.saved))
    if log is not None:
        log.begin("rewrite")

    def step(value: Value, operands: tuple[Value, ...]) -> Value | None:
        if value in forward:
            return None
        now = tuple([copies(old) if old in forward else new for old, new in zip(value.operands, operands, strict=True)])
        if now == operands:
            return None
        made = leaf.item(now[0], value.attrs["index"]) if value.op is leaf.ITEM else value.with_operands(now)
        if log is not None:
            log.rewrite(RECOMPUTE, "exact", value.with_operands(operands), made)
        return made

    made = rebuild(graph, step, into_subgraphs=False)
    origins = dict(made.origins)
    for value, copy in copies.made.items():
        if copy in origins and copy is not value:
            origins[copy] = tuple([_marked(o) for o in graph.origins.get(value, ())]) or origins[copy]
    return replace(made, origins=origins)


def _marked(origin: Origin) -> Origin:
    return replace(origin, name=MARK + origin.name)


class _Copies:
    """Values of the forward pass as the backward pass reads them."""

    def __init__(self, halves: Halves, saved: Collection[Value]) -> None:
        self.halves, self.saved = halves, saved
        self.made: dict[Value, Value] = {}

    def __call__(self, value: Value) -> Value:
        stack = [value]
        while stack:
            at = stack[-1]
            if at in self.made:
                stack.pop()
            elif self.halves.is_given(at):
                self.made[at] = at
            elif at in self.saved:
                self.made[at] = ops.again(at)
            elif pending := [v for v in at.operands if v not in self.made]:
                stack.extend(pending)
            else:
                self.made[at] = self._copied(at)
        return self.made[value]

    def _copied(self, value: Value) -> Value:
        operands = [self.made[v] for v in value.operands]
        if value.op is leaf.ITEM:
            return leaf.item(operands[0], value.attrs["index"])
        if tuple(operands) == value.operands and not is_view(value):
            # A value of inputs alone: reading one of them again makes it another value.
            first = next(i for i, v in enumerate(operands) if v not in self.halves.static)
            operands[first] = ops.again(operands[first])
        return value.with_operands(tuple(operands))


__all__ = ["MARK", "RECOMPUTE", "with_choice"]
