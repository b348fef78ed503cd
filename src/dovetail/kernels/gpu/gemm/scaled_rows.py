"""RMS norms between two products (GEMMs) as parts of their epilogues: the first leaves squares, the second scales sums.

All of norm(x) @ w that a norm needs rows for is one factor for each row, 1 / sqrt(mean(x²) + eps), which may as well
multiply sums. The product that computes x also writes x · gain, which the next one reads in place of the norm, and for
each of its tiles the squares of rows. The next one adds these up while its first copies arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bool_, f32, i64
from dovetail.kernels.gpu.gemm.fragments import LANE, both, clamped, divided, less, plus, remainder
from dovetail.kernels.gpu.gemm.tile import WARP_ROWS
from dovetail.kernels.gpu.hoisted import Hoisted
from dovetail.kernels.gpu.widened import wide
from dovetail.kernels.loops.ir import (
    ZERO,
    Call,
    Expr,
    Extent,
    FromLane,
    Load,
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

ROWS, SQUARES, GAIN = "gained_rows", "row_squares", "gain"
"""Pointers to rows times gains and to squares, both in the workspace, and to the gains."""
PLACES = 4
"""Lanes of a warp that have the same row of sums."""


@dataclass(frozen=True, slots=True)
class RowSquares:
    """The squares of rows of x, added up for each tile across: rows, tiles."""

    rows: Size
    columns: int
    """Of x."""
    tiles: int
    """Across."""
    dtype: DType
    """Of x."""

    @property
    def gained(self) -> Tensor:
        """x · gain."""
        return Tensor(ROWS, self.dtype, (self.columns * self.dtype.itemsize, self.dtype.itemsize))

    @property
    def squares(self) -> Tensor:
        return Tensor(SQUARES, f32, (self.tiles * f32.itemsize, f32.itemsize))

    @property
    def workspace(self) -> dict[str, Size]:
        """Bytes of both."""
        item = self.dtype.itemsize
        return {ROWS: self.rows * self.columns * item, SQUARES: self.rows * self.tiles * f32.itemsize}


@dataclass(frozen=True, slots=True)
class WrittenSquares:
    """What a product leaves besides its results x. A lane has eight columns of a row in each turn."""

    of: RowSquares
    width: int
    """Columns of a tile."""

    @staticmethod
    def start(turns: Sequence[int]) -> list[Statement]:
        return [Set(_squared(turn), Number(0.0, f32)) for turn in turns]

    def stored(self, turn: int, stores: Sequence[Store], hoisted: Hoisted) -> list[Statement]:
        """The stores of x, those of x · gain, and the squares of this lane. Gains are loaded ahead."""
        exact = [Name(f"exact{e}", f32) for e in range(len(stores))]
        gained: list[Statement] = []
        for name, store in zip(exact, stores, strict=True):
            value = Call("mul", (name, Call("cast", (_gain(self.of.dtype, store.at[-1]),), f32)), f32)
            gained.append(hoisted.store(Store(self.of.gained, store.at[-2:], Call("cast", (value,), self.of.dtype))))
        total = reduce(plus, [Call("mul", (x, x), f32) for x in exact])
        return [
            *(Set(name.name, wide(store.value)) for name, store in zip(exact, stores, strict=True)),
            *(Store(s.tensor, s.at, Call("cast", (x,), s.tensor.dtype)) for x, s in zip(exact, stores, strict=True)),
            *gained,
            Set(_squared(turn), plus(Name(_squared(turn), f32), total)),
        ]

    def end(self, turn: int, row: Expr, inside: Expr, lanes: int) -> list[Statement]:
        """The squares of a row, which as many lanes share, for this tile."""
        place = (row, divided(Name("side"), self.width))
        store = Store(self.of.squares, place, Name(_squared(turn), f32))
        first = Call("equal", (remainder(LANE, lanes), ZERO), bool_)
        return [*exchanged(_squared(turn), lanes), When(both(first, inside), (store,))]


@dataclass(frozen=True, slots=True)
class ReadSquares:
    """The factor of each row of a product of rows times gains."""

    of: RowSquares
    eps: float

    @property
    def each(self) -> int:
        """Squares of a row that a lane adds up."""
        return -(-self.of.tiles // PLACES)

    def loaded(self) -> list[Statement]:
        """The squares of both rows of this thread, eight apart: they arrive while products run."""
        statements: list[Statement] = []
        top = add(Name("top"), mul(ThreadIndex("warp"), Extent(WARP_ROWS)))
        for half in range(2):
            row = clamped(add(top, add(divided(LANE, 4), Extent(8 * half))), self.of.rows)
            statements.append(Set(f"row{half}", row))
            squares = [self._square(Name(f"row{half}"), number) for number in range(self.each)]
            statements += [Set(f"square{half}_{number}", square) for number, square in enumerate(squares)]
        return statements

    def factors(self) -> list[Statement]:
        """The factors of both rows."""
        statements: list[Statement] = []
        for half in range(2):
            squares: list[Expr] = [Name(f"square{half}_{number}", f32) for number in range(self.each)]
            statements += [Set(_squared(half), reduce(plus, squares)), *exchanged(_squared(half), PLACES)]
            mean = Call("mul", (Name(_squared(half), f32), Number(1 / self.of.columns, f32)), f32)
            scale = Call("near_rsqrt", (Call("add", (mean, Number(self.eps, f32)), f32),), f32)
            statements.append(Set(_scale(half), scale))
        return statements

    def _square(self, row: Expr, number: int) -> Expr:
        """One of the squares that this lane adds up: lanes have neighbours, which are loaded together."""
        tile = add(mul(remainder(LANE, PLACES), Extent(self.each)), Extent(number))
        if self.each * PLACES == self.of.tiles:
            return Load(self.of.squares, (row, tile))
        square = Load(self.of.squares, (row, clamped(tile, self.of.tiles)))
        return Call("where", (less(tile, Extent(self.of.tiles)), square, Number(0.0, f32)), f32)

    @staticmethod
    def scaled(total: Expr, half: int) -> Expr:
        return Call("mul", (total, Name(_scale(half), f32)), f32)


def _gain(dtype: DType, column: Expr) -> Load:
    return Load(Tensor(GAIN, dtype, (dtype.itemsize,)), (column,))


def exchanged(name: str, lanes: int) -> list[Statement]:
    """The sum of what neighbouring lanes have under a name."""
    statements: list[Statement] = []
    distance = 1
    while distance < lanes:
        statements.append(FromLane("other", name, Call("bit_xor", (LANE, Extent(distance)), i64), f32))
        statements.append(Set(name, plus(Name(name, f32), Name("other", f32))))
        distance *= 2
    return statements


def _squared(number: int) -> str:
    return f"squared{number}"


def _scale(half: int) -> str:
    return f"scale{half}"


__all__ = ["GAIN", "ROWS", "SQUARES", "ReadSquares", "RowSquares", "WrittenSquares", "exchanged"]
