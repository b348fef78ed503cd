"""Rebuilding a graph around replaced values. Roots are replaced, dead values go, origins follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.errors import GraphError
from dovetail.ir import leaf, origin
from dovetail.ir.graph import Graph, Subgraph, subgraphs, walk_into
from dovetail.ir.origin import Origin
from dovetail.ir.value import Value, make
from dovetail.ir.walk import walk

Step = Callable[[Value, tuple[Value, ...]], "Value | None"]
"""Given a value and its new operands: what stands in its place, or None to keep it."""


def rebuild(graph: Graph, step: Step, *, into_subgraphs: bool = True) -> Graph:
    """Return the graph after offering every value to `step` once, operands first."""
    rewriter = _Rewriter(step, graph.origins, into_subgraphs)
    new = rewriter.run_in_order(graph.values)
    if all(new[v] is v for v in graph.outputs.values()):
        return graph
    outputs = {name: new[v] for name, v in graph.outputs.items()}
    return graph.replace(outputs, rewriter.kept(outputs.values()), new)


def rebuild_values(outputs: Sequence[Value], step: Step) -> dict[Value, Value]:
    """Values, old to new, with every value below `outputs` offered to `step`; sub-graphs stay as they are."""
    return _Rewriter(step, {}, into_subgraphs=False).run(outputs)


class Replacement(NamedTuple):
    """What stands in place of a root: it reads `needs`, and answers for the values it `covers`."""

    needs: tuple[Value, ...]
    build: Callable[[Callable[[Value], Value]], Value]
    covers: tuple[Value, ...] = ()


class CyclicReplacementError(GraphError):
    """Replacements that would read each other's results; `root` is one of them."""

    def __init__(self, root: Value) -> None:
        self.root = root
        super().__init__(f"replacing {root!r} would make it depend on itself")


def replace_roots(graph: Graph, roots: Mapping[Value, Replacement]) -> Graph:
    """Rebuild each root of the graph; its old interior goes unless something else reads it."""
    if not roots:
        return graph
    rewriter = _Rewriter(lambda value, operands: None, graph.origins, into_subgraphs=False)
    new = rewriter.demand(list(graph.outputs.values()), roots)
    outputs = {name: new[v] for name, v in graph.outputs.items()}
    moved = dict(new)
    for root, replacement in roots.items():
        for inner in replacement.covers:
            # A swallowed value is now part of what stands in place of its root.
            if root in new and inner not in moved:
                moved[inner] = new[root]
    return graph.replace(outputs, rewriter.kept(outputs.values()), moved)


class _Rewriter:
    def __init__(self, step: Step, origins: Mapping[Value, tuple[Origin, ...]], into_subgraphs: bool) -> None:
        self.step = step
        self.old_origins = origins
        self.origins: dict[Value, tuple[Origin, ...]] = {}
        self.settled: set[Value] = set()
        self.into_subgraphs = into_subgraphs
        self.bodies: dict[Subgraph, Subgraph] = {}
        """Sub-graphs that were rebuilt: equal layers have equal ones."""

    def run(self, outputs: Iterable[Value]) -> dict[Value, Value]:
        return self.run_in_order(walk(outputs))

    def run_in_order(self, values: Iterable[Value]) -> dict[Value, Value]:
        """New values by old ones; operands come before users."""
        new: dict[Value, Value] = {}
        step, settled, enters = self.step, self.settled, self.into_subgraphs
        for value in values:
            old = value.operands
            operands = tuple([new[v] for v in old]) if old else old
            replaced = step(value, operands)
            if replaced is not None:
                self._credit_all(replaced, value)
            elif operands == old and not (enters and value.attrs and subgraphs(value)):
                replaced = value
                self.credit(value, value)
                settled.add(value)
            else:
                replaced = self._same(value, operands)
                self.credit(replaced, value)
                settled.add(replaced)
            new[value] = replaced
        return new

    def _credit_all(self, replaced: Value, *old: Value) -> None:
        """Credit all new values of a replacement with the origins of the old ones."""
        if not self.old_origins:  # otherwise inlining a body walks everything that its operands are computed from
            return
        fresh = {replaced: None}
        stack = [replaced]
        while stack:
            value = stack.pop()
            if value not in self.settled:
                self.settled.add(value)
                fresh[value] = None
                stack.extend(value.operands)
        for value in fresh:
            self.credit(value, *old)

    def _same(self, value: Value, operands: tuple[Value, ...]) -> Value:
        if self.into_subgraphs and value.attrs and subgraphs(value):
            return make(value.op, operands, {k: self._inside(a) for k, a in value.attrs.items()})
        if value.op is leaf.ITEM and operands[0].op is leaf.PACK:
            return leaf.item(operands[0], value.attrs["index"])
        return value.with_operands(operands)

    def _inside(self, attr: Any) -> Any:
        """Return an attribute with its sub-graphs rebuilt."""
        if isinstance(attr, Subgraph):
            if attr not in self.bodies:
                new = self.run(attr.results)
                self.bodies[attr] = Subgraph(attr.arguments, tuple(new[v] for v in attr.results))
            return self.bodies[attr]
        if isinstance(attr, tuple):
            return tuple([self._inside(item) for item in attr])  # pyright: ignore[reportUnknownVariableType]
        return attr

    def credit(self, new: Value, *old: Value) -> None:
        """Let the new value answer for the origins of the old ones too."""
        if not self.old_origins:
            return
        origins = [o for one in old if (o := self.old_origins.get(one))]
        if origins:
            known = self.origins.get(new)
            self.origins[new] = (
                origins[0] if known is None and len(origins) == 1 else origin.merge(known or (), *origins)
            )

    def demand(self, outputs: Sequence[Value], roots: Mapping[Value, Replacement]) -> dict[Value, Value]:
        """Build what is needed: a replaced root needs what its replacement reads, not its old operands."""
        new: dict[Value, Value] = {}
        waiting: set[Value] = set()
        settled = self.settled
        stack = list(reversed(outputs))
        while stack:
            value = stack[-1]
            if value in new:
                stack.pop()
                continue
            root = roots.get(value)
            old = value.operands if root is None else root.needs
            pending = [v for v in old if v not in new] if old else None
            if pending:
                if value in waiting:
                    raise CyclicReplacementError(next(v for v in reversed(stack) if v in roots and v in waiting))
                waiting.add(value)
                pending.reverse()
                stack += pending
                continue
            stack.pop()
            if root is None:
                operands = tuple([new[v] for v in old]) if old else old
                same = new[value] = value if operands == old else self._same(value, operands)
                self.credit(same, value)
                settled.add(same)
            else:
                new[value] = root.build(new.__getitem__)
                self._credit_all(new[value], *root.covers, value)
        return new

    def kept(self, outputs: Iterable[Value]) -> dict[Value, tuple[Origin, ...]]:
        """Return the origins of what is still reachable; a sub-graph that was not entered keeps its own."""
        origins: dict[Value, tuple[Origin, ...]] = {}
        if not self.old_origins:
            return origins
        for value in walk_into(outputs):
            known = self.origins.get(value) or self.old_origins.get(value)
            if known:
                origins[value] = known
        return origins
