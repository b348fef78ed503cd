"""The products of a block with few rows: 16 columns are the left factor of a tensor core, and all rows the right one.

A warp loads 512 bytes of weights at once, none of them twice, and multiplies them by up to eight rows. Where there are
eight columns alone, the other half of a product has the same columns with the next 16 of k: each half meets the rows at
its own k, and the two sums of an element are in the same lane.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, f32
from dovetail.kernels.gpu.gemm.fragments import (
    LANE,
    LineTile,
    SharedTile,
    clamped,
    divided,
    less,
    plus,
    private,
    remainder,
    unrolled,
    zeroed,
)
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.gpu.gemm.tiled import Element
from dovetail.kernels.gpu.gemv.row_norm import Squares
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    Expr,
    Extent,
    Load,
    LoadMatrices,
    MultiplyMatrices,
    Name,
    ScaleMatrices,
    Statement,
    Tensor,
    ThreadIndex,
    add,
    mul,
)
from dovetail.kernels.matrix_instruction import mma_of

CHAINS = 4
"""Products of a warp in flight: as many as add to different sums."""
UNIT = 16
"""Elements of k of one product."""
FOLDED_ROWS = 4
"""Rows up to which two of k fit the eight columns of a right factor."""


@dataclass(frozen=True, slots=True)
class StreamProducts:
    """How the warps of a block multiply a stage of weights in shared memory by rows."""

    dtype: DType
    rows: int
    across: int
    """Groups of eight columns, of all streams, which take turns."""
    streams: int
    warps: int
    units: int
    """Products of a warp along k in a stage."""
    axis: str
    """The axis along which weights are contiguous: "k" or "row"."""
    streams_are_apart: bool = False
    """Whether all columns of a stream are neighbours, and streams do not take turns."""
    gains: Tensor | None = None
    """What multiplies rows, in shared memory, where they are normed: their squares are added up on the way."""

    @property
    def is_folded(self) -> bool:
        """Whether a product has eight columns, twice."""
        return self.across % 2 == 1 and self.rows <= FOLDED_ROWS and self.units % 2 == 0 and self.axis == "k"

    @property
    def tiles(self) -> int:
        """Left factors that have all columns; half of the last one may repeat its columns in vain."""
        return self.across if self.is_folded else -(-self.across // 2)

    @property
    def steps(self) -> int:
        """Loads of rows in a stage: each has those of several products."""
        return -(-self.units // self._taken)

    @property
    def _taken(self) -> int:
        """Units of k of a step: rows come as four 8×8 matrices, which are two units, or four where they are folded."""
        most = 4 if self.is_folded else 2
        return most if self.units % most == 0 else most // 2

    @property
    def _products(self) -> int:
        """Products of a step with each left factor."""
        return max(1, self._taken // 2) if self.is_folded else self._taken

    @property
    def chains(self) -> int:
        """Sums of an element that take turns: products that add to the same sums wait for each other."""
        return max(1, min(CHAINS // self.tiles, self.steps * self._products))

    @property
    def sums(self) -> Tensor:
        return private("sums", f32, self.chains * self.tiles, 4)

    @property
    def sums_count(self) -> int:
        return self.chains * self.tiles * 4

    def allocations(self) -> list[Alloc]:
        return [
            Alloc("sums", f32, self.sums_count, "private"),
            Alloc("left", self.dtype, 8, "private"),
            Alloc("right", self.dtype, 8, "private"),
            *([] if self.gains is None else [Alloc("factors", self.dtype, 8, "private"), *self.squares.allocations()]),
        ]

    def zeroed(self) -> list[Statement]:
        """Sums before the first stage."""
        squares = [] if self.gains is None else [zeroed(self.squares.sums, 4 * self.squares.chains)]
        return [zeroed(self.sums, self.sums_count), *squares]

    @property
    def squares(self) -> Squares:
        """The squares of rows, where they are normed."""
        crossed = not self.is_folded and self._taken == 2
        return Squares(self.dtype, self.rows, 2 if self.is_folded else 1, self._products, crossed)

    def stage(self, weights: SharedTile | LineTile, stage: Expr, left_rows: Tensor, first: Expr) -> Statement:
        """Multiply a stage; its first element of k in the rows is `first`."""
        columns, rows = private("left", self.dtype, 8), private("right", self.dtype, 1)
        depth = UNIT * self._taken
        along, own = mul(Name("step"), Extent(depth * self.warps)), mul(ThreadIndex("warp"), Extent(depth))
        k = add(first, own)
        right = private("right", self.dtype, 8)
        body: list[Statement] = [self._rows_loaded(right, left_rows, k, along)]
        if self.gains is not None:
            factors = private("factors", self.dtype, 8)
            if self.squares.crossed:
                itself = private("itself", self.dtype, 8)
                body.append(self._rows_loaded(itself, left_rows, k, along, in_turns=True))
            body += [s for number in range(self._products) for s in self.squares.added(rows, number)]
            body.append(self._rows_loaded(factors, self.gains, k, along, 1))
            body.append(ScaleMatrices(right, (ZERO,), factors, (ZERO,)))
        for number in range(self._products):
            for tile in range(self.tiles):
                at = add(along, Extent(number * (2 if self.is_folded else 1) * UNIT))
                turn = add(mul(Name("step"), Extent(self._products)), Extent(number))
                chain = mul(remainder(turn, self.chains), Extent(self.tiles))
                sums_at = (add(chain, Extent(tile)), ZERO)
                body.append(self._columns_loaded(columns, weights, stage, tile, own, at))
                body.append(
                    MultiplyMatrices(
                        self.sums, sums_at, columns, (ZERO,), rows, (Extent(4 * number),), mma_of(self.dtype)
                    )
                )
        return unrolled("step", self.steps, *body)

    def _columns_loaded(
        self, target: Tensor, weights: SharedTile | LineTile, stage: Expr, tile: int, own: Expr, along: Expr
    ) -> LoadMatrices:
        """A left factor: 16 columns at one k, or eight at two. Its k is that of its warp, `own`, and the one along."""
        other, high = remainder(divided(LANE, 8), 2), divided(LANE, 16)
        if self.axis == "row":
            line = add(add(add(along, own), remainder(LANE, CHUNK)), mul(high, Extent(8)))
            source, place = weights.place(stage, line, add(Extent(2 * tile), other))
            return LoadMatrices(target, (ZERO,), source, place, transposed=True)
        if self.is_folded:
            line, half = add(Extent(self._line(tile)), remainder(LANE, CHUNK)), mul(other, Extent(UNIT // CHUNK))
            high = add(half, high)
        else:
            # A last group that is alone is its own other half.
            first, second = self._line(2 * tile), self._line(min(2 * tile + 1, self.across - 1))
            line = add(add(Extent(first), remainder(LANE, CHUNK)), mul(other, Extent(second - first)))
        if isinstance(weights, SharedTile):
            source, place = weights.place(stage, line, add(divided(add(along, own), CHUNK), high))
            return LoadMatrices(target, (ZERO,), source, place)
        # What is the same for all threads comes last: loads have it in their instructions, and share one address.
        source, place = weights.place(stage, line, add(divided(own, CHUNK), high))
        return LoadMatrices(target, (ZERO,), source, (*place[:-1], along))

    def _line(self, group: int) -> int:
        """The first line of a group of eight columns."""
        if self.streams_are_apart:
            return 8 * (group % self.streams * (self.across // self.streams) + group // self.streams)
        return 8 * group

    def _rows_loaded(
        self, target: Tensor, source: Tensor, k: Expr, along: Expr, rows: int = 0, *, in_turns: bool = False
    ) -> LoadMatrices:
        """Right factors of all products of a step, at k and what is `along`; rows that there are not repeat the last
        one. Every second matrix comes first where they are in turns."""
        matrix, down = divided(LANE, 8), remainder(LANE, CHUNK)
        if in_turns:
            matrix = add(mul(remainder(matrix, 2), Extent(2)), divided(matrix, 2))
        if self.is_folded:
            # Columns of a right factor have rows at the k of the first half and of the other one in turns.
            at = add(mul(remainder(down, 2), Extent(UNIT)), mul(remainder(matrix, 2), Extent(CHUNK)))
            if self._taken == 4:
                at = add(at, mul(divided(matrix, 2), Extent(2 * UNIT)))
            down = divided(down, 2)
        else:
            at = mul(matrix if self._taken == 2 else remainder(matrix, 2), Extent(CHUNK))
        rows = rows or self.rows
        row = ZERO if rows == 1 else clamped(down, rows)
        apart = replace(source, strides=(*source.strides, source.strides[-1]))
        return LoadMatrices(target, (ZERO,), apart, (row, along, add(k, at)))

    def elements(self) -> list[Element]:
        """The sums of a thread, with those of all streams of one column together."""
        elements: list[Element] = []
        down = remainder(LANE, 4)
        for group in range(self.across // self.streams):
            fragments = [group * self.streams + s for s in range(self.streams)]
            column = add(divided(LANE, 4), Extent(8 * group))
            if self.is_folded:
                sums = tuple([plus(self._summed(f, 0), self._summed(f, 3)) for f in fragments])
                elements.append(Element(down, column, sums, self._has_row(down, FOLDED_ROWS)))
                continue
            for e in range(min(2, self.rows)):
                row = add(mul(down, Extent(2)), Extent(e))
                sums = tuple([self._summed(f // 2, 2 * (f % 2) + e) for f in fragments])
                elements.append(Element(row, column, sums, self._has_row(row, 8)))
        return elements

    def _has_row(self, row: Expr, most: int) -> Expr | None:
        return None if self.rows == most else less(row, Extent(self.rows))

    def _summed(self, tile: int, element: int) -> Expr:
        every = [Load(self.sums, (Extent(c * self.tiles + tile), Extent(element))) for c in range(self.chains)]
        return reduce(plus, every)


__all__ = ["UNIT", "StreamProducts"]
