"""GEMV with few columns of weights in blocks, which bulk copies bring to shared memory.

A block of threads has the same columns for all of k, and copies them before the kernels before it have ended, or, as a
part of a persistent kernel, while it waits. Eight neighbouring lanes have a column each, and the four groups of eight
of a warp share the blocks of these columns with each other and with other warps: the eight read the same elements of
the row at once, from where it was computed or received. Codes are expanded in registers, and sums are f32.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bool_, f32, u32
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.blocks.packed_blocks import BlockFactor, NamedBlock
from dovetail.kernels.gpu.blocks.packed_tiles import SHARING, PackedTiles
from dovetail.kernels.gpu.gemm.fragments import LANE, Factor, divided, remainder, shared_by, spread
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.gpu.gemm.tiled import RowScale, Tiled
from dovetail.kernels.gpu.gemv.row_norm import RowNorm
from dovetail.kernels.gpu.gemv.stream import WEIGHT_BYTES
from dovetail.kernels.gpu.pipeline import ARRIVED, IS_FIRST, Bulk, Pipeline, pipeline
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllReduce,
    Call,
    CopyBulk,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    mul,
)
from dovetail.kernels.request import Request

WARPS = 8
MOST_COLUMNS = 64
COPY_BYTES = 12 << 10
"""Bytes of one bulk copy, at most."""
VECTOR = 4
"""Elements of the row that a thread loads at once."""
MOST_HELD = 64
"""Elements of the row that a thread holds in registers."""
AT_ONCE = 2
"""Columns of a thread whose sums are on their way together."""


@dataclass(frozen=True, slots=True)
class CopiedBlocks:
    """The sums of one row and some columns."""

    left: Factor
    rights: Sequence[BlockFactor]
    columns: int
    """Of each stream."""
    warps: int
    evict_first: bool = False
    norm: RowNorm | None = None
    """What becomes of the row first: gains multiply it on its way to shared memory, and the scale multiplies sums."""

    @staticmethod
    def of(left: Factor, rights: Sequence[BlockFactor], device: GpuDevice, request: Request) -> CopiedBlocks | None:
        """The tile; None where another kernel serves better, or columns are not shared evenly."""
        right = rights[0]
        is_plain = left.rows == 1 and left.read is None and left.gather is None and left.tensor.dtype is f32
        if not is_plain or not request.starts_early or not device.bulk_copies:
            return None
        warps = next((n for n in (WARPS, WARPS // 2, WARPS // 4, 1) if right.count % (n * SHARING) == 0), None)
        columns = _width(rights, right.columns, device.multiprocessors)
        # Blocks of 256 elements that are no units are too few for all lanes that share a column.
        if warps is None or columns is None or right.pack.format.elements > MOST_HELD:
            return None
        tile = CopiedBlocks(left, rights, columns, warps, device.evict_first)
        fits = tile.weight_bytes <= WEIGHT_BYTES and tile.shared_bytes <= device.shared_bytes
        return tile if fits and columns <= tile.threads else None

    @property
    def pack(self) -> PackedTiles:
        return PackedTiles(self.rights[0].pack, self.columns, self.warps, self.rights[0].count)

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def turns(self) -> int:
        """Blocks of a column that a thread has."""
        return self.pack.turns

    @property
    def elements(self) -> int:
        """Of a block."""
        return self.rights[0].pack.format.elements

    @property
    def stream_bytes(self) -> int:
        """Weights of a tile of one stream."""
        return self.pack.bytes

    @property
    def weight_bytes(self) -> int:
        return self.stream_bytes * len(self.rights)

    @property
    def depth(self) -> int:
        return self.rights[0].count * self.elements

    @property
    def _width(self) -> int:
        return self.columns * len(self.rights)

    @property
    def shared_bytes(self) -> int:
        gains = 0 if self.norm is None else self.depth + self.warps
        return self.weight_bytes + (self.depth + self.warps * SHARING * self._width + gains) * f32.itemsize

    @property
    def left_row(self) -> Tensor:
        """The row in shared memory, where it is not there already."""
        return Tensor("left_rows", f32, (f32.itemsize,), space="shared")

    @property
    def planes(self) -> Tensor:
        """The sums of the lanes that share columns."""
        plane = self._width * f32.itemsize
        return Tensor("planes", f32, (plane, plane, f32.itemsize), space="shared")

    def tiled(self) -> Tiled:
        """What a block of threads does for its columns."""
        return Tiled(
            1,
            self.columns,
            self.threads,
            self._body(),
            (),  # they are in the planes
            [
                Alloc("weights", u32, self.weight_bytes // u32.itemsize, "shared"),
                Alloc("left_rows", f32, self.depth, "shared"),
                Alloc("planes", f32, self.warps * SHARING * self._width, "shared"),
                *self._whole.allocations,
                *([] if self.norm is None else [self.norm.allocation(), Alloc("squares", f32, self.warps, "shared")]),
            ],
            resident=2 if 2 * self.shared_bytes <= WEIGHT_BYTES else 1,
            staged=self.planes,
            planes=self.warps * SHARING,
            early=self._whole.start(),
            scale=None if self.norm is None else RowScale(self._squares_stored(), lambda _: self._scale()),
        )

    @property
    def takes_norm(self) -> bool:
        """Whether threads have as many elements of the row each, in vectors."""
        return self.depth % (VECTOR * self.threads) == 0

    def _copies(self, number: Expr, stage: Expr) -> list[Statement]:
        """Copies of all weights of a tile, of which one thread each starts one."""
        whole = self.stream_bytes
        pieces = next(n for n in range(-(-whole // COPY_BYTES), whole) if whole % (16 * n) == 0)
        nbytes = whole // pieces
        statements: list[Statement] = []
        if self.norm is not None:
            gains = CopyBulk(self.norm.gains, (ZERO, ZERO), self.norm.gain, (ZERO,), self.norm.nbytes, ARRIVED, ZERO)
            statements.append(When(IS_FIRST, (gains,)))
        for at, right in enumerate(self.rights):
            target = Tensor("weights", u32, (nbytes,), at * whole, space="shared")
            source = Tensor(right.pointer, u32, (whole, nbytes), right.first // self.columns * whole)
            tile = divided(Name("side"), self.columns)
            piece = (Name("copy"),)
            copy = CopyBulk(target, piece, source, (tile, *piece), nbytes, ARRIVED, stage, self.evict_first)
            statements.append(Loop("copy", Extent(pieces), (copy,), kind="thread"))
        return statements

    def _body(self) -> list[Statement]:
        place: list[Statement] = [
            Set("warp_lane", add(mul(ThreadIndex("warp"), Extent(LANES)), LANE)),
            Set("sharing", add(mul(ThreadIndex("warp"), Extent(SHARING)), divided(LANE, CHUNK))),
        ]
        start = [*self._left_loaded(), *place] if self.norm is None else [*place, *self._squared()]
        return [*start, *self._whole.rounds()]

    @property
    def _whole(self) -> Pipeline:
        """All of k as one stage."""
        gained = () if self.norm is None else self._left_gained(self.norm)
        return pipeline(1, 1, self._copies, self._products, Bulk(by_one=False), arrived=gained)

    def _products(self, number: Expr, stage: Expr) -> list[Statement]:
        groups = self.columns // CHUNK
        streams = len(self.rights)
        together = AT_ONCE if streams < AT_ONCE and groups % AT_ONCE == 0 else 1
        each: list[Statement] = []
        for own in range(together):
            group = add(mul(Name("group"), Extent(together)), Extent(own))
            each += [s for stream in range(streams) for s in self._summed(stream, own, group)]
        for own in range(together):
            group = add(mul(Name("group"), Extent(together)), Extent(own))
            each += [s for stream in range(streams) for s in self._stored(stream, own, group)]
        if groups == together:
            return [*self._row_sums(), Set("group", ZERO), *each]
        return [
            *self._row_held(),
            *self._row_sums(),
            Loop("group", Extent(groups // together), tuple(each), rolled=True),
        ]

    @property
    def _holds_row(self) -> bool:
        """Whether a thread holds its elements of the row for all columns: shared memory would be read once for each
        two of them, and is what bounds the product then."""
        return self.columns > CHUNK * AT_ONCE and self.turns * self.elements <= MOST_HELD

    def _row_held(self) -> list[Statement]:
        turns = range(self.turns if self._holds_row else 0)
        every = [(turn, i) for turn in turns for i in range(self.elements)]
        return [Set(f"held{turn}_{i}", self._loaded(turn, i)) for turn, i in every]

    @property
    def _adds(self) -> bool:
        """Whether the format adds something to code * scale."""
        return NamedBlock(self.rights[0].pack, "").element(0).low is not None

    def _row_sums(self) -> list[Statement]:
        """The sums of the elements of the row that a group of codes multiplies: what is added to all of these codes
        multiplies it, in all columns of a thread."""
        group, statements = self.rights[0].pack.format.group, list[Statement]()
        for turn in range(self.turns if self._adds else 0):
            for first in range(0, self.elements, group):
                left = [self._x(turn, first + i) for i in range(group)]
                while len(left) > 1:
                    left = [Call("add", (x, y), f32) for x, y in zip(left[::2], left[1::2], strict=True)]
                statements.append(Set(f"row{turn}_{first}", left[0]))
        return statements

    def _x(self, turn: int, number: int) -> Expr:
        """An element of the row, in a register or in shared memory."""
        return Name(f"held{turn}_{number}", f32) if self._holds_row else self._loaded(turn, number)

    def _loaded(self, turn: int, number: int) -> Load:
        """An element of the row that belongs to a thread's block of a turn."""
        row = Tensor("left_rows", f32, (self.elements * f32.itemsize, f32.itemsize), space="shared")
        block = add(Extent(turn * self.warps * SHARING), Name("sharing"))
        return Load(row, (block, Extent(number)))

    def _left_loaded(self) -> list[Statement]:
        def one(own: Expr) -> list[Statement]:
            return [Store(self.left_row, (own,), Load(self.left.tensor, (*self.left.lead, ZERO, own)))]

        return shared_by(self.threads, self.depth, one)

    def _own_elements(self) -> list[Expr]:
        """The elements of the row that a thread has, in vectors."""
        each = [i // VECTOR * VECTOR * self.threads + i % VECTOR for i in range(self.depth // self.threads)]
        return [add(mul(ThreadIndex("thread"), Extent(VECTOR)), Extent(at)) for at in each]

    def _squared(self) -> list[Statement]:
        """The row in registers, and the sum of its squares that a warp has."""
        statements: list[Statement] = [Set("square", Number(0, f32))]
        for i, at in enumerate(self._own_elements()):
            x = Name(f"x{i}", f32)
            statements.append(Set(x.name, Load(self.left.tensor, (*self.left.lead, ZERO, at))))
            statements.append(Set("square", Call("fma", (x, x, Name("square", f32)), f32)))
        return [*statements, AllReduce("square", "add", f32)]

    def _left_gained(self, norm: RowNorm) -> list[Statement]:
        """The row times the gains, in shared memory."""
        statements: list[Statement] = []
        for i, at in enumerate(self._own_elements()):
            value = Call("mul", (Name(f"x{i}", f32), Load(norm.gains, (ZERO, at))), f32)
            statements.append(Store(self.left_row, (at,), value))
        return statements

    @property
    def _squares(self) -> Tensor:
        return Tensor("squares", f32, (f32.itemsize,), space="shared")

    def _squares_stored(self) -> Statement:
        is_first = Call("equal", (LANE, ZERO), bool_)
        return When(is_first, (Store(self._squares, (ThreadIndex("warp"),), Name("square", f32)),))

    def _scale(self) -> Expr:
        """What multiplies all sums."""
        assert self.norm is not None, "it has a norm"
        total: Expr = Load(self._squares, (ZERO,))
        for warp in range(1, self.warps):
            total = Call("add", (total, Load(self._squares, (Extent(warp),))), f32)
        mean = Call("mul", (total, Number(1 / self.depth, f32)), f32)
        return Call("rsqrt", (Call("add", (mean, Number(self.norm.eps, f32)), f32),), f32)

    def _summed(self, stream: int, own: int, group: Expr) -> list[Statement]:
        """The sum of a thread's blocks of one column."""
        total = _sum(stream, own)
        statements: list[Statement] = [Set(total.name, Number(0, f32))]
        for turn in range(self.turns):
            prefix = f"word{stream}_{own}_{turn}_"
            read = NamedBlock(self.rights[0].pack, prefix)
            products = self._block_summed(read, total, turn)
            words = self.pack.words(read.used, stream * self.stream_bytes, group, turn, prefix)
            statements += [*words, *products]
        return statements

    def _block_summed(self, read: NamedBlock, total: Name, turn: int) -> list[Statement]:
        """A block times its elements of the row. The scale multiplies a group's sum, and what a format adds that of the
        row."""
        of, statements = read.pack.format, list[Statement]()
        for first in range(0, of.elements, of.group):
            group = [read.element(first + i) for i in range(of.group)]
            part = Name(f"{total.name}_{turn}", f32)
            statements.append(Set(part.name, Number(0, f32)))
            for i, one in enumerate(group):
                statements.append(Set(part.name, Call("fma", (one.code, self._x(turn, first + i), part), f32)))
            statements.append(Set(total.name, Call("fma", (group[0].scale, part, total), f32)))
            low = group[0].low
            if low is not None:
                statements.append(Set(total.name, Call("fma", (low, Name(f"row{turn}_{first}", f32), total), f32)))
        return statements

    def _stored(self, stream: int, own: int, group: Expr) -> list[Statement]:
        """A sum of a lane, in its plane; streams take turns, eight columns each."""
        column = add(mul(group, Extent(CHUNK)), remainder(LANE, CHUNK))
        at = (Name("sharing"), ZERO, spread(column, stream, len(self.rights)))
        return [Store(self.planes, at, _sum(stream, own))]


def _width(rights: Sequence[BlockFactor], columns: Size, blocks: int) -> int | None:
    """Columns of a tile, so that blocks have one each; None where they would not be shared evenly."""
    if not isinstance(columns, int):
        return None
    least = -(-columns // blocks)
    every = (columns, *[n for right in rights for n in (right.whole, right.first)])
    wide = [n for n in range(CHUNK, MOST_COLUMNS + 1, CHUNK) if n >= least and all(size % n == 0 for size in every)]
    return wide[0] if wide else None


def _sum(stream: int, own: int) -> Name:
    return Name(f"sum{stream}_{own}", f32)


__all__ = ["CopiedBlocks"]
