"""What was chosen, as a graph: built from the chosen nodes, with everything that was swallowed followed to its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from dovetail.derive.fuse import Fused
from dovetail.derive.missed import Applied
from dovetail.derive.near import Round
from dovetail.egraph.engine import EGraph
from dovetail.egraph.extract import Extraction
from dovetail.egraph.problem import Problem
from dovetail.egraph.proof import Application, Step
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.rewrite import Replacement, replace_roots
from dovetail.ir.value import Value


@dataclass
class Selection:
    """The node that was chosen for each class, by what stands for the class; operands before readers."""

    egraph: EGraph
    nodes: dict[Value, Value]
    built: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """The values of the new graph, by what stands for their classes."""

    def fused(self, graph: Graph, fused: Fused, joined: Fused) -> Fused:
        """The graph of the chosen nodes; what greedy fusion missed is missed here too unless it is one kernel now."""
        owners = self._owners()
        swallowed: dict[Value, list[Value]] = {}
        for value in graph.values:
            owner = owners.get(self.egraph.find(value))
            if owner is not None:
                swallowed.setdefault(owner, []).append(value)
        roots = self._replacements(graph, swallowed)
        result = replace_roots(graph, roots)
        for leader in self.nodes:
            self.built.setdefault(leader, result.moved.get(leader, leader))
        moved = self._moved(graph.values, owners)
        greedy = {**self._moved(fused.graph.values, owners), **self._moved(joined.graph.values, owners)}
        missed = tuple(m.follow(greedy) for m in (*fused.missed, *joined.missed))
        rounds = (*fused.rounds, Round(joined.graph, (), greedy))
        return Fused(replace(result, moved=moved), self._applied(), missed, rounds)

    def explain(self, leader: Value) -> list[Step]:
        """The chain of applications from the value that stands for a class to the node that was chosen for it."""
        return self.egraph.explain(leader, self.nodes[leader])

    def _replacements(self, graph: Graph, swallowed: dict[Value, list[Value]]) -> dict[Value, Replacement]:
        roots: dict[Value, Replacement] = {}
        given = set(graph.values)
        for leader, node in self.nodes.items():
            if node is not leader or leader not in given:
                # What rules alone have made answers for all that they looked at.
                seen = () if leader in given else (v for a in self._chain(node, whole=True) for v in a.covers)
                covers = tuple(dict.fromkeys([*swallowed.get(leader, ()), *(v for v in seen if v in given)]))
                roots[leader] = Replacement(node.operands, _Build(leader, node, self.built), covers)
        for value in graph.outputs.values():
            leader = self.egraph.find(value)
            if value is not leader:
                roots[value] = Replacement((leader,), lambda new, leader=leader: new(leader))
        return roots

    def _owners(self) -> dict[Value, Value]:
        """For each class that is not computed any more, the class whose chosen node has swallowed it."""
        found: dict[Value, Value] = {}
        for leader, node in reversed(self.nodes.items()):
            for application in self._chain(node):
                for value in application.covers:
                    inner = self.egraph.find(value) if value in self.egraph else value
                    if inner not in self.nodes:
                        found.setdefault(inner, leader)
        return found

    def _chain(self, node: Value, *, whole: bool = False) -> list[Application]:
        """The applications that led to a node: its own, then those that made what it swallowed, or all it looked at."""
        found: dict[Application, None] = {}
        waiting = [node]
        while waiting:
            application = self.egraph.made_by.get(waiting.pop())
            if application is not None and application not in found:
                found[application] = None
                waiting += [v for v in application.covers if whole or self._is_inner(v, application)]
        return list(found)

    def _is_inner(self, value: Value, application: Application) -> bool:
        return value is application.root or value not in self.egraph or self.egraph.find(value) not in self.nodes

    def _moved(self, values: Iterable[Value], owners: dict[Value, Value]) -> dict[Value, Value]:
        """Where values are now: what was built for their class, or for the class that has swallowed theirs."""
        moved: dict[Value, Value] = {}
        for value in values:
            if value in self.egraph:
                leader = self.egraph.find(value)
                now = self.built.get(leader) or self.built.get(owners.get(leader, leader))
                if now is not None and now is not value:
                    moved[value] = now
        return moved

    def _applied(self) -> tuple[Applied, ...]:
        found: dict[Application, Applied] = {}
        # Of several nodes that one application made, the last is what it was for.
        for leader, node in reversed(self.nodes.items()):
            if node.op is not leaf.ITEM:
                for a in self._chain(node):
                    found.setdefault(a, Applied(a.rule, a.variant, a.root, a.covers, self.built[leader]))
        return tuple(reversed(found.values()))


@dataclass(frozen=True, slots=True)
class _Build:
    """Builds the chosen node of a class out of new operands."""

    leader: Value
    node: Value
    built: dict[Value, Value]

    def __call__(self, new: Callable[[Value], Value]) -> Value:
        operands = tuple([new(v) for v in self.node.operands])
        if self.node.op is leaf.ITEM:
            value = leaf.item(operands[0], self.node.attrs["index"])
        else:
            value = self.node.with_operands(operands)
        self.built[self.leader] = value
        return value


def selection_of(egraph: EGraph, problem: Problem, found: Extraction) -> Selection:
    """The chosen nodes of the classes that are needed."""
    nodes: dict[Value, Value] = {}
    for c in problem.live(found.picks):
        node = problem.options[c][found.picks[c]].node
        assert node is not None
        nodes[problem.names[c]] = node
    return Selection(egraph, nodes)


def names_of(steps: Sequence[Step]) -> tuple[str, ...]:
    """The rules of a chain, in order."""
    return tuple(step.application.name for step in steps)
