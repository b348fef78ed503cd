"""The layout of a whole drawing: bands one below the other, each a layered drawing; repeated bands are drawn once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.report.html.layers import Box, Drawing, Wire, draw, mirrored
from dovetail.report.runs import Item, Run, find_runs, level_order

GAP = 26.0
LANE = 42.0
_ROUNDS = ((1000, 10), (3000, 6), (6000, 3))
_FEWEST = 2
"""How often a drawing of so many items is gone over; larger ones are seen from afar anyway."""
_MOST_PORTS = 60
_DEEPEST = 40
"""Rows of a band; what is deeper is cut, so that no wire is led past more than that."""


@dataclass(frozen=True, slots=True)
class Band:
    """A piece of the drawing, `run.count` times. Numbers in wires count from the start of a copy.

    -1, -2, … are the entries, where values come in from above; the exits count on behind the items.
    """

    run: Run
    drawing: Drawing
    entries: tuple[tuple[tuple[int, int], ...], ...]
    """For each entry the item and the operand of it that come in there."""
    exits: tuple[int, ...]
    """The items whose values are read further down."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Items in the order in which they are drawn, cut into bands."""

    order: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    """By place in the order, as places in it."""
    bands: tuple[Band, ...]


def lay_out(items: Sequence[Item], *, lane: float = LANE) -> Layout:
    """Place the items; the time is linear in items and wires but for sorting."""
    order = level_order(items)
    place = {item: at for at, item in enumerate(order)}
    ordered = [_moved(items[i], place) for i in order]
    pieces = list(_pieces(ordered, find_runs(ordered)))
    last = _last_readers(ordered)
    drawn = sum(run.period for run in pieces)
    rounds = next((rounds for most, rounds in _ROUNDS if drawn <= most), _FEWEST)
    bands: list[Band] = []
    for run in pieces:
        band = _band(ordered, run, last, lane, rounds)
        bands.append(_turned(band, bands[-1], ordered) if bands else band)
    return Layout(tuple(order), tuple([item.operands for item in ordered]), tuple(bands))


def _moved(item: Item, place: Mapping[int, int]) -> Item:
    return Item(item.key, item.width, item.height, tuple([place[j] for j in item.operands]), item.late)


def _pieces(items: Sequence[Item], runs: Sequence[Run]) -> Iterable[Run]:
    """The runs, and what lies between them in pieces that are not too deep."""
    at = 0
    for run in (*runs, Run(len(items), 1, 0)):
        yield from _cut(items, at, run.start)
        if run.count:
            yield run
        at = run.end


def _cut(items: Sequence[Item], begin: int, end: int) -> Iterable[Run]:
    start = begin
    depth: dict[int, int] = {}
    for i in range(begin, end):
        depth[i] = max((depth[j] + 1 for j in items[i].operands if j >= start), default=0)
        if depth[i] >= _DEEPEST:
            yield Run(start, i - start, 1)
            start = i
            depth = {i: 0}
    if start < end:
        yield Run(start, end - start, 1)


def _last_readers(items: Sequence[Item]) -> list[int]:
    last = [-1] * len(items)
    for i, item in enumerate(items):
        for j in item.operands:
            last[j] = max(last[j], i)
    return last


def _band(items: Sequence[Item], run: Run, last: Sequence[int], lane: float, rounds: int) -> Band:
    """Lay out one copy, with the entries and exits that any of the copies has."""
    start, period = run.start, run.period
    # The second copy is fed by the first as all that follow are; the first may be fed from elsewhere.
    shown = start + period if run.count > 1 else start
    inner: list[tuple[int, int]] = []
    outer: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i in range(period):
        for k, j in enumerate(items[shown + i].operands):
            if shown <= j < shown + period:
                inner.append((j - shown, i))
            else:
                # What comes from one place in later copies may come from two in the first.
                outer.setdefault((j, items[start + i].operands[k]), []).append((i, k))
    copies = range(start, run.end, period)
    exits = tuple([i for i in range(period) if any(last[c + i] >= c + period for c in copies)])
    entries = tuple([tuple(read) for read in outer.values()])
    inner = list(dict.fromkeys(inner))
    rows = _rows([items[shown + i] for i in range(period)], inner)
    return Band(run, _drawn(items, shown, rows, inner, entries, exits, lane, rounds), entries, exits)


def _turned(band: Band, above: Band, items: Sequence[Item]) -> Band:
    """The band, or its mirror image if fewer of the wires that come down into it cross then."""
    start, period = band.run.start, band.run.period
    met: list[tuple[int, int]] = []
    for port, read in enumerate(band.entries):
        local, operand = read[0]
        source = items[start + local].operands[operand]
        within = (source - above.run.start) % above.run.period
        if above.run.start <= source < above.run.end and within in above.exits:
            leaves = above.drawing.x[above.run.period + above.exits.index(within)]
            met.append((leaves, band.drawing.x[period + len(band.exits) + port]))
    met.sort()
    # Ports are few; where they are not, a mirror would not help either.
    entered = [x for _, x in met[:_MOST_PORTS]]
    crossed = sum(a > b for i, b in enumerate(entered) for a in entered[:i])
    apart = sum(a < b for i, b in enumerate(entered) for a in entered[:i])
    return replace(band, drawing=mirrored(band.drawing)) if crossed > apart else band


def _rows(items: Sequence[Item], inner: Sequence[tuple[int, int]]) -> list[int]:
    """A row below all that is read; what reads nothing here stands right above its first reader."""
    above: list[list[int]] = [[] for _ in items]
    first = [len(items)] * len(items)
    for source, target in inner:
        above[target].append(source)
    row = [0] * len(items)
    for i in range(len(items)):
        row[i] = max((row[j] + 1 for j in above[i]), default=0)
    for i in range(len(items) - 1, -1, -1):
        if not above[i] and first[i] < len(items):
            row[i] = max(first[i] - 1, row[i])
        for j in above[i]:
            first[j] = min(first[j], row[i])
    taken = {old: new for new, old in enumerate(sorted(set(row)))}
    return [taken[r] for r in row]


def _drawn(
    items: Sequence[Item],
    shown: int,
    rows: Sequence[int],
    inner: Sequence[tuple[int, int]],
    entries: Sequence[Sequence[tuple[int, int]]],
    exits: Sequence[int],
    lane: float,
    rounds: int,
) -> Drawing:
    """Ports are boxes of no height in rows of their own, above and below."""
    period = len(rows)
    boxes = [Box(items[shown + i].width, items[shown + i].height, rows[i] + 1) for i in range(period)]
    bottom = max(rows) + 2
    edges = list(inner)
    for port, i in enumerate(exits):
        boxes.append(Box(8.0, 0.0, bottom))
        edges.append((i, period + port))
    for port, read in enumerate(entries):
        boxes.append(Box(8.0, 0.0, 0))
        for i in dict.fromkeys(i for i, _ in read):
            edges.append((period + len(exits) + port, i))
    drawing = draw(boxes, edges, gap=GAP, lane=lane, rounds=rounds)
    first_entry = period + len(exits)
    wires = [
        Wire(first_entry - 1 - w.source, w.target, w.points) if w.source >= first_entry else w for w in drawing.wires
    ]
    return replace(drawing, wires=tuple(wires))


__all__ = ["LANE", "Band", "Layout", "Wire", "lay_out"]
