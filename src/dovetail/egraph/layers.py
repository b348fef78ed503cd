"""Layers: the stretches of a graph that repeat, and the pieces that it is solved in.

A piece is seen through a window that begins before it, so that no cut is in the way of a pattern. Windows are compared
by everything that a rule can see: ops, attributes, types, constness, aliasing, and how often each value is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dovetail.egraph.engine import is_early
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value, attrs_key, make

_SHORTEST = 6
"""Stretches that repeat are at least so long; shorter ones are as quickly solved."""
_GRAM = 5
_CANDIDATES = 6
_HALO = 100
"""How many values before a piece its window shows at least; patterns reach less far."""


class Run(NamedTuple):
    """A stretch that repeats: where it begins, how long it is, how often it stands there."""

    start: int
    period: int
    count: int


class Piece(NamedTuple):
    """Positions of a graph that are solved together, and where their window begins."""

    window: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What a window shows, in full, and the values outside that it reads, in the order in which they are met."""

    key: Hashable
    given: tuple[int, ...]


class Layers:
    """A graph as a row of values: what each looks like, what it reads, and which stretches repeat."""

    def __init__(self, graph: Graph) -> None:
        self.values = graph.values
        self.position = {v: i for i, v in enumerate(self.values)}
        self.reads = [tuple([self.position[v] for v in value.operands]) for value in self.values]
        uses = graph.uses
        self.uses = [uses.count(v) for v in self.values]
        known: dict[Hashable, int] = {}
        self.looks = [known.setdefault(_look(v), len(known)) for v in self.values]
        early: set[Value] = set()
        for value in self.values:
            if is_early(value, early):
                early.add(value)
        self.early = [v in early for v in self.values]

    def pieces(self) -> list[Piece]:
        """The graph cut at the borders of what repeats."""
        cuts: list[tuple[int, int]] = []
        for run in runs(self.looks):
            # The first windows of a run show what stands before it: where none comes after them, nothing is saved.
            if run.period * (run.count - 1) <= max(run.period, _HALO) + run.period:
                continue
            cuts += [(run.start + k * run.period, run.period) for k in range(run.count + 1)]
        borders = dict(sorted([(0, 0), *cuts]))
        starts = [s for s in borders if s < len(self.values)]
        stops = [*starts[1:], len(self.values)]
        halos = [max(borders[s], _HALO) for s in starts]
        return [Piece(max(a - halo, 0), a, b) for a, b, halo in zip(starts, stops, halos, strict=True)]

    def seen(self, piece: Piece) -> Seen:
        """What the window of a piece shows."""
        first = piece.window
        given: dict[int, int] = {}
        rows: list[tuple[int, int, tuple[int, ...]]] = []
        for at in range(first, piece.stop):
            refs = [r - first if r >= first else -1 - given.setdefault(r, len(given)) for r in self.reads[at]]
            rows.append((self.looks[at], self.uses[at], tuple(refs)))
        outside = tuple([self._outside(r) for r in given])
        return Seen((piece.start - first, outside, tuple(rows)), tuple(given))

    def _outside(self, at: int) -> Hashable:
        """What a window shows of a value that it is given: a constant is what it holds, wherever it stands."""
        value = self.values[at]
        return value if value.op is leaf.CONST else (value.type, self.early[at])

    def template(self, piece: Piece, seen: Seen) -> Template:
        """The window with stand-ins for everything that it is given."""
        standing: dict[int, Value] = {}
        for number, at in enumerate(seen.given):
            value, op = self.values[at], leaf.PARAM if self.early[at] else leaf.INPUT
            name = f"given.{number}"
            standing[at] = value if value.op is leaf.CONST else make(op, (), {"name": name, "type": value.type})
        for at in range(piece.window, piece.stop):
            value = self.values[at]
            if value.op is leaf.PARAM or value.op is leaf.INPUT:
                name = f"window.{at - piece.window}"
                standing[at] = make(value.op, (), {"name": name, "type": value.type})
            else:
                standing[at] = value.with_operands(tuple([standing[r] for r in self.reads[at]]))
        shown = [standing[at] for at in range(piece.window, piece.stop)]
        outside = [standing[at] for at in seen.given]
        uses = {v: self.uses[at] for at, v in zip(range(piece.window, piece.stop), shown, strict=True)}
        return Template(tuple(outside), tuple(shown), piece.start - piece.window, uses)

    def actual(self, piece: Piece, seen: Seen) -> list[Value]:
        """The values that the stand-ins of a template and its values stand for, in that order."""
        return [*(self.values[at] for at in seen.given), *self.values[piece.window : piece.stop]]


@dataclass(frozen=True, slots=True)
class Template:
    """A window without names: stand-ins for what it is given, then its values; those before `core` are its halo."""

    given: tuple[Value, ...]
    values: tuple[Value, ...]
    core: int
    uses: dict[Value, int]


def _look(value: Value) -> Hashable:
    """A value without its operands: constants by what they hold, parameters and inputs without their names."""
    op = value.op
    if op is leaf.CONST:
        return value
    if op is leaf.PARAM or op is leaf.INPUT:
        return (op, value.type)
    return (op, attrs_key(value.attrs), value.type)


def runs(looks: Sequence[int]) -> list[Run]:
    """The stretches that repeat at once, the longest first taken, in order. What is left between them is looked at again."""
    row = np.asarray(looks)
    found: list[Run] = []
    waiting = [(0, len(looks))]
    while waiting:
        start, stop = waiting.pop()
        run = _longest(row[start:stop])
        if run is not None:
            begins, ends = start + run.start, start + run.start + run.period * run.count
            found.append(Run(begins, run.period, run.count))
            waiting += [(start, begins), (ends, stop)]
    return sorted(found)


def _longest(row: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Run | None:
    """The run that covers most of a row."""
    best: Run | None = None
    for period in _periods(row.tolist()):
        same = np.concatenate(([False], row[:-period] == row[period:], [False]))
        edges = np.flatnonzero(same[1:] != same[:-1])
        for begins, ends in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            count = (ends - begins) // period + 1
            if count > 1 and (best is None or count * period > best.count * best.period):
                best = Run(begins, period, count)
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
