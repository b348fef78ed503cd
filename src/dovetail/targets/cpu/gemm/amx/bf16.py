"""Products with weights of f32 whose factors are both rounded to bf16, and summed in f32 (`precision="bf16"`).

A cell is one panel of columns for one block of rows. Many rows are multiplied on tiles of AMX where a device has them,
others by pairs (VDPBF16PS). Rows are tiles [row / 16][k / 32][16][32], and weights are packed as
[k / 32][column / 16][16][16][2], once, before a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from dovetail.codegen.llvm.amx import COLUMNS, ROW_BYTES, ROWS, STEPS, TILE_BYTES, TileBuilder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, Ptr, Vec, VectorType
from dovetail.codegen.llvm.kernel import KernelCode, shared_function
from dovetail.codegen.llvm.simd import PhiLoop, zeros
from dovetail.dataclass import dataclass
from dovetail.declare.cost import type_bytes
from dovetail.ir.dim import total
from dovetail.ir.dtype import bf16, f32
from dovetail.ir.literal import Array
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.contraction import Contraction
from dovetail.kernels.problems.stored_weights import cost_with
from dovetail.kernels.spec import Job, SharedFunction
from dovetail.targets.cpu.gemm.amx.tiles import TileProduct, part_on_tiles, product_function, row_function, whole_steps
from dovetail.targets.cpu.gemm.driver import kernel_code
from dovetail.targets.cpu.gemm.f32.variant import is_transposed, served
from dovetail.targets.cpu.gemm.policy import AMX, BF16
from dovetail.targets.cpu.gemm.row_panels import Block, RowPanelJob, RowPanels, Workspace
from dovetail.targets.cpu.gemm.tile import Tile
from dovetail.targets.runtime.arrays.aligned import aligned

_PAIRS = STEPS // 2
"""Of a tile."""


@dataclass(frozen=True, slots=True)
class Bf16Panels:
    """Columns of one or more matrices as [panel, k / 32, column / 16, 16, 16, 2]; zeros fill up columns and depth."""

    columns: int
    """Of a panel."""
    streams: tuple[tuple[int, int], ...]
    """For each stream of columns the matrix that it is in, and its first column."""
    size: int
    """Columns of each stream."""
    transposed: bool = False
    """Whether the matrices are stored [columns, k]."""

    @property
    def layout(self) -> str:
        """Equal for equal layouts."""
        return f"bf16 {self.columns} {self.streams} {self.size} {self.transposed}"

    def by_column(self, *matrices: Array) -> list[Array]:
        """Matrices [columns, k] of f32."""
        return [matrix if self.transposed else matrix.T for matrix in matrices]

    def __call__(self, *weights: Array) -> Array:
        """Matrices [k, n], or [n, k] if transposed, as two bf16 in each u32."""
        matrices = self.by_column(*weights)
        width, deep = self.columns // len(self.streams), whole_steps(matrices[0].shape[1])
        count, vectors = -(-self.size // width), width // COLUMNS
        shape = (count, deep // STEPS, self.columns // COLUMNS, _PAIRS, COLUMNS)
        packed = aligned(shape, np.uint32)
        for stream, (matrix, first) in enumerate(self.streams):
            part = matrices[matrix][first : first + self.size]
            rows = np.zeros((count * width, deep), bf16.numpy)
            rows[: len(part), : part.shape[1]] = part
            pairs = rows.view(np.uint32).reshape(count, vectors, COLUMNS, deep // STEPS, _PAIRS)
            packed[:, :, stream * vectors : (stream + 1) * vectors] = pairs.transpose(0, 3, 1, 4, 2)
        return packed


_FLOATS, _WORDS = VectorType(COLUMNS, "float"), VectorType(COLUMNS, "i32")


class _Dots(TileBuilder):
    """The function that multiplies some rows with a part of a panel."""

    def __init__(self, rows: int, vectors: int, *, emulated: bool) -> None:
        super().__init__(emulated=emulated)
        self.rows, self.vectors = rows, vectors
        self.cells = [(row, v) for row in range(rows) for v in range(vectors)]

    def written(self) -> Function:
        there = {(row, v): self._place(row, v) for row, v in self.cells}
        start = {cell: self._sums_before(place) for cell, place in there.items()}
        along = PhiLoop(self)
        pair = along.carry(I64("0"))
        accumulators = {cell: along.carry(start[cell]) for cell in self.cells}
        updated = self._products(pair, dict(accumulators))
        following = I64(self.let(f"add nuw nsw i64 {pair}, {BF16.pairs}"))
        again = self.icmp("slt", following, self.mul(I64("%steps"), _PAIRS))
        along.end([(pair, following), *[(phi, updated[cell]) for cell, phi in accumulators.items()]], again)
        for cell, place in there.items():
            self.store_lanes(updated[cell], place)
        kinds = ("ptr x", "ptr weights", "ptr sums", "i64 stride", "i64 steps", "i1 fresh")
        parameters = tuple([Parameter(*each.split()) for each in kinds])
        return self.function(Signature(f"bf16.dots.{self.rows}.{self.vectors}", parameters))

    def _products(self, pair: I64, accumulators: dict[tuple[int, int], Vec]) -> dict[tuple[int, int], Vec]:
        """Some pairs of steps along k of one tile."""
        tile, within = self.udiv(pair, _PAIRS), self.urem(pair, _PAIRS)
        x = self.ptr_add(Ptr("%x"), self.add(self.mul(tile, TILE_BYTES), self.mul(within, 4)))
        at = self.add(self.mul(tile, self.vectors * TILE_BYTES), self.mul(within, ROW_BYTES))
        panel = self.ptr_add(Ptr("%weights"), at)
        for i in range(BF16.pairs):
            lines = [self.ptr_add(panel, TILE_BYTES * v + ROW_BYTES * i) for v in range(self.vectors)]
            for line in lines:
                self.prefetch(self.ptr_add(line, BF16.prefetch_tiles * self.vectors * TILE_BYTES))
            weights = [self.load_lanes(_WORDS, line, 64) for line in lines]
            for row in range(self.rows):
                two = self.pair_in_all_lanes(self.ptr_add(x, ROW_BYTES * row + 4 * i))
                for v in range(self.vectors):
                    accumulators[row, v] = self.dot(accumulators[row, v], two, weights[v])
        return accumulators

    def _place(self, row: int, v: int) -> Ptr:
        return self.ptr_add(self.ptr_add(Ptr("%sums"), self.mul(I64("%stride"), row)), 4 * COLUMNS * v)

    def _sums_before(self, there: Ptr) -> Vec:
        """The sums of the steps before."""
        return self.select_vec(I1("%fresh"), zeros(_FLOATS), self.load_lanes(_FLOATS, there))


@cache
def dots_function(rows: int, vectors: int, *, emulated: bool) -> tuple[SharedFunction, Signature]:
    """Adds products of rows, which are in one tile, to sums, unless they are fresh.

    `(x, weights, sums, stride, steps, fresh)`, along `steps` of 32.
    """
    return shared_function(_Dots(rows, vectors, emulated=emulated).written())


_LINE = 64


def offer_bf16(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of products with weights of f32 that are known before a run."""
    contraction = served(of)
    if isinstance(contraction, Refused):
        return contraction
    if not (of.device.has("amx_bf16") or of.device.has("avx512_bf16")) or of.device.lanes != COLUMNS:
        return Refused("device_multiplies_bf16", "no products of bf16", "AMX-BF16 or AVX512-BF16")
    weights = [contraction.operand(right) for right in contraction.rights]
    kinds = {value.dtype for value in (contraction.products[0], *weights)}
    if kinds != {f32}:
        return Refused("weights_are_f32", ", ".join(sorted([kind.name for kind in kinds])), "f32")
    if is_transposed(contraction, of.locations) is None or any(value.rank != 2 for value in weights):
        return Refused("weights_are_known", weights[0].op.name, "a matrix that is a parameter or a constant")
    streams = len(contraction.streams)
    if BF16.vectors % streams:
        return Refused("streams_share_a_panel", str(streams), f"a divisor of {BF16.vectors}")
    tile, saved = Tile(of.device, 1, BF16.vectors), total([type_bytes(value.type) for value in weights]) // 2
    return Offer(lambda: _Job(of, contraction, tile).job(), lambda: cost_with(of.value, saved))


class _Job(RowPanelJob):
    """The job of one product while it is put together."""

    def __init__(self, of: StepProblem[CpuDevice], contraction: Contraction, tile: Tile) -> None:
        super().__init__(of.step, contraction, of.locations, tile)

    def job(self) -> Job | Refused:
        if not isinstance(self.deep, int) or self.deep == 0:
            return Refused("depth_is_known", str(self.deep), "a number")
        turned = is_transposed(self.contraction, self.locations) is True
        matrices = [[self.contraction.operand(right)] for right in self.contraction.rights]

        def pack(streams: tuple[tuple[int, int], ...], size: int, _: tuple[int, ...]) -> Bf16Panels:
            return Bf16Panels(self.tile.columns, streams, size, turned)

        pitch = bf16.itemsize * whole_steps(self.deep)
        return self.finished(pitch, matrices, pack, _code, BF16.speed, rounds=True)


@dataclass(frozen=True, slots=True)
class DotFunctions:
    """What the kernel calls."""

    rounded: tuple[SharedFunction, Signature]
    dots: Mapping[int, tuple[SharedFunction, Signature]]
    """By rows of a register tile, most first."""
    on_tiles: tuple[SharedFunction, Signature] | None
    """None on a device without AMX."""

    @staticmethod
    def of(device: CpuDevice, columns: int, rest: int) -> DotFunctions:
        """Those of panels of some columns, whose depth is `rest` above whole tiles."""
        emulated = not (device.emits("amx_bf16") or device.emits("avx512_bf16"))
        # Tiles leave single rows to the others.
        rows = BF16.rows[-1:] if device.has("amx_bf16") else BF16.rows
        dots = {n: dots_function(n, columns // COLUMNS, emulated=emulated) for n in rows}
        # A pass of all rows prefetches about the part that follows.
        passes = BF16.block // (2 * ROWS) * -(-columns // (2 * COLUMNS))
        lines = max(1, bf16.itemsize * STEPS * columns // _LINE // passes)
        product = TileProduct(columns, lines, AMX.x_ahead, emulated=emulated, is_packed=True)
        on_tiles = product_function(product) if device.has("amx_bf16") else None
        return DotFunctions(row_function(emulated=emulated, rest=rest), dots, on_tiles)

    @property
    def every(self) -> list[tuple[SharedFunction, Signature]]:
        return [self.rounded, *self.dots.values(), *([] if self.on_tiles is None else [self.on_tiles])]


def _code(of: Block) -> tuple[KernelCode, int]:
    driver = _Driver(of)
    return kernel_code("bf16", driver, driver.functions.every), driver.room


class _Driver(RowPanels):
    """The function that goes through cells."""

    def __init__(self, of: Block) -> None:
        device, columns = of.shape.tile.device, of.shape.tile.columns
        self.deep = whole_steps(of.deep)
        self.step_bytes = bf16.itemsize * STEPS * columns
        """Of packed weights."""
        super().__init__(of, Workspace(of), self.deep // STEPS * self.step_bytes)
        self.kc = part_on_tiles(device, self.deep, columns, STEPS)
        self.functions = DotFunctions.of(device, columns, of.deep % STEPS)
        self.write()

    def prepare_rows(self, start: Ptr, count: I64) -> None:
        rounded = self.functions.rounded[1]
        self.each_row(start, count, lambda x, row: self.round_row(rounded, x, row))

    def multiply(self, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        """All rows with the panel, KC steps along k at a time."""
        with self.loop(0, self.deep, step=self.kc) as first:
            steps = self.udiv(self.smin(self.kc, self.sub(self.deep, first)), STEPS)
            step, fresh = self.udiv(first, STEPS), self.icmp("eq", first, 0)
            weights, x = (
                self.ptr_add(b, self.mul(step, self.step_bytes)),
                self.ptr_add(rows, self.mul(step, TILE_BYTES)),
            )
            if self.functions.on_tiles is None:
                self._by_pairs(x, weights, accumulators, count, steps, fresh)
            else:
                self._on_tiles(self.functions.on_tiles[1], x, weights, accumulators, count, steps, fresh)

    def _on_tiles(
        self, multiply: Signature, x: Ptr, weights: Ptr, accumulators: Ptr, count: I64, steps: I64, fresh: I1
    ) -> None:
        """Many rows on tiles."""
        many = self.icmp("sge", count, BF16.least)
        with self.when(many):
            tiles = self.udiv(self.add(count, ROWS - 1), ROWS)
            ahead, stride = self.ptr_add(weights, self.mul(steps, self.step_bytes)), self.shape.tile.row_bytes
            self.call(multiply, x, self.strip, weights, accumulators, stride, tiles, steps, fresh, ahead)
        with self.unless(many):
            self._by_pairs(x, weights, accumulators, count, steps, fresh)

    def _by_pairs(self, x: Ptr, weights: Ptr, accumulators: Ptr, count: I64, steps: I64, fresh: I1) -> None:
        """Some rows at a time, those of the largest register tile first."""
        stride = self.shape.tile.row_bytes
        for n, row in self.in_tiles(self.functions.dots, count):
            here, target = self.ptr_add(x, self.tile_row(row)), self.ptr_add(accumulators, self.mul(row, stride))
            self.call(self.functions.dots[n][1], here, weights, target, stride, steps, fresh)

    def prepare(self, x: Ptr, target: Ptr) -> None:
        raise AssertionError("rows are prepared as tiles")


__all__ = ["Bf16Panels", "dots_function", "offer_bf16"]
