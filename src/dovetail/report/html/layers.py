"""A layered drawing: vertices in rows, few crossings, wires that run straight where they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from dovetail.dataclass import dataclass

_THREAD = 6.0
"""The width that a wire takes where it passes a row."""
_FARTHEST = 14
"""A wire past more rows than this is drawn straight through, behind what stands there."""


@dataclass(frozen=True, slots=True)
class Box:
    """A vertex: its size, its row, and how far from its centre wires may be tied to it."""

    width: float
    height: float
    row: int


@dataclass(frozen=True, slots=True)
class Wire:
    """From one vertex to another: where it starts, the x, top and bottom of each row it passes, and where it ends."""

    source: int
    target: int
    points: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Centres in x and tops in y of the boxes, the wires, and the room that all take."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    wires: tuple[Wire, ...]
    width: int
    height: int


@dataclass(slots=True)
class _Mesh:
    """Boxes and the threads of wires between them, each edge from one row to the next."""

    widths: list[float]
    rows: list[list[int]]
    up: list[list[int]]
    down: list[list[int]]
    boxes: int
    place: list[int] = field(default_factory=list[int])


def draw(
    boxes: Sequence[Box], edges: Sequence[tuple[int, int]], *, gap: float, lane: float, rounds: int = 10
) -> Drawing:
    """Boxes in their rows with `gap` beside and `lane` between the rows. Edges go downwards.

    The more `rounds`, the fewer crossings and bends.
    """
    if not boxes:
        return Drawing((), (), (), 0, 0)
    mesh, threads = _mesh(boxes, edges)
    _order(mesh, rounds)
    x = _abscissae(mesh, gap, rounds)
    left = min(x[v] - mesh.widths[v] / 2 for v in range(len(x)))
    x = [int(v - left) for v in x]
    tops, heights = _rows(boxes, len(mesh.rows), lane)
    y = tuple([int(tops[b.row] + (heights[b.row] - b.height) / 2) for b in boxes])
    wires = _wires(boxes, edges, threads, x, y, tops, heights)
    width = max(x[v] + mesh.widths[v] / 2 for v in range(len(x)))
    return Drawing(tuple(x[: len(boxes)]), y, wires, int(width), int(tops[-1] + heights[-1]))


def mirrored(drawing: Drawing) -> Drawing:
    """The same with left and right exchanged."""
    width = drawing.width
    wires: list[Wire] = []
    for wire in drawing.wires:
        points = list(wire.points)
        for at in (0, *range(2, len(points) - 2, 3), len(points) - 2):
            points[at] = width - points[at]
        wires.append(Wire(wire.source, wire.target, tuple(points)))
    return replace(drawing, x=tuple([width - x for x in drawing.x]), wires=tuple(wires))


def _mesh(boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> tuple[_Mesh, list[list[int]]]:
    widths = [b.width for b in boxes]
    row_of = [b.row for b in boxes]
    up: list[list[int]] = [[] for _ in boxes]
    down: list[list[int]] = [[] for _ in boxes]
    threads: list[list[int]] = []
    for source, target in edges:
        thread: list[int] = []
        span = boxes[target].row - boxes[source].row
        if span <= _FARTHEST:
            before = source
            for row in range(boxes[source].row + 1, boxes[target].row):
                thread.append(len(widths))
                widths.append(_THREAD)
                row_of.append(row)
                up.append([before])
                down.append([])
                down[before].append(len(widths) - 1)
                before = len(widths) - 1
            down[before].append(target)
            up[target].append(before)
        threads.append(thread)
    rows: list[list[int]] = [[] for _ in range(max(row_of) + 1)]
    for vertex, row in enumerate(row_of):
        rows[row].append(vertex)
    return _Mesh(widths, rows, up, down, len(boxes)), threads


def _order(mesh: _Mesh, rounds: int) -> None:
    """Sort each row by where the neighbours stand, downwards and upwards in turn."""
    place = mesh.place = [0] * len(mesh.widths)
    for row in mesh.rows:
        for position, vertex in enumerate(row):
            place[vertex] = position
    for turn in range(rounds):
        downwards = turn % 2 == 0
        beside = mesh.up if downwards else mesh.down
        for row in mesh.rows if downwards else reversed(mesh.rows):
            if len(row) < 2:
                continue
            middle = {v: _mean(beside[v], place, place[v]) for v in row}
            row.sort(key=middle.__getitem__)
            for position, vertex in enumerate(row):
                place[vertex] = position


def _mean(vertices: Sequence[int], at: Sequence[float], alone: float) -> float:
    """The mean place of these vertices, or what it is without any."""
    if len(vertices) == 1:
        return at[vertices[0]]
    return sum([at[v] for v in vertices]) / len(vertices) if vertices else alone


def _abscissae(mesh: _Mesh, gap: float, rounds: int) -> list[float]:
    """Centres in x: each row as near to its neighbours as order and widths allow, in the least squares."""
    x = [0.0] * len(mesh.widths)
    for row in mesh.rows:
        at = 0.0
        for v in row:
            x[v] = at + mesh.widths[v] / 2
            at += mesh.widths[v] + gap
        for v in row:
            x[v] -= (at - gap) / 2
    for turn in range(rounds):
        downwards = turn % 2 == 0
        beside = mesh.up if downwards else mesh.down
        for row in mesh.rows if downwards else reversed(mesh.rows):
            _settle(row, beside, mesh, x, gap)
    return x


def _settle(row: Sequence[int], beside: Sequence[Sequence[int]], mesh: _Mesh, x: list[float], gap: float) -> None:
    """Move one row towards its neighbours; what collides moves as one (pool adjacent violators)."""
    if len(row) < 2:
        for v in row:
            x[v] = _mean(beside[v], x, x[v])
        return
    widths, boxes = mesh.widths, mesh.boxes
    pools: list[tuple[float, float, float, int]] = []
    offsets: list[float] = []
    offset = -widths[row[0]] / 2 - gap
    before = 0.0
    for v in row:
        offset += before + widths[v] / 2 + gap
        before = widths[v] / 2
        offsets.append(offset)
        # Threads pull hardest, so that long wires are straight; what has no neighbours hardly resists.
        weight = 4.0 if v >= boxes else 1.0 if beside[v] else 0.1
        middle, count = _mean(beside[v], x, x[v]) - offset, 1
        total = weight * middle
        while pools and pools[-1][0] > middle:
            _, more, heavier, others = pools.pop()
            total, weight, count = total + more, weight + heavier, count + others
            middle = total / weight
        pools.append((middle, total, weight, count))
    position = 0
    for middle, _, _, count in pools:
        for at in range(position, position + count):
            x[row[at]] = middle + offsets[at]
        position += count


def _rows(boxes: Sequence[Box], count: int, lane: float) -> tuple[list[int], list[int]]:
    heights = [0.0] * count
    for box in boxes:
        heights[box.row] = max(heights[box.row], box.height)
    tops: list[int] = []
    at = 0.0
    for height in heights:
        tops.append(int(at))
        at += height + lane
    return tops, [int(h) for h in heights]


def _wires(
    boxes: Sequence[Box],
    edges: Sequence[tuple[int, int]],
    threads: Sequence[Sequence[int]],
    x: Sequence[int],
    y: Sequence[int],
    tops: Sequence[int],
    heights: Sequence[int],
) -> tuple[Wire, ...]:
    leaving: dict[int, list[int]] = {}
    entering: dict[int, list[int]] = {}
    for number, (source, target) in enumerate(edges):
        leaving.setdefault(source, []).append(number)
        entering.setdefault(target, []).append(number)
    starts, ends = [x[source] for source, _ in edges], [x[target] for _, target in edges]
    for source, numbers in leaving.items():
        if len(numbers) > 1:
            towards = [x[threads[n][0] if threads[n] else edges[n][1]] for n in numbers]
            for n, at in zip(numbers, _tied(boxes[source], x[source], towards), strict=True):
                starts[n] = at
    for target, numbers in entering.items():
        if len(numbers) > 1:
            towards = [x[threads[n][-1] if threads[n] else edges[n][0]] for n in numbers]
            for n, at in zip(numbers, _tied(boxes[target], x[target], towards), strict=True):
                ends[n] = at
    bottoms = [top + height for top, height in zip(tops, heights, strict=True)]
    found: list[Wire] = []
    for n, (source, target) in enumerate(edges):
        points = [starts[n], y[source] + int(boxes[source].height)]
        for row, thread in enumerate(threads[n], boxes[source].row + 1):
            points += (x[thread], tops[row], bottoms[row])
        points += (ends[n], y[target])
        found.append(Wire(source, target, tuple(points)))
    return tuple(found)


_APART = 20.0


def _tied(box: Box, centre: float, towards: Sequence[int]) -> list[int]:
    """Where wires are tied to an edge of a box, in the order of where they come from."""
    count = len(towards)
    apart = min(_APART, max(box.width - 16, 0) / max(count - 1, 1))
    ranked = sorted(range(count), key=lambda n: towards[n])
    at = [0] * count
    for position, n in enumerate(ranked):
        at[n] = int(centre + (position - (count - 1) / 2) * apart)
    return at
