"""Tiles of a product of matrices: those that there are, and which one suits a size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import TypeVar

from dovetail.ir.dim import Size
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.gemm.block_tile import (
    CHUNK,
    DEPTH,
    GROUP_ROWS,
    RESERVED_BYTES,
    WARP_ROWS,
    BlockTile,
)
from dovetail.kernels.gpu.gemm.tile_cost import NARROW_SUMS, Work
from dovetail.kernels.matrix_instruction import MatrixInstruction
from dovetail.kernels.request import LAUNCH, Request, Role

T = TypeVar("T")
TILES = (
    BlockTile(128, 128, 2, 4, 3),
    BlockTile(128, 64, 2, 2, 3),
    BlockTile(64, 128, 2, 2, 3),
    BlockTile(64, 64, 2, 2, 4),
    BlockTile(64, 32, 2, 1, 4, warps_deep=4),
    BlockTile(32, 64, 1, 2, 4, warps_deep=4),
    BlockTile(32, 32, 1, 1, 6, warps_deep=4),
    BlockTile(16, 64, 1, 2, 6, warps_deep=4),
    BlockTile(16, 32, 1, 1, 6, warps_deep=4),
    BlockTile(16, 16, 1, 1, 8, warps_deep=4),
)
"""From large to small. A large tile reads each element of a factor fewer times, a small one leaves no core idle."""
GROUP_TILES = (
    BlockTile(128, 256, 8, 1, 4, by_warpgroup=True),
    BlockTile(128, 128, 8, 1, 3, by_warpgroup=True),
    BlockTile(128, 64, 8, 1, 4, by_warpgroup=True),
    BlockTile(64, 128, 4, 1, 4, by_warpgroup=True),
    BlockTile(64, 64, 4, 1, 4, by_warpgroup=True),
)
"""The same where warpgroups multiply out of shared memory, in lines of at least 64 columns."""
PIPELINED_TILES = (
    BlockTile(128, 256, 8, 1, 4, by_warpgroup=True),
    BlockTile(128, 192, 8, 1, 5, by_warpgroup=True),
    BlockTile(192, 192, 12, 1, 4, by_warpgroup=True),
    BlockTile(192, 128, 12, 1, 4, by_warpgroup=True),
    BlockTile(128, 128, 8, 1, 6, by_warpgroup=True),
    BlockTile(64, 256, 4, 1, 5, by_warpgroup=True),
    BlockTile(64, 192, 4, 1, 3, by_warpgroup=True, blocks=2),
    BlockTile(64, 128, 4, 1, 4, by_warpgroup=True, blocks=2),
    BlockTile(64, 64, 4, 1, 6, by_warpgroup=True, blocks=2),
    BlockTile(64, 64, 4, 1, 12, by_warpgroup=True),
    BlockTile(64, 32, 4, 1, 12, by_warpgroup=True),
)
"""The same where a warp copies for the others."""
TALL_TILES = (
    BlockTile(256, 64, 16, 1, 4, by_warpgroup=True),
    BlockTile(192, 64, 12, 1, 6, by_warpgroup=True),
    BlockTile(128, 64, 8, 1, 3, by_warpgroup=True, blocks=2),
)
"""For convolutions, which have few columns and many rows."""
CLUSTER = 2
"""Blocks of a cluster that copy columns for each other: of 132 multiprocessors, clusters of 4 leave 12 without work."""
FEWEST_ROWS = 33
"""Rows from which a warpgroup is not mostly idle."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Into how many parts k may go, each of them for blocks of its own."""
TRANSPOSED_GAIN = 0.9
"""The share of the time that transposed weights must save: they are packed when they are bound."""
SPLIT_GAIN = 0.9
"""The share of the time that parts must save: a second kernel has costs that the estimate does not see."""
FEWEST_ROUNDS = 2
"""Rounds of a part."""
FEWEST_STAGES, MOST_STAGES = 3, 8
"""Stages in shared memory: one that is multiplied, one that a warpgroup may still read, and copies in flight."""


def tile_of(
    batch: Size,
    rows: Size,
    columns: Size,
    depth: Size,
    streams: int,
    device: GpuDevice,
    by: MatrixInstruction,
    request: Request = LAUNCH,
) -> tuple[BlockTile, int] | None:
    """The tile and the parts of k with the lowest estimate; one part where sizes are not known. None where no tile has
    matrices of the instruction."""
    work = Work.of(batch, rows, columns, streams, device, request, by.factors.itemsize)
    rounds = max(1, -(-depth // work.depth)) if isinstance(depth, int) else 1
    splits = splits_of((batch, rows, columns, depth), rounds, streams, device, request)

    def cycles(tile: BlockTile, parts: int) -> float:
        return -(-rounds // parts) * work.stage_cycles(tile, parts) + work.adding_cycles(parts)

    return best(_fitting(streams, device, by, request), splits, cycles)


def best(tiles: Iterable[T], splits: Iterable[int], cycles: Callable[[T, int], float]) -> tuple[T, int] | None:
    """The tile and the parts of k with the lowest estimate, and of equal ones with the fewest parts; None where there
    is no tile."""
    tiles = [*tiles]
    choices = [(tile, parts) for parts in splits for tile in tiles]
    return min(choices, key=lambda choice: cycles(*choice), default=None)


def cycles_of(
    tile: BlockTile,
    batch: Size,
    rows: Size,
    columns: Size,
    depth: Size,
    streams: int,
    device: GpuDevice,
    request: Request = LAUNCH,
    *,
    has_producer: bool,
    parts: int = 1,
    itemsize: int,
) -> float:
    """An estimate of a product, without the start of its kernel; 0 where its depth is not known."""
    if not isinstance(depth, int):
        return 0.0
    work = Work.of(batch, rows, columns, streams, device, request, itemsize)
    if has_producer:
        return work.pipelined_cycles(tile, depth, parts) - work.timings.start
    return -(-depth // (work.depth * parts)) * work.stage_cycles(tile, parts)


def pipelined_tile_of(
    rows: Size,
    columns: Size,
    depth: int,
    streams: int,
    panel: int,
    device: GpuDevice,
    straddle: tuple[bool, bool] = (False, False),
    request: Request = LAUNCH,
) -> tuple[BlockTile, int] | None:
    """The tile with a producer and the equal parts of k with the lowest estimate; None where the device has no tile
    that fits.

    The columns of each stream are a multiple of `panel`. `straddle` says of the left and the right factors whether
    their lines begin in the middle of a line of L2.
    """
    work, rounds = Work.of(1, rows, columns, streams, device, request=request), -(-depth // DEPTH)
    splits = [p for p in splits_of((rows, columns, depth), rounds, streams, device, request) if rounds % p == 0]
    fitting = _pipelined(PIPELINED_TILES, streams, panel, device, request)

    def cycles(tile: BlockTile, parts: int) -> float:
        return inf if work.may_crowd(tile, parts) else _split_k_cycles(tile, parts, depth, work)

    # Estimates of whole GEMMs were fitted without what multiprocessors gain that copy while others have no work.
    lone = [tile for tile in fitting if not work.may_crowd(tile, 1)]
    whole = best(lone, (1,), lambda tile, _: work.product_cycles(tile, depth, straddle))
    if whole is None:
        return None
    split = best(fitting, splits[1:], cycles)
    tile, parts = whole if split is None or cycles(*whole) <= cycles(*split) else split
    return _clustered(tile, depth, parts, rows, work), parts


def _split_k_cycles(tile: BlockTile, parts: int, depth: int, work: Work) -> float:
    """An estimate of a product whose parts of k the kernel after it adds up."""
    return work.pipelined_cycles(tile, depth, parts, shares_l2=True) + work.adding_cycles_of_producers(parts)


def gains_by_transposing(
    was: tuple[BlockTile, int],
    now: tuple[BlockTile, int],
    sizes: tuple[Size, Size, Size],
    streams: int,
    device: GpuDevice,
    request: Request = LAUNCH,
) -> bool:
    """Whether a tile and parts for transposed weights save as much of the time as these take."""
    rows, columns, depth = sizes
    assert isinstance(depth, int), "it was checked"
    work = Work.of(1, rows, columns, streams, device, request=request)

    def cycles(tile: BlockTile, parts: int) -> float:
        if was[1] == now[1] == 1:
            return work.pipelined_cycles(tile, depth) - work.timings.start
        return _split_k_cycles(tile, parts, depth, work) - work.timings.start

    return cycles(*now) <= TRANSPOSED_GAIN * cycles(*was)


def splits_of(
    sizes: Sequence[Size], rounds: int, streams: int, device: GpuDevice, request: Request = LAUNCH
) -> list[int]:
    """The parts that the rounds of a product may go in: sums of one stream can be added up later."""
    may = streams == 1 and isfinite(request.sum_cycles_on(device))
    known = may and all([isinstance(size, int) for size in sizes])
    return [p for p in SPLITS if p == 1 or (known and rounds >= p * FEWEST_ROUNDS)]


def pipelined_split_of(
    rows: Size,
    columns: Size,
    depth: int,
    device: GpuDevice,
    result_bytes: int,
    request: Request = LAUNCH,
    *,
    parts: bool = True,
) -> tuple[BlockTile, int] | None:
    """The tile with a producer and the equal parts of k with the lowest estimate; one part where rows are not known.

    `result_bytes` counts what the epilogue reads and writes for each result.
    """
    work, rounds = Work.of(1, rows, columns, 1, device, request=request), -(-depth // DEPTH)
    most = rounds // FEWEST_ROUNDS if parts and isinstance(rows, int) else 1
    splits = [p for p in SPLITS if p == 1 or (p <= most and rounds % p == 0)]
    tiles = _pipelined((*PIPELINED_TILES, *TALL_TILES), 1, CHUNK, device, request)

    def cycles(tile: BlockTile, parts: int) -> float:
        if parts == 1:
            return work.pipelined_cycles(tile, depth, 1, result_bytes)
        adding = work.timings.sum_launch + work.sum_cycles(parts)
        return (work.pipelined_cycles(tile, depth, parts) + adding) / SPLIT_GAIN

    return best(tiles, splits, cycles)


def _pipelined(
    tiles: Sequence[BlockTile], streams: int, panel: int, device: GpuDevice, request: Request
) -> list[BlockTile]:
    """The tiles that a device has the instructions and the shared memory for."""
    room = device.shared_bytes + RESERVED_BYTES
    return [
        tile
        for tile in tiles
        if may_use_warpgroups(device, request)
        and tile.columns % (panel * streams) == 0
        and tile.width >= streams * LANES // WARP_ROWS * CHUNK
        and tile.pipelined_bytes <= room // tile.blocks - RESERVED_BYTES
    ]


def _clustered(tile: BlockTile, depth: int, parts: int, rows: Size, work: Work) -> BlockTile:
    """A tile, in clusters where these gain and divide the tiles of a column."""
    has_clusters = work.request.is_launch and work.device.cluster >= CLUSTER
    if not has_clusters or not isinstance(rows, int) or -(-rows // tile.rows) % CLUSTER:
        return tile
    return replace(tile, cluster=CLUSTER) if work.gains_by_clusters(tile, depth, parts) else tile


def has_warpgroups(device: GpuDevice) -> bool:
    """Whether four warps of the device multiply together, out of shared memory."""
    return any(one.by_warpgroup for one in device.matrix_instructions)


def may_use_warpgroups(device: GpuDevice, request: Request) -> bool:
    """Whether four warps of a kernel may multiply together."""
    return has_warpgroups(device) and request.role is not Role.PART


def split_of(
    batch: Size,
    rows: Size,
    columns: Size,
    depth: int,
    device: GpuDevice,
    by: MatrixInstruction,
    request: Request = LAUNCH,
) -> tuple[BlockTile, int]:
    """The tile and the parts of k with the lowest estimate; one part where sizes are not known.

    It has as many stages as its share of the shared memory holds: where blocks are few, more copies are in flight.
    """
    work = Work.of(batch, rows, columns, 1, device, request, by.factors.itemsize)
    known = all(isinstance(size, int) for size in (batch, rows, columns))
    rounds = -(-depth // work.depth)
    splits = [p for p in SPLITS if p == 1 or (known and rounds >= p * FEWEST_ROUNDS)]

    def cycles(tile: BlockTile, parts: int) -> float:
        adding = 0.0 if parts == 1 else work.timings.sum_launch + work.sum_cycles(parts)
        return -(-rounds // parts) * work.stage_cycles(tile, parts) + adding

    split = best(_fitting(1, device, by, request), splits, cycles)
    assert split is not None, "the smallest tile fits every device"
    tile, parts = split
    blocks = parts * work.blocks(tile)
    at_once = min(-(-blocks // device.multiprocessors), tile.resident(device)) if known else tile.resident(device)
    room = device.shared_bytes // max(1, at_once) // replace(tile, stages=1).shared_bytes
    stages = min(MOST_STAGES, -(-rounds // parts) + 2, room)
    return replace(tile, stages=max(FEWEST_STAGES, stages)), parts


def _fitting(streams: int, device: GpuDevice, by: MatrixInstruction, request: Request) -> list[BlockTile]:
    """The tiles that a device has the instructions and the shared memory for."""
    has_groups = any(one.by_warpgroup and one.factors is by.factors for one in device.matrix_instructions)
    groups = has_groups and request.role is not Role.PART
    every = [tile.with_warps_of(by.lanes) for tile in (*(GROUP_TILES if groups else ()), *TILES)]
    # Streams take turns of eight columns, so that a lane has the same column of each.
    fitting = [t for t in every if t.warp_columns % (by.n * streams) == 0 and (streams == 1 or by.n == CHUNK)]
    return [t for t in fitting if t.shared_bytes <= device.shared_bytes]


__all__ = [
    "CHUNK",
    "DEPTH",
    "FEWEST_ROWS",
    "GROUP_ROWS",
    "NARROW_SUMS",
    "TILES",
    "WARP_ROWS",
    "BlockTile",
    "best",
    "cycles_of",
    "gains_by_transposing",
    "has_warpgroups",
    "may_use_warpgroups",
    "pipelined_split_of",
    "pipelined_tile_of",
    "split_of",
    "splits_of",
    "tile_of",
]
