"""Tiles of products without tensor cores: those that there are, and which one suits a size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.gemm.block_tile import RESERVED_BYTES
from dovetail.kernels.gpu.gemm.stream_k import Spans
from dovetail.kernels.gpu.gemm.tile import splits_of
from dovetail.kernels.gpu.gemm.tile_cost import Work
from dovetail.kernels.request import LAUNCH, Request

LANES_ACROSS = 8
"""Lanes of a warp with different columns: they read 128 bytes of a row, and write as many."""
GROUP = 4
"""Neighbours that a thread reads at once, and the padding of a line in shared memory."""
LEAST_DEPTH = 4
"""Elements of k in a stage, at least."""
MOST_STAGES = 4
"""Stages in shared memory: copies of the later ones are in flight while the first one is multiplied."""
FEWEST_ROUNDS = 8
"""Rounds of a span, at least: nothing is multiplied while the first copies of a tile arrive."""
SHARED_GAIN = 0.975
"""The share of the time that sharing tiles must save."""
MOST_RESIDENT = 4
"""Blocks of a multiprocessor for which registers of a thread are limited."""
OTHER_REGISTERS, STREAM_REGISTERS = 60, 24
"""Registers of a thread beyond its sums, and more of them for each further stream."""


@dataclass(frozen=True, slots=True)
class FmaShape:
    """Rows and columns of a block, and how its warps and their lanes divide them."""

    warps_down: int
    warps_across: int
    rows_each: int
    """Rows of a thread."""
    columns_each: int
    depth: int = 16
    """Elements of k in a stage."""
    lanes: int = LANES
    """Of a warp."""

    @property
    def threads(self) -> int:
        return self.lanes * self.warps_down * self.warps_across

    @property
    def lanes_down(self) -> int:
        """Lanes of a warp with different rows."""
        return self.lanes // LANES_ACROSS

    @property
    def warp_rows(self) -> int:
        return self.lanes_down * self.rows_each

    @property
    def warp_columns(self) -> int:
        return LANES_ACROSS * self.columns_each

    @property
    def rows(self) -> int:
        return self.warps_down * self.warp_rows

    @property
    def columns(self) -> int:
        return self.warps_across * self.warp_columns

    def in_rounds(self, depth: int, parts: int) -> FmaShape:
        """The same with stages so short that a product of little depth has two.

        Those of a single round would move to the stores of their sums, after all that they read, which takes more
        registers than there are.
        """
        stage = self.depth
        while stage > LEAST_DEPTH and 0 < depth <= stage * parts:
            stage //= 2
        return replace(self, depth=stage)

    def stage_bytes(self, streams: int, dtype: DType) -> int:
        """Shared memory of a stage."""
        lines = self.rows + GROUP + streams * (self.columns + GROUP)
        return self.depth * lines * dtype.itemsize

    def stages(self, streams: int, dtype: DType, device: GpuDevice) -> int:
        """Stages of factors that are copied: those that leave room for the other blocks of a multiprocessor."""
        room = (device.shared_bytes + RESERVED_BYTES) // self.resident(streams, dtype, device) - RESERVED_BYTES
        return max(2, min(MOST_STAGES, room // self.stage_bytes(streams, dtype)))

    def resident(self, streams: int, dtype: DType, device: GpuDevice) -> int:
        """Blocks that one multiprocessor holds, by registers, and by shared memory for two stages."""
        words = max(1, dtype.itemsize // 4)
        others = OTHER_REGISTERS + STREAM_REGISTERS * (streams - 1)
        registers = self.threads * (streams * self.rows_each * self.columns_each + others) * words
        shared = 2 * self.stage_bytes(streams, dtype) + RESERVED_BYTES
        return max(1, min(device.registers // registers, (device.shared_bytes + RESERVED_BYTES) // shared))


SHAPES = (
    FmaShape(4, 2, 8, 8),
    FmaShape(2, 2, 8, 4),
    FmaShape(2, 2, 4, 8),
    FmaShape(2, 2, 4, 4, 32),
)
"""From large to small. A large tile reads each element of a factor fewer times, a small one leaves no core idle.

Tiles of 16 rows, of 64 threads, and of 256×128 were never faster on an H200."""
BLOCKS_SHAPE = FmaShape(2, 2, 4, 4, 32)
"""Where columns are in blocks, which threads expand: two of them share a column."""


def with_warps_of(shape: FmaShape, device: GpuDevice) -> FmaShape:
    """The same rows, columns and threads where warps of a device have more lanes."""
    return replace(shape, warps_down=shape.warps_down * shape.lanes // device.warp, lanes=device.warp)


@dataclass(frozen=True, slots=True)
class FmaChoice:
    """A tile, and how blocks share the work of all tiles."""

    shape: FmaShape
    parts: int = 1
    """Into how many parts k goes."""
    spans: Spans | None = None
    cycles: float = 0.0
    """An estimate without the start of the kernel and without adding up; 0 where the depth is not known."""

    @property
    def is_whole(self) -> bool:
        """Whether each block has all of a tile."""
        return self.parts == 1 and self.spans is None


def fma_tile_of(
    batch: Size,
    rows: Size,
    columns: Size,
    depth: Size,
    streams: int,
    dtype: DType,
    device: GpuDevice,
    request: Request = LAUNCH,
) -> FmaChoice:
    """What has the lowest estimate: a tile for each block, equal parts of k, or spans of the rounds of all tiles."""
    work = Work.of(batch, rows, columns, streams, device, request=request)
    if not isinstance(depth, int) or not depth:
        depth = 0
    shapes = [with_warps_of(shape, device) for shape in SHAPES]
    fitting = [shape for shape in shapes if streams * shape.rows_each * shape.columns_each * dtype.itemsize <= 512]
    splits = splits_of((batch, rows, columns, depth), depth // SHAPES[-1].depth, streams, device, request)
    choices = [_split_k(shape, p, depth, work, streams, dtype) for p in splits for shape in fitting]
    if depth and all([isinstance(size, int) for size in (batch, rows, columns)]) and _may_share(device, request):
        choices += [c for shape in fitting for c in _in_spans(shape, depth, work, streams, dtype)]
    whole = min([c for c in choices if c[1].is_whole], key=lambda c: c[0])
    best = min(choices, key=lambda c: c[0])
    return best[1] if best[0] <= SHARED_GAIN * whole[0] else whole[1]


def _may_share(device: GpuDevice, request: Request) -> bool:
    """Whether a second kernel may finish tiles, which no kernel does that runs anyway."""
    return device.timings.gemm.sum_launch <= request.sum_cycles_on(device) < inf and request.is_launch


def _split_k(
    shape: FmaShape, parts: int, depth: int, work: Work, streams: int, dtype: DType
) -> tuple[float, FmaChoice]:
    """An estimate with what adding up takes."""
    rounds = max(1, -(-depth // (shape.depth * parts)))
    cycles = rounds * _stage_cycles(shape, parts, work, streams, dtype)
    count = work.count * work.down * work.across
    split = (parts - 2) * work.device.timings.fma.split
    adding = 0.0 if parts == 1 else _adding_cycles(parts * count * dtype.itemsize, work) + split
    return cycles + adding, FmaChoice(shape.in_rounds(depth, parts), parts, cycles=cycles if depth else 0.0)


def _in_spans(shape: FmaShape, depth: int, work: Work, streams: int, dtype: DType) -> Iterator[tuple[float, FmaChoice]]:
    """The same where blocks share the rounds of all tiles: as many blocks as the device holds."""
    device, shape = work.device, shape.in_rounds(depth, 1)
    down, across = -(-work.down // shape.rows), -(-work.across // (streams * shape.columns))
    rounds = -(-depth // shape.depth)
    for resident in range(1, min(MOST_RESIDENT, shape.resident(streams, dtype, device)) + 1):
        groups = device.multiprocessors * resident // across
        if groups < 2 or work.count * down % groups == 0:
            continue
        spans = Spans(work.count * down, down, across, rounds, groups)
        if spans.longest < FEWEST_ROUNDS:
            continue
        each, t = _block_cycles(shape, streams, dtype, device), device.timings.fma
        cycles = spans.longest * max(resident * each, t.lone * each + t.stage)
        adding = _adding_cycles(spans.parts * shape.rows * streams * shape.columns * dtype.itemsize, work)
        yield cycles + adding, FmaChoice(shape, 1, spans, cycles)


def _adding_cycles(nbytes: int, work: Work) -> float:
    """Cycles to write and read as many bytes of sums of parts, and to add them up."""
    t, cycles = work.device.timings.fma, work.request.sum_cycles_on(work.device)
    return cycles + t.sum + 2 * nbytes * t.split_byte / work.device.multiprocessors


def _block_cycles(shape: FmaShape, streams: int, dtype: DType, device: GpuDevice) -> float:
    """Cycles of a stage of one block, whose latency others hide."""
    t = device.timings.fma
    products = shape.rows * streams * shape.columns * shape.depth / t.products * max(1, dtype.itemsize // 4)
    across = shape.columns_each * streams
    # Few rows or columns of a thread read more of shared memory for each product.
    return products * max(t.pace, t.shared_read * (shape.rows_each + across) / (shape.rows_each * across))


def _stage_cycles(shape: FmaShape, parts: int, work: Work, streams: int, dtype: DType) -> float:
    """Cycles of a stage of all blocks; blocks of one multiprocessor share its lanes, and hide each other's latency."""
    columns = streams * shape.columns
    blocks = parts * work.count * -(-work.down // shape.rows) * -(-work.across // columns)
    at_once = -(-blocks // work.device.multiprocessors)
    each, t = _block_cycles(shape, streams, dtype, work.device), work.device.timings.fma
    turns = -(-at_once // shape.resident(streams, dtype, work.device))
    return max(at_once * each, turns * (t.lone * each + t.stage))


__all__ = [
    "BLOCKS_SHAPE",
    "GROUP",
    "LANES_ACROSS",
    "MOST_RESIDENT",
    "SHAPES",
    "FmaChoice",
    "FmaShape",
    "fma_tile_of",
    "with_warps_of",
]
