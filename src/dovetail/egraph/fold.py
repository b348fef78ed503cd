"""Folding: a model of many equal layers is decided as one of a few, and what was decided is copied to all.

Nothing is taken for granted: every layer that is left out must look like the one it is copied from, in full, hand on
its results in the same way, and the choice for that one must be the choice for the next one too, or nothing is folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from dovetail.dataclass import dataclass
from dovetail.egraph.layers import Layers, Piece, Run, Seen, halo_of
from dovetail.errors import GraphError
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.ir.walk import walk

_HEAD = 2
_TAIL = 2
"""How many of the equal layers stay at each end; the last of the head is the one that is copied."""


class UnfoldableError(GraphError):
    """A choice for a folded graph that cannot be carried over to the whole one."""


@dataclass(slots=True)
class Copy:
    """A stretch of the whole graph: which values of the folded graph are chosen for it, and what they are there."""

    start: int
    stop: int
    """Where the values of the folded graph stand that are its own; what rules made stands where its last part does."""
    fold: Fold
    now: dict[Value, Value]

    def owns(self, value: Value) -> bool:
        return self.fold.is_whole or self.start <= self.fold.place_of(value) < self.stop

    def move(self, value: Value) -> Value:
        """Return the value of this stretch that stands for a value of the folded graph."""
        if self.fold.is_whole:
            return value
        known = self.now.get(value)
        if known is None:
            for each in walk([value], until=_Both(self.now, self.fold.place)):
                if each not in self.now:
                    self.now[each] = self._moved(each)
            known = self.now[value]
        return known

    def _moved(self, value: Value) -> Value:
        place = self.fold.place.get(value)
        if place is None:
            return value.with_operands(tuple([self.now[v] for v in value.operands])) if value.operands else value
        if place >= self.fold.first and self is not self.fold.copies[0]:
            raise UnfoldableError("a layer was decided by what lies beyond the one before it")
        return value


@dataclass
class Fold:
    """A graph, the folded one that stands for it, and how the one becomes the other."""

    whole: Graph
    graph: Graph
    place: dict[Value, int]
    """The values of the folded graph, with their positions in the whole one."""
    first: int
    """Where the layers begin."""
    copies: list[Copy] = field(default_factory=list[Copy])
    next_layer: Copy | None = None
    """The first layer of the tail as if it were a copy too: the choice must be the same."""
    homes: list[tuple[Copy, Value]] = field(default_factory=list[tuple[Copy, Value]])
    """For each value of the whole graph: the stretch that it is in, and what stands for it in the folded graph."""
    _places: dict[Value, int] = field(default_factory=dict[Value, int])

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left out: then the only stretch is the graph itself."""
        return self.graph is self.whole

    def place_of(self, value: Value) -> int:
        """Return where a value is; for one that rules made, where its last part is."""
        known = self.place.get(value)
        if known is None:
            for each in walk([value], until=_Both(self._places, self.place)):
                if each not in self.place and each not in self._places:
                    self._places[each] = max([self.place_of(v) for v in each.operands], default=0)
            known = self._places[value]
        return known

    def check(self, nodes: Mapping[Value, Value]) -> None:
        """Check that the choice for the layer that is copied is also the choice for the next one."""
        if self.next_layer is None:
            return
        layer, after, tail = self.copies[1], self.next_layer, self.copies[-1]
        expected = {after.move(v): after.move(n) for v, n in nodes.items() if layer.owns(v)}
        next_nodes = {tail.move(v): tail.move(n) for v, n in nodes.items() if after.owns(v)}
        if expected != next_nodes:
            raise UnfoldableError("neighbouring layers were decided differently")


def unfolded(graph: Graph) -> Fold:
    """Return a graph that stands for itself."""
    fold = Fold(graph, graph, {v: i for i, v in enumerate(graph.values)}, 0)
    only = Copy(0, len(graph.values) + 1, fold, {})
    fold.copies.append(only)
    fold.homes = [(only, v) for v in graph.values]
    return fold


def folded(graph: Graph, layers: Layers | None = None) -> Fold | None:
    """Return the graph with all but a few of its equal layers left out; None where there are too few of them."""
    layers = layers or Layers(graph)
    longest_first = sorted(layers.runs, key=lambda run: -run.period * run.times)
    stretch = _stretch(layers, longest_first[0]) if longest_first else None
    if stretch is None:
        return None
    starts, seen, period = stretch
    begin, end = starts[_HEAD], starts[-_TAIL]
    short = _shortened(layers, starts[0], begin, end)
    return None if short is None else _fold(graph, layers, short, starts, seen, period)


def _stretch(layers: Layers, run: Run) -> tuple[list[int], list[Seen], int] | None:
    """Return where each layer begins, of the longest row of layers that look the same and hand on results in the same
    way.
    """
    starts = layers.cuts(run)
    windows = [Piece(max(at - halo_of(run), 0), at, at + run.period) for at in starts if at + run.period <= run.stop]
    seen = [layers.seen(window) for window in windows]
    best = (0, 0)
    since = 0
    for at in range(1, len(seen)):
        if seen[at].key != seen[at - 1].key or not _goes_on(seen, at, since, run.period):
            since = at
        best = max(best, (at + 1 - since, -since))
    length, begin = best[0], -best[1]
    # The window of the first shows what stands before the row.
    if length < _HEAD + _TAIL + 2:
        return None
    return starts[begin : begin + length], seen[begin : begin + length], run.period


def _goes_on(seen: Sequence[Seen], at: int, since: int, period: int) -> bool:
    """Return whether a layer reads what the one before it reads, one layer on, or the very same."""
    steps = [b - a for a, b in zip(_positions(seen[at - 1]), _positions(seen[at]), strict=True)]
    if any(step not in (0, period) for step in steps):
        return False
    return at - 1 == since or steps == [
        b - a for a, b in zip(_positions(seen[at - 2]), _positions(seen[at - 1]), strict=True)
    ]


def _positions(seen: Seen) -> tuple[int, ...]:
    return (*seen.outside, *seen.shown)


def _shortened(layers: Layers, first: int, begin: int, end: int) -> dict[int, Value] | None:
    """Return the values after the layers that are left out, which read the values before these instead."""
    shift = end - begin
    now: dict[int, Value] = {}
    for at in range(end, len(layers.values)):
        operands: list[Value] = []
        for r in layers.reads[at]:
            is_skip = first <= r < begin and bool(layers.reads[r])
            if is_skip or (begin <= r < end and r - shift < first):
                return None
            operands.append(now[r] if r >= end else layers.values[r - shift if r >= begin else r])
        now[at] = layers.values[at].with_operands(tuple(operands))
    return now


def _fold(
    graph: Graph, layers: Layers, short: dict[int, Value], starts: Sequence[int], seen: Sequence[Seen], period: int
) -> Fold | None:
    begin, end = starts[_HEAD], starts[-_TAIL]
    place = {v: at for at, v in enumerate(layers.values[:begin])}
    place |= {v: at for at, v in short.items()}
    position = {v: at for at, v in enumerate(layers.values)}
    outputs: dict[str, Value] = {}
    for name, value in graph.outputs.items():
        at = position[value]
        if not begin <= at < end:
            outputs[name] = short[at] if at >= end else value
    fold = Fold(graph, replace(graph, outputs=outputs, origins={}, moved={}, donated={}), place, starts[0])
    model = starts[_HEAD - 1]
    # A choice may look back as far as its window shows, and ahead to the next layer.
    ahead = [short[at] for at in range(end, end + period)]
    shown = [*layers.actual(seen[_HEAD - 1]), *ahead]
    head = Copy(0, begin, fold, _pairs(ahead, layers.values[begin : begin + period]))
    there = [_pairs(shown, [*layers.actual(s), *layers.values[s.stop : s.stop + period]]) for s in seen[_HEAD:-1]]
    middle = [Copy(model, model + period, fold, now) for now in there[: 1 - _TAIL]]
    shift = end - begin
    behind = {layers.values[r - shift]: layers.values[r] for r in range(begin, end) if r - shift >= starts[0]}
    behind |= {v: layers.values[at] for at, v in short.items()}
    tail = Copy(end, len(layers.values) + 1, fold, behind)
    fold.copies = [head, *middle, tail]
    fold.next_layer = Copy(end, end + period, fold, there[1 - _TAIL])
    homes = [(head, v) for v in layers.values[:begin]]
    for copy in middle:
        homes += [(copy, v) for v in layers.values[model : model + period]]
    homes += [(tail, short[at]) for at in range(end, len(layers.values))]
    # Layers may have the values in another order than the graph.
    fold.homes = [homes[position[v]] for v in graph.values]
    return fold


def _pairs(some: Iterable[Value], others: Iterable[Value]) -> dict[Value, Value]:
    return dict(zip(some, others, strict=True))


class _Both:
    """Whether something is in one of two tables."""

    def __init__(self, one: Mapping[Value, object], other: Mapping[Value, object]) -> None:
        self._one = one
        self._other = other

    def __contains__(self, value: object) -> bool:
        return value in self._one or value in self._other
