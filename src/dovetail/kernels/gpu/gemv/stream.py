"""Products with few rows: weights are read once and stay in flight, so that memory bandwidth is the limit.

A block has a few columns and all of k. It starts the copies of its weights to shared memory, all of them or as many
stages as there is room for, then loads the left rows, and multiplies stage by stage on tensor cores. Its warps share k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, floordiv
from dovetail.ir.dtype import DType, bool_, f32, i64
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.gemm.block_tile import chunk_of
from dovetail.kernels.gpu.gemm.fragments import (
    Factor,
    LineTile,
    SharedTile,
    copied,
    divided,
    is_multiple,
    less,
    remainder,
    shared_by,
    spread,
    unrolled,
)
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.gpu.gemm.tiled import RowScale, Tiled
from dovetail.kernels.gpu.gemv.packed_matrix import Staged
from dovetail.kernels.gpu.gemv.row_norm import RowNorm
from dovetail.kernels.gpu.gemv.stream_products import UNIT, StreamProducts
from dovetail.kernels.gpu.pipeline import ARRIVED, IS_FIRST, Bulk, CopyGroups, Pipeline, pipeline
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllocBarriers,
    Barrier,
    Call,
    CopyBulk,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Number,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    mul,
)
from dovetail.kernels.matrix_instruction import mma_of

MOST_ROWS = 8
"""Rows up to which it is faster than tiles: at the 16 rows of a short text it takes half as long again."""
STAGE_BYTES = 16 << 10
"""Weights of a stage: enough copies for each thread of a block that a barrier costs little."""
WEIGHT_BYTES = 96 << 10
"""Weights of a block that are in shared memory at once: two blocks fit a multiprocessor, of one kernel or of two."""
WARPS = 8
COPY_BYTES = 16 << 10
"""Bytes of one bulk copy, at most, where it brings several columns."""
MANY_TURNS = 4
"""Turns of blocks from which it pays that more of them share a multiprocessor."""
WIDTHS = (64, 32, 16)
"""Columns of a block, from wide to narrow, where they are neighbours in memory: rows of 32 bytes are the shortest that
memory reads without waste."""
MOST_COLUMNS = 64
RESIDENT = 2
"""Blocks that a multiprocessor has at once."""
APART_BYTES = 4096
"""Sums of all warps of a block that have shared memory of their own, at most."""


@dataclass(frozen=True, slots=True)
class StreamTile:
    """The sums of all rows and some columns, with weights in flight."""

    dtype: DType
    left: Factor
    rights: Sequence[Factor]
    axis: str
    """The axis along which weights are contiguous: "k" or "row", which are the columns of the result."""
    rows: int
    columns: int
    """Of each stream."""
    depth: int
    warps: int
    room: int = WEIGHT_BYTES
    """Bytes of shared memory for weights, at most."""
    early: bool = False
    """Whether the weights are constant, so that their copies start before the kernels before this one have ended."""
    bulk: bool = False
    """Whether one copy brings a whole column, so that few threads start all of them."""
    evict_first: bool = False
    """Whether L2 drops weights before others."""
    norm: RowNorm | None = None
    """What becomes of the left rows first."""

    @staticmethod
    def of(
        dtype: DType,
        left: Factor,
        rights: Sequence[Factor],
        axis: str,
        sizes: tuple[Size, Size, Size, Size],
        device: GpuDevice,
        *,
        early: bool,
    ) -> StreamTile | None:
        """The tile for these sizes, batch, rows, columns and depth; None where another kernel serves better."""
        batch, rows, columns, depth = sizes
        if not axis or not isinstance(rows, int) or not isinstance(depth, int) or not isinstance(columns, int):
            return None
        if rows > MOST_ROWS or depth < 4 * LANES:
            return None
        products = batch if isinstance(batch, int) else 1
        width = width_of_block(products, columns, axis, device)
        warps = WARPS
        # A stage has the k of a product for each warp.
        k = mma_of(dtype).k
        while 2 * k * warps > depth or k * warps * width * len(rights) * dtype.itemsize > STAGE_BYTES:
            warps //= 2
        once = device.evict_first
        stream = StreamTile(dtype, left, rights, axis, rows, width, depth, warps, early=early, evict_first=once)
        others = rows * stream.left_pitch * dtype.itemsize + APART_BYTES
        stream = replace(stream, room=min(WEIGHT_BYTES, device.shared_bytes - others))
        if early and axis == "k" and device.bulk_copies and depth % (k * warps) == 0:
            bulk = [replace(stream, bulk=True, columns=w) for w in as_good(width, products, columns, device)]
            fitting = [tile for tile in bulk if RESIDENT * tile.shared_bytes <= device.shared_bytes]
            if fitting:
                return _for_turns(fitting, products, columns, device)
        return stream if stream.shared_bytes <= device.shared_bytes else None

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def streams(self) -> int:
        return len(self.rights)

    @property
    def width(self) -> int:
        """Columns of all streams, which take turns, eight columns each."""
        return self.columns * self.streams

    @property
    def chunk(self) -> int:
        """Elements of 16 bytes."""
        return chunk_of(self.dtype)

    @property
    def stage_depth(self) -> int:
        """Elements of k in a stage: as many for each warp."""
        if self.bulk:
            return self.depth
        least = mma_of(self.dtype).k * self.warps
        most = max(1, STAGE_BYTES // (self.width * self.dtype.itemsize) // least)
        return least * min(most, -(-self.depth // least))

    @property
    def rounds(self) -> int:
        return -(-self.depth // self.stage_depth)

    @property
    def stages(self) -> int:
        """Stages in shared memory: all of k where it fits."""
        one = self.stage_depth * self.width * self.dtype.itemsize
        return min(self.rounds, max(2, self.room // one))

    @property
    def is_whole(self) -> bool:
        """Whether all weights of a block fit, so that nothing is copied later."""
        return self.stages == self.rounds

    @property
    def weights(self) -> SharedTile | LineTile:
        if self.bulk:
            return LineTile("weights", self.dtype, self.width, self.depth)
        lines, length = (self.stage_depth, self.width) if self.axis == "row" else (self.width, self.stage_depth)
        return SharedTile("weights", self.dtype, lines, length // self.chunk, self.stages)

    @property
    def left_rows(self) -> Tensor:
        """The left rows in shared memory, with zeros after the end of k; padding spreads rows over banks."""
        item = self.dtype.itemsize
        return Tensor("left_rows", self.dtype, (self.left_pitch * item, item), space="shared")

    @property
    def left_pitch(self) -> int:
        """Elements from one left row to the next."""
        return self.rounds * self.stage_depth + (self.chunk if self.rows > 1 else 0)

    @property
    def _plane(self) -> int:
        """Bytes of the sums of a warp."""
        return self.rows * (self.width + CHUNK) * f32.itemsize

    @property
    def planes_bytes(self) -> int:
        """Bytes of the sums of all warps."""
        return self.warps * self._plane

    @property
    def sums_are_apart(self) -> bool:
        """Whether sums of all warps have shared memory of their own, so that no warp waits until weights are read."""
        return self.planes_bytes <= APART_BYTES

    @property
    def shared_bytes(self) -> int:
        apart = self.planes_bytes if self.sums_are_apart else 0
        gains = 0 if self.norm is None else self.norm.nbytes
        return (self.weights_count + self.rows * self.left_pitch) * self.dtype.itemsize + apart + gains

    @property
    def weights_count(self) -> int:
        """Elements of shared memory for weights, and at least for the sums of all warps that are there later."""
        least = 0 if self.sums_are_apart else self.planes_bytes // self.dtype.itemsize
        return max(self.weights.count, least)

    @property
    def products(self) -> StreamProducts:
        units = self.stage_depth // (UNIT * self.warps)
        groups, apart = self.width // CHUNK, self.streams_are_apart
        gains = None if self.norm is None else self.norm.gains
        return StreamProducts(self.dtype, self.rows, groups, self.streams, self.warps, units, self.axis, apart, gains)

    @property
    def takes_norm(self) -> bool:
        """Whether rows may be normed: bulk copies bring gains with weights, and sums of warps meet in shared memory."""
        return self.bulk and self.warps > 1

    @property
    def streams_are_apart(self) -> bool:
        """Whether streams do not take turns, eight columns each, in shared memory."""
        return False

    def tiled(self) -> Tiled:
        """What a block does for its columns."""
        staged = self.planes
        return Tiled(
            self.rows,
            self.columns,
            self.threads,
            self.body(),
            self.products.elements(),
            self.allocations(),
            resident=RESIDENT,
            staged=staged,
            planes=self.warps,
            plane=ThreadIndex("warp"),
            early=self.steps.start() if self.early else (),
            scale=None if self.norm is None else self._scale(self.norm, staged),
        )

    @property
    def planes(self) -> Tensor:
        """The sums of all warps in shared memory."""
        pitch = (self.width + CHUNK) * f32.itemsize
        room = "planes" if self.sums_are_apart else "weights"
        return Tensor(room, f32, (self._plane, pitch, f32.itemsize), space="shared")

    def _scale(self, norm: RowNorm, planes: Tensor) -> RowScale:
        """Squares are in the padding after the sums."""
        squares = self.products.squares
        return RowScale(
            squares.stored(planes, self.width),
            lambda row: norm.scale(squares.total(planes, self.warps, row, self.width)),
        )

    def allocations(self) -> list[Alloc | AllocBarriers]:
        return [
            Alloc("weights", self.dtype, self.weights_count, "shared"),
            Alloc("left_rows", self.dtype, self.rows * self.left_pitch, "shared"),
            *([Alloc("planes", f32, self.planes_bytes // 4, "shared")] if self.sums_are_apart else []),
            *self.steps.allocations,
            *([] if self.norm is None else [self.norm.allocation()]),
            *self.products.allocations(),
        ]

    @property
    def steps(self) -> Pipeline:
        """The stages of all of k: one for each step where all weights fit, and nothing is copied later."""
        if self.bulk:
            return pipeline(1, 1, self._columns_copied, self.used, Bulk(by_one=False))
        by = CopyGroups(refill="never" if self.is_whole else "between")
        return pipeline(self.stages, self.rounds, self._copies, self.used, by, is_rolled=True)

    def body(self) -> list[Statement]:
        first = [] if self.early else self.steps.start()
        # The barrier before the first product is for the left rows too.
        start = [*first, *self.products.zeroed(), *self.left_loaded()]
        # Sums that are not apart overwrite weights.
        last = [] if self.sums_are_apart and not self.is_filled_again else [Barrier()]
        return [*start, *self.steps.rounds(), *last]

    @property
    def is_filled_again(self) -> bool:
        """Whether the next run of the kernel, or of a pass, may fill stages before all warps have read them."""
        return False

    def _columns_copied(self, number: Expr, stage: Expr) -> list[Statement]:
        """Copies of columns. Where there are no more of them they bring the last ones, whose sums are not used."""
        tile, item = self.weights, self.dtype.itemsize
        assert isinstance(tile, LineTile), "it is filled by bulk copies"
        padded = all(right.row_stride == tile.pitch * item and is_multiple(right.rows, CHUNK) for right in self.rights)
        # Columns that are apart as lines are come together; those of several streams take turns.
        lines = next(n for n in (CHUNK, 4, 2, 1) if n == 1 or n * tile.pitch * item <= COPY_BYTES) if padded else 1
        nbytes = lines * tile.pitch * item if padded else self.depth * item
        statements = self._gains_copied()
        for at, right in enumerate(self.rights):
            line = mul(Name("copy"), Extent(lines))
            column = add(Name("side"), line)
            if not is_multiple(right.rows, self.columns):
                column = Call("minimum", (column, Extent(right.rows - lines)), i64)
            target, place = tile.place(stage, spread(line, at, self.streams), ZERO)
            source = right.tensor, (*right.lead, column, ZERO)
            copy = CopyBulk(target, place, *source, nbytes, ARRIVED, stage, self.evict_first)
            statements.append(Loop("copy", Extent(self.columns // lines), (copy,), kind="thread"))
        return statements

    def _gains_copied(self) -> list[Statement]:
        """One thread copies the gains with the first weights."""
        if self.norm is None:
            return []
        target = self.norm.gains, (ZERO, ZERO)
        return [When(IS_FIRST, (CopyBulk(*target, self.norm.gain, (ZERO,), self.norm.nbytes, ARRIVED, ZERO),))]

    def _copies(self, number: Expr, stage: Expr) -> list[Statement]:
        assert isinstance(self.weights, SharedTile), "bulk copies are all of them"
        k = mul(number, Extent(self.stage_depth))
        statements: list[Statement] = []
        for at, right in enumerate(self.rights):
            statements += copied(self.weights, right, self.axis, Name("side"), k, stage, self.threads, at, self.streams)
        return statements

    def left_loaded(self) -> list[Statement]:
        """The left rows in shared memory. They come without asynchronous copies, which would be awaited in order."""
        chunk = self.chunk
        groups = self.rounds * self.stage_depth // chunk
        is_dense = self.left.runs_along_k and self.left.read is None and is_multiple(self.depth, chunk)

        def one(own: Expr) -> list[Statement]:
            row, group = (ZERO, own) if self.rows == 1 else (divided(own, groups), remainder(own, groups))
            first = mul(group, Extent(chunk))
            k = add(first, Name("e"))
            if not is_dense:
                value = cast_to(self.left.element(row, k), self.dtype)
                return [unrolled("e", chunk, Store(self.left_rows, (row, k), value))]
            inside = less(first, Extent(self.depth))
            loaded = Load(self.left.tensor, (*self.left.lead, row, k))
            zero = Number(0.0, self.dtype)
            outside = Call("bit_not", (inside,), bool_)
            stores = [When(inside, (unrolled("e", chunk, Store(self.left_rows, (row, k), loaded)),))]
            if self.depth % self.stage_depth:
                stores.append(When(outside, (unrolled("e", chunk, Store(self.left_rows, (row, k), zero)),)))
            return [*stores]

        return shared_by(self.threads, self.rows * groups, one, most=1)

    def used(self, number: Expr, stage: Expr) -> list[Statement]:
        """Multiply a stage: every warp has a part of its k."""
        first = mul(number, Extent(self.stage_depth))
        return [self.products.stage(self.weights, stage, self.left_rows, first)]


@dataclass(frozen=True, slots=True)
class StreamRing(StreamTile):
    """A tile of a stream whose weights do not fit shared memory: bulk copies fill a ring of stages.

    Weights are packed in the order in which blocks read them, so that one copy brings a stage of a stream. A stage is
    copied again as soon as all warps have read it. No thread waits for copies of others, so that the first ones may
    start any time before, while other kernels run.
    """

    @staticmethod
    def from_tile(tile: StreamTile, columns: Size, device: GpuDevice) -> StreamRing | None:
        """The same tile as a ring; None where all weights fit, or are not whole stages."""
        if not tile.early or not device.bulk_copies or tile.axis != "k" or tile.is_whole or tile.bulk:
            return None
        if not is_multiple(columns, tile.columns) or tile.depth % tile.stage_depth:
            return None
        values = {name: getattr(tile, name) for name in tile.__dataclass_fields__}
        ring = StreamRing(**values)
        return ring if ring.stages > 1 and RESIDENT * ring.shared_bytes <= device.shared_bytes else None

    @property
    def pack(self) -> Staged:
        return Staged(self.columns, self.stage_depth, self.chunk)

    def packed(self, right: Factor, name: str, first: Size) -> Factor:
        """A right factor, from a column on, as it is once packed."""
        item = right.tensor.dtype.itemsize
        stage = self.pack.stage * item
        strides = (self.rounds * stage, stage)
        offset = floordiv(first, self.columns) * strides[0]
        return replace(right, tensor=Tensor(name, right.tensor.dtype, strides, offset))

    @property
    def stages(self) -> int:
        """As many as fit, of those that are filled equally often."""
        one = self.pack.stage * self.streams * self.dtype.itemsize
        return max([n for n in range(1, self.rounds) if self.rounds % n == 0 and n * one <= self.room], default=1)

    @property
    def weights(self) -> LineTile:
        return LineTile("weights", self.dtype, self.width, self.stage_depth, self.stages)

    @property
    def streams_are_apart(self) -> bool:
        return True

    @property
    def steps(self) -> Pipeline:
        """One thread copies a stage."""
        return pipeline(self.stages, self.rounds, self._stage_copied, self.used, Bulk(), is_rolled=True)

    @property
    def is_filled_again(self) -> bool:
        return True

    def _stage_copied(self, number: Expr, stage: Expr) -> list[Statement]:
        nbytes, statements = self.pack.stage * self.dtype.itemsize, list[Statement]()
        for at, right in enumerate(self.rights):
            target, place = self.weights.place(stage, Extent(at * self.columns), ZERO)
            source = (divided(Name("side"), self.columns), number)
            statements.append(CopyBulk(target, place, right.tensor, source, nbytes, ARRIVED, stage, self.evict_first))
        return statements


def width_of_block(batch: int, columns: int, axis: str, device: GpuDevice) -> int:
    """Columns of a block."""
    if axis == "row":
        # Where columns are few, more of k in flight makes up for multiprocessors that have none.
        enough = [w for w in WIDTHS if batch * -(-columns // w) * 10 >= 9 * device.multiprocessors]
        return enough[0] if enough else WIDTHS[-1]

    def busiest(width: int) -> int:
        """Columns of the multiprocessor that has the most."""
        return -(-batch * -(-columns // width) // device.multiprocessors) * width

    return min(range(MOST_COLUMNS, 0, -CHUNK), key=busiest)


def as_good(width: int, batch: int, columns: int, device: GpuDevice) -> list[int]:
    """Columns of a block, from `width` to fewer, that give no multiprocessor more; blocks at once stay at once."""
    count = device.multiprocessors

    def blocks(of: int) -> int:
        return batch * -(-columns // of)

    at_once = RESIDENT * count if blocks(width) <= RESIDENT * count else blocks(CHUNK)
    busiest = -(-blocks(width) // count) * width
    return [w for w in range(width, 0, -CHUNK) if blocks(w) <= at_once and -(-blocks(w) // count) * w <= busiest]


def _for_turns(tiles: Sequence[StreamTile], products: int, columns: int, device: GpuDevice) -> StreamTile:
    """The widest tile. Where its blocks take many turns, somewhat fewer columns, so that a multiprocessor has a block
    more: both blocks of one would wait for their first copies, and multiply, at the same times."""
    widest = tiles[0]
    if products * -(-columns // widest.columns) < MANY_TURNS * RESIDENT * device.multiprocessors:
        return widest
    # Gains may come with the weights.
    room = device.shared_bytes // (RESIDENT + 1) - widest.depth * widest.dtype.itemsize
    more = [tile for tile in tiles if tile.shared_bytes <= room and 2 * tile.columns > widest.columns]
    return more[0] if more else widest


__all__ = ["MOST_ROWS", "RESIDENT", "WEIGHT_BYTES", "StreamRing", "StreamTile"]
