"""Layers: the stretches of a graph that repeat, and the pieces that it is solved in.

A piece is seen through a window that begins before it, so that no cut is in the way of a pattern. Windows are compared
by everything that a rule can see: ops, attributes, types, constness, aliasing, and how often each value is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.egraph.engine import is_early
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value, make

_SHORTEST = 6
"""Stretches that repeat are at least so long; shorter ones are as quickly solved."""
_GRAM = 5
"""Ops in a row by which stretches are recognised: fewer stand everywhere, more would hide short layers."""
_CANDIDATES = 6
"""Distances at which such rows repeat most often, of which the longest run is taken."""
_HALO = 48
"""How many values before a piece its window shows at least, in whole layers; patterns reach less far."""
_SMALL = 64
"""An expression of at most this many values shows wherever it is read: a mask, the angles of a rotation, a number."""


class Run(NamedTuple):
    """A stretch that repeats: where it begins, how long it is, how often it stands there."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.times


def halo_of(run: Run) -> int:
    """Return how far back the windows of a run go: whole layers, and enough of them."""
    return run.period * -(-_HALO // run.period)


class Piece(NamedTuple):
    """Positions of a graph that are solved together, and where their window begins."""

    window: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What a window shows, in full."""

    key: Hashable
    outside: tuple[int, ...]
    """The positions outside that it reads and does not show, in the order in which they are met."""
    shown: tuple[int, ...]
    """The positions that it shows: what is small and stands further back, the halo, the piece itself."""

    @property
    def stop(self) -> int:
        return self.shown[-1] + 1


@dataclass(frozen=True, slots=True)
class Template:
    """A window without names: stand-ins for outside reads, then its values; those before `core` are its halo."""

    outside: tuple[Value, ...]
    values: tuple[Value, ...]
    core: int
    uses: dict[Value, int]


class Layers:
    """A graph as a row of values: what each looks like, what it reads, and which stretches repeat."""

    def __init__(self, graph: Graph, known: dict[Hashable, int] | None = None) -> None:
        """`known` numbers the looks of values; graphs that share it can be compared."""
        numbers: dict[Hashable, int] = {} if known is None else known
        self.values = _in_layers(graph)
        position = {v: i for i, v in enumerate(self.values)}
        self.reads = [tuple([position[v] for v in value.operands]) for value in self.values]
        uses = graph.uses
        self.uses = [uses.count(v) for v in self.values]
        self.looks = [numbers.setdefault(_look(v), len(numbers)) for v in self.values]
        early: set[Value] = set()
        self.sizes: list[int] = []
        for value, reads in zip(self.values, self.reads, strict=True):
            if is_early(value, early):
                early.add(value)
            self.sizes.append(min(1 + sum([self.sizes[r] for r in reads]), _SMALL + 1))
        self.early = [v in early for v in self.values]

    @cached_property
    def runs(self) -> list[Run]:
        """The stretches that repeat, in order."""
        return runs(self.looks)

    def pieces(self) -> list[Piece]:
        """Return the graph cut between the stretches that repeat, where the fewest values are handed over."""
        borders: dict[int, int] = {0: 0}
        for run in self.runs:
            # The first windows of a run show what stands before it: where none comes after them, nothing is saved.
            if run.period * (run.times - 1) > halo_of(run) + run.period and self._repeats(run):
                borders |= dict.fromkeys(self.cuts(run), halo_of(run))
        starts = [s for s in sorted(borders) if s < len(self.values)]
        stops = [*starts[1:], len(self.values)]
        return [Piece(max(a - borders[a], 0), a, b) for a, b in zip(starts, stops, strict=True)]

    def _repeats(self, run: Run) -> bool:
        """Return whether windows in the middle of a run look the same; the nodes of a tree of sums do not."""
        starts = self.cuts(run)
        at = starts[(len(starts) - 1) // 2]
        some, next_ = (Piece(max(a - halo_of(run), 0), a, a + run.period) for a in (at - run.period, at))
        return at + run.period <= run.stop and self.seen(some).key == self.seen(next_).key

    def cuts(self, run: Run) -> list[int]:
        """Return where the layers of a run begin and the last one ends: where the fewest values are handed over."""
        first = min(range(run.start, run.start + run.period), key=lambda at: (self.crossing[at + run.period], at))
        return list(range(first, run.stop + 1, run.period))

    @cached_property
    def crossing(self) -> list[int]:
        """For each position, how many values before it are read there or later."""
        last = list(range(len(self.values)))
        for at, reads in enumerate(self.reads):
            for r in reads:
                last[r] = at
        change = [0] * (len(self.values) + 2)
        for at, end in enumerate(last):
            change[at + 1] += 1
            change[end + 1] -= 1
        return list(accumulate(change))

    def seen(self, piece: Piece) -> Seen:
        """Return what the window of a piece shows."""
        before = self._small(piece)
        shown = (*before, *range(piece.window, piece.stop))
        number = {at: i for i, at in enumerate(shown)}
        outside_of: dict[int, int] = {}
        rows: list[tuple[int, int, tuple[int, ...]]] = []
        for at in shown:
            refs = [
                number[r] if r in number else -1 - outside_of.setdefault(r, len(outside_of)) for r in self.reads[at]
            ]
            rows.append((self.looks[at], self.uses[at], tuple(refs)))
        outside = tuple([(self.values[r].type, self.early[r]) for r in outside_of])
        return Seen((len(before) + piece.start - piece.window, outside, tuple(rows)), tuple(outside_of), shown)

    def _small(self, piece: Piece) -> list[int]:
        """Return what is small, comes before the window, and is read in it, with everything below it, in order."""
        positions: set[int] = set()
        stack = [r for at in range(piece.window, piece.stop) for r in self.reads[at] if r < piece.window]
        while stack:
            at = stack.pop()
            if at < piece.window and at not in positions and self.sizes[at] <= _SMALL:
                positions.add(at)
                stack.extend(self.reads[at])
        return sorted(positions)

    def template(self, seen: Seen, core: int) -> Template:
        """Return the window with stand-ins for the values that it reads from outside."""
        standing: dict[int, Value] = {}
        for number, at in enumerate(seen.outside):
            op = leaf.PARAM if self.early[at] else leaf.INPUT
            standing[at] = make(op, (), {"name": f"given.{number}", "type": self.values[at].type})
        for number, at in enumerate(seen.shown):
            value = self.values[at]
            if value.op is leaf.PARAM or value.op is leaf.INPUT:
                standing[at] = make(value.op, (), {"name": f"shown.{number}", "type": value.type})
            else:
                standing[at] = value.with_operands(tuple([standing[r] for r in self.reads[at]]))
        shown = tuple([standing[at] for at in seen.shown])
        uses = {v: self.uses[at] for at, v in zip(seen.shown, shown, strict=True)}
        return Template(tuple([standing[at] for at in seen.outside]), shown, core, uses)

    def actual(self, seen: Seen) -> list[Value]:
        """Return the values that the stand-ins of a template and its values stand for, in that order."""
        return [self.values[at] for at in (*seen.outside, *seen.shown)]


def _in_layers(graph: Graph) -> list[Value]:
    """Return the values, operands first, with sums of single numbers just before what reads them.

    The norm of all gradients is a tree of such sums. Its nodes would stand in each backward layer at another place.
    """
    late = {v for v in graph.values if _is_sum_of_numbers(v) and graph.uses.count(v) == 1}
    if not late:
        return graph.values
    order: list[Value] = []
    for value in graph.values:
        if value not in late:
            stack, sums = list(value.operands), [value]
            while stack:
                operand = stack.pop()
                if operand in late:
                    late.remove(operand)
                    sums.append(operand)
                    stack += operand.operands
            order += reversed(sums)
    return [*order, *(v for v in graph.values if v in late)]


def _is_sum_of_numbers(value: Value) -> bool:
    one = value.op is ops.add and value.rank == 0
    return one and all([operand.operands and operand.rank == 0 for operand in value.operands])


def _look(value: Value) -> Hashable:
    """Return a value without its operands: constants by their contents, parameters and inputs without their names."""
    op = value.op
    if op is leaf.CONST:
        return value
    if op is leaf.PARAM or op is leaf.INPUT:
        return (op, value.type)
    return (op, value.attrs_key, value.type)


def runs(looks: Sequence[int]) -> list[Run]:
    """Return the stretches that repeat, in order: take the longest first, then search what remains."""
    row = np.asarray(looks)
    stretches: list[Run] = []
    waiting = [(0, len(looks))]
    while waiting:
        start, stop = waiting.pop()
        run = _longest(row[start:stop])
        if run is not None:
            begins, ends = start + run.start, start + run.start + run.period * run.times
            stretches.append(Run(begins, run.period, run.times))
            waiting += [(start, begins), (ends, stop)]
    return sorted(stretches)


def _longest(row: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Run | None:
    """Return the run that covers most of a row."""
    best: Run | None = None
    for period in _periods(row.tolist()):
        same = np.concatenate(([False], row[:-period] == row[period:], [False]))
        edges = np.flatnonzero(same[1:] != same[:-1])
        for begins, ends in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            times = (ends - begins) // period + 1
            if times > 1 and (best is None or times * period > best.times * best.period):
                best = Run(begins, period, times)
    return best


def _periods(row: Sequence[int]) -> list[int]:
    """Distances at which short stretches come again, the most frequent first."""
    last: dict[tuple[int, ...], int] = {}
    distances: Counter[int] = Counter()
    for at in range(len(row) - _GRAM + 1):
        gram = tuple(row[at : at + _GRAM])
        if gram in last and at - last[gram] >= _SHORTEST:
            distances[at - last[gram]] += 1
        last[gram] = at
    ranked = sorted(distances.items(), key=lambda item: (-item[1] * item[0], item[0]))
    return [distance for distance, _ in ranked[:_CANDIDATES]]
