"""Products of many rows on tiles of AMX: rows in bf16 times a part of a panel in bf16, sums of f32.

Four tiles hold 32 × 32 sums, two hold rows and two hold weights. Rows are kept as tiles [row / 16][k / 32][16][32],
so that they stream; weights as [column / 16][k / 2][16][2], which stay in L1 while all rows pass.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.amx import COLUMNS, ROW_BYTES, ROWS, STEPS, TILE_BYTES, TileBuilder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, Int, Ptr, Vec, VectorType
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.simd import numbers, zeros
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bf16
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.policy import AMX

_FLOATS = VectorType(COLUMNS, "float")
_X, _WEIGHTS = (4, 5), (6, 7)
"""Tiles of rows and of weights; sums are in those before."""


@dataclass(frozen=True, slots=True)
class TileProduct:
    """What the code depends on."""

    columns: int
    """NR."""
    lines: int
    """Cache lines of packed weights that are prefetched for each step along k of a tile of sums."""
    x_ahead: int = AMX.x_ahead
    """Tiles of rows between what is multiplied and what is prefetched into L1; 0 for none."""
    emulated: bool = False
    is_packed: bool = False
    """Whether weights are packed as [k / 32][column / 16][16][16][2]; otherwise strips of 16 columns are expanded."""


class _Product(TileBuilder):
    """The function that multiplies all rows of a cell with a part of its panel."""

    def __init__(self, of: TileProduct) -> None:
        super().__init__(emulated=of.emulated)
        self.of = of
        self.deep = I64("%steps")
        self.strip: Int = TILE_BYTES if of.is_packed else self.mul(self.deep, TILE_BYTES)
        """Bytes from 16 columns of the part to the next."""
        self.pace = TILE_BYTES * (of.columns // COLUMNS if of.is_packed else 1)
        """Bytes of weights from a step along k to the next."""

    def written(self) -> Function:
        self.configure()
        pairs = self.udiv(I64("%tiles"), 2)
        with self.loop(0, pairs) as pair:
            self._all_columns(self.mul(pair, 2), 2, pair)
        odd = self.icmp("ne", self.mul(pairs, 2), I64("%tiles"))
        with self.when(odd):
            self._all_columns(self.mul(pairs, 2), 1, pairs)
        self.release()
        kinds = ("ptr x", "i64 pitch", "ptr weights", "ptr sums", "i64 stride", "i64 tiles", "i64 steps", "i1 fresh",
                 "ptr ahead")  # fmt: skip
        parameters = tuple([Parameter(*each.split()) for each in kinds])
        packed = ".packed" if self.of.is_packed else ""
        return self.function(Signature(f"amx.{self.of.columns}.{self.of.lines}{packed}", parameters))

    def _all_columns(self, tile: I64, high: int, pair: I64) -> None:
        """Rows of one or two tiles with all columns of the panel."""
        first = self.ptr_add(Ptr("%x"), self.mul(tile, I64("%pitch")))
        x = [first, self.ptr_add(first, I64("%pitch"))][:high]
        tiles = self.of.columns // COLUMNS
        every = -(-tiles // 2)
        for number in range(every):
            columns = range(2 * number, min(2 * number + 2, tiles))
            weights = [self.ptr_add(Ptr("%weights"), self.mul(self.strip, column)) for column in columns]
            start = self.ptr_add(Ptr("%sums"), self.mul(self.mul(tile, ROWS), I64("%stride")))
            accumulators: dict[tuple[int, int], Ptr] = {}
            for i in range(high):
                row = self.ptr_add(start, self.mul(I64("%stride"), ROWS * i))
                for j, column in enumerate(columns):
                    accumulators[i, j] = self.ptr_add(row, 4 * COLUMNS * column)
            begun = self.mul(self.add(self.mul(pair, every), number), self.deep)
            self._products(x, weights, accumulators, self.ptr_add(Ptr("%ahead"), self.mul(begun, 64 * self.of.lines)))

    def _products(self, x: list[Ptr], weights: list[Ptr], accumulators: dict[tuple[int, int], Ptr], ahead: Ptr) -> None:
        """One tile of sums, all steps along k."""
        cells = {cell: 2 * cell[0] + cell[1] for cell in accumulators}
        with self.when(I1("%fresh")):
            for tile in cells.values():
                self.zero(tile)
        with self.unless(I1("%fresh")):
            for cell, tile in cells.items():
                self.load(tile, accumulators[cell], I64("%stride"))
        with self.loop(0, self.deep) as step:
            at = self.mul(step, TILE_BYTES)
            for line in range(self.of.lines):
                self.prefetch(self.ptr_add(ahead, self.add(self.mul(step, 64 * self.of.lines), 64 * line)), level=2)
            for j, strip in enumerate(weights):
                self.load(_WEIGHTS[j], self.ptr_add(strip, self.mul(step, self.pace)), ROW_BYTES)
            for i, rows in enumerate(x):
                here = self.ptr_add(rows, at)
                self.load(_X[i], here, ROW_BYTES)
                for line in range(0, TILE_BYTES if self.of.x_ahead else 0, ROW_BYTES):
                    self.prefetch(self.ptr_add(here, self.of.x_ahead * TILE_BYTES + line))
                for j in range(len(weights)):
                    self.multiply(cells[i, j], _X[i], _WEIGHTS[j])
        for cell, tile in cells.items():
            self.store(tile, accumulators[cell], I64("%stride"))


class _Rounded(TileBuilder):
    """The function that writes a row of f32 as a row of tiles; `rest` numbers after whole tiles fill one with zeros."""

    def __init__(self, *, emulated: bool, rest: int) -> None:
        super().__init__(emulated=emulated)
        self.rest = rest

    def written(self) -> Function:
        with self.loop(0, I64("%steps")) as step:
            here = self.ptr_add(Ptr("%x"), self.mul(step, 4 * STEPS))
            two = [self.load_lanes(_FLOATS, self.ptr_add(here, 64 * i)) for i in range(2)]
            self.store_row(self.rounded(*two), self.ptr_add(Ptr("%target"), self.mul(step, TILE_BYTES)))
        if self.rest:
            last = I64("%steps")
            two = [self._some(self.ptr_add(Ptr("%x"), self.mul(last, 4 * STEPS)), first) for first in (0, COLUMNS)]
            self.store_row(self.rounded(*two), self.ptr_add(Ptr("%target"), self.mul(last, TILE_BYTES)))
        parameters = (Parameter("ptr", "x"), Parameter("ptr", "target"), Parameter("i64", "steps"))
        return self.function(Signature(f"amx.row.{self.rest}" if self.rest else "amx.row", parameters))

    def _some(self, x: Ptr, first: int) -> Vec:
        """A vector of the numbers that are left, from one on; zeros follow them."""
        kept = min(max(self.rest - first, 0), COLUMNS)
        if kept == 0:
            return zeros(_FLOATS)
        mask = numbers(_FLOATS.of("i1"), ["true" if lane < kept else "false" for lane in range(COLUMNS)])
        return Vec(self.load_where(_FLOATS, mask, self.ptr_add(x, 4 * first), zeros(_FLOATS), 4), _FLOATS)


@cache
def product_function(of: TileProduct) -> tuple[SharedFunction, Signature]:
    """Adds products to sums, unless they are fresh: `(x, pitch, weights, sums, stride, tiles, steps, fresh, ahead)`.

    `tiles` of 16 rows, `pitch` bytes apart, are multiplied along `steps` of 32. `ahead` is prefetched into L2.
    """
    return shared_function(_Product(of).written())


@cache
def row_function(*, emulated: bool, rest: int = 0) -> tuple[SharedFunction, Signature]:
    """Rounds a row of whole tiles, and of `rest` numbers more, to bf16: `(x, target, steps)`."""
    return shared_function(_Rounded(emulated=emulated, rest=rest).written())


def takes_tiles(device: CpuDevice, deep: int, count: Size) -> bool:
    """Whether a device multiplies many rows on tiles, and a product may have as many."""
    fits = device.has("amx_bf16") and device.lanes == COLUMNS and deep % STEPS == 0
    return fits and not (isinstance(count, int) and count < AMX.least)


def rows_on_tiles(device: CpuDevice, deep: int, panels: int, count: Size, at_most: int = AMX.rows) -> int:
    """Rows of a block, whole pairs of tiles: as bf16 they stay in L2 while all panels of a thread go over them."""
    above, below = AMX.l2_share
    few = -(-AMX.panels * device.threads // max(1, panels))
    most = max(AMX.few_rows, at_most // max(1, few))
    rows = max(AMX.least, min(most, device.caches.l2 * above // below // (bf16.itemsize * max(1, deep))))
    rows -= rows % AMX.least
    # A long prompt has runs of the most rows: blocks of these are equal, so that threads have as much to do.
    whole = count if isinstance(count, int) else most
    return min(rows, _ceil(_ceil(whole, _ceil(whole, rows)), AMX.least) * AMX.least)


def part_on_tiles(device: CpuDevice, deep: int, columns: int, whole: int) -> int:
    """Steps along k of the part of a panel that stays in L1 while all rows pass: equal parts, `whole` steps each."""
    above, below = AMX.l1_share
    most = max(whole, device.caches.l1 * above // below // (bf16.itemsize * columns) // whole * whole)
    return _ceil(_ceil(deep, _ceil(deep, most)), whole) * whole


def whole_steps(deep: int) -> int:
    """A depth that is filled up to whole tiles."""
    return _ceil(deep, STEPS) * STEPS


def _ceil(x: int, y: int) -> int:
    return -(-x // y)


__all__ = [
    "TileProduct", "part_on_tiles", "product_function", "row_function", "rows_on_tiles", "takes_tiles", "whole_steps",
]  # fmt: skip
