"""Functions of f32 to the accuracy of 16-bit floats, on NVIDIA GPUs: far fewer instructions than exact ones."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.maths import functions, tables
from dovetail.codegen.llvm.maths.f64 import FUNCTIONS as F64
from dovetail.codegen.llvm.nvptx import nvvm
from dovetail.ir.dtype import f32

_QUOTIENT = re.compile(r"fdiv float ([^,\n]+), ([^,\n]+)$", re.MULTILINE)
_SMOOTH = frozenset({"erf_f32", "exp_f32", "exp_falling_f32", "sigmoid_f32", "tanh_f32"})
"""Functions that may use fast quotients: their divisors are bounded, and their results move as little as quotients."""


def exp(t: Builder, x: str) -> str:
    """A product and one instruction."""
    return exp2(t, t.let(f"fmul float {x}, {scalar.literal(math.log2(math.e), f32)}"))


def exp2(t: Builder, x: str) -> str:
    """One instruction."""
    t.use(f"declare float @{nvvm.NEAR_EXP2}(float)")
    return t.let(f"call float @{nvvm.NEAR_EXP2}(float {x})")


def erf(t: Builder, x: str) -> str:
    """A polynomial: there is no quotient, which few lanes compute at a time."""
    inside = _clamped(t, x, tables.NEAR_ERF_BOUND)
    square = t.let(f"fmul float {inside}, {inside}")
    t.use("declare float @llvm.fma.f32(float, float, float)")
    found = scalar.literal(tables.NEAR_ERF[0], f32)
    for coefficient in tables.NEAR_ERF[1:]:
        given = f"float {found}, float {square}, float {scalar.literal(coefficient, f32)}"
        found = t.let(f"call float @llvm.fma.f32({given})")
    return _clamped(t, t.let(f"fmul float {found}, {inside}"), 1.0)


def half_erf(t: Builder, x: str, factor: str) -> str:
    """(1 + erf(factor · x)) / 2, between 0 and 1, where the factor is a literal.

    Only the square is bounded: beyond that the polynomial grows with x, and the last multiply-add ends at 0 or 1
    without a further instruction. NaN becomes 0, and what it is times stays NaN.
    """
    scale: float = struct.unpack("<d", struct.pack("<Q", int(factor, 16)))[0]
    t.use("declare float @llvm.fma.f32(float, float, float)")
    t.use("declare float @llvm.minimum.f32(float, float)")
    t.use(f"declare float @{nvvm.SATURATED_FMA}(float, float, float)")
    bound = scalar.literal((tables.NEAR_ERF_BOUND / scale) ** 2, f32)
    square = t.let(f"call float @llvm.minimum.f32(float {t.let(f'fmul float {x}, {x}')}, float {bound})")
    last = len(tables.NEAR_ERF) - 1
    powers = [c / 2 * scale ** (2 * (last - i) + 1) for i, c in enumerate(tables.NEAR_ERF)]
    found = scalar.literal(powers[0], f32)
    for coefficient in powers[1:]:
        given = f"float {found}, float {square}, float {scalar.literal(coefficient, f32)}"
        found = t.let(f"call float @llvm.fma.f32({given})")
    half = scalar.literal(0.5, f32)
    return t.let(f"call float @{nvvm.SATURATED_FMA}(float {found}, float {x}, float {half})")


def held(t: Builder, x: str) -> str:
    """The same number by an instruction that is no copy: the assembler takes copies of sums for the sums themselves,
    and serialises products during which they are read. Grids have one axis, which it does not know."""
    t.use(f"declare i32 @{nvvm.GRID_Y}()")
    one = t.let(f"uitofp i32 {t.let(f'call i32 @{nvvm.GRID_Y}()')} to float")
    return t.let(f"fmul float {x}, {one}")


def sigmoid(t: Builder, x: str) -> str:
    """Two instructions and what they are given: exp(-x) that overflows has the quotient 0."""
    falling = exp2(t, t.let(f"fmul float {x}, {scalar.literal(-math.log2(math.e), f32)}"))
    t.use(f"declare float @{nvvm.NEAR_RECIPROCAL}(float)")
    more = t.let(f"fadd float {falling}, {scalar.literal(1.0, f32)}")
    return t.let(f"call float @{nvvm.NEAR_RECIPROCAL}(float {more})")


def rsqrt(t: Builder, x: str) -> str:
    """One instruction: 1 / sqrt(x) to 2 units in the last place."""
    t.use(f"declare float @{nvvm.NEAR_RSQRT}(float)")
    return t.let(f"call float @{nvvm.NEAR_RSQRT}(float {x})")


def quotient(t: Builder, x: str, y: str) -> str:
    """x / y to 2 units in the last place."""
    t.use(declared(nvvm.NEAR_QUOTIENT))
    return t.let(called(nvvm.NEAR_QUOTIENT, x, y))


def declared(intrinsic: str) -> str:
    return f"declare float @{intrinsic}(float, float)"


def called(intrinsic: str, x: str, y: str) -> str:
    return f"call float @{intrinsic}(float {x}, float {y})"


def _clamped(t: Builder, x: str, bound: float) -> str:
    """A number between two bounds; NaN stays NaN."""
    for name, limit in (("maximum", -bound), ("minimum", bound)):
        t.use(f"declare float @llvm.{name}.f32(float, float)")
        x = t.let(f"call float @llvm.{name}.f32(float {x}, float {scalar.literal(limit, f32)})")
    return x


FUNCTIONS: Mapping[str, Callable[..., str]] = MappingProxyType(
    {
        "near_div": quotient,
        "near_erf": erf,
        "near_exp": exp,
        "near_exp2": exp2,
        "near_half_erf": half_erf,
        "held": held,
        "near_rsqrt": rsqrt,
        "near_sigmoid": sigmoid,
    }
)
"""By the ops of the loop language."""


def library(uses: Iterable[str]) -> str:
    """The functions that a kernel calls."""
    smooth = [name for name in uses if name in _SMOOTH]
    rest = [name for name in uses if name not in _SMOOTH]
    if not smooth or any(not name.startswith("declare ") for name in rest):
        return functions.library(uses, F64)
    found = functions.library([*uses, declared(nvvm.BOUNDED_QUOTIENT)], F64)
    return _QUOTIENT.sub(lambda at: called(nvvm.BOUNDED_QUOTIENT, at[1], at[2]), found)


__all__ = ["FUNCTIONS", "called", "declared", "library", "quotient"]
