"""Sums of products without tensor cores: each thread keeps a square of sums in registers."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, floordiv
from dovetail.ir.dtype import DType, bool_, f32, i64
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.fragments import Factor, divided, is_multiple, private, remainder, shared_by, unrolled, zeroed
from dovetail.kernels.gpu.packed_blocks import BlockFactor, NamedBlock
from dovetail.kernels.gpu.tiled import Element, Tiled
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    Barrier,
    Call,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    mul,
)

DEPTH = 16
"""Elements of k in shared memory."""
PIECE = 16
"""Elements of a block that a thread expands at a time: in all formats, codes with one scale are as many or more."""
GROUP = 4
"""Neighbours that a thread loads at once."""


@dataclass(frozen=True, slots=True)
class FmaTile:
    """A tile of sums: threads in a grid, each with `down` × `across` groups of 4 × 4 sums."""

    grid_rows: int
    grid_columns: int
    down: int
    across: int
    streams: int = 1
    dtype: DType = f32
    depth: int = DEPTH
    """Elements of k in shared memory."""

    @staticmethod
    def of(rows: Size, columns: Size, streams: int, batch: Size, device: GpuDevice, dtype: DType) -> FmaTile:
        """A large tile where that leaves no multiprocessor idle."""
        count = 1
        for size in (batch, floordiv(rows + 127, 128), floordiv(columns + 127, 128)):
            count *= size if isinstance(size, int) else 4
        if count >= device.multiprocessors // 2 and streams == 1 and dtype.itemsize <= 4:
            return FmaTile(16, 16, 2, 2, 1, dtype)
        return FmaTile(8, 16, 1, 1, streams, dtype)

    @property
    def threads(self) -> int:
        return self.grid_rows * self.grid_columns

    @property
    def rows(self) -> int:
        return self.grid_rows * GROUP * self.down

    @property
    def columns(self) -> int:
        return self.grid_columns * GROUP * self.across

    @property
    def sums(self) -> Tensor:
        return private("sums", self.dtype, self.streams, self.down * GROUP, self.across * GROUP)

    def _shared(self, name: str, count: int) -> Tensor:
        """Lines along rows, one for each k; a group of padding spreads stores over banks."""
        item = self.dtype.itemsize
        return Tensor(name, self.dtype, ((count + GROUP) * item, item), space="shared")

    def allocations(self) -> list[Alloc]:
        shared = [Alloc("a_tile", self.dtype, self.depth * (self.rows + GROUP), "shared")]
        shared += [
            Alloc(f"b_tile{s}", self.dtype, self.depth * (self.columns + GROUP), "shared") for s in range(self.streams)
        ]
        count = self.down * self.across * GROUP * GROUP
        return [
            *shared,
            Alloc("sums", self.dtype, self.streams * count, "private"),
            Alloc("a_row", self.dtype, self.down * GROUP, "private"),
            Alloc("b_row", self.dtype, self.streams * self.across * GROUP, "private"),
        ]

    def tiled(self, left: Factor, rights: Sequence[Factor | BlockFactor], depth: Size) -> Tiled:
        """What a block does for a tile."""
        elements = [Element(row, column, sums) for row, column, sums in self.elements()]
        body, allocations = self.body(left, rights, depth), self.allocations()
        return Tiled(self.rows, self.columns, self.threads, body, elements, allocations)

    def body(self, left: Factor, rights: Sequence[Factor | BlockFactor], depth: Size) -> list[Statement]:
        k = mul(Name("round"), Extent(self.depth))
        loads = self._loaded("a_tile", self.rows, left, Name("top"), k)
        for s, right in enumerate(rights):
            if isinstance(right, BlockFactor):
                loads += self._expanded(f"b_tile{s}", right)
            else:
                loads += self._loaded(f"b_tile{s}", self.columns, right, Name("side"), k)
        rounds = floordiv(depth + (self.depth - 1), self.depth)
        return [
            zeroed(self.sums, self.streams * self.down * self.across * GROUP * GROUP),
            Loop("round", Extent(rounds), (Barrier(), *loads, Barrier(), *self._products())),
            Barrier(),
        ]

    def _loaded(self, name: str, rows: int, factor: Factor, first: Expr, k: Expr) -> list[Statement]:
        def one(own: Expr) -> list[Statement]:
            by_k = factor.runs_along_k
            row, at = (
                (divided(own, self.depth), remainder(own, self.depth))
                if by_k
                else (remainder(own, rows), divided(own, rows))
            )
            value = cast_to(factor.element(add(first, row), add(k, at)), self.dtype)
            return [Store(self._shared(name, rows), (at, row), value)]

        return shared_by(self.threads, rows * self.depth, one)

    def _expanded(self, name: str, factor: BlockFactor) -> list[Statement]:
        """Columns in blocks as floats: each thread has half of a column's k, with code of its own for each place."""
        assert self.threads == 2 * self.columns and self.depth == 2 * PIECE, "two threads share a column"
        pieces = factor.pack.format.elements // PIECE
        column, half = remainder(ThreadIndex("thread"), self.columns), divided(ThreadIndex("thread"), self.columns)
        at = add(mul(Name("round"), Extent(2)), half)
        there = add(Name("side"), column)
        found: list[Statement] = [Set("piece", remainder(at, pieces)), Set("block", divided(at, pieces))]
        if not is_multiple(factor.columns, self.columns):
            there = Call("minimum", (there, Extent(factor.columns - 1)), i64)
        for piece in range(pieces):
            read = NamedBlock(factor.pack, "word")
            each = [read.element(piece * PIECE + number) for number in range(PIECE)]
            stores: list[Statement] = [Set("scale", each[0].scale)]
            stores += [] if each[0].low is None else [Set("low", each[0].low)]
            for number, one in enumerate(each):
                line = add(mul(half, Extent(PIECE)), Extent(number))
                stores.append(Store(self._shared(name, self.columns), (line, column), one.scaled("scale", "low")))
            body = (*factor.words(Name("block"), there, read.used, "word"), *stores)
            found.append(When(Call("equal", (Name("piece"), Extent(piece)), bool_), body))
        return found

    def _products(self) -> list[Statement]:
        a_row, b_row = private("a_row", self.dtype, 1), private("b_row", self.dtype, 1)
        k, i, j, g = Name("k"), Name("i"), Name("j"), Name("g")
        down = add(mul(g, Extent(self.grid_rows * GROUP)), add(mul(self._at_row, Extent(GROUP)), i))
        across = add(mul(g, Extent(self.grid_columns * GROUP)), add(mul(self._at_column, Extent(GROUP)), i))
        own = add(mul(g, Extent(GROUP)), i)
        loads: list[Statement] = [
            unrolled(
                "g",
                self.down,
                unrolled("i", GROUP, Store(a_row, (own,), Load(self._shared("a_tile", self.rows), (k, down)))),
            )
        ]
        products: list[Statement] = []
        for s in range(self.streams):
            there = add(own, Extent(s * self.across * GROUP))
            tile = self._shared(f"b_tile{s}", self.columns)
            loads.append(
                unrolled("g", self.across, unrolled("i", GROUP, Store(b_row, (there,), Load(tile, (k, across)))))
            )
            at = (Extent(s), i, j)
            product = Call(
                "mul", (Load(a_row, (i,)), Load(b_row, (add(j, Extent(s * self.across * GROUP)),))), self.dtype
            )
            more = Store(self.sums, at, Call("add", (Load(self.sums, at), product), self.dtype))
            products.append(unrolled("i", self.down * GROUP, unrolled("j", self.across * GROUP, more)))
        return [unrolled("k", self.depth, *loads, *products)]

    @property
    def _at_row(self) -> Expr:
        return divided(ThreadIndex("thread"), self.grid_columns)

    @property
    def _at_column(self) -> Expr:
        return remainder(ThreadIndex("thread"), self.grid_columns)

    def elements(self) -> list[tuple[Expr, Expr, tuple[Expr, ...]]]:
        """The row and column of each sum of a thread, and the sums of all streams there."""
        found: list[tuple[Expr, Expr, tuple[Expr, ...]]] = []
        for i in range(self.down * GROUP):
            for j in range(self.across * GROUP):
                row = _place(self._at_row, self.grid_rows, i)
                column = _place(self._at_column, self.grid_columns, j)
                sums = tuple(Load(self.sums, (Extent(s), Extent(i), Extent(j))) for s in range(self.streams))
                found.append((row, column, sums))
        return found


def _place(own: Expr, grid: int, number: int) -> Expr:
    group, within = divmod(number, GROUP)
    return add(add(mul(own, Extent(GROUP)), ZERO), Extent(group * grid * GROUP + within))


__all__ = ["PIECE", "FmaTile"]
