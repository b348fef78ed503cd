"""RMS norms of the left rows of a product: gains multiply rows, and the scale multiplies sums.

The scale of a row is the same for all of k, so that no product waits for it. Each warp adds up the squares of its part
of k on the way, with tensor cores, and they meet where the sums of all warps do.
"""

from __future__ import annotations

from functools import reduce

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, bool_, f32
from dovetail.kernels.gpu.gemm.fragments import LANE, divided, in_pairs, less, plus, private, remainder
from dovetail.kernels.loops.ir import (
    Alloc,
    Call,
    Expr,
    Extent,
    Load,
    MultiplyMatrices,
    Number,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
)
from dovetail.kernels.matrix_instruction import mma_of


@dataclass(frozen=True, slots=True)
class RowNorm:
    """x / sqrt(mean(x²) + eps) · gain, for the rows of a left factor."""

    gain: Tensor
    """In memory of the device, one after the other."""
    eps: float
    depth: int

    @property
    def nbytes(self) -> int:
        return self.depth * self.gain.dtype.itemsize

    @property
    def gains(self) -> Tensor:
        """The gains in shared memory."""
        return Tensor("gains", self.gain.dtype, (0, self.gain.dtype.itemsize), space="shared")

    def allocation(self) -> Alloc:
        return Alloc("gains", self.gain.dtype, self.depth, "shared")

    def scale(self, squares: Expr) -> Expr:
        """The factor of the sums of a row whose squares add up to `squares`."""
        mean = Call("mul", (squares, Number(1 / self.depth, f32)), f32)
        return Call("near_rsqrt", (Call("add", (mean, Number(self.eps, f32)), f32),), f32)


@dataclass(frozen=True, slots=True)
class Squares:
    """The squares of rows by products of right factors with themselves: sums on the diagonal are those of rows."""

    dtype: DType
    rows: int
    places: int
    """Places of k of a row in a right factor: its columns are rows, or each row at two places in turns."""
    chains: int
    """Sums that take turns."""
    crossed: bool = False
    """Whether four matrices are a left factor as they were loaded: two of them are its upper half, at both k, and two
    the lower one. Each half meets its own two matrices, which are loaded a second time, in turns."""

    @property
    def sums(self) -> Tensor:
        return private("squares", f32, self.chains, 4)

    def allocations(self) -> list[Alloc]:
        return [Alloc("squares", f32, 4 * self.chains, "private"), Alloc("itself", self.dtype, 8, "private")]

    def added(self, right: Tensor, number: int) -> list[Statement]:
        """Add the squares of right factor `number`: as a left factor it has its own columns as rows, twice."""
        itself, by = private("itself", self.dtype, 8), mma_of(self.dtype)
        if self.crossed:
            at = (Extent(number), Extent(0))
            return [MultiplyMatrices(self.sums, at, right, (Extent(0),), itself, (Extent(4 * number),), by)]
        copies = [
            Store(itself, (Extent(e),), Load(right, (Extent(4 * number + e % 2 + 2 * (e // 4)),))) for e in range(8)
        ]
        at = (Extent(number % self.chains), Extent(0))
        return [*copies, MultiplyMatrices(self.sums, at, itself, (Extent(0),), right, (Extent(4 * number),), by)]

    def stored(self, planes: Tensor, column: int) -> Statement:
        """What a lane has of the diagonal, in shared memory: a column for each place."""
        number = divided(LANE, 4)
        row, place = divided(number, self.places), remainder(number, self.places)
        lower = 2 if self.crossed else 0
        each = [
            reduce(plus, [Load(self.sums, (Extent(c), Extent(e + lower * c))) for c in range(self.chains)])
            for e in range(2)
        ]
        is_even = Call("equal", (remainder(number, 2), Extent(0)), bool_)
        value = Call("where", (is_even, *each), f32)
        store = Store(planes, (ThreadIndex("warp"), row, add(Extent(column), place)), value)
        on_diagonal = Call("equal", (remainder(LANE, 4), divided(LANE, 8)), bool_)
        return When(on_diagonal, (When(less(row, Extent(self.rows)), (store,)),))

    def total(self, planes: Tensor, count: int, row: Expr, column: int) -> Expr:
        """The squares of a row, of all warps."""
        places = [(Extent(plane), row, Extent(column + p)) for plane in range(count) for p in range(self.places)]
        return in_pairs([Load(planes, at) for at in places])


__all__ = ["RowNorm", "Squares"]
