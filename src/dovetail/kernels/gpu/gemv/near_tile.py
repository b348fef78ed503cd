"""A GEMM of few rows whose factors are whole in shared memory: a part of a persistent kernel, or a launch.

Weights arrive while blocks wait for the part or the kernel before, as they need nothing of it. After
that wait it reads the rows of a tile once, or norms them, and multiplies all of k. A block has one tile, so that
tiles are as small as leaves no multiprocessor without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, f32
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.block_tile import CHUNK, BlockTile, depth_of
from dovetail.kernels.gpu.gemm.fragments import (
    THREAD,
    Factor,
    LineTile,
    clamped,
    divided,
    is_multiple,
    less,
    load_left,
    load_right,
    multiplied,
    remainder,
    unrolled,
    zeroed,
)
from dovetail.kernels.gpu.gemm.tensor_core_tile import TensorCoreTile
from dovetail.kernels.gpu.gemm.tiled import Tiled
from dovetail.kernels.gpu.pipeline import CopyGroups, Pipeline, pipeline
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    CopyAsync,
    Expr,
    Extent,
    Load,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    When,
    add,
    mul,
)
from dovetail.kernels.loops.persistent.bodies import ROWS
from dovetail.kernels.matrix_instruction import mma_of
from dovetail.kernels.request import Request

WEIGHTS, PLANES = "weights", "planes"
NEAR_TILES = (
    BlockTile(16, 32, 1, 2, 1, warps_deep=4),
    BlockTile(16, 64, 1, 2, 1, warps_deep=4),
    BlockTile(16, 128, 1, 4, 1, warps_deep=2),
    BlockTile(32, 32, 1, 2, 1, warps_deep=4),
    BlockTile(32, 64, 1, 2, 1, warps_deep=4),
    BlockTile(32, 128, 1, 4, 1, warps_deep=2),
    BlockTile(64, 64, 2, 2, 1, warps_deep=2),
    BlockTile(64, 128, 2, 4, 1),
)
"""All of 256 threads, which read rows together."""
LAUNCHED_TILES = (BlockTile(16, 16, 1, 1, 1, warps_deep=8), *NEAR_TILES)
"""The same of a launched kernel, whose blocks do not wait for each other."""
FEWEST_WARPS, MOST_WARPS = 8, 16
"""Warps of such a block that starts with something else, which has a warp for each of its own parts if it can."""
MOST_BYTES = 160 << 10
"""Shared memory of a tile, at most: weights of other parts are on their way at the same time."""


def warped_tiles(parts: int, depth: int) -> tuple[BlockTile, ...]:
    """The smallest tile with a warp for each of `parts`, or with as few turns of them as warps can have. Warps
    have equally many steps along k."""
    able = [n for n in range(1, MOST_WARPS + 1) if depth % (16 * n) == 0]
    few = [n for n in able if n >= FEWEST_WARPS] or able
    best = min(few, key=lambda n: (-(-parts // n), n))
    return (BlockTile(16, 16, 1, 1, 1, warps_deep=best),)


@dataclass(frozen=True, slots=True)
class NearTile(TensorCoreTile):
    """The sums of a tile of a block that multiplies once."""

    @staticmethod
    def of(
        dtype: DType,
        left: Factor,
        rights: Sequence[Factor],
        axes: tuple[str, str],
        sizes: tuple[Size, Size, Size],
        device: GpuDevice,
        request: Request,
    ) -> NearTile | None:
        """The tile for these sizes, rows, columns and depth, with the lowest estimate; None where a block would have
        several, or shared memory is too small. Weights are constant."""
        rows, columns, depth = sizes
        axis, other = axes
        if not isinstance(rows, int) or not isinstance(columns, int) or not isinstance(depth, int):
            return None
        if len(rights) != 1 or axis != "k" or not other or depth % depth_of(dtype):
            return None
        tiles = LAUNCHED_TILES if request.starts_early else NEAR_TILES
        if request.warps:
            tiles = warped_tiles(request.warps, depth)
        by = mma_of(dtype)
        candidates = [NearTile(tile, by, left, rights, axis, other, depth) for tile in tiles]
        fitting = [
            one
            for one in candidates
            if -(-rows // one.tile.rows) * -(-columns // one.tile.columns) <= device.multiprocessors
            and one.shared_bytes <= min(MOST_BYTES, device.shared_bytes)
            and depth % (by.k * one.tile.warps_deep) == 0
        ]
        return min(fitting, key=lambda one: one.cycles(device), default=None)

    def cycles(self, device: GpuDevice) -> float:
        """An estimate of a tile, all of which run at once."""
        tile, depth, t = self.tile, self.known_depth, device.timings.gemm
        steps = self.steps * (t.step + t.fragment * self.down * self.across)
        work = tile.rows * tile.columns * depth / t.warp_products
        return (
            device.timings.gemv.read + tile.rows * depth * self.dtype.itemsize * (1 / t.copied_bytes) + max(steps, work)
        )

    @property
    def steps(self) -> int:
        """Steps of a warp along k."""
        return self.known_depth // self.by.k // self.tile.warps_deep

    @property
    def known_depth(self) -> int:
        assert isinstance(self.depth, int), "it was checked"
        return self.depth

    @property
    def rows_tile(self) -> LineTile:
        return LineTile(ROWS, self.dtype, self.tile.rows, self.known_depth)

    @property
    def weights_tile(self) -> LineTile:
        """All weights of the tile, in lines along the axis along which they are contiguous."""
        columns, depth = self.tile.columns, self.known_depth
        return LineTile(WEIGHTS, self.dtype, *((depth, columns) if self.right_axis == "row" else (columns, depth)))

    @property
    def shared_bytes(self) -> int:
        return (self.rows_tile.count + self.weights_tile.count) * self.dtype.itemsize + self._planes_bytes

    @property
    def _planes_bytes(self) -> int:
        return self.tile.warps_deep * self.tile.rows * (self.tile.columns + CHUNK) * f32.itemsize

    def tiled(self, device: GpuDevice) -> Tiled:
        tile, pitch = self.tile, (self.tile.columns + CHUNK) * f32.itemsize
        return Tiled(
            tile.rows,
            tile.columns,
            tile.threads,
            self.body(),
            self.elements(),
            self.allocations(),
            staged=Tensor(PLANES, f32, (tile.rows * pitch, pitch, f32.itemsize), space="shared"),
            planes=tile.warps_deep,
            plane=self.deep,
            early=self._whole.start(),
            cycles=self.cycles(device),
        )

    def allocations(self) -> list[Alloc]:
        return [
            Alloc(WEIGHTS, self.dtype, self.weights_tile.count, "shared"),
            Alloc(ROWS, self.dtype, self.rows_tile.count, "shared"),
            Alloc(PLANES, f32, self._planes_bytes // f32.itemsize, "shared"),
            *[one for one in TensorCoreTile.allocations(self) if one.space == "private"],
        ]

    def body(self) -> list[Statement]:
        start = [zeroed(self.sums, self.down * self.across * self.by.sums.count), *self._rows_loaded()]
        return [*start, *self._whole.rounds()]

    @property
    def _whole(self) -> Pipeline:
        """All of k as one stage."""

        def used(number: Expr, stage: Expr) -> list[Statement]:
            return [s for step in range(self.steps) for s in self._multiplied(step)]

        return pipeline(1, 1, self._weights_copied, used, CopyGroups(refill="never"))

    def _weights_copied(self, number: Expr, stage: Expr) -> list[Statement]:
        tile, right, by_row = self.weights_tile, self.rights[0], self.right_axis == "row"
        chunks, rows = tile.length // tile.chunk, tile.length if by_row else tile.lines

        def one(line: Expr, chunk: Expr) -> list[Statement]:
            along = mul(chunk, Extent(tile.chunk))
            column, k = (add(Name("side"), along), line) if by_row else (add(Name("side"), line), along)
            source, inside = right.source(column, k, rows)
            return [CopyAsync(*tile.place(ZERO, line, chunk), right.tensor, source, inside)]

        return self._each_chunk(tile.lines, chunks, one)

    def _rows_loaded(self) -> list[Statement]:
        """The rows of a tile; where there are no more of them they repeat the last one."""
        rows, tile = self.left.rows, self.rows_tile

        def one(line: Expr, chunk: Expr) -> list[Statement]:
            row = add(Name("top"), line)
            row = row if is_multiple(rows, self.tile.rows) else clamped(row, rows)
            target, place = tile.place(ZERO, line, chunk)
            value = Load(self.left.tensor, (*self.left.lead, row, add(mul(chunk, Extent(tile.chunk)), Name("e"))))
            return [unrolled("e", tile.chunk, Store(target, (*place[:-1], Name("e")), value))]

        return self._each_chunk(tile.lines, self.known_depth // tile.chunk, one)

    def _each_chunk(self, lines: int, chunks: int, one: Callable[[Expr, Expr], Sequence[Statement]]) -> list[Statement]:
        """What threads do for each chunk of lines. Those of a thread are a constant apart, so that one address and
        constants give all of them."""
        threads = self.tile.threads
        even = [n for n in (32, 16, 8, 4, 2, 1) if chunks % n == 0 and lines % (threads // n) == 0]
        across = even[0] if even else threads // lines
        down = threads // across
        assert lines % down == 0, "lines are a multiple of those that threads have at once"
        line, chunk = divided(THREAD, across), remainder(THREAD, across)
        turns = -(-chunks // across)
        inside = less(Name("chunk"), Extent(chunks)) if chunks % across else None
        each = tuple(one(Name("line"), Name("chunk")))
        body = (
            Set("line", add(line, mul(Name("lines"), Extent(down)))),
            Set("chunk", add(chunk, mul(Name("turn"), Extent(across)))),
            *(each if inside is None else (When(inside, each),)),
        )
        return [unrolled("lines", lines // down, unrolled("turn", turns, *body))]

    def _multiplied(self, number: int) -> list[Statement]:
        """A step of a warp: the k of a product, as warps with the same sums take turns along it."""
        tile, weights, (left, right) = self.tile, self.weights_tile, self.fragments
        i, j = Name("i"), Name("j")
        top = mul(divided(self.warp, tile.warps_across), Extent(tile.warp_rows))
        side = mul(remainder(self.warp, tile.warps_across), Extent(tile.warp_columns))
        row, column = add(top, mul(i, Extent(self.by.m))), add(side, mul(j, Extent(2 * self.by.n)))
        k, b_at = mul(self.deep, Extent(self.by.k)), (mul(j, Extent(2 * self._layouts[1].count)),)
        lefts = load_left(left, (i, ZERO), self.rows_tile, "k", ZERO, row, k)
        rights = load_right(right, b_at, weights, self.right_axis, ZERO, column, k)
        # Steps are a constant apart: one address and constants give all of them.
        apart = number * tile.warps_deep * self.by.k * self.dtype.itemsize
        by_line = apart * weights.pitch if self.right_axis == "row" else apart
        return [
            unrolled("i", self.down, replace(lefts, source=replace(lefts.source, offset=apart))),
            unrolled("j", self.across // 2, replace(rights, source=replace(rights.source, offset=by_line))),
            unrolled(
                "i",
                self.down,
                unrolled("j", self.across, multiplied(self.sums, (i, j, ZERO), left, (i, ZERO), right, j)),
            ),
        ]


__all__ = ["LAUNCHED_TILES", "NEAR_TILES", "NearTile", "warped_tiles"]
