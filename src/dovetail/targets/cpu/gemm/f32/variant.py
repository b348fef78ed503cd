"""Contract: products of one left operand with one or more right ones, with elementwise work on them in the epilogue."""

from __future__ import annotations

from dovetail import library, ops
from dovetail.codegen.llvm.function import Signature
from dovetail.ir.dim import Size, product, smallest
from dovetail.ir.dtype import f32
from dovetail.ir.type import TupleType
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.body import Body
from dovetail.kernels.loops.ir import (
    stretched,
)
from dovetail.kernels.problems.contraction import Contraction
from dovetail.kernels.problems.grouped import find_any_product
from dovetail.kernels.spec import Job, Packed, SharedFunction, TensorLocations, Tiles
from dovetail.ops.region import region
from dovetail.targets.cpu.gemm.driver import Driver, RowSource, gemm_code, words_bytes
from dovetail.targets.cpu.gemm.f32.block import block_function
from dovetail.targets.cpu.gemm.f32.pack import Panels
from dovetail.targets.cpu.gemm.job import GemmJob
from dovetail.targets.cpu.gemm.policy import GEMM
from dovetail.targets.cpu.gemm.tile import tile_of
from dovetail.targets.runtime.arrays.aligned import ALIGNMENT

SERVED = (ops.matmul, library.linear, library.matmul_add, library.swiglu, library.wide_swiglu)


def offer_gemm(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of a contraction of floats that are summed in f32, and of any declared op that is one."""
    contraction = served(of)
    if isinstance(contraction, Refused):
        return contraction
    if contraction.ends is not None and not of.locations.is_bound(contraction.operand(contraction.rights[0])):
        return Refused("weights_are_known_before_a_run", "weights of a run", "parameters", hint="bind them")
    if is_transposed(contraction, of.locations) is None:
        return Offer(lambda: _pair(of, contraction))
    tile = tile_of(of.device, len(contraction.streams))
    return Offer(lambda: PackedGemm(of.step, contraction, of.locations, tile).job())


def served(of: StepProblem[CpuDevice]) -> Contraction | Refused:
    """The contraction that a step is, where its products are floats that are summed in f32."""
    op = of.value.op
    if op not in SERVED and op is not region and isinstance(of.value.type, TupleType):
        return Refused("declared_op_has_one_result", str(of.value.type))
    return of.once(find_any_product)


def _pair(of: StepProblem[CpuDevice], contraction: Contraction) -> Job | Refused:
    from dovetail.targets.cpu.gemm.f32.pair import pair_job  # few models multiply activations as they are

    return pair_job(of.step, contraction, of.locations, of.device)


def is_transposed(contraction: Contraction, locations: TensorLocations) -> bool | None:
    """Whether the weights are stored with columns for rows; None where they cannot be packed before the run."""
    turned = {_is_seen_transposed(right, contraction.body) for right in contraction.rights}
    bound = all(locations.is_bound(contraction.operand(right)) for right in contraction.rights)
    return turned.pop() if bound and len(turned) == 1 else None


class PackedGemm(GemmJob):
    """Products with weights that are packed before the run."""

    stem = "gemm"
    """Prefix of the kernel's name."""
    driver: type[Driver] = Driver
    """What goes through its cells."""

    def job(self) -> Job:
        rows = self._rows()
        self._panels()
        operands = self.operands()
        self.point_results()
        count, batch = self.fold()
        block = self.rows = self._block()
        blocks = self.blocks(count)
        self.sizes |= {"rows": count, "blocks": blocks}
        epilogues = self.epilogues()
        scratch = self._scratch(words_bytes(epilogues[0]), smallest(count, block), rows)
        shape = self.shape(operands, batch)
        code = gemm_code(self.stem, shape, rows, epilogues, self._multiply(), self.driver)
        template = code.template(self.bindings, tuple(self.sizes.values()), scratch)
        tiles = product(batch) * blocks * self.panels
        work = self.block_rows(count) * self.deep * self.tile.columns
        return Job(template, self.bindings, Tiles(tiles, work))

    def _multiply(self) -> tuple[SharedFunction, Signature]:
        """Return the function that multiplies the rows of a cell."""
        return block_function(self.tile)

    def _rows(self) -> RowSource | None:
        """The left operand; where it is not dense f32 along k, rows are copied."""
        stride = self.point_left()
        left = self.contraction.left
        if left.dtype is f32 and (stride == f32.itemsize or self.deep == 1):
            return None
        self.sizes["a_k"] = stride
        return RowSource("a", left.dtype)

    def _panels(self) -> None:
        """The right operands, packed side by side."""
        contraction = self.contraction
        of = [contraction.operand(r) for r in contraction.rights]
        streams = tuple((i, _whole(first)) for i, first in contraction.streams)
        turned = is_transposed(contraction, self.locations) is True
        pack = Panels(self.tile.columns, streams, _whole(self.sizes["columns"]), turned)
        packed = Packed(of[0], pack.layout, pack, tuple(of[1:]))
        own = () if contraction.ends is not None else contraction.rights[0].shape[:-2]
        size = _whole(self.panels * self.deep) * self.tile.row_bytes
        self.point_weights(packed, (*stretched(_steps(own, size), own, contraction.result.shape[:-2]), 0))

    def _block(self) -> int:
        """Rows that one cell goes through."""
        if not isinstance(self.deep, int):
            return 8 * self.tile.rows
        above, below = GEMM.a_share
        room = self.tile.device.caches.l2 * above // below
        tiles = room // max(1, f32.itemsize * self.deep * self.tile.rows)
        # Where there are few columns, threads share the rows.
        most = GEMM.few_tiles if isinstance(self.panels, int) and self.panels <= GEMM.few_panels else GEMM.most_tiles
        return self.tile.rows * min(most, max(1, tiles))

    def _scratch(self, start: int, block: Size, rows: RowSource | None) -> Size:
        """Words of the epilogue, sums, and copies; how many bytes they take."""
        end: Size = start + block * self.tile.row_bytes
        if rows is not None:
            pitch = self.deep * f32.itemsize + ALIGNMENT
            self.sizes |= {"a_copy": end, "a_pitch": pitch}
            end = end + pitch * block
        return end


def _is_seen_transposed(right: Value, body: Body) -> bool | None:
    """Whether an operand is read with columns for rows; None where it is seen in another way."""
    if right in body.arguments:
        return False
    return True if right.op is ops.permute and right.operands[0] in body.arguments and right.rank == 2 else None


def _steps(shape: tuple[Size, ...], size: int) -> tuple[Size, ...]:
    """The stride of pieces of a size along each axis."""
    steps: list[Size] = []
    for n in reversed(shape):
        steps.append(size)
        size = size * _whole(n)
    return tuple(reversed(steps))


def _whole(size: Size) -> int:
    assert isinstance(size, int), "what is known before a run has known sizes"
    return size
