"""Requantisation in a kernel: the same integers with a product for the quotient, and no range check on a clipped value.

Quantisation is spelled clip(round(x / scale) + zero point) and a cast. The quotient by a known scale becomes a product
with its reciprocal in two parts, where a test of every rounding boundary shows that the integers stay the same. What is
dequantised again stays a float.

Adding 1.5 · 2²³ rounds to an integer, ties to even, and leaves it in the low bits of the float: one addition, where
instructions that round or convert are slow on many processors.
"""

from __future__ import annotations

import functools
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, f32, i32, whole_range
from dovetail.kernels.loops.ir import Call, Expr, Number

_SMALLEST, _LARGEST = 1e-20, 1e20
"""Between these, a scale times such an integer is a normal number."""
_NEAR = 4
"""Floats that are tested on either side of a rounding boundary."""
ANCHOR = 1.5 * 2**23
"""An even integer: floats around it are the integers."""
_NARROW = 8
"""Bits of the integers that quantisation gives, at most: their boundaries are few enough to test."""


@dataclass(slots=True)
class Requantiser:
    """Rewrites the expressions of one statement; what they share stays shared."""

    changed: dict[int, Expr] = field(default_factory=dict[int, Expr])
    kept: list[Expr] = field(default_factory=list[Expr])
    """Keeps the keys of `changed` alive."""
    rounded: dict[int, _Rounded | None] = field(default_factory=dict[int, "_Rounded | None"])

    def rewritten(self, expr: Expr) -> Expr:
        """Rewrite every requantisation in an expression to a cheaper one."""
        stack = [expr]
        while stack:
            top = stack[-1]
            pending = [x for x in _operands(top) if id(x) not in self.changed]
            if pending:
                stack += pending
                continue
            stack.pop()
            if id(top) not in self.changed:
                self.kept.append(top)
                self.changed[id(top)] = self._one(top)
        return self.changed[id(expr)]

    def _one(self, expr: Expr) -> Expr:
        """One expression whose operands are rewritten."""
        if not isinstance(expr, Call):
            return expr
        if expr.op == "cast":
            requantised = self._dequantised(expr) if expr.dtype is f32 else self._quantised(expr)
            if requantised is not None:
                return requantised
        operands = tuple(self.changed[id(x)] for x in expr.operands)
        same = all(x is y for x, y in zip(operands, expr.operands, strict=True))
        return expr if same else Call(expr.op, operands, expr.dtype)

    def _quantised(self, expr: Call) -> Expr | None:
        """A clipped value as an integer, without a range check."""
        clipped = self._clipped(expr)
        if clipped is None:
            return None
        return Call("low_bits", (clipped.anchored, Number(clipped.zero, i32)), expr.dtype)

    def _dequantised(self, expr: Call) -> Expr | None:
        """The integers of a quantised value minus a zero point, as floats: they were floats before. NaN became 0."""
        wide, minus = expr.operands[0], 0
        if isinstance(wide, Call) and wide.op in ("add", "sub") and wide.dtype is i32:
            x, known = wide.operands
            if not isinstance(known, Number):
                return None
            wide, minus = x, int(known.value.real) * (1 if wide.op == "sub" else -1)
        if isinstance(wide, Call) and wide.op == "cast" and wide.dtype is i32:
            (wide,) = wide.operands
        if not isinstance(wide, Call) or wide.op != "cast" or abs(minus) > 1 << 2 * _NARROW:
            return None
        clipped = self._clipped(wide)
        if clipped is None:
            return None
        moved = clipped.moved(minus)
        return Call("where", (Call("equal", (moved, moved), bool_), moved, Number(float(-minus), f32)), f32)

    def _clipped(self, cast: Call) -> _Rounded | None:
        """The operand of a cast to few bits as a rounded quotient within the range of the cast."""
        (x,) = cast.operands
        if x.dtype is not f32 or not cast.dtype.is_integer or cast.dtype.bits > _NARROW:
            return None
        if id(x) not in self.rounded:
            self.kept.append(x)
            self.rounded[id(x)] = self._rounded(x)
        rounded = self.rounded[id(x)]
        low, high = whole_range(cast.dtype)
        return rounded if rounded is not None and low <= rounded.low and rounded.high <= high else None

    def _rounded(self, x: Expr) -> _Rounded | None:
        """clip(round(x / scale) + zero, low, high), with the clip before the quotient."""
        low, high = float("-inf"), float("inf")
        while isinstance(x, Call) and x.op in ("maximum", "minimum", "relu"):
            operands = (*x.operands, Number(0.0, f32)) if x.op == "relu" else x.operands
            known = next((o for o in operands if isinstance(o, Number)), None)
            if known is None:
                return None
            bound = float(known.value.real)
            if x.op == "minimum":
                high = min(high, bound)
            else:
                low = max(low, bound)
            x = next(o for o in operands if o is not known)
        zero = 0.0
        if isinstance(x, Call) and x.op == "add" and isinstance(x.operands[1], Number):
            x, zero = x.operands[0], float(x.operands[1].value.real)
        if not isinstance(x, Call) or x.op != "round" or not np.isfinite([low, high, zero]).all():
            return None
        (quotient,) = x.operands
        if not isinstance(quotient, Call) or quotient.op != "div" or not isinstance(quotient.operands[1], Number):
            return None
        scale = float(quotient.operands[1].value.real)
        # Bounds in the wrong order depend on which comes last; such a clip stays as it is.
        if low > high or not all(n.is_integer() and abs(n) <= 1 << 2 * _NARROW for n in (low, high, zero)):
            return None
        parts = reciprocal(scale, int(low - zero), int(high - zero))
        if parts is None:
            return None
        inner = self.changed[id(quotient.operands[0])]
        bounds = (np.float32(np.float32(n - zero) * np.float32(scale)) for n in (low, high))
        for op, edge in zip(("fold_maximum", "fold_minimum"), bounds, strict=True):
            inner = Call(op, (inner, Number(float(edge), f32)), f32)
        main, rest = (Number(part, f32) for part in parts)
        scaled = Call("fma", (inner, main, Call("mul", (inner, rest), f32)), f32)
        return _Rounded(Call("anchor", (scaled, Number(ANCHOR, f32)), f32), int(zero), int(low), int(high))


@dataclass(slots=True)
class _Rounded:
    """Rounded quotients plus ANCHOR, before the zero point is added, and the range of their sums; NaN stays."""

    anchored: Expr
    zero: int
    low: int
    high: int
    sums: dict[int, Expr] = field(default_factory=dict[int, Expr])

    def moved(self, minus: int) -> Expr:
        """The integers minus a number, as floats."""
        by = self.zero - minus
        if by not in self.sums:
            self.sums[by] = Call("anchor", (self.anchored, Number(by - ANCHOR, f32)), f32)
        return self.sums[by]


def _operands(expr: Expr) -> tuple[Expr, ...]:
    return expr.operands if isinstance(expr, Call) else ()


@functools.lru_cache(maxsize=1024)
def reciprocal(scale: float, low: int, high: int) -> tuple[float, float] | None:
    """1 / scale in two parts, whose sum of products with x rounds to the integers of x / scale from low to high.

    Both are monotonic in x, so that floats around the boundaries between two integers decide. None where one differs.
    """
    if not _SMALLEST < scale < _LARGEST or low > high:
        return None
    divisor = np.float32(scale)
    main = np.float32(1.0 / np.float64(divisor))
    rest = np.float32(1.0 / np.float64(divisor) - np.float64(main))
    boundaries = (np.arange(low, high, dtype=np.float64) + 0.5) * np.float64(divisor)
    ends = np.array([low, high], np.float32) * divisor
    x = np.concatenate([_around(boundaries.astype(np.float32)), ends]).astype(np.float32)
    exact = np.rint(x / divisor)
    approximate = np.rint(_fma(x, main, x * rest))
    agree = np.array_equal(approximate, exact) and np.array_equal(approximate[-2:], np.array([low, high], np.float32))
    return (float(main), float(rest)) if agree else None


def _around(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Floats next to each other, around each of some."""
    neighbours = [x]
    for toward in (-np.inf, np.inf):
        near = x
        for _ in range(_NEAR):
            near = np.nextafter(near, np.float32(toward))
            neighbours.append(near)
    return np.concatenate(neighbours)


def _fma(x: NDArray[np.float32], by: np.float32, plus: NDArray[np.float32]) -> NDArray[np.float32]:
    """x * by + plus, rounded once: the product is exact in f64, and the sum is rounded to odd before it is narrowed."""
    product, added = x.astype(np.float64) * np.float64(by), plus.astype(np.float64)
    total = product + added
    second = total - product
    missed = (product - (total - second)) + (added - second)
    bits = total.view(np.int64)
    even = (missed != 0) & (bits & 1 == 0)
    outward = (missed > 0) == (total > 0)
    return (bits + np.where(even, np.where(outward, 1, -1), 0)).view(np.float64).astype(np.float32)


__all__ = ["ANCHOR", "Requantiser", "reciprocal"]
