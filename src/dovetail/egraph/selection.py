"""What was chosen, as a graph: built from the chosen nodes, with all that was swallowed followed to its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import field, replace
from functools import cached_property

from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.derive.edit import CONGRUENCE, Edit, Numerics
from dovetail.derive.fuse import Fused
from dovetail.derive.missed import Applied, Missed
from dovetail.derive.near import Round, near_misses
from dovetail.egraph.engine import EGraph
from dovetail.egraph.extract import Extraction
from dovetail.egraph.fold import Copy, Fold
from dovetail.egraph.problem import Problem
from dovetail.egraph.proof import STRICTNESS, Application, Step
from dovetail.ir import leaf
from dovetail.ir.rewrite import Replacement, replace_roots
from dovetail.ir.value import Value


@dataclass
class Selection:
    """The node that was chosen for each class, by what stands for the class; operands before readers.

    They are nodes of a graph that may be folded: what they are in the whole graph, its stretches say.
    """

    egraph: EGraph
    nodes: dict[Value, Value]
    fold: Fold
    built: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """The values of the new graph, by what stands for their classes in the whole graph."""

    def fused(self, missed: Sequence[Missed]) -> Fused:
        """Return the whole graph of the chosen nodes; a miss stays a miss unless it is one kernel now."""
        self.fold.check(self.nodes)
        graph, owners = self.fold.whole, self._owners()
        result = replace_roots(graph, self._replacements(owners))
        for copy, leader, _ in self._copied():
            there = copy.move(leader)
            self.built.setdefault(there, result.moved.get(there, there))
        moved = self._moved(owners)
        return Fused(replace(result, moved=moved), self._applied(), tuple(self._copied_misses(missed, owners)))

    def near_misses(self, rounds: Sequence[Round]) -> list[Missed]:
        """Return what fits but for one op in rounds of greedy fusion over the folded graph, in every stretch of the
        whole.
        """
        applied = [
            Applied(a.rule, a.variant, a.root, a.covers, node)
            for node in self.nodes.values()
            if node.op is not leaf.ITEM
            for a in self._chain(node)
        ]
        return list(self._copied_misses(near_misses(rounds, applied), self._owners()))

    def explain(self, leader: Value) -> list[Step]:
        """Return the chain of applications from the value that stands for a class to the node chosen for it."""
        return self.egraph.explain(leader, self.nodes[leader])

    def explain_at(self, position: int) -> list[Step]:
        """Return the chain for the replacement of a value of the whole graph, in values of that graph."""
        copy, value = self.fold.homes[position]
        leader = self.egraph.find(value)
        if leader not in self.nodes:
            leader = self._owners().get(leader, leader)
        steps = self.egraph.explain(value, leader) if self.egraph.find(value) is leader else []
        steps += self.explain(leader) if leader in self.nodes else []
        return [Step(s.application, copy.move(s.before), copy.move(s.after)) for s in dict.fromkeys(steps)]

    def edits(self) -> Iterator[Edit]:
        """Yield the choice as edits of the whole graph, each with the applications that prove it."""
        roots = self._replacements(self._owners())
        proofs: dict[Value, list[Step]] = {}
        for copy, leader, node in self._copied():
            old, new = copy.move(leader), copy.move(node)
            root = roots.pop(old, None)
            if root is not None:
                steps = proofs.get(leader)
                if steps is None:
                    steps = proofs[leader] = self.explain(leader)
                yield _edit(old, new, copy, steps, root)
        for old, root in roots.items():
            copy, value = self.fold.homes[self._position(old)]
            steps = self.egraph.explain(value, self.egraph.find(value))
            yield _edit(old, root.needs[0], copy, steps, root)

    def _copied(self) -> Iterator[tuple[Copy, Value, Value]]:
        """Yield every stretch with what stands for its classes and the nodes that were chosen there."""
        own: dict[tuple[int, int], list[tuple[Value, Value]]] = {}
        for copy in self.fold.copies:
            span = (copy.start, copy.stop)
            if span not in own:
                own[span] = [(leader, node) for leader, node in self.nodes.items() if copy.owns(leader)]
            for leader, node in own[span]:
                yield copy, leader, node

    def _replacements(self, owners: dict[Value, Value]) -> dict[Value, Replacement]:
        swallowed: dict[Value, list[Value]] = {}
        for value in self.fold.place:
            owner = owners.get(self.egraph.find(value)) if value in self.egraph else None
            if owner is not None:
                swallowed.setdefault(owner, []).append(value)
        seen: dict[Value, list[Value]] = {}
        roots: dict[Value, Replacement] = {}
        for copy, leader, node in self._copied():
            old, new = copy.move(leader), copy.move(node)
            is_new = leader not in self.fold.place
            if new is not old or is_new:
                # The root's own words come first.
                covers = [*([] if is_new else [leader]), *reversed(swallowed.get(leader, []))]
                if is_new:
                    # What rules alone have made answers for all that they looked at.
                    covers = seen.get(leader) or seen.setdefault(leader, [*covers, *self._looked_at(node)])
                there = tuple([copy.move(v) for v in covers])
                roots[old] = Replacement(new.operands, _Build(old, new, self.built), there)
        for at in dict.fromkeys(map(self._position, self.fold.whole.outputs.values())):
            copy, value = self.fold.homes[at]
            old, leader = self.fold.whole.values[at], copy.move(self.egraph.find(value))
            if old is not leader:
                roots[old] = Replacement((leader,), _reading(leader))
        return roots

    @cached_property
    def _positions(self) -> dict[Value, int]:
        return {v: i for i, v in enumerate(self.fold.whole.values)}

    def _position(self, value: Value) -> int:
        return self._positions[value]

    def _looked_at(self, node: Value) -> list[Value]:
        """Return the values of the graph as written that the rules matched that led to a node."""
        covers = dict.fromkeys(v for a in self._chain(node, whole=True) for v in a.covers)
        return [v for v in covers if v in self.fold.place]

    def _owners(self) -> dict[Value, Value]:
        """Return for each class that is not computed any more the class whose chosen node has swallowed it."""
        owners: dict[Value, Value] = {}
        # The first reader has it; work on weights on the way has swallowed nothing that a run computes.
        for leader, node in sorted(self.nodes.items(), key=lambda item: self.egraph.is_constant(item[0])):
            for application in self._chain(node):
                for value in application.covers:
                    inner = self.egraph.find(value) if value in self.egraph else value
                    if inner not in self.nodes:
                        owners.setdefault(inner, leader)
        return owners

    def _chain(self, node: Value, *, whole: bool = False) -> list[Application]:
        """Return the applications that led to a node: its own, then those that made what it swallowed, or all it
        matched.
        """
        chain: dict[Application, None] = {}
        waiting = [node]
        while waiting:
            application = self.egraph.producers.get(waiting.pop())
            if application is not None and application not in chain:
                chain[application] = None
                waiting += [v for v in application.covers if whole or self._is_inner(v, application)]
        return list(chain)

    def _is_inner(self, value: Value, application: Application) -> bool:
        return value is application.root or value not in self.egraph or self.egraph.find(value) not in self.nodes

    def _home(self, value: Value, owners: dict[Value, Value]) -> Value | None:
        """Return the class that computes a value of the folded graph: its own, or the one that has swallowed it."""
        if value not in self.egraph:
            return None
        leader = self.egraph.find(value)
        return leader if leader in self.nodes else owners.get(leader)

    def _moved(self, owners: dict[Value, Value]) -> dict[Value, Value]:
        moved: dict[Value, Value] = {}
        for at, old in enumerate(self.fold.whole.values):
            copy, value = self.fold.homes[at]
            home = self._home(value, owners)
            now = None if home is None else self.built.get(copy.move(home))
            if now is not None and now is not old:
                moved[old] = now
        return moved

    def _copied_misses(self, missed: Iterable[Missed], owners: dict[Value, Value]) -> Iterator[Missed]:
        """Yield the misses of the folded graph in every stretch that they are part of; not those that are one kernel
        now.
        """
        swallowed = self._swallowed()
        placed = [(m, self._homes(m, owners)) for m in missed if not self._is_settled(m, swallowed)]
        open_ = [(miss, homes) for miss, homes in placed if None in homes or len(set(homes)) > 1]
        own: dict[tuple[int, int], list[tuple[Missed, list[Value | None]]]] = {}
        for copy in self.fold.copies:
            span = (copy.start, copy.stop)
            if span not in own:
                own[span] = [(miss, homes) for miss, homes in open_ if copy.owns(miss.root)]
            for miss, homes in own[span]:
                here = _moved_miss(copy, miss)
                now = [None if h is None else self.built.get(copy.move(h)) for h in homes]
                yield replace(here, now=tuple([v if n is None else n for v, n in zip(here.covers, now, strict=True)]))

    def _swallowed(self) -> set[Value]:
        """Return the nodes that chosen fusions have swallowed."""
        nodes: set[Value] = set()
        for node in self.nodes.values():
            for application in self._chain(node):
                fuses = isinstance(application.result.op, FusedOp)
                # What only rewrites its root leaves it to be fused.
                inner = [v for v in application.covers if fuses or v is not application.root]
                nodes.update([self.egraph.canonical(v) for v in inner if v in self.egraph])
        return nodes

    def _is_settled(self, miss: Missed, swallowed: Set[Value]) -> bool:
        """Return whether the rule was applied at the root after all, or a chosen fusion has swallowed the root."""
        if miss.root not in self.egraph:
            return False
        node = self.nodes.get(self.egraph.find(miss.root))
        fused = node is not None and any(a.rule == miss.rule for a in self._chain(node))
        return fused or self.egraph.canonical(miss.root) in swallowed

    def _homes(self, miss: Missed, owners: dict[Value, Value]) -> list[Value | None]:
        """Return for each value that a miss covers the class that computes it, or has swallowed it."""
        homes: list[Value | None] = []
        for cover, moved in zip(miss.covers, miss.values, strict=True):
            # What greedy fusion has swallowed may be a kernel of its own here.
            alone = cover in self.egraph and self.egraph.find(cover) in self.nodes
            homes.append(self._home(cover if alone else moved, owners))
        return homes

    def _applied(self) -> tuple[Applied, ...]:
        chains: dict[Value, list[Application]] = {}
        applied_: list[Applied] = []
        taken: set[tuple[str, Value, tuple[Value, ...]]] = set()
        # Of several nodes that one application made, the last is what it was for.
        for copy, leader, node in reversed(list(self._copied())):
            if node.op is leaf.ITEM:
                continue
            if leader not in chains:
                chains[leader] = self._chain(node)
            for a in chains[leader]:
                root, covers = copy.move(a.root), tuple(map(copy.move, a.covers))
                if (a.name, root, covers) not in taken:
                    taken.add((a.name, root, covers))
                    applied_.append(Applied(a.rule, a.variant, root, covers, self.built[copy.move(leader)]))
        return tuple(reversed(applied_))


def _moved_miss(copy: Copy, miss: Missed) -> Missed:
    """Return a miss of the folded graph as it is in a stretch of the whole."""
    move = copy.move
    return replace(
        miss,
        root=move(miss.root),
        covers=tuple(map(move, miss.covers)),
        caught={name: move(caught) if isinstance(caught, Value) else caught for name, caught in miss.caught.items()},
        results=tuple(map(move, miss.results)),
        shared=tuple(map(move, miss.shared)),
        between=tuple(map(move, miss.between)),
        place=None if miss.place is None else move(miss.place),
    )


def _edit(old: Value, new: Value, copy: Copy, steps: Sequence[Step], root: Replacement) -> Edit:
    """Return a choice in a stretch of the whole graph; the rule that comes last names it, and all prove it."""
    proof: list[Edit] = []
    for step in steps:
        a = step.application
        proof.append(Edit(a.rule, a.variant, a.numerics, (copy.move(step.before),), (copy.move(step.after),)))
    classes: list[Numerics] = ["exact", *(edit.numerics for edit in proof)]
    numerics = max(classes, key=STRICTNESS.__getitem__)
    rule, variant = (proof[-1].rule, proof[-1].variant) if proof else (CONGRUENCE, "")
    return Edit(rule, variant, numerics, (old,), (new,), root.needs, root.covers, proof=tuple(proof))


def _reading(leader: Value) -> Callable[[Callable[[Value], Value]], Value]:
    """Builds nothing: what another class has become is read."""
    return lambda new: new(leader)


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


def selection_of(egraph: EGraph, problem: Problem, extraction: Extraction, fold: Fold) -> Selection:
    """Return the chosen nodes of the classes that are needed."""
    nodes: dict[Value, Value] = {}
    for c in problem.live(extraction.picks):
        node = problem.options[c][extraction.picks[c]].node
        assert node is not None
        nodes[problem.names[c]] = node
    return Selection(egraph, nodes, fold)
