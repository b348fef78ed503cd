"""An e-graph over values: classes of values that are known to be equal, closed under congruence.

Values are interned, so that they are their own hash-consed nodes: the node of an op on classes is the value of that op
on the values which stand for these classes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from dovetail.egraph.proof import Application, Proofs, Step
from dovetail.ir import leaf
from dovetail.ir.type import type_symbols
from dovetail.ir.value import Op, Value
from dovetail.ir.walk import walk

_ARGUMENTS: tuple[Op, ...] = (leaf.INPUT, leaf.ARGUMENT)


class EGraph:
    """Classes of equal values, each named by one of its values. After unions call `rebuild` before anything is read."""

    def __init__(self, uses: Mapping[Value, int] | None = None) -> None:
        self.uses: Mapping[Value, int] = uses or {}
        self.proofs = Proofs()
        self.producers: dict[Value, Application] = {}
        """Nodes that were not given, with the application that made them."""
        self._leader: dict[Value, Value] = {}
        self._nodes: dict[Value, list[Value]] = {}
        self._readers: dict[Value, list[Value]] = {}
        self._age: dict[Value, int] = {}
        self._constant: set[Value] = set()
        self._stale: list[list[Value]] = []
        self.size = 0
        """How many nodes were ever added."""
        self.ops: set[Op] = set()
        """What they are of."""

    def __contains__(self, value: Value) -> bool:
        return value in self._leader

    def find(self, value: Value) -> Value:
        """Return the value that stands for the class of a value."""
        leader = self._leader
        above = leader[value]
        while above is not value:
            leader[value] = above = leader[above]
            value, above = above, leader[above]
        return value

    def equal(self, value: Value) -> Sequence[Value]:
        """Return the nodes of the class of a value: each is an op on values that stand for classes."""
        nodes = self._nodes.get(value)
        if nodes is None:
            nodes = self._nodes[self.find(value)] if value in self._leader else (value,)
        return nodes

    def is_constant(self, value: Value) -> bool:
        """Return whether it can be computed when parameters are bound."""
        return self.find(value) in self._constant

    def count_uses(self, value: Value) -> int:
        """Return how often the graph as written reads the values of its class; values that rules made count as read
        once.
        """
        return self.uses.get(self.find(value), 1)

    @property
    def leaders(self) -> list[Value]:
        """What stands for the classes, the oldest first."""
        return list(self._nodes)

    @property
    def nodes(self) -> list[Value]:
        return [node for nodes in self._nodes.values() for node in nodes]

    def add(self, value: Value) -> Value:
        """Add a value and everything below it; what stands for its class is given back."""
        if value not in self._leader:
            for each in self._fresh(value):
                self._insert(each)
        return self.find(value)

    def _fresh(self, value: Value) -> list[Value]:
        """Return a value and everything below it that is not known yet, operands first."""
        known = self._leader
        if all([v in known for v in value.operands]):
            return [value]
        return [v for v in walk([value], until=known) if v not in known]

    def canonical(self, value: Value) -> Value:
        """Return a known value as a node: on the values that stand for the classes of its operands."""
        return value.with_operands(tuple([self.find(v) for v in value.operands]))

    def apply(self, application: Application) -> bool:
        """Add what an application gives and make it equal to its root; whether that was news."""
        self.add(application.root)
        result = application.result
        if result not in self._leader:
            known = self.size
            for value in self._fresh(result):
                size = self.size
                self._insert(value)
                if self.size > size:
                    self.producers[self.canonical(value)] = application
            if self.size == known and self.find(result) is self.find(application.root):
                return False
        return self.union(application.root, result, application)

    def union(self, one: Value, other: Value, why: Application | None) -> bool:
        """Make two known values equal. Values of different types never are."""
        kept, gone = self.find(one), self.find(other)
        if kept is gone or kept.type != gone.type:
            return False
        self.proofs.link(one, other, why)
        if self._rank(gone) < self._rank(kept):
            kept, gone = gone, kept
        self._leader[gone] = kept
        self._nodes[kept] += self._nodes.pop(gone)
        readers = self._readers.pop(gone)
        self._stale.append(readers)
        if (gone in self._constant) != (kept in self._constant):
            self._constant.add(kept)
            self._stale.append(self._readers[kept])
        self._readers[kept] = self._readers[kept] + readers
        return True

    def rebuild(self) -> None:
        """Close under congruence: the same op on equal operands is equal."""
        while self._stale:
            for reader in self._stale.pop():
                self._renew(reader)

    def explain(self, one: Value, other: Value) -> list[Step]:
        """Return the applications by which two values of one class are equal."""
        return self.proofs.explain(one, other)

    def _renew(self, reader: Value) -> None:
        home = self.find(reader)
        renewed = self.canonical(reader)
        if renewed is not reader:
            nodes = self._nodes[home]
            if reader in nodes:
                nodes.remove(reader)
            if renewed in self._leader:
                self.union(reader, renewed, None)
            else:
                self._leader[renewed] = home
                nodes.append(renewed)
                self.proofs.link(reader, renewed, None)
                self._note(renewed)
            if reader in self.producers:
                self.producers.setdefault(renewed, self.producers[reader])
            home = self.find(home)
        if home not in self._constant and is_early(renewed, self._constant):
            self._constant.add(home)
            self._stale.append(self._readers[home])

    def _insert(self, value: Value) -> None:
        node = self.canonical(value)
        if node not in self._leader:
            self._leader[node] = node
            self._nodes[node] = [node]
            self._readers[node] = []
            self._age[node] = self.size
            if is_early(node, self._constant):
                self._constant.add(node)
            self._note(node)
        if node is not value:
            self._leader[value] = self.find(node)
            self.proofs.link(value, node, None)

    def _note(self, node: Value) -> None:
        self.size += 1
        self.ops.add(node.op)
        for operand in dict.fromkeys(node.operands):
            self._readers[operand].append(node)

    def _rank(self, leader: Value) -> tuple[int, int]:
        """Constants stand for their classes, then leaves, then what came first."""
        kind = 0 if leader.op is leaf.CONST else 1 if not leader.operands else 2
        return (kind, self._age[leader])


def is_early(value: Value, constant: Container[Value]) -> bool:
    """Return whether parameters and constants alone decide it. A size that only an input has is known later."""
    if value.op in _ARGUMENTS or not all([v in constant for v in value.operands]):
        return False
    return not any(True for _ in type_symbols(value.type))


def egraph_of(values: Iterable[Value], uses: Mapping[Value, int] | None = None) -> EGraph:
    """Return an e-graph of these values and all below them, each in a class of its own."""
    egraph = EGraph(uses)
    for value in values:
        egraph.add(value)
    return egraph
