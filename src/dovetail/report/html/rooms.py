"""Rooms: a kernel drawn around the ops as written that it computes. Kernels that look alike share one drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.report.html.layers import Box, draw
from dovetail.report.kernels import KernelMap

HEAD = 36.0
"""The height of a room's name plate."""
_PAD = 9.0
_CHIP = 18.0
_MOST_OPS = 120
"""Ops that are drawn inside one room; the panel lists them all."""
_LETTER = 6.1
_BOLD_LETTER = 7.3


@dataclass(frozen=True, slots=True)
class Room:
    """The drawing inside a room: chips by their centre in x and top in y, and the lines between them."""

    width: float
    height: float
    chips: tuple[tuple[float, float, float], ...]
    """Left, top and width of each op's chip."""
    lines: tuple[tuple[int, int], ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "w": self.width,
            "h": self.height,
            "chips": [list(c) for c in self.chips],
            "lines": [list(line) for line in self.lines],
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
    least = len(title) * _BOLD_LETTER + 86
    shown = ops[:_MOST_OPS]
    kept = tuple([(a, b) for a, b in lines if a < len(shown) and b < len(shown)])
    row = [0] * len(shown)
    for a, b in kept:
        row[b] = max(row[b], row[a] + 1)
    widths = [len(op) * _LETTER + 14 for op in shown]
    drawing = draw([Box(w, _CHIP, r) for w, r in zip(widths, row, strict=True)], kept, gap=8.0, lane=9.0)
    width = max(least, drawing.width + 2 * _PAD)
    left = (width - drawing.width) / 2
    chips = [
        (round(left + x - w / 2, 1), round(HEAD + y, 1), round(w, 1))
        for x, y, w in zip(drawing.x, drawing.y, widths, strict=True)
    ]
    height = HEAD + (drawing.height + _PAD if shown else 0)
    return Room(round(width, 1), round(height, 1), tuple(chips), kept)


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
