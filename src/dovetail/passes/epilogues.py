"""Epilogues and prologues: an elementwise region joins the kernel that it reads, or the kernel that reads it.

This happens after the fused ops are chosen. The target's claims say which kernels take which steps; the cost decides.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import field

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Prices, is_free
from dovetail.derive.edit import Log
from dovetail.derive.fuse import Fused
from dovetail.derive.missed import COST, Applied, Missed, declined_by_cost
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.inline import inline
from dovetail.ir.rewrite import Replacement, replace_roots
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops.region import anchor_of, region, steps
from dovetail.passes.claims import Anchor, Claims, Condition
from dovetail.passes.closed import Closed, closed, unviewed
from dovetail.passes.regions import weight_only

EPILOGUE, PROLOGUE = "epilogue", "prologue"
"""The names of the two rules, in reports."""
_MOST_ROUNDS = 8
"""A kernel that took steps in may take more: an epilogue after a prologue."""
_MOST_OFFERS = 8
"""Kernels that a value is offered to; the norm of all gradients reads hundreds, and each offer builds its body."""


@dataclass(frozen=True, slots=True)
class Join:
    """One kernel made of two: `after` stands in place of `roots`, one by one, and reads `needs`."""

    rule: str
    anchor: Value
    steps: Value
    region: Value
    roots: tuple[Value, ...]
    after: tuple[Value, ...]
    needs: tuple[Value, ...]
    covers: tuple[Value, ...]

    @property
    def label(self) -> str:
        """Who took how many steps in."""
        count = len(steps(closed(self.steps).body))
        return f"{anchor_name(self.anchor)}, {count} step{'s' if count > 1 else ''}"


def fuse_epilogues(
    graph: Graph, claims: Claims, *, sizes: Mapping[str, Size] | None = None, log: Log | None = None
) -> Fused:
    """The graph with every elementwise kernel inside the kernel before or after it where that is legal and cheaper."""
    applied: list[Applied] = []
    missed: tuple[Missed, ...] = ()
    prices, answers = Prices(claims.machine, sizes), dict[Hashable, bool]()
    for _ in range(_MOST_ROUNDS if claims.anchors else 0):
        search = _Search(graph, claims, prices, answers)
        joins = search.joins()
        missed = tuple(search.missed)
        if not joins:
            break
        graph, done = _apply(graph, joins, log)
        applied = [*(a.follow(graph.moved) for a in applied), *done]
    return Fused(graph, tuple(applied), missed)


def anchor_name(value: Value) -> str:
    """The op that decides which kernel a value is: that of its anchor, where it is a region."""
    inner = anchor_of(value.attrs["body"]) if value.op is region else None
    return value.op.name if inner is None else inner.op.name


def _apply(graph: Graph, joins: list[Join], log: Log | None) -> tuple[Graph, list[Applied]]:
    if log is not None:
        log.begin("roots")
    replacements: dict[Value, Replacement] = {}
    for join in joins:
        for root, after in zip(join.roots, join.after, strict=True):
            replacements[root] = Replacement(join.needs, _Build(after, join.needs), join.covers)
        if log is not None:
            log.replace(join.rule, join.label, "exact", join.roots, join.after, join.needs, join.covers)
    new = replace_roots(graph, replacements)
    kernels = {join.steps: new.moved.get(join.roots[0], join.roots[0]) for join in joins}
    done = [Applied(j.rule, j.label, j.roots[0], j.covers, kernels[j.steps]) for j in joins]
    return new, done


@dataclass(frozen=True, slots=True)
class _Build:
    """Builds what a join made out of new operands."""

    after: Value
    needs: tuple[Value, ...]

    def __call__(self, new: Callable[[Value], Value]) -> Value:
        built = {v: new(v) for v in self.needs}
        for value in walk([self.after], until=built):
            if value not in built:
                built[value] = value.with_operands(tuple([built[v] for v in value.operands]))
        return built[self.after]


@dataclass(slots=True)
class _Search:
    """Finds the joins of one round; a value takes part in one of them at most."""

    graph: Graph
    claims: Claims
    prices: Prices
    answers: dict[Hashable, bool]
    """What conditions said of kernels: those of equal layers, and those of earlier rounds, are asked about once."""
    missed: list[Missed] = field(default_factory=list[Missed])
    taken: set[Value] = field(default_factory=set[Value])

    def joins(self) -> list[Join]:
        static = weight_only(self.graph)
        place = {v: i for i, v in enumerate(self.graph.values)}
        found: list[Join] = []
        kernels = [v for v in self.graph.values if v not in static and _is_elementwise(v)]
        for offer in (self._epilogues, self._prologues):
            for value in kernels:
                if value in self.taken:
                    continue
                for join in offer(value, static, place):
                    if self._is_cheaper(join):
                        best = self._better_prologue(join, static, place) or join
                        self.taken |= {best.anchor, best.steps}
                        found.append(best)
                        break
        return found

    def _better_prologue(self, join: Join, static: set[Value], place: Mapping[Value, int]) -> Join | None:
        """The prologue that the steps of an epilogue may be instead, where its kernel would write both results."""
        if join.rule != EPILOGUE or len(join.roots) == 1:
            return None
        told = len(self.missed)
        offers = list(self._prologues(join.steps, static, place))
        del self.missed[told:]
        price = self.prices
        gains = {one: price([one.anchor, one.steps]) - price([one.region]) for one in (join, *offers)}
        best = max(gains, key=gains.__getitem__)
        return None if best is join else best

    def _is_cheaper(self, join: Join) -> bool:
        apart, together = self.prices([join.anchor, join.steps]), self.prices([join.region])
        if together < apart:
            return True
        self._miss(join, COST, declined_by_cost(together, apart))
        return False

    def _miss(self, join: Join, reason: str, message: str) -> None:
        covers = (join.steps, join.anchor) if join.rule == EPILOGUE else (join.anchor, join.steps)
        self.missed.append(Missed(join.rule, anchor_name(join.anchor), covers[0], covers, reason, message, ""))

    def _claimed(self, value: Value) -> Anchor | None:
        """What the target says of the kernel of a value that has one result and is used once already at most."""
        if value in self.taken or not isinstance(value.type, TensorType) or _is_elementwise(value):
            return None
        return self.claims.anchors.get(anchor_name(value))

    def _accepts(self, join: Join, conditions: tuple[Condition, ...]) -> bool:
        look = _look(join.region)
        refusal = next((c for c in conditions if not self._holds(c, join.region, look)), None)
        if refusal is not None:
            self._miss(join, refusal.name, refusal.reason)
        return refusal is None

    def _holds(self, condition: Condition, made: Value, look: Hashable) -> bool:
        found = self.answers.get((condition, look))
        if found is None:
            found = self.answers[condition, look] = condition.holds(made)
        return found

    def _epilogues(self, value: Value, static: set[Value], place: Mapping[Value, int]) -> Iterator[Join]:
        """The kernels that a value reads and that may take it in."""
        read = self._private_views(value)
        offers = [v for v in read.operands if v not in static and self._claimed(v) is not None]
        # A kernel whose result nobody else reads need not write it.
        for anchor in sorted(offers, key=lambda v: not self._is_private(v, read))[:_MOST_OFFERS]:
            claim = self._claimed(anchor)
            if claim is None or claim.epilogue is None:
                continue
            join = self._epilogue(value, read, anchor, place)
            if join is not None and self._accepts(join, claim.epilogue):
                yield join

    def _private_views(self, value: Value) -> Closed:
        """A kernel as a body that reads its operands where they were before views that only it looks through."""
        return closed(value, lambda v: self.graph.uses.count(v) == 1)

    def _is_private(self, anchor: Value, read: Closed) -> bool:
        uses = self.graph.uses
        return not uses.is_output(anchor) and all(r in read.covers for r in uses.readers[anchor])

    def _is_read_in_order(self, value: Value) -> bool:
        """Whether someone needs the elements in the order of the axes: then a permuted result would be copied."""
        uses = self.graph.uses
        return uses.is_output(value) or any(is_free(reader) for reader in uses.readers[value])

    def _is_donated(self, value: Value) -> bool:
        """Whether a value is computed in the memory of an input: a kernel of several results does not work in place."""
        return any(self.graph.outputs[name] is value for name in self.graph.donated)

    def _epilogue(self, value: Value, read: Closed, anchor: Value, place: Mapping[Value, int]) -> Join | None:
        private = self._is_private(anchor, read)
        others = [v for v in read.operands if v is not anchor]
        # Both results come at the anchor's place: whatever else is read has to be there by then.
        later = any(v.operands and place.get(v, 0) > place[anchor] for v in others)
        if not private and (later or self._is_donated(value)):
            return None
        seen = unviewed(read, anchor)
        if seen is None or (seen.views and not private) or (seen.reorders and self._is_read_in_order(value)):
            return None
        inner = closed(anchor)
        made = _region(seen.closed, anchor, inner, keep=not private)
        first = made if private else leaf.item(made, 0)
        after = (seen.outside(first),) if private else (first, leaf.item(made, 1))
        roots = (value,) if private else (value, anchor)
        needs = tuple(dict.fromkeys([*inner.operands, *others]))
        return Join(EPILOGUE, anchor, value, made, roots, after, needs, tuple(dict.fromkeys([*read.covers, anchor])))

    def _prologues(self, value: Value, static: set[Value], place: Mapping[Value, int]) -> Iterator[Join]:
        """The kernel that reads a value, and nothing else does, where it may take it in."""
        reader = value
        while self.graph.uses.count(reader) == 1 and not self.graph.uses.is_output(reader):
            (reader,) = self.graph.uses.readers[reader]
            claim = self._claimed(reader)
            if claim is not None and claim.prologue is not None:
                break
            if not is_free(reader):
                return
        else:
            return
        read = closed(reader, lambda v: self.graph.uses.count(v) == 1)
        if value not in read.operands:
            return
        inner = closed(value)
        made = _region(read, value, inner)
        covers = tuple(dict.fromkeys([*read.covers, value]))
        join = Join(PROLOGUE, reader, value, made, (reader,), (made,), made.operands, covers)
        if self._accepts(join, claim.prologue):
            yield join


def _look(made: Value) -> Hashable:
    """A region as conditions see it: what it computes, of operands of which kinds; weights are told from activations.

    Operands that are constants stand for themselves, and others for all of their op, attributes and type.
    """
    operands = [v if v.op is leaf.CONST else _kind(v) for v in made.operands]
    return (made.attrs_key, made.type, *operands)


def _kind(value: Value) -> Hashable:
    named = value.op is leaf.PARAM or value.op is leaf.INPUT
    return (value.op, None if named else value.attrs_key, value.type)


def _is_elementwise(value: Value) -> bool:
    """Whether its kernel does elementwise steps and nothing else, once."""
    if value.op is region:
        body: Subgraph = value.attrs["body"]
        return value.attrs["lanes"] == 1 and len(body.results) == 1 and anchor_of(body) is None
    return value.op.elementwise


def _region(reader: Closed, value: Value, inner: Closed, *, keep: bool = False) -> Value:
    """The body of a reader on top of that of a value it reads, which is a second result if it is kept."""
    operands = tuple(dict.fromkeys([*inner.operands, *(v for v in reader.operands if v is not value)]))
    given = {v: leaf.argument(i, v.tensor) for i, v in enumerate(operands)}
    below = inline(inner.body, [given[v] for v in inner.operands])
    above = inline(reader.body, [below[0] if v is value else given[v] for v in reader.operands])
    results = (*above, *below) if keep else above
    return region(Subgraph(tuple([v.tensor for v in operands]), results), operands)


__all__ = ["EPILOGUE", "PROLOGUE", "Join", "anchor_name", "fuse_epilogues"]
