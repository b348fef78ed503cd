"""Spatial axes under a window that slides, in the loop language: which element a tap sees, and where it sees one."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.loops.ir import ZERO, Call, Expr, Extent, add, minimum, mul


def within(place: Expr, size: Size) -> Expr:
    """Whether an index is on an axis."""
    return Call(
        "bit_and", (Call("less", (Extent(-1), place), bool_), Call("less", (place, Extent(size)), bool_)), bool_
    )


def sub(x: Expr, y: Expr) -> Expr:
    """x - y of integers, folded where it is known."""
    if isinstance(x, Extent) and isinstance(y, Extent):
        return Extent(x.size - y.size)
    return x if y == ZERO else Call("sub", (x, y), i64)


def at_least_zero(x: Expr) -> Expr:
    """An integer, and 0 where it is below."""
    return Call("maximum", (ZERO, x), i64)


@dataclass(frozen=True, slots=True)
class Along:
    """A spatial axis under a window: its size and that of the result, the stride, the dilation, the padding before."""

    size: Size
    out: Size
    stride: int
    dilation: int
    before: Size

    def place(self, out: Expr, tap: Expr) -> Expr:
        """Which element a tap sees at a place of the window."""
        return sub(add(mul(out, Extent(self.stride)), mul(tap, Extent(self.dilation))), Extent(self.before))

    def first(self, tap: Expr) -> Expr:
        """The first place of the window at which a tap sees an element. What is cut off below 0 is 0 anyhow."""
        reached = add(sub(Extent(self.before), mul(tap, Extent(self.dilation))), Extent(self.stride - 1))
        return minimum(Extent(self.out), at_least_zero(Call("div", (reached, Extent(self.stride)), i64)))

    def end(self, tap: Expr) -> Expr:
        """The place after the last one at which a tap sees an element."""
        left = sub(Extent(self.size - 1 + self.before + self.stride), mul(tap, Extent(self.dilation)))
        return minimum(Extent(self.out), at_least_zero(Call("div", (left, Extent(self.stride)), i64)))


__all__ = ["Along", "at_least_zero", "sub", "within"]
