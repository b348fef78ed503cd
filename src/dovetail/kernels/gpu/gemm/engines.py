"""The engines of a GEMM as rows of the selection table: each has conditions, a schedule, and an estimate of it.

Rows are in the order of preference and the first that fits is taken: their estimates are fitted by engine, and were
never compared across engines on a card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dim import product
from dovetail.ir.dtype import DType, bool_, f16, f32
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.blocks.copied_blocks import CopiedBlocks
from dovetail.kernels.gpu.blocks.packed_blocks import BlockFactor, PackedBlocks
from dovetail.kernels.gpu.blocks.packed_tiles import PackedTiles
from dovetail.kernels.gpu.blocks.stream import BlockStream
from dovetail.kernels.gpu.blocks.units import has_known_blocks, units_of
from dovetail.kernels.gpu.gemm.contract import GemmWriter
from dovetail.kernels.gpu.gemm.fma import FmaTile
from dovetail.kernels.gpu.gemm.fma_tile_choice import BLOCKS_SHAPE, with_warps_of
from dovetail.kernels.gpu.gemm.fragments import Factor, is_multiple
from dovetail.kernels.gpu.gemm.pipelined_tile import PipelinedTile
from dovetail.kernels.gpu.gemm.tensor_core_tile import TensorCoreTile
from dovetail.kernels.gpu.gemm.tile import (
    CHUNK,
    FEWEST_ROWS,
    BlockTile,
    cycles_of,
    gains_by_transposing,
    may_use_warpgroups,
    pipelined_tile_of,
    tile_of,
)
from dovetail.kernels.gpu.gemm.tiled import Tiled
from dovetail.kernels.gpu.gemv.near_tile import NearTile
from dovetail.kernels.gpu.gemv.packed_matrix import Transposed
from dovetail.kernels.gpu.gemv.row_stream import RowStream
from dovetail.kernels.gpu.gemv.stream import MOST_ROWS, StreamRing, StreamTile
from dovetail.kernels.loops.ir import BOX
from dovetail.kernels.matrix_instruction import LANES, MMA, MatrixInstruction, instruction_for
from dovetail.kernels.problems.blocks import BlockProduct, find_blocks
from dovetail.kernels.problems.contraction import find_products
from dovetail.kernels.spec import Job, Packed


@dataclass(frozen=True, slots=True)
class GemmSchedule:
    """A GEMM as an engine computes it."""

    engine: StreamTile | NearTile | PipelinedTile | TensorCoreTile | FmaTile | BlockStream | CopiedBlocks
    tiled: Callable[[], Tiled]
    """What a block does for a tile."""
    split_k: int = 1
    """Into how many parts k goes."""
    packed: Mapping[str, Packed] = field(default_factory=dict[str, Packed])
    """Weights as they are packed when parameters are bound, by pointer."""
    cycles: float = 0.0
    """An estimate, without the start of the kernel; 0 where there is none."""


@dataclass(frozen=True, slots=True)
class RightLayout:
    """Right operands as a tile copies them."""

    rights: list[Factor]
    axis: str
    packed: Mapping[str, Packed]
    tile: tuple[BlockTile, int] | Refused
    """That of a producer, and the parts of k."""


class Gemm:
    """A GEMM as engines see it: its operands and axes, and what several engines ask of it, computed once."""

    def __init__(self, writer: GemmWriter, blocks: BlockProduct | None = None, left: DType | None = None) -> None:
        """`left` is the dtype of left rows that take the place of the operand."""
        self.writer, self.blocks, self.device, self.request = writer, blocks, writer.device, writer.request
        contraction = writer.contraction
        self.dtypes = {left or contraction.left.dtype, *(v.dtype for v in contraction.rights)}
        self.left, self.rights = writer.left(), writer.rights()
        self.rows, self.columns, self.depth = writer.rows, writer.columns, writer.depth
        self.batch, self.streams = writer.batch, writer.streams

    @cached_property
    def instruction(self) -> MatrixInstruction | Refused:
        """What warps multiply with."""
        dtype = min(self.dtypes, key=lambda d: d.name)
        instruction = instruction_for(self.device.matrix_instructions, dtype) if len(self.dtypes) == 1 else None
        names, known = ", ".join(sorted([d.name for d in self.dtypes])), self.device.matrix_instructions
        several = " or ".join(dict.fromkeys([one.factors.name for one in known]))
        return instruction or Refused(
            "tensor_cores_have_the_dtype", names, several or "a device that multiplies matrices"
        )

    @cached_property
    def dtype(self) -> DType | Refused:
        """The dtype of operands that `mma` multiplies, which most engines have alone."""
        by = self.instruction
        if isinstance(by, Refused):
            return by
        return by.factors if by in MMA else Refused("instruction_is_mma", by.name, "mma.sync")

    @cached_property
    def warp_tile(self) -> tuple[BlockTile, int] | Refused:
        """The tile of warps that copy operands themselves, and the parts of k."""
        by = self.instruction
        if isinstance(by, Refused):
            return by
        sizes = product(self.batch), self.rows, self.columns, self.depth
        tile = tile_of(*sizes, self.streams, self.device, by, self.request)
        return tile or Refused("tiles_have_matrices", by.name, "other tiles")

    def _axis(self, factor: Factor) -> str:
        """The axis along which a factor is copied; "" where elements are loaded one by one."""
        by = self.instruction
        dtype = next(iter(self.dtypes)) if isinstance(by, Refused) else by.factors
        return factor.dense_axis(self.writer.alignment(factor), (dtype,))

    @cached_property
    def early(self) -> tuple[str, ...]:
        return self.writer.early(self.left, self.rights)

    @cached_property
    def right_axes(self) -> list[str]:
        """The axis along which each right operand is copied."""
        return [self._axis(right) for right in self.rights]

    @cached_property
    def left_axis(self) -> str:
        """The axis along which the left operand is copied; "" where elements are loaded one by one."""
        return self._axis(self.left)

    @cached_property
    def right_axis(self) -> str:
        """The same of all right operands, which share a tile of shared memory with lines along one axis."""
        return self.right_axes[0] if self.left_axis and len(set(self.right_axes)) == 1 else ""

    @cached_property
    def layout(self) -> RightLayout:
        """The right operands of a tile, transposed when they are bound where that gains, and the tile of a producer."""
        tile, pack = self._producer_tile(self.rights, self.right_axis), Transposed()
        own = RightLayout(self.rights, self.right_axis, {}, tile)
        if isinstance(self.dtype, Refused):
            # Lanes read elements along k together, and those along columns one by one.
            is_transposed = self.right_axis == "row" and self.rights[0].tensor.dtype.itemsize == f16.itemsize
            rights = self.writer.transposed(pack) if is_transposed else None
            return own if rights is None else RightLayout(rights, "k", self.packed(pack), tile)
        has_none = isinstance(tile, Refused)
        if not self.left_axis or self.right_axis == "k" or (has_none and (self.right_axis or self.is_short)):
            return own
        rights = self.writer.transposed(pack)
        if rights is None:
            return own
        # Lines of columns go in panels of 64 for each stream; lines along k take any columns, also those that are no
        # multiple of 8, whose own lines cannot be copied.
        other, sizes = self._producer_tile(rights, "k"), (self.rows, self.columns, self.depth)
        if self.right_axis:
            if isinstance(tile, Refused) or isinstance(other, Refused):
                return own
            if not gains_by_transposing(tile, other, sizes, self.streams, self.device, self.request):
                return own
        return RightLayout(rights, "k", self.packed(pack), other)

    @property
    def is_short(self) -> bool:
        """Whether a warpgroup would be mostly idle."""
        return isinstance(self.rows, int) and self.rows < FEWEST_ROWS

    def _producer_tile(self, rights: list[Factor], axis: str) -> tuple[BlockTile, int] | Refused:
        """The tile of a kernel with a producer, and the parts of its depth."""
        if isinstance(self.dtype, Refused):
            return self.dtype
        if not may_use_warpgroups(self.device, self.request):
            return Refused("device_multiplies_by_warpgroups", self.device.architecture, "wgmma, as sm_90a has it")
        if not axis:
            return Refused("operands_are_copied", "elements that are loaded one by one", "16 bytes that are adjacent")
        if self.batch or not isinstance(self.depth, int) or not self.depth:
            return Refused("operands_are_matrices", "a batch" if self.batch else f"a depth of {self.depth}")
        if self.is_short:
            return Refused("rows_fill_a_warpgroup", f"{self.rows} rows", f"at least {FEWEST_ROWS}")
        if not PipelinedTile.takes((self.left, *rights)):
            return Refused("the_tma_copies_operands", expected="lines that are known to be aligned")
        panel = BOX if axis == "row" else CHUNK
        straddle = self.left.straddles, any([right.straddles for right in rights])
        sizes = self.rows, self.columns, self.depth
        tile = pipelined_tile_of(*sizes, self.streams, panel, self.device, straddle, self.request)
        return tile or Refused("shared_memory_is_enough", f"{self.device.shared_bytes:,} bytes", "room for a tile")

    def packed(self, pack: Transposed) -> dict[str, Packed]:
        """All right operands in a layout, by pointer."""
        writer = self.writer
        operands = map(writer.contraction.operand, writer.contraction.rights)
        return {writer.names[v]: Packed(v, pack.layout, pack) for v in operands}

    @cached_property
    def skinny(self) -> tuple[StreamTile, Transposed | None] | Refused:
        """The tile of few rows, whose weights stream by, and how these are packed."""
        if isinstance(self.dtype, Refused):
            return self.dtype
        if not isinstance(self.rows, int) or self.rows > MOST_ROWS:
            return Refused("rows_are_few", str(self.rows), f"at most {MOST_ROWS}")
        if self.right_axes[0] != "k":
            # Padding is for bulk copies: smaller ones would read across more sectors of memory.
            for pack in (Transposed(CHUNK), Transposed()):
                packed = self.writer.transposed(pack)
                tile = None if packed is None else self._stream(packed, ["k" for _ in packed])
                if tile is not None and tile.bulk == bool(pack.padding):
                    return tile, pack
        tile = self._stream(self.rights, self.right_axes)
        if tile is None:
            sizes = f"{self.columns} columns and {self.depth} of k"
            return Refused("weights_are_read_in_lines", sizes, "known sizes, and at least 128 of k")
        return tile, None

    def _stream(self, rights: list[Factor], axes: list[str]) -> StreamTile | None:
        assert not isinstance(self.dtype, Refused), "it was checked"
        sizes = (product(self.batch), self.rows, rights[0].rows, self.left.depth)
        axis = axes[0] if len(set(axes)) == 1 else ""
        return StreamTile.of(self.dtype, self.left, rights, axis, sizes, self.device, early="right" in self.early)

    @property
    def has_unit_lanes(self) -> bool:
        """Whether a warp has a lane for each column of a unit."""
        return self.device.warp == LANES

    @cached_property
    def block_rights(self) -> list[BlockFactor]:
        """The right factor of each stream in blocks."""
        writer, blocks = self.writer, self.blocks
        assert blocks is not None and isinstance(self.depth, int), "it was checked"
        units = units_of(writer.step.value, writer.locations)
        pack, rights = PackedBlocks(blocks.names[0], units, self.depth), list[BlockFactor]()
        wholes = [sum([p.shape[-2] for p in parts if isinstance(p.shape[-2], int)]) for parts in blocks.blocks]
        for i, first in writer.contraction.streams:
            assert isinstance(first, int), "it was checked"
            count = self.depth // pack.format.elements
            name = writer.pointer(writer.contraction.rights[i])
            rights.append(BlockFactor(name, pack, count, wholes[i], first, self.columns))
        return rights

    def packed_blocks(self, pack: PackedBlocks | PackedTiles) -> dict[str, Packed]:
        """All right operands in blocks, in a layout, by pointer."""
        writer, blocks = self.writer, self.blocks
        assert blocks is not None, "it was checked"
        packed: dict[str, Packed] = {}
        for i, _ in writer.contraction.streams:
            value, *beside = blocks.blocks[i]
            packed[writer.pointer(writer.contraction.rights[i])] = Packed(value, pack.layout, pack, tuple(beside))
        return packed

    def cycles(self, tile: BlockTile, split_k: int, *, has_producer: bool) -> float:
        """An estimate of a tile, without the start of the kernel."""
        sizes = product(self.batch), self.rows, self.columns, self.depth
        item = self.writer.contraction.left.dtype.itemsize
        known = *sizes, self.streams, self.device, self.request
        return cycles_of(tile, *known, has_producer=has_producer, parts=split_k, itemsize=item)

    def job(self, schedule: GemmSchedule) -> Job:
        """The kernels of a schedule."""
        self.writer.bindings |= schedule.packed
        return self.writer.finished(schedule.tiled(), schedule.split_k)


def gemv_ring(of: Gemm) -> GemmSchedule | Refused:
    """Few rows, whose packed weights are a ring of stages that bulk copies fill."""
    if isinstance(of.skinny, Refused):
        return of.skinny
    tile, pack = of.skinny
    ring = None if pack is None else StreamRing.from_tile(tile, of.columns, of.device)
    streams = of.writer.contraction.streams
    if ring is None or not all([is_multiple(first, ring.columns) for _, first in streams]):
        return Refused("weights_go_in_stages", expected="constants that shared memory does not hold, in whole stages")
    names = [of.writer.pointer(of.writer.contraction.rights[i]) for i, _ in streams]
    each = zip(ring.rights, names, [first for _, first in streams], strict=True)
    ring = replace(ring, rights=[ring.packed(*one) for one in each])
    operands = map(of.writer.contraction.operand, of.writer.contraction.rights)
    packed = {of.writer.names[v]: Packed(v, ring.pack.layout, ring.pack) for v in operands}
    return GemmSchedule(ring, ring.tiled, packed=packed)


def gemv_threads(of: Gemm) -> GemmSchedule | Refused:
    """One row, by multiply-adds of threads."""
    if isinstance(of.skinny, Refused):
        return of.skinny
    tile, pack = of.skinny
    row = RowStream.from_tile(tile, of.device)
    if row is None:
        expected = "one row where tensor cores lower the clock, with weights that bulk copies bring"
        return Refused("threads_multiply_as_fast", f"{of.rows} rows", expected)
    return GemmSchedule(row, row.tiled, packed={} if pack is None else of.packed(pack))


def gemv(of: Gemm) -> GemmSchedule | Refused:
    """Few rows, by tensor cores."""
    if isinstance(of.skinny, Refused):
        return of.skinny
    tile, pack = of.skinny
    return GemmSchedule(tile, tile.tiled, packed={} if pack is None else of.packed(pack))


def gemm_shared(of: Gemm) -> GemmSchedule | Refused:
    """A part of a persistent kernel, or a launch of few rows, whose operands are whole in shared memory."""
    if isinstance(of.dtype, Refused):
        return of.dtype
    if of.request.is_launch:
        return Refused("kernel_is_a_part", "a launch", "a part of a persistent kernel")
    if of.batch or not all(map(of.writer.is_constant, of.rights)):
        return Refused("weights_are_constant", "a batch" if of.batch else "operands of a run", "parameters")
    axes, sizes = (of.left_axis if of.right_axis else "", of.right_axis), (of.rows, of.columns, of.depth)
    tile = NearTile.of(of.dtype, of.left, of.rights, axes, sizes, of.device, of.request)
    if tile is None:
        return Refused("a_block_has_one_tile", f"{of.rows} rows, {of.columns} columns, {of.depth} of k", _ONE_TILE)
    return GemmSchedule(tile, lambda: tile.tiled(of.device), cycles=tile.cycles(of.device))


_ONE_TILE = "tiles for all blocks at once that fit shared memory"


def gemm_tma(of: Gemm) -> GemmSchedule | Refused:
    """Warpgroups (wgmma) whose operands a warp copies with the TMA."""
    layout = of.layout
    if isinstance(of.dtype, Refused):
        return of.dtype
    if isinstance(layout.tile, Refused):
        return layout.tile
    assert isinstance(of.depth, int), "the TMA needs it"
    tile, split_k = layout.tile
    axes, early, scale = (of.left_axis, layout.axis), "right" in of.early, of.writer.scale
    engine = PipelinedTile(tile, of.dtype, of.left, layout.rights, *axes, of.depth, split_k, early, scale)
    engine = engine.at_once(of.rows, of.columns, of.device)
    cycles = of.cycles(tile, split_k, has_producer=True)
    return GemmSchedule(engine, lambda: replace(engine.tiled(), cycles=cycles), split_k, layout.packed, cycles)


def gemm_cp_async(of: Gemm) -> GemmSchedule | Refused:
    """Warps or warpgroups that copy operands themselves, with cp.async or element by element, by any instruction."""
    by = of.instruction
    if isinstance(by, Refused):
        return by
    if isinstance(of.warp_tile, Refused):
        return of.warp_tile
    layout, (tile, split_k) = of.layout, of.warp_tile
    axes = (of.left_axis if layout.axis else "", layout.axis)
    early = of.early if by in MMA else ()
    engine = TensorCoreTile(tile, by, of.left, layout.rights, *axes, of.depth, split_k, early)
    cycles = of.cycles(tile, split_k, has_producer=False)
    return GemmSchedule(engine, lambda: replace(engine.tiled(of.device), cycles=cycles), split_k, layout.packed, cycles)


def gemm_fma(of: Gemm) -> GemmSchedule | Refused:
    """Multiply-adds of threads."""
    if not isinstance(of.warp_tile, Refused):
        return Refused("tensor_cores_lack_the_dtype", ", ".join([d.name for d in of.dtypes]))
    writer = of.writer
    axes = [factor.dense_axis(writer.alignment(factor), (writer.sums,)) for factor in (of.left, *of.rights)]
    engine, cycles = FmaTile.best(of.left, of.rights, axes, product(of.batch), writer.sums, of.device, of.request)
    return GemmSchedule(engine, lambda: engine.tiled(of.device, cycles), engine.parts, cycles=cycles)


def blocks_copied(of: Gemm) -> GemmSchedule | Refused:
    """One row with weights in blocks, which bulk copies bring."""
    rights = of.block_rights
    tile = None if of.batch or not of.has_unit_lanes else CopiedBlocks.of(of.left, rights, of.device, of.request)
    if tile is None:
        expected = "one row of f32, where launches overlap, and columns that fit shared memory"
        return Refused("bulk_copies_bring_blocks", f"{of.rows} rows, {of.columns} columns", expected)
    return GemmSchedule(tile, tile.tiled, packed=of.packed_blocks(tile.pack))


def blocks_stream(of: Gemm) -> GemmSchedule | Refused:
    """Few rows with weights in blocks, which threads read as they are."""
    rights = of.block_rights
    tile = None if of.batch or not of.has_unit_lanes else BlockStream.of(of.left, rights, of.device, of.request)
    if tile is None:
        return Refused("rows_are_few", "a batch" if of.batch else str(of.rows), "few rows that fit shared memory")
    return GemmSchedule(tile, tile.tiled, packed=of.packed_blocks(rights[0].pack))


def blocks_fma(of: Gemm) -> GemmSchedule | Refused:
    """Weights in blocks that threads expand to shared memory."""
    rights = of.block_rights
    engine = FmaTile(with_warps_of(BLOCKS_SHAPE, of.device), f32, of.left, rights, [""] * (1 + len(rights)), of.depth)
    return GemmSchedule(engine, lambda: engine.tiled(of.device), packed=of.packed_blocks(rights[0].pack))


Engine: TypeAlias = Callable[[Gemm], GemmSchedule | Refused]
DENSE: Mapping[str, Engine] = {
    "gemv_ring": gemv_ring,
    "gemv_threads": gemv_threads,
    "gemv": gemv,
    "gemm_shared": gemm_shared,
    "gemm_tma": gemm_tma,
    "gemm_cp_async": gemm_cp_async,
    "gemm_fma": gemm_fma,
}
"""The engines of a GEMM in the order of preference."""
BLOCKS: Mapping[str, Engine] = {
    "blocks_copied": blocks_copied,
    "blocks_stream": blocks_stream,
    "blocks_fma": blocks_fma,
}
"""The same with weights in blocks."""
_SKINNY = (gemv_ring, gemv_threads, gemv)


def first(engines: Iterable[Engine], of: Gemm) -> GemmSchedule | Refused:
    """The schedule of the first engine that fits, or what refuses the last one."""
    schedule: GemmSchedule | Refused = Refused("engines_are_listed", "none")
    for engine in engines:
        schedule = engine(of)
        if isinstance(schedule, GemmSchedule):
            break
    return schedule


def skinny_schedule(of: Gemm) -> GemmSchedule | Refused:
    """That of few rows."""
    return first(_SKINNY, of)


def dense_schedule(of: Gemm) -> GemmSchedule | Refused:
    """That of the engine that the selection table takes."""
    return first(DENSE.values(), of)


def has_blocks(of: StepProblem[GpuDevice]) -> bool:
    """Whether the weights of a GEMM are in blocks that engines know."""
    return not isinstance(of.once(find_products), Refused) and known_blocks(of) is not None


def known_blocks(of: StepProblem[GpuDevice]) -> BlockProduct | None:
    """Weights in blocks that engines know."""
    blocks = of.once(find_blocks)
    return blocks if isinstance(blocks, BlockProduct) and has_known_blocks(blocks) else None


def gemm_of(of: StepProblem[GpuDevice]) -> Gemm | Refused:
    """A step as a GEMM."""
    contraction = of.once(find_products)
    if isinstance(contraction, Refused):
        return contraction
    dtypes = {v.dtype for v in (contraction.left, *contraction.rights)}
    odd = [d.name for d in dtypes if not contraction.body.scalars.has_dtype(d) or d is bool_]
    if odd:
        return Refused("factors_are_numbers", ", ".join(odd))
    return Gemm(GemmWriter(of.step, contraction, of.locations, of.device, of.request), known_blocks(of))


def offer_engine(engine: Engine) -> Callable[[StepProblem[GpuDevice]], Offer | Refused]:
    """A row of the selection table."""

    def offer(of: StepProblem[GpuDevice]) -> Offer | Refused:
        gemm = of.once(gemm_of)
        if isinstance(gemm, Refused):
            return gemm
        schedule = engine(gemm)
        if isinstance(schedule, Refused):
            return schedule
        blocks, hertz = gemm.blocks, gemm.device.hertz
        return Offer(
            lambda: gemm.job(schedule),
            None if blocks is None else lambda: blocks.cost(of.value),
            work=(lambda: schedule.cycles / hertz) if schedule.cycles else None,
        )

    return offer


__all__ = [
    "BLOCKS",
    "DENSE",
    "Engine",
    "Gemm",
    "GemmSchedule",
    "dense_schedule",
    "gemm_of",
    "has_blocks",
    "known_blocks",
    "offer_engine",
    "skinny_schedule",
]
