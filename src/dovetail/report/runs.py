"""Repeated runs: pieces of a drawing that come several times one behind the other, found by their structure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array

_MOST_PERIODS = 24
_SIDE = 0.2
"""The share of a drawing that may stand before the rest, because all of it is read all over."""
_LEAST_SPARED = 3
_SHARE = 250
"""A fold that hides fewer items than this, or a smaller share of all, is not worth a click."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to draw: what it looks like, how large it is, and which items it reads."""

    key: Hashable
    """Equal for items that look the same."""
    width: float
    height: float
    operands: tuple[int, ...]
    late: bool = False
    """Whether it is drawn right above its first reader, as what is bound or fed is."""


@dataclass(frozen=True, slots=True)
class Run:
    """`count` copies of `period` items each, from `start` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.count

    @property
    def spared(self) -> int:
        """The items that are hidden when it is folded."""
        return self.period * (self.count - 1)


def level_order(items: Sequence[Item]) -> list[int]:
    """The items by level, operands first, so that equal layers of a model follow each other in one order.

    What is read all over the drawing, as a mask is, goes before the rest, so that no layer differs by holding it.
    """
    level = [0] * len(items)
    for i, item in enumerate(items):
        if not item.late:
            level[i] = max((level[j] + 1 for j in item.operands if not items[j].late), default=0)
    first, last, readers = level[:], level[:], [0] * len(items)
    for i in range(len(items) - 1, -1, -1):
        if items[i].late and readers[i]:
            level[i] = first[i] - 1
        for j in items[i].operands:
            first[j] = level[i] if not readers[j] else min(first[j], level[i])
            last[j] = level[i] if not readers[j] else max(last[j], level[i])
            readers[j] += 1
    deep = max(level, default=0)
    shared = [i for i in range(len(items)) if readers[i] > 2 and last[i] - first[i] > deep / 3]
    early = _above(items, shared)
    return sorted(range(len(items)), key=lambda i: (i not in early, level[i], i))


def _above(items: Sequence[Item], shared: Iterable[int]) -> set[int]:
    """These items and all that they need; none of them where that is a large part of everything."""
    found = set(shared)
    pending = list(found)
    while pending:
        for j in items[pending.pop()].operands:
            if j not in found:
                found.add(j)
                pending.append(j)
    return found if len(found) <= len(items) * _SIDE else set()


def find_runs(items: Sequence[Item]) -> list[Run]:
    """Runs that do not overlap, in order; what spares most is taken first."""
    names: dict[Hashable, int] = {}
    keys = np.array([names.setdefault((item.key, len(item.operands)), len(names)) for item in items], np.int64)
    least = max(_LEAST_SPARED, len(items) // _SHARE)
    taken: list[Run] = []
    free = [(0, len(items))]
    while free:
        begin, end = free.pop()
        best = max(_candidates(items, keys, begin, end), key=lambda r: (r.spared, -r.period), default=None)
        if best is not None and best.spared >= least:
            taken.append(best)
            free += [(begin, best.start), (best.end, end)]
    return sorted(taken, key=lambda r: r.start)


def _candidates(items: Sequence[Item], keys: Array, begin: int, end: int) -> Iterable[Run]:
    """Stretches that look the same a period further on, and are wired alike."""
    here = keys[begin:end]
    for period in _periods(here):
        again = np.concatenate(([False], here[:-period] == here[period:], [False]))
        edges = np.flatnonzero(again[1:] != again[:-1])
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if stop - start >= period:
                yield from _proven(items, begin + start, begin + stop + period, period)


def _periods(keys: Array) -> list[int]:
    """Distances at which things come again, those that would explain most first."""
    order = np.argsort(keys, kind="stable")
    apart = np.diff(order)[np.diff(keys[order]) == 0]
    distances, counts = np.unique(apart, return_counts=True)
    ranked = np.lexsort((distances, -counts * distances))
    return distances[ranked[:_MOST_PERIODS]].tolist()


def _proven(items: Sequence[Item], begin: int, end: int, period: int) -> Iterable[Run]:
    """The runs inside a stretch whose looks repeat that are also wired alike."""
    start = begin + _seam(items, begin, end, period)
    at = start + period
    while at + period <= end:
        if _alike(items, start, at, period):
            at += period
            continue
        yield from _worth(Run(start, period, (at - start) // period))
        start, at = at, at + period
    yield from _worth(Run(start, period, (at - start) // period))


def _worth(run: Run) -> Iterable[Run]:
    return [run] if run.count > 1 and run.spared >= _LEAST_SPARED else []


def _seam(items: Sequence[Item], begin: int, end: int, period: int) -> int:
    """Where to cut between two copies: the last place that the fewest values cross, without losing a copy."""
    choices = (end - begin) % period
    fewest, best = None, 0
    for shift in range(choices + 1):
        cut = begin + shift + period
        behind = range(cut, min(cut + period, end))
        crossing = len({j for i in behind for j in items[i].operands if j < cut})
        if fewest is None or crossing <= fewest:
            fewest, best = crossing, shift
    return best


def _alike(items: Sequence[Item], start: int, at: int, period: int) -> bool:
    """Whether the copy at `at` reads as the one before it: the same outer item, or the one a period further on."""
    for i in range(at, at + period):
        for now, before in zip(items[i].operands, items[i - period].operands, strict=True):
            if now - before == period or now == before:
                continue
            # The first copy is fed from whatever stands before the run.
            if not (before < start and at - period == start and now < at):
                return False
    return True
