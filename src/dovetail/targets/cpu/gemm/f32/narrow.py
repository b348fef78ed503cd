"""Products with few columns: classifiers, routers and regressions, whose columns would not fill a register tile.

Each column of the weights is stored along k, and so are the lanes of its sums: a register tile with columns in its
lanes would leave most of them empty. Sums of a lane are short, so that rounding errors are small. A block of steps
starts at zero and is added to the blocks before it, as in the register tile, and one row has the same order of sums as
many: how rows are cut changes no bit. Columns that a run computes are read where they are, if each is contiguous along
k: a vector is.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.function import Function, Signature
from dovetail.codegen.llvm.handles import I64, Mask, Ptr, Vec
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import f32
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.ir import stretched
from dovetail.kernels.problems.contraction import Contraction
from dovetail.kernels.spec import Packed, SharedFunction, TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.cpu.gemm.f32.block import BLOCK
from dovetail.targets.cpu.gemm.f32.pack import PackedColumns
from dovetail.targets.cpu.gemm.f32.variant import PackedGemm, is_transposed, served
from dovetail.targets.cpu.gemm.policy import NARROW, tiles_of
from dovetail.targets.cpu.gemm.tile import Tile

_A, _STRIDE, _B, _ROWS, _DEPTH = Ptr("%a"), I64("%stride"), Ptr("%b"), I64("%rows"), I64("%depth")
_SUMS, _WORDS = Ptr("%sums"), Ptr("%words")


@dataclass(frozen=True, slots=True)
class NarrowTile:
    """What the code depends on."""

    device: CpuDevice
    columns: int
    """Of the product, all of them."""
    is_packed: bool = True
    """Whether columns are filled up with zeros to whole vectors; otherwise one follows the other."""

    @property
    def rows(self) -> int:
        """Rows whose sums are in registers at once."""
        return min(NARROW.most_rows, max(1, self.device.registers // 2 // self.columns))

    @property
    def padded(self) -> Tile:
        """The sums of rows as they are in memory: whole vectors."""
        return Tile(self.device, self.rows, -(-self.columns // self.device.lanes))

    @property
    def name(self) -> str:
        return f"gemm_narrow_{self.columns}x{self.device.lanes}{'' if self.is_packed else '_direct'}"


@cache
def narrow_function(tile: NarrowTile) -> tuple[SharedFunction, Signature]:
    """The function that multiplies all rows of a cell and runs the epilogue: called as `BLOCK` is, with the weights
    [columns][depth], where depth is filled up with zeros to whole vectors if they are packed."""
    return shared_function(_Narrow(tile).written())


class _Narrow(VectorBuilder):
    def __init__(self, tile: NarrowTile) -> None:
        super().__init__(tile.device)
        self.tile = tile
        self.whole = self.mul(self.udiv(_DEPTH, self.lanes), self.lanes)
        self.pitch = self.mul(self.round_up(_DEPTH, self.lanes) if tile.is_packed else _DEPTH, 4)
        self.columns = [self.ptr_add(_B, self.mul(self.pitch, j)) for j in range(tile.columns)]
        self.totals = [self.variable(ZERO) for _ in range(tile.rows * tile.columns)]

    def written(self) -> Function:
        most = self.tile.rows
        together = self.mul(self.udiv(_ROWS, most), most)
        with self.loop(0, together, step=most) as row:
            self._multiply(row, most)
        if most > 1:
            with self.loop(together, _ROWS) as row:
                self._multiply(row, 1)
        self.emit(f"call void %epilogue(ptr {_WORDS}, i64 0, i64 {_ROWS}, ptr null)")
        return self.function(BLOCK.renamed(self.tile.name), attributes="nounwind")

    def _multiply(self, first: I64, count: int) -> None:
        """The sums of some rows."""
        rows = [self.ptr_add(_A, self.mul(self.add(first, i), _STRIDE)) for i in range(count)]
        cells = [(i, j) for i in range(count) for j in range(self.tile.columns)]
        totals = self.totals[: len(cells)]
        for total in totals:
            self.set(ZERO, total)
        block = NARROW.steps * self.lanes
        with self.loop(0, self.whole, step=block) as start:
            end = self.smin(self.add(start, block), self.whole)
            steps = self.udiv(self.sub(end, start), self.lanes)
            with self.carry(0, steps, [ZERO for _ in cells]) as state:
                at = self.mul(self.add(start, self.mul(state.index, self.lanes)), 4)
                left = [self.load(self.ptr_add(row, at)) for row in rows]
                state.vectors[:] = self._added(left, at, state.vectors)
            for total, x in zip(totals, state.vectors, strict=True):
                self.set(self.fadd(self.get(total), x), total)
        with self.when(self.icmp("slt", self.whole, _DEPTH)):
            at, there = self.mul(self.whole, 4), self.lanes_below(self.sub(_DEPTH, self.whole))
            left = [self.load_masked(there, self.ptr_add(row, at)) for row in rows]
            last = None if self.tile.is_packed else there
            for total, x in zip(totals, self._added(left, at, [self.get(t) for t in totals], last), strict=True):
                self.set(x, total)
        for (i, j), total in zip(cells, totals, strict=True):
            place = self.ptr_add(_SUMS, self.mul(self.add(first, i), self.tile.padded.row_bytes))
            self.emit(f"store float {self.reduce_add(self.get(total))}, ptr {self.ptr_add(place, 4 * j)}, align 4")

    def _added(self, left: list[Vec], at: I64, accumulators: list[Vec], there: Mask | None = None) -> list[Vec]:
        """The sums with the products of one vector of each row and of each column, of which some lanes are there."""
        places = [self.ptr_add(column, at) for column in self.columns]
        if there is not None:
            right = [self.load_masked(there, place) for place in places]
        else:
            right = [self.load(place, self.bytes if self.tile.is_packed else 4) for place in places]
        pairs = [(x, y) for x in left for y in right]
        return [self.fma(x, y, total) for (x, y), total in zip(pairs, accumulators, strict=True)]


def offer_narrow(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of a product with few columns, by weights that are packed before the run."""
    contraction = served(of)
    if isinstance(contraction, Refused):
        return contraction
    refused = _refused(contraction, of.device)
    if refused is not None:
        return refused
    columns = contraction.result.shape[-1]
    assert isinstance(columns, int), "columns that are few are known"
    if is_transposed(contraction, of.locations) is not None:
        if contraction.rights[0].rank != 2:
            return Refused("one_matrix", f"one of rank {contraction.rights[0].rank}", "one of rank 2")
        tile = NarrowTile(of.device, columns)
        return Offer(lambda: _NarrowWeights(of.step, contraction, of.locations, tile).job())
    if not _are_contiguous(contraction):
        return Refused(
            "weights_are_known", contraction.rights[0].op.name, "a parameter, or columns that are contiguous"
        )
    direct = NarrowTile(of.device, columns, is_packed=False)
    return Offer(lambda: _NarrowColumns(of.step, contraction, of.locations, direct).job())


def _are_contiguous(contraction: Contraction) -> bool:
    """Whether both operands are f32 along k, and one column of the right one follows the other."""
    (right,), views = contraction.rights, contraction.body.views
    left_step, right_strides = views[contraction.left].strides[-1], views[right].strides
    if contraction.left.dtype is not f32 or right.dtype is not f32 or contraction.ends is not None:
        return False
    together = right.shape[-1] == 1 or right_strides[-1] == right.shape[-2] * f32.itemsize
    return left_step == f32.itemsize and right_strides[-2] == f32.itemsize and together


def _refused(contraction: Contraction, device: CpuDevice) -> Refused | None:
    deep, columns = contraction.rights[0].shape[-2:]
    wide = tiles_of(device).vectors * device.lanes
    most = min(NARROW.most_columns, wide // 2)
    if not isinstance(columns, int) or columns > most:
        return Refused("columns_are_few", str(columns), f"at most {most}, which leave a tile of {wide} half empty")
    if not isinstance(deep, int) or deep < NARROW.least_vectors * device.lanes:
        return Refused("sums_are_long", str(deep), f"at least {NARROW.least_vectors} vectors of {device.lanes}")
    if len(contraction.streams) > 1:
        return Refused("one_matrix", str(len(contraction.streams)), "one")
    return None


class _NarrowWeights(PackedGemm):
    """Products whose columns are all in one cell."""

    stem = "narrow"

    def __init__(self, step: Step, contraction: Contraction, locations: TensorLocations, narrow: NarrowTile) -> None:
        super().__init__(step, contraction, locations, narrow.padded)
        self.narrow = narrow

    def _panels(self) -> None:
        (right,) = self.contraction.rights
        pack = PackedColumns(self.tile.lanes, is_transposed(self.contraction, self.locations) is True)
        self.bindings["b0"] = Packed(self.contraction.operand(right), pack.layout, pack)
        self.fronts["b0"] = (0,) * (self.contraction.result.rank - 1)

    def _multiply(self) -> tuple[SharedFunction, Signature]:
        return narrow_function(self.narrow)

    def _live(self) -> Size:
        return self.narrow.columns

    def _block(self) -> int:
        return NARROW.block


class _NarrowColumns(_NarrowWeights):
    """The same by columns of a run, where they are."""

    stem = "narrow_direct"

    def _panels(self) -> None:
        (right,) = self.contraction.rights
        strides, front = self.body.views[right].strides[:-2], self.contraction.result.shape[:-2]
        self.bindings["b0"] = self.contraction.operand(right)
        self.fronts["b0"] = (*stretched(strides, right.shape[:-2], front), 0)


__all__ = ["NarrowTile", "narrow_function"]
