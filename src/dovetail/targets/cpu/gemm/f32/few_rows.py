"""Products of a few rows by a matrix of a run: a vector on the left of an activation.

The matrix is read once, so that packing it costs more than the product, and memory decides. A panel is as wide as
registers hold sums: each step along k reads that many consecutive columns of a row where they are, and prefetches those
of a later row, which hardware does not guess from rows that are far apart. Blocks along k are summed apart, and every
row has the same order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from dovetail.codegen.llvm.function import Function, Signature
from dovetail.codegen.llvm.handles import I64, Mask, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH, shared_function
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import f32
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.ir import stretched
from dovetail.kernels.problems.contraction import Contraction
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.driver import Cell, Driver
from dovetail.targets.cpu.gemm.f32.block import BLOCK
from dovetail.targets.cpu.gemm.f32.variant import PackedGemm, is_transposed, served
from dovetail.targets.cpu.gemm.policy import FEW_ROWS
from dovetail.targets.cpu.gemm.tile import Tile

_A, _STRIDE, _B, _ROWS, _DEPTH = Ptr("%a"), I64("%stride"), Ptr("%b"), I64("%rows"), I64("%depth")
_SUMS, _STEP, _LIVE, _WORDS = Ptr("%sums"), I64("%target"), I64("%width"), Ptr("%words")


@cache
def few_rows_function(tile: Tile) -> tuple[SharedFunction, Signature]:
    """The function that multiplies the rows of a cell and runs the epilogue: called as `BLOCK` is, with the matrix
    where it is, the bytes between its rows for `target`, and the columns of the panel for `width`."""
    return shared_function(_FewRows(tile).written())


class _FewRows(VectorBuilder):
    def __init__(self, tile: Tile) -> None:
        super().__init__(tile.device)
        self.tile = tile

    def written(self) -> Function:
        full = self.icmp("eq", _LIVE, self.tile.columns)
        with self.when(full):
            self._all_rows([])
        with self.unless(full):
            vectors = range(self.tile.vectors)
            self._all_rows([self.lanes_below(self.smax(self.sub(_LIVE, i * self.lanes), 0)) for i in vectors])
        self.emit(f"call void %epilogue(ptr {_WORDS}, i64 0, i64 {_ROWS}, ptr null)")
        return self.function(BLOCK.renamed(f"{self.tile.name}_few_rows"), attributes="nounwind")

    def _all_rows(self, there: Sequence[Mask]) -> None:
        most = self.tile.rows
        together = self.mul(self.udiv(_ROWS, most), most)
        with self.loop(0, together, step=most) as row:
            self._multiply(row, most, there)
        if most > 1:
            with self.loop(together, _ROWS) as row:
                self._multiply(row, 1, there)

    def _multiply(self, first: I64, count: int, there: Sequence[Mask]) -> None:
        """The sums of some rows: of all columns, or of those whose lanes are there."""
        rows = [self.ptr_add(_A, self.mul(self.add(first, i), _STRIDE)) for i in range(count)]
        places = [
            self.ptr_add(_SUMS, self.add(self.mul(self.add(first, i), self.tile.row_bytes), 4 * j * self.lanes))
            for i in range(count)
            for j in range(self.tile.vectors)
        ]
        for place in places:
            self.store(ZERO, place)
        with self.loop(0, _DEPTH, step=FEW_ROWS.steps) as start:
            steps = self.smin(FEW_ROWS.steps, self.sub(_DEPTH, start))
            with self.carry(0, steps, [ZERO for _ in places]) as state:
                k = self.add(start, state.index)
                here = self.ptr_add(_B, self.mul(k, _STEP))
                # A prefetch of what is not there does nothing.
                later = self.ptr_add(here, self.mul(FEW_ROWS.ahead, _STEP))
                for line in range(0, self.tile.row_bytes, self.tile.line):
                    self.prefetch(self.ptr_add(later, line))
                left = [self.load_splat(self.ptr_add(row, self.mul(k, 4))) for row in rows]
                columns = [self.ptr_add(here, 4 * j * self.lanes) for j in range(self.tile.vectors)]
                right = (
                    [self.load_masked(m, c) for m, c in zip(there, columns, strict=True)]
                    if there
                    else [self.load(c) for c in columns]
                )
                pairs = [(x, y) for x in left for y in right]
                state.vectors[:] = [self.fma(x, y, z) for (x, y), z in zip(pairs, state.vectors, strict=True)]
            for place, x in zip(places, state.vectors, strict=True):
                self.store(self.fadd(self.load(place), x), place)


class _InPlace(Driver):
    """Cells whose panels are columns of the matrix where it is."""

    def finish(self, cell: Cell) -> None:
        a, pitch = self._rows(cell)
        b = self.ptr_add(self.ptr_add(self.pointer("b0"), cell.offsets["b0"]), self.mul(cell.column, 4))
        self.words(self.sums, cell)
        self.prefetch_operands(cell)
        c, epilogue, deep = self.corner("c", cell), self.epilogue_of(cell.columns), self.size("deep")
        step = self.size("b0_k")
        self.call(self.multiply, a, pitch, b, cell.count, deep, self.sums, c, step, cell.columns, epilogue, SCRATCH)


def offer_few_rows(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of a product of a few rows by a matrix that a run computes."""
    contraction = served(of)
    if isinstance(contraction, Refused):
        return contraction
    refused = _refused(contraction, of)
    if refused is not None:
        return refused
    tile = _tile(of.device, contraction)
    return Offer(lambda: _FewRowsJob(of.step, contraction, of.locations, tile).job())


def _refused(contraction: Contraction, of: StepProblem[CpuDevice]) -> Refused | None:
    if is_transposed(contraction, of.locations) is not None or contraction.ends is not None:
        return Refused("matrix_is_of_a_run", "weights", "a matrix that a run computes")
    if len(contraction.streams) > 1:
        return Refused("one_matrix", str(len(contraction.streams)), "one")
    (right,) = contraction.rights
    rows = _rows(contraction)
    if not isinstance(rows, int) or rows > FEW_ROWS.most:
        return Refused("rows_are_few", str(rows), f"at most {FEW_ROWS.most}")
    if right.dtype is not f32 or contraction.body.views[right].strides[-1] != f32.itemsize:
        return Refused("columns_are_together", str(right.type), "f32 with columns of a row one after the other")
    columns = right.shape[-1]
    if not isinstance(columns, int) or columns < of.device.lanes:
        return Refused("columns_fill_a_vector", str(columns), f"at least {of.device.lanes}")
    return None


def _rows(contraction: Contraction) -> Size:
    """The rows by which one matrix is multiplied."""
    shape = contraction.result.shape[:-1]
    return product(shape) if contraction.rights[0].rank == 2 else shape[-1]


def _tile(device: CpuDevice, contraction: Contraction) -> Tile:
    """Panels of equal width, as wide as registers hold sums besides what they are made of."""
    rows, columns = _rows(contraction), contraction.rights[0].shape[-1]
    assert isinstance(rows, int) and isinstance(columns, int), "as it was asked"
    vectors = -(-columns // device.lanes)
    most = max(1, (device.registers * FEW_ROWS.sums[0] // FEW_ROWS.sums[1]) // max(1, rows))
    whole = [n for n in range(-(-most // 2), most + 1) if columns % (n * device.lanes) == 0]
    return Tile(device, max(1, rows), max(whole) if whole else -(-vectors // -(-vectors // most)))


class _FewRowsJob(PackedGemm):
    """Products by a matrix that is read where it is."""

    stem = "gemm_few_rows"
    driver = _InPlace

    def _panels(self) -> None:
        (right,) = self.contraction.rights
        strides, front = self.body.views[right].strides, self.contraction.result.shape[:-2]
        self.bindings["b0"] = self.contraction.operand(right)
        self.fronts["b0"] = (*stretched(strides[:-2], right.shape[:-2], front), 0)
        self.sizes["b0_k"] = strides[-2]

    def _multiply(self) -> tuple[SharedFunction, Signature]:
        return few_rows_function(self.tile)

    def _block(self) -> int:
        return self.tile.rows


__all__ = ["few_rows_function", "offer_few_rows"]
