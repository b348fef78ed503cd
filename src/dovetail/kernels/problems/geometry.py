"""The spatial axes that a window slides over, and how output pixels are tiled into blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, floordiv, largest, product, smallest
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import SizeFunction

LONGEST_RUN_SHARE = 64
"""Bytes of L1 for each column of a block: half of L1 holds eight filters' results."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How output pixels are tiled: rows and columns of a block, and how many blocks there are."""

    rows: Size
    columns: Size
    down: Size
    across: Size


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """Two spatial axes: their sizes, steps in bytes, sizes of the result; the window and the padding before it."""

    sizes: tuple[Size, Size]
    steps: tuple[Size, Size]
    out: tuple[Size, Size]
    window: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    before: tuple[Size, Size] = (0, 0)

    @staticmethod
    def of(
        sizes: Sequence[Size],
        steps: Sequence[Size],
        out: Sequence[Size],
        window: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        padding: Sequence[Size],
    ) -> ConvGeometry:
        """One axis is taken for the second of two. The padding after an axis needs no size."""
        if len(sizes) == 1:
            only = (1, window[0]), (1, strides[0]), (1, dilations[0]), (0, padding[0])
            return ConvGeometry((1, sizes[0]), (0, steps[0]), (1, out[0]), *only)
        return ConvGeometry(
            (sizes[0], sizes[1]), (steps[0], steps[1]), (out[0], out[1]), (window[0], window[1]),
            (strides[0], strides[1]), (dilations[0], dilations[1]), (padding[0], padding[1]),
        )  # fmt: skip

    def sizes_by_name(self, blocks: Blocks) -> dict[str, Size]:
        """The sizes of image, result, window and blocks, as kernels name their arguments."""
        (height, width), (row_step, column_step), (out_height, out_width) = self.sizes, self.steps, self.out
        (window_rows, window_columns), (stride_rows, stride_columns) = self.window, self.strides
        return {
            "height": height, "width": width, "row_step": row_step, "column_step": column_step,
            "out_height": out_height, "out_width": out_width, "window_rows": window_rows,
            "window_columns": window_columns, "stride_rows": stride_rows, "stride_columns": stride_columns,
            "dilation_rows": self.dilations[0], "dilation_columns": self.dilations[1],
            "above": self.before[0], "before": self.before[1],
            "block_rows": blocks.rows, "block_columns": blocks.columns,
            "row_blocks": blocks.down, "column_blocks": blocks.across,
        }  # fmt: skip

    @property
    def is_known(self) -> bool:
        """Whether no size is a symbol."""
        return all(isinstance(size, int) for size in (*self.sizes, *self.out, *self.before))

    def known(self, number: SizeFunction) -> ConvGeometry:
        """Replace symbols by the sizes of one run."""
        (height, width), (down, across), (rows, columns), (above, before) = [
            map(number, pair) for pair in (self.sizes, self.steps, self.out, self.before)
        ]
        return replace(
            self, sizes=(height, width), steps=(down, across), out=(rows, columns), before=(above, before)
        )  # fmt: skip

    @property
    def taps(self) -> int:
        return self.window[0] * self.window[1]

    @property
    def is_point(self) -> bool:
        """Whether each result sees one pixel, its own."""
        return self.window == (1, 1) and self.strides == (1, 1) and self.sizes == self.out

    def flat(self) -> ConvGeometry:
        """Both axes as one, where rows follow each other and a result sees its own pixel only."""
        if not self.is_point or self.steps[0] != self.steps[1] * self.sizes[1]:
            return self
        count = product(self.sizes)
        return ConvGeometry((1, count), (count * self.steps[1], self.steps[1]), (1, count), (1, 1))

    @property
    def reach(self) -> tuple[int, int]:
        """From the first row and column that a result sees to the last."""
        down, across = [(n - 1) * d for n, d in zip(self.window, self.dilations, strict=True)]
        return down, across

    @property
    def phases_down(self) -> int:
        """Kinds of rows that a block sees."""
        return min(self.strides[0], self.reach[0] + 1)

    @property
    def phases(self) -> int:
        """Planes of a block's patch."""
        return self.phases_down * min(self.strides[1], self.reach[1] + 1)

    @property
    def over(self) -> tuple[int, int]:
        """Rows and columns of a phase that a block sees beyond its own."""
        down, across = [r // s for r, s in zip(self.reach, self.strides, strict=True)]
        return down, across

    def run(self, blocks: Blocks) -> Size:
        """Columns of a block, those between rows included, and a few more."""
        return blocks.rows * (blocks.columns + self.over[1])

    def seen(self, blocks: Blocks, channels: int) -> Size:
        """Elements that a block sees."""
        return channels * self.phases * (blocks.rows + self.over[0]) * (blocks.columns + self.over[1])

    def blocks(self, channels: int, device: CpuDevice, wide: int) -> Blocks:
        """Blocks that fit the caches, as equal as they can be where sizes are known; `wide` vectors go together.

        The patch of a block stays in L2 while all filters go over it, the results of one register tile in L1.
        """
        lanes = device.lanes
        room = max(lanes, device.caches.l2_room // 2 // (4 * channels * self.phases))
        longest = device.caches.l1_room // LONGEST_RUN_SHARE
        unit = wide * lanes
        widest = max(unit, min(longest, room // (self.over[0] + 1) - self.over[1]) // unit * unit)
        columns, across = _cut(self.out[1], widest, lanes)
        pitch = columns + self.over[1]
        most = largest(1, smallest(floordiv(longest, pitch), floordiv(room, pitch) - self.over[0]))
        if isinstance(most, int):
            rows, down = _cut(self.out[0], most, 1)
        else:
            rows, down = most, floordiv(self.out[0] + most - 1, most)
        return Blocks(rows, columns, down, across)


def _cut(size: Size, most: int, unit: int) -> tuple[Size, Size]:
    """The length of a piece and how many there are: multiples of a unit that differ little, or the whole."""
    if not isinstance(size, int):
        return largest(1, smallest(size, most)), floordiv(size + (most - 1), most)
    if size <= most:
        return max(1, size), min(1, size)
    count = -(-size // most)
    piece = -(-size // (count * unit)) * unit
    return piece, -(-size // piece)
