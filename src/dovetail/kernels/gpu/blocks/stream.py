"""Skinny GEMM with weights in blocks: each lane has a column, and multiplies its blocks by rows in f32.

All warps of a block share k, and so do the lanes of a warp where columns are few. A thread loads the words of some
blocks at once, so that they are in flight together, and expands codes in registers. Codes are exact in f32; where a
format adds nothing to code * scale, the scale multiplies the sum of a group. Sums are f32.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, f32, i64, u32
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.blocks.packed_blocks import BlockFactor, NamedBlock
from dovetail.kernels.gpu.gemm.fragments import LANE, Factor, divided, is_multiple, less, remainder, shared_by
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.gpu.gemm.tiled import Element, Tiled
from dovetail.kernels.gpu.gemv.stream import MOST_ROWS
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllReduce,
    Barrier,
    Call,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Number,
    Prefetch,
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
MOST_WORDS = 32
"""Words that a thread has in flight, at most, unless a block has more."""
PADDING = 4
"""Elements of a row after each block in shared memory: blocks that lanes read at once are in different banks."""


@dataclass(frozen=True, slots=True)
class BlockStream:
    """The sums of all rows and some columns."""

    left: Factor
    rights: Sequence[BlockFactor]
    rows: int
    columns: int
    warps: int
    at_once: int
    """Blocks of a stream that a thread has in flight."""
    early: bool = False
    """Whether weights come to L2 before the kernels before this one have ended."""

    @staticmethod
    def of(left: Factor, rights: Sequence[BlockFactor], device: GpuDevice, request: Request) -> BlockStream | None:
        """The tile; None where another kernel serves better."""
        columns, rows, right = rights[0].columns, left.rows, rights[0]
        if not isinstance(rows, int) or not isinstance(columns, int) or rows > MOST_ROWS:
            return None
        wide = [n for n in (LANES, LANES // 2) if -(-columns // n) >= device.multiprocessors]
        width = wide[0] if wide else CHUNK
        warps = WARPS
        while warps > 1 and warps * (LANES // width) > right.count:
            warps //= 2
        turns = -(-right.count // (warps * (LANES // width)))
        at_once = max(1, min(turns, MOST_WORDS // (right.pack.words * len(rights))))
        early = request.starts_early and device.bulk_copies
        tile = BlockStream(left, rights, rows, width, warps, at_once, early)
        return tile if tile.shared_bytes <= device.shared_bytes else None

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def lanes(self) -> int:
        """Lanes that share a column."""
        return LANES // self.columns

    @property
    def elements(self) -> int:
        """Of a block."""
        return self.rights[0].pack.format.elements

    @property
    def _width(self) -> int:
        return self.columns * len(self.rights) + CHUNK

    @property
    def _pitch(self) -> int:
        """Elements from one row to the next."""
        return self.rights[0].count * (self.elements + PADDING)

    @property
    def left_rows(self) -> Tensor:
        """Rows in shared memory, block by block."""
        item = f32.itemsize
        strides = (self._pitch * item, (self.elements + PADDING) * item, item)
        return Tensor("left_rows", f32, strides, space="shared")

    @property
    def shared_bytes(self) -> int:
        return self.rows * (self._pitch + self.warps * self._width) * f32.itemsize

    def tiled(self) -> Tiled:
        """What a block does for its columns."""
        item = f32.itemsize
        staged = Tensor("planes", f32, (self.rows * self._width * item, self._width * item, item), space="shared")
        has = None if self.lanes == 1 else Call("equal", (remainder(LANE, self.lanes), ZERO), bool_)
        sums = [tuple([_sum(s, row) for s in range(len(self.rights))]) for row in range(self.rows)]
        elements = [Element(Extent(row), self._column, each, has) for row, each in enumerate(sums)]
        return Tiled(
            self.rows,
            self.columns,
            self.threads,
            self._body(),
            elements,
            [
                Alloc("left_rows", f32, self.rows * self._pitch, "shared"),
                Alloc("planes", f32, self.warps * self.rows * self._width, "shared"),
            ],
            staged=staged,
            planes=self.warps,
            plane=ThreadIndex("warp"),
            early=self._prefetched() if self.early else (),
        )

    def _prefetched(self) -> list[Statement]:
        """Requests for all words of the block's columns, which are a piece of memory for each vector."""
        statements: list[Statement] = []
        for right in self.rights:
            line = right.pack.vector * u32.itemsize
            aligned = all([is_multiple(count * line, 16) for count in (right.whole, right.first)])
            if not aligned or not is_multiple(right.columns, self.columns):
                return []
            words = Tensor(right.pointer, u32, (right.whole * line, line), right.first * line)
            request = Prefetch(words, (Name("vector"), Name("side")), Extent(self.columns * line))
            vectors = right.count * right.pack.words // right.pack.vector
            statements.append(Loop("vector", Extent(vectors), (request,), kind="thread"))
        return statements

    @property
    def _column(self) -> Expr:
        return LANE if self.lanes == 1 else divided(LANE, self.lanes)

    def _body(self) -> list[Statement]:
        count, together = self.rights[0].count, self.warps * self.lanes
        each = [Set(_sum(s, row).name, Number(0, f32)) for s in range(len(self.rights)) for row in range(self.rows)]
        own = ThreadIndex("warp")
        if self.lanes > 1:
            own = add(mul(own, Extent(self.lanes)), remainder(LANE, self.lanes))
        rounds = -(-count // (together * self.at_once))
        place: list[Statement] = [Set("own", own), *self._columns()]
        start: list[Statement] = [*self._left_loaded(), Barrier(), *each]
        loads: list[Statement] = []
        sums: list[Statement] = []
        for turn in range(self.at_once):
            block = f"block{turn}"
            number = add(
                mul(add(mul(Name("round"), Extent(self.at_once)), Extent(turn)), Extent(together)), Name("own")
            )
            is_whole = count % (together * self.at_once) == 0
            loads.append(Set(block, number))
            products: list[Statement] = []
            for s, right in enumerate(self.rights):
                prefix = f"word{turn}_{s}_"
                read = NamedBlock(right.pack, prefix)
                products += self._summed(read, s, Name(block))
                # Blocks after the last one are read as that one is, and not used.
                there = Name(block) if is_whole else Call("minimum", (Name(block), Extent(count - 1)), i64)
                loads += right.words(there, Name("there"), read.used, prefix)
            sums += products if is_whole else [When(less(Name(block), Extent(count)), tuple(products))]
        if rounds == 1:
            # Weights are on their way while rows come.
            statements = [*place, Set("round", ZERO), *loads, *start, *sums]
        else:
            statements = [*place, *start, Loop("round", Extent(rounds), (*loads, *sums), rolled=True)]
        if self.lanes > 1:
            names = [_sum(s, row).name for s in range(len(self.rights)) for row in range(self.rows)]
            statements += [AllReduce(name, "add", f32, self.lanes) for name in names]
        return statements

    def _columns(self) -> list[Statement]:
        """The column of a lane; where there is none it is the last one, whose sums are not used."""
        there, columns = add(Name("side"), self._column), self.rights[0].columns
        if not is_multiple(columns, self.columns):
            there = Call("minimum", (there, Extent(columns - 1)), i64)
        return [Set("there", there)]

    def _left_loaded(self) -> list[Statement]:
        depth = self.rights[0].count * self.elements

        def one(own: Expr) -> list[Statement]:
            row, k = (ZERO, own) if self.rows == 1 else (divided(own, depth), remainder(own, depth))
            at = (row, divided(k, self.elements), remainder(k, self.elements))
            return [Store(self.left_rows, at, cast_to(self.left.element(row, k), f32))]

        return shared_by(self.threads, self.rows * depth, one)

    def _summed(self, read: NamedBlock, stream: int, block: Expr) -> list[Statement]:
        """A block times all rows."""
        of = read.pack.format
        statements: list[Statement] = []
        for first in range(0, of.elements, of.group):
            group = [read.element(first + i) for i in range(of.group)]
            low = group[0].low
            is_plain = low is None
            names = [Name(f"part{row}", f32) if is_plain else _sum(stream, row) for row in range(self.rows)]
            statements += [Set(name.name, Number(0, f32)) for name in names if is_plain]
            if low is not None:
                statements += [Set("scale", group[0].scale), Set("low", low)]
            for i, one in enumerate(group):
                statements.append(Set("weight", one.code if is_plain else one.scaled("scale", "low")))
                for row, name in enumerate(names):
                    x = Load(self.left_rows, (Extent(row), block, Extent(first + i)))
                    statements.append(Set(name.name, Call("fma", (Name("weight", f32), x, name), f32)))
            for row, name in enumerate(names if is_plain else ()):
                total = _sum(stream, row)
                statements.append(Set(total.name, Call("fma", (group[0].scale, name, total), f32)))
        return statements


def _sum(stream: int, row: int) -> Name:
    return Name(f"sum{stream}_{row}", f32)


__all__ = ["BlockStream"]
