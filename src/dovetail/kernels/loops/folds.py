"""Folds: the initial value of a reduction, its step for an element, and its final value."""

from __future__ import annotations

from typing import Any

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bool_, f32, f64, i64, whole_range
from dovetail.ir.value import Op, Value
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import Call, Expr, Extent, Number


@dataclass(frozen=True, slots=True)
class Fold:
    """A running scalar: `total` is what it is kept in, `part` what a block of elements is taken in first."""

    combine: str
    start: Any
    part: DType
    total: DType

    @property
    def in_blocks(self) -> bool:
        return self.part is not self.total

    def first(self, dtype: DType, count: Size = 0) -> Number:
        """The initial value. Minus zero is lost in any sum that is not empty, and LLVM knows it."""
        empty = not isinstance(count, int) or count == 0
        return Number(self.start if empty or self.combine != "add" or not dtype.is_float else -0.0, dtype)

    def take(self, kept: Expr, x: Expr) -> Expr:
        """Fold one more element or block into the running value."""
        return Call(self.combine, (kept, cast_to(x, kept.dtype)), kept.dtype)


def fold_of(op: str, dtype: DType) -> Fold:
    """The fold of a reduction or a running reduction. Sums of floats are wide in the end, as their meaning says."""
    if op in ("sum", "mean"):
        if not dtype.is_float:
            return Fold("add", 0, dtype, dtype)
        # A block of f32 is short enough for f32; blocks are summed in f64.
        return Fold("add", 0.0, f64 if dtype is f64 else f32, f64)
    if op == "prod":
        kept = f64 if dtype.is_float else dtype
        return Fold("mul", 1, kept, kept)
    if op in ("any", "all") or dtype is bool_:
        lifts = op in ("any", "max")
        return Fold("bit_or" if lifts else "bit_and", not lifts, bool_, bool_)
    low, high = (float("-inf"), float("inf")) if dtype.is_float else whole_range(dtype)
    return Fold("fold_maximum", low, dtype, dtype) if op == "max" else Fold("fold_minimum", high, dtype, dtype)


_REDUCTIONS: dict[Op, str] = {
    ops.reduce_sum: "sum",
    ops.reduce_mean: "mean",
    ops.reduce_max: "max",
    ops.reduce_min: "min",
    ops.reduce_prod: "prod",
    ops.reduce_any: "any",
    ops.reduce_all: "all",
}


def reduced_axes(value: Value) -> tuple[int, ...]:
    """The axes that a reduction goes over; none where the value is no reduction."""
    return value.attrs["axes"] if value.op in _REDUCTIONS else ()


def is_reduction(value: Value) -> bool:
    return value.op in _REDUCTIONS


def reduction(value: Value) -> Fold:
    return fold_of(_REDUCTIONS[value.op], value.dtype)


def finished(value: Value, kept: Expr, count: Size) -> Expr:
    """Return the final value of a reduction of n elements."""
    if value.op is ops.reduce_mean and isinstance(count, int) and count and value.dtype is not f64:
        # The inverse is right to f64, and the product is rounded to less.
        kept = Call("mul", (kept, Number(1.0 / count, kept.dtype)), kept.dtype)
    elif value.op is ops.reduce_mean:
        kept = Call("div", (kept, Call("cast", (Extent(count),), kept.dtype)), kept.dtype)
    return cast_to(kept, value.dtype)


__all__ = ["Fold", "finished", "fold_of", "i64", "is_reduction", "reduced_axes", "reduction"]
