"""A layered drawing: vertices in rows, few crossings, wires that run straight where they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_THREAD = 6.0
"""The width that a wire takes where it passes a row."""
_FARTHEST = 14
"""A wire past more rows than this is drawn straight through, behind what stands there."""
_MANY = 3000
"""From so many vertices on fewer rounds have to do."""


@dataclass(frozen=True, slots=True)
class Box:
    """A vertex: its size, its row, and how far from its centre wires may be tied to it."""

    width: float
    height: float
    row: int


@dataclass(frozen=True, slots=True)
class Wire:
    """From one vertex to another: where it starts and ends, and the x, top and bottom of each row it passes."""

    source: int
    target: int
    start: tuple[float, float]
    passes: tuple[tuple[float, float, float], ...]
    end: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Centres in x and tops in y of the boxes, the wires, and the room that all take."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    wires: tuple[Wire, ...]
    width: float
    height: float


@dataclass(slots=True)
class _Mesh:
    """Boxes and the threads of wires between them, each edge from one row to the next."""

    widths: list[float]
    rows: list[list[int]]
    up: list[list[int]]
    down: list[list[int]]
    boxes: int
    place: list[int] = field(default_factory=list[int])


def draw(boxes: Sequence[Box], edges: Sequence[tuple[int, int]], *, gap: float, lane: float) -> Drawing:
    """Boxes in their rows with `gap` beside and `lane` between the rows. Edges go downwards."""
    if not boxes:
        return Drawing((), (), (), 0.0, 0.0)
    mesh, threads = _mesh(boxes, edges)
    rounds = 4 if len(mesh.widths) > _MANY else 10
    _order(mesh, rounds)
    x = _abscissae(mesh, gap, rounds)
    left = min(x[v] - mesh.widths[v] / 2 for v in range(len(x)))
    x = [round(v - left, 1) for v in x]
    tops, heights = _rows(boxes, len(mesh.rows), lane)
    y = tuple([round(tops[b.row] + (heights[b.row] - b.height) / 2, 1) for b in boxes])
    wires = _wires(boxes, edges, threads, x, y, tops, heights)
    width = max(x[v] + mesh.widths[v] / 2 for v in range(len(x)))
    return Drawing(tuple(x[: len(boxes)]), y, wires, round(width, 1), round(tops[-1] + heights[-1], 1))


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
            middle = {v: _mean(beside[v], place) for v in row}
            row.sort(key=lambda v: place[v] if middle[v] is None else middle[v])  # pyright: ignore[reportArgumentType, reportCallIssue]
            for position, vertex in enumerate(row):
                place[vertex] = position


def _mean(vertices: Sequence[int], place: Sequence[float]) -> float | None:
    return sum([place[v] for v in vertices]) / len(vertices) if vertices else None


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
    pools: list[tuple[float, float, int]] = []
    offsets: list[float] = []
    offset = 0.0
    for position, v in enumerate(row):
        if position:
            offset += (mesh.widths[row[position - 1]] + mesh.widths[v]) / 2 + gap
        offsets.append(offset)
        wanted = _mean(beside[v], x)
        # Threads pull hardest, so that long wires are straight; what has no neighbours hardly resists.
        weight = 0.1 if wanted is None else 4.0 if v >= mesh.boxes else 1.0
        pool = (weight, weight * ((x[v] if wanted is None else wanted) - offset), 1)
        while pools and pools[-1][1] / pools[-1][0] > pool[1] / pool[0]:
            last = pools.pop()
            pool = (last[0] + pool[0], last[1] + pool[1], last[2] + pool[2])
        pools.append(pool)
    position = 0
    for weight, total, count in pools:
        for _ in range(count):
            x[row[position]] = total / weight + offsets[position]
            position += 1


def _rows(boxes: Sequence[Box], count: int, lane: float) -> tuple[list[float], list[float]]:
    heights = [0.0] * count
    for box in boxes:
        heights[box.row] = max(heights[box.row], box.height)
    tops: list[float] = []
    at = 0.0
    for height in heights:
        tops.append(at)
        at += height + lane
    return tops, heights


def _wires(
    boxes: Sequence[Box],
    edges: Sequence[tuple[int, int]],
    threads: Sequence[Sequence[int]],
    x: Sequence[float],
    y: Sequence[float],
    tops: Sequence[float],
    heights: Sequence[float],
) -> tuple[Wire, ...]:
    leaving: dict[int, list[int]] = {}
    entering: dict[int, list[int]] = {}
    for number, (source, target) in enumerate(edges):
        leaving.setdefault(source, []).append(number)
        entering.setdefault(target, []).append(number)
    starts, ends = [0.0] * len(edges), [0.0] * len(edges)
    for source, numbers in leaving.items():
        towards = [x[threads[n][0] if threads[n] else edges[n][1]] for n in numbers]
        for n, at in zip(numbers, _tied(boxes[source], x[source], towards), strict=True):
            starts[n] = at
    for target, numbers in entering.items():
        towards = [x[threads[n][-1] if threads[n] else edges[n][0]] for n in numbers]
        for n, at in zip(numbers, _tied(boxes[target], x[target], towards), strict=True):
            ends[n] = at
    found: list[Wire] = []
    for n, (source, target) in enumerate(edges):
        first = boxes[source].row + 1
        passes = [(x[t], tops[first + i], tops[first + i] + heights[first + i]) for i, t in enumerate(threads[n])]
        start = (starts[n], round(y[source] + boxes[source].height, 1))
        found.append(Wire(source, target, start, tuple(passes), (ends[n], y[target])))
    return tuple(found)


_APART = 20.0


def _tied(box: Box, centre: float, towards: Sequence[float]) -> list[float]:
    """Where wires are tied to an edge of a box, in the order of where they come from."""
    count = len(towards)
    apart = min(_APART, max(box.width - 16, 0) / max(count - 1, 1))
    ranked = sorted(range(count), key=lambda n: towards[n])
    at = [0.0] * count
    for position, n in enumerate(ranked):
        at[n] = round(centre + (position - (count - 1) / 2) * apart, 1)
    return at
