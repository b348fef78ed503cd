"""The minimal chain of ops for a view: squeeze, split, permute, merge, unsqueeze, expand, each only where needed.

Splits go from the first axis to the last and merges from the last to the first, so that what is done to the last axes,
heads for one, stands apart from what is done in front of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.value import Value
from dovetail.ops.movement import expand, merge, permute, split, squeeze, unsqueeze
from dovetail.ops.view import REPEATED, Block, Piece, View


@dataclass(eq=False, slots=True)
class _Unit:
    """An axis of size 1 of the source."""

    axis: int


@dataclass(eq=False, slots=True)
class _Slot:
    """An axis of the result that has size 1 until it is repeated `size` times."""

    gap: int
    """How many pieces stand in front of it."""
    size: Size = 1
    joined: bool = False
    """Whether it is merged with others, so that it must be there before they are."""
    unit: _Unit | None = None
    """The axis of the source that it is; none where it is a new one."""


_Axis = _Unit | Piece | _Slot


def build_view(view: View) -> Value | None:
    """Return the value of a view by the fewest ops, or None where they cannot be written."""
    axes = view.cut_axes()
    if axes is None:
        return None
    cut: list[list[_Unit | Piece]] = [[*pieces] or [_Unit(at - len(axes))] for at, pieces in enumerate(axes)]
    rows = [_row(block, gap) for block, gap in _with_gaps(view.blocks)]
    slots = [entry for row in rows for entry in row if isinstance(entry, _Slot)]
    _assign(cut, [entry for row in rows for entry in row if isinstance(entry, Piece)], slots)
    try:
        return _Chain(view).run(cut, rows)
    except _Unwritable:
        return None


def _with_gaps(blocks: Sequence[Block]) -> list[tuple[Block, int]]:
    with_gaps: list[tuple[Block, int]] = []
    gap = 0
    for block in blocks:
        with_gaps.append((block, gap))
        gap += sum(p.axis != REPEATED for p in block.pieces)
    return with_gaps


def _row(block: Block, gap: int) -> list[_Axis]:
    """Return what a block is joined from: pieces of the source, and slots for what is repeated."""
    if not block.pieces:
        return [_Slot(gap)]
    row: list[_Axis] = []
    for piece in block.pieces:
        if piece.axis == REPEATED:
            row.append(_Slot(gap, piece.size, len(block.pieces) > 1 or len(block.sizes) > 1))
        else:
            row.append(piece)
            gap += 1
    return row


def _assign(cut: list[list[_Unit | Piece]], order: list[Piece], slots: list[_Slot]) -> None:
    """Give the axes of size 1 of the source to slots: where they stand if possible, else in order."""
    units: list[tuple[_Unit, int]] = []
    pieces: list[Piece] = []
    for axis in cut:
        for entry in axis:
            if isinstance(entry, Piece):
                pieces.append(entry)
            else:
                units.append((entry, len(pieces)))
    few = min(len(units), len(slots))
    if pieces == order:
        pairs: list[tuple[_Unit, _Slot]] = []
        for gap in dict.fromkeys(gap for _, gap in units):
            here = [unit for unit, g in units if g == gap]
            there = [slot for slot in slots if slot.gap == gap]
            # Of several in one place the last stay, so that a new one stands in front of them.
            pairs += list(zip(reversed(here), reversed(there), strict=False))
        if len(pairs) == few:
            for unit, slot in pairs:
                slot.unit = unit
            return
    kept = _chosen([gap for _, gap in units], few)
    taken = _chosen([slot.gap for slot in slots], few)
    for unit, slot in zip(kept, taken, strict=True):
        slots[slot].unit = units[unit][0]


def _chosen(gaps: list[int], count: int) -> list[int]:
    """Places from the front, so that a batch of one stays in front; of several in one place the last."""
    return sorted(sorted(range(len(gaps)), key=lambda i: (gaps[i], -i))[:count])


class _Unwritable(Exception):
    """A size that a pattern has no name for."""


class _Chain:
    """Emits the ops, and keeps account of which axis is where. Axes in front of those it knows stay as they are."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.value = view.source

    def run(self, cut: list[list[_Unit | Piece]], rows: list[list[_Axis]]) -> Value:
        axes = self._split(self._squeeze(cut, rows))
        self._permute(axes, rows)
        there = [[e for e in row if not isinstance(e, _Slot) or e.unit is not None or e.joined] for row in rows]
        self._merge(there)
        self._finish(there)
        return self.value

    def _squeeze(self, cut: list[list[_Unit | Piece]], rows: list[list[_Axis]]) -> list[list[_Unit | Piece]]:
        """Axes of size 1 that the result does not have are left out."""
        used = {entry.unit for row in rows for entry in row if isinstance(entry, _Slot)}
        dead = [entry.axis for axis in cut for entry in axis if isinstance(entry, _Unit) and entry not in used]
        if dead:
            self.value = squeeze(self.value, axes=tuple(dead))
        return [axis for axis in cut if isinstance(axis[0], Piece) or axis[0] in used]

    def _split(self, cut: list[list[_Unit | Piece]]) -> list[_Unit | Piece]:
        """Axes are cut into their pieces, the first axis first, the outermost piece first."""
        axes: list[_Unit | Piece] = []
        for behind, axis in zip(range(len(cut) - 1, -1, -1), cut, strict=True):
            self._cut(-behind - 1, [entry.size for entry in axis if isinstance(entry, Piece)])
            axes += axis
        return axes

    def _cut(self, axis: int, sizes: Sequence[Size]) -> None:
        for at, outer in enumerate(sizes[:-1]):
            inner = product(tuple(sizes[at + 1 :]))
            self.value = split(self.value, axis=axis, **self._shares(outer, inner))

    def _shares(self, outer: Size, inner: Size) -> dict[str, Any]:
        """Return how a split is written: by a number of parts wherever that is known."""
        spelled = self.view.spelled
        if isinstance(outer, int) or outer in spelled:
            return {"parts": spelled.get(outer, outer)}
        if isinstance(inner, int) or inner in spelled:
            return {"size": spelled.get(inner, inner)}
        return {"parts": self._written(outer)}

    def _written(self, size: Size) -> Any:
        if isinstance(size, int) or self.view.typed:
            return size
        if size not in self.view.spelled:
            raise _Unwritable
        return self.view.spelled[size]

    def _permute(self, axes: list[_Unit | Piece], rows: list[list[_Axis]]) -> None:
        """Order the pieces and the kept axes of size 1 as in the result."""
        entries = [entry for row in rows for entry in row if not isinstance(entry, _Slot) or entry.unit is not None]
        order = [axes.index(e.unit if isinstance(e, _Slot) and e.unit else e) - len(axes) for e in entries]  # type: ignore[arg-type]
        start = 0
        while start < len(order) and order[start] == start - len(order):
            start += 1
        if start < len(order):
            self.value = permute(self.value, order=tuple(order[start:]))

    def _merge(self, rows: list[list[_Axis]]) -> None:
        """Merge each row into one axis, or into the sizes of its block; the last first."""
        behind = 0
        for row, block in zip(reversed(rows), reversed(self.view.blocks), strict=True):
            self._repeat(row, behind)
            if len(row) > 1:
                self.value = merge(self.value, axis=-behind - 1, count=len(row))
            sizes = [size for size in block.sizes if size != 1] if len(block.sizes) > 1 else []
            self._cut(-behind - 1, sizes)
            behind += len(sizes) or min(len(row), 1)

    def _repeat(self, row: list[_Axis], behind: int) -> None:
        """Axes that are repeated to be merged with others of their row are put in and repeated."""
        slots = [(i - len(row) - behind, e) for i, e in enumerate(row) if isinstance(e, _Slot) and e.joined]
        new = tuple(axis for axis, slot in slots if slot.unit is None)
        if new:
            self.value = unsqueeze(self.value, axes=new)
        for axis, slot in slots:
            self.value = expand(self.value, axis=axis, size=self._written(slot.size))

    def _finish(self, rows: list[list[_Axis]]) -> None:
        """New axes of size 1 are put in, and those that are repeated alone are repeated."""
        rank = sum(len(block.sizes) for block in self.view.blocks)
        new: list[int] = []
        repeated: list[tuple[int, Size]] = []
        at = -rank
        for row, block in zip(rows, self.view.blocks, strict=True):
            if len(block.sizes) > 1:
                new += [at + i for i, size in enumerate(block.sizes) if size == 1]
            elif not row:
                new.append(at)
            if len(block.sizes) == 1 and len(block.pieces) == 1 and block.pieces[0].axis == REPEATED:
                repeated.append((at, block.pieces[0].size))
            at += len(block.sizes)
        if new:
            self.value = unsqueeze(self.value, axes=tuple(new))
        for axis, size in repeated:
            self.value = expand(self.value, axis=axis, size=self._written(size))
