"""Rooms: a kernel drawn around the ops as written that it computes. Kernels that look alike share one drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, TypeAlias, get_args

from dovetail.dataclass import dataclass
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.report.kernels import KernelMap

HEAD = 36.0
"""The height of a room's name plate."""
_PAD = 10.0
_CHIP = 18.0
_BESIDE = 11.0
_BELOW = 5.0
_MOST_OPS = 120
"""Ops that are drawn inside one room; the panel lists them all."""
_LETTER = 6.4
_BOLD_LETTER = 8.0
_WIDEST = 560.0
_LONGEST = 40
"""Letters of a name that room is made for; what is longer is cut."""

Link: TypeAlias = Literal["beside", "wrapped", "over"]
"""How a line goes from chip to chip: to the next column, to the first of the next row of columns, or over others."""
_LINKS: tuple[Link, ...] = get_args(Link)


@dataclass(frozen=True, slots=True)
class Room:
    """The drawing inside a room: ops as chips in columns from left to right, which wrap as words do."""

    width: int
    height: int
    chips: tuple[tuple[float, float, float], ...]
    """Left, top and width of each op's chip."""
    lines: tuple[tuple[int, int, Link], ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "w": self.width,
            "h": self.height,
            "chips": [list(c) for c in self.chips],
            "lines": [[a, b, _LINKS.index(link)] for a, b, link in self.lines],
        }


@dataclass(slots=True)
class Rooms:
    """Every drawing once, by what stands in it."""

    shapes: list[Room] = field(default_factory=list[Room])
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict[tuple[Any, ...], int])

    def of(self, title: str, ops: Sequence[str], lines: Sequence[tuple[int, int]]) -> int:
        """The number of the drawing for a kernel of this name around these ops."""
        key = (title, tuple(ops), tuple(lines))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.shapes)
            self.shapes.append(_room(title, ops, lines))
        return found


def _room(title: str, ops: Sequence[str], lines: Sequence[tuple[int, int]]) -> Room:
    least = min(len(title), _LONGEST) * _BOLD_LETTER + 92
    shown = ops[:_MOST_OPS]
    kept = [(a, b) for a, b in lines if a < len(shown) and b < len(shown)]
    column = [0] * len(shown)
    for a, b in kept:
        column[b] = max(column[b], column[a] + 1)
    widths = [round(min(len(op), _LONGEST) * _LETTER + 14, 1) for op in shown]
    columns: list[list[int]] = [[] for _ in range(max(column, default=-1) + 1)]
    for chip, at in enumerate(column):
        columns[at].append(chip)
    widest = math.sqrt(sum(max(widths[c] for c in stack) * len(stack) for stack in columns) * _CHIP) * 2.6
    rows = _wrapped(columns, widths, max(least - 2 * _PAD, min(widest, _WIDEST)))
    row_of = {at: number for number, row in enumerate(rows) for at in row}
    width = max([least, *(_across(row, columns, widths) + 2 * _PAD for row in rows)])
    chips = [(0.0, 0.0, 0.0)] * len(shown)
    y = HEAD + 3
    for row in rows:
        x = (width - _across(row, columns, widths)) / 2
        tallest = max(len(columns[at]) for at in row)
        for at in row:
            wide = max(widths[c] for c in columns[at])
            top = y + (tallest - len(columns[at])) * (_CHIP + _BELOW) / 2
            for c in columns[at]:
                chips[c] = (round(x + (wide - widths[c]) / 2, 1), round(top, 1), widths[c])
                top += _CHIP + _BELOW
            x += wide + _BESIDE
        y += tallest * (_CHIP + _BELOW) + 3
    height = y + 3 if shown else HEAD
    links: list[tuple[int, int, Link]] = []
    for a, b in kept:
        link = _link(column[a], column[b], row_of)
        if link is not None:
            links.append((a, b, link))
    return Room(int(width), int(height), tuple(chips), tuple(links))


def _wrapped(columns: Sequence[Sequence[int]], widths: Sequence[float], most: float) -> list[list[int]]:
    """Columns in rows that are not wider than allowed."""
    rows: list[list[int]] = []
    room = 0.0
    for at, stack in enumerate(columns):
        wide = max(widths[c] for c in stack) + _BESIDE
        if not rows or room < wide - _BESIDE:
            rows.append([])
            room = most
        rows[-1].append(at)
        room -= wide
    return rows


def _across(row: Sequence[int], columns: Sequence[Sequence[int]], widths: Sequence[float]) -> float:
    return sum(max(widths[c] for c in columns[at]) for at in row) + _BESIDE * (len(row) - 1)


def _link(a: int, b: int, row_of: Mapping[int, int]) -> Link | None:
    """How a line is drawn; None for one that would cross half the room and is left to the list of ops."""
    if row_of[a] == row_of[b]:
        return "beside" if b == a + 1 else "over"
    return "wrapped" if b == a + 1 else None


def lines_inside(written: Graph, kernels: KernelMap, names: Mapping[Value, str]) -> dict[Value, list[tuple[int, int]]]:
    """For each kernel the pairs of its nodes, by number, of which one reads the other, seen through views."""
    by_name = {name: value for value, name in names.items()}
    home: dict[Value, tuple[Value, int]] = {}
    for kernel in kernels.kernels:
        for number, node in enumerate(kernels.nodes[kernel]):
            home[by_name[node.name]] = (kernel, number)
    source: dict[Value, Value] = {}
    lines: dict[Value, dict[tuple[int, int], None]] = {k: {} for k in kernels.kernels}
    for value in written.values:
        # What no kernel computes is a view of its first operand.
        through = source.get(value.operands[0], value.operands[0]) if len(value.operands) == 1 else value
        source[value] = value if value in home else through
        if value not in home:
            continue
        kernel, number = home[value]
        for operand in value.operands:
            made = home.get(source.get(operand, operand))
            if made is not None and made[0] is kernel and made[1] < number:
                lines[kernel][(made[1], number)] = None
    return {kernel: list(pairs) for kernel, pairs in lines.items()}
