"""Functions of f32 to the accuracy of 16-bit floats, on GPUs: far fewer instructions than exact ones."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.maths import functions, tables
from dovetail.codegen.llvm.maths.f64 import FUNCTIONS as F64
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32

_QUOTIENT = re.compile(r"fdiv float ([^,\n]+), ([^,\n]+)$", re.MULTILINE)
_SMOOTH = frozenset({"erf_f32", "exp_f32", "exp_falling_f32", "sigmoid_f32", "tanh_f32"})
"""Functions that may use fast quotients: their divisors are bounded, and their results move as little as quotients."""


@dataclass(frozen=True, slots=True)
class Approximations:
    """What a machine has instructions for, as functions that write them."""

    exp2: Callable[[Builder, str], str]
    """2**x to 2 units in the last place; denormals are 0."""
    rsqrt: Callable[[Builder, str], str]
    """1 / sqrt(x) to 2 units in the last place."""
    reciprocal: Callable[[Builder, str], str]
    """1 / x to 1 unit in the last place; denormals are 0."""
    quotient: Callable[[Builder, str, str], str]
    """x / y to 2 or 3 units in the last place, for operands of any size."""
    saturated_fma: Callable[[Builder, str, str, str], str]
    """x·y + z, no less than 0 and no more than 1; NaN becomes 0."""
    held: Callable[[Builder, str], str]
    """The same number, by an instruction that is no copy where the assembler takes copies for sums themselves."""
    bounded_quotient: str = ""
    """The intrinsic of quotients whose divisors are bounded; empty where the others are as fast."""

    @property
    def functions(self) -> Mapping[str, Callable[..., str]]:
        """By the ops of the loop language."""
        return {
            "near_div": self.quotient,
            "near_erf": erf,
            "near_exp": partial(exp, self),
            "near_exp2": self.exp2,
            "near_half_erf": partial(half_erf, self),
            "held": self.held,
            "near_rsqrt": self.rsqrt,
            "near_sigmoid": partial(sigmoid, self),
        }

    def library(self, uses: Iterable[str]) -> str:
        """The functions that a kernel calls."""
        smooth = [name for name in uses if name in _SMOOTH]
        rest = [name for name in uses if name not in _SMOOTH]
        fast = self.bounded_quotient
        if not fast or not smooth or any(not name.startswith("declare ") for name in rest):
            return functions.library(uses, F64)
        text = functions.library([*uses, declared(fast)], F64)
        return _QUOTIENT.sub(lambda at: called(fast, at[1], at[2]), text)


def exp(machine: Approximations, t: Builder, x: str) -> str:
    """A product and one instruction."""
    return machine.exp2(t, t.let(f"fmul float {x}, {scalar.literal(math.log2(math.e), f32)}"))


def erf(t: Builder, x: str) -> str:
    """A polynomial: there is no quotient, which few lanes compute at a time."""
    inside = _clamped(t, x, tables.NEAR_ERF_BOUND)
    square = t.let(f"fmul float {inside}, {inside}")
    t.use("declare float @llvm.fma.f32(float, float, float)")
    ratio = scalar.literal(tables.NEAR_ERF[0], f32)
    for coefficient in tables.NEAR_ERF[1:]:
        operands = f"float {ratio}, float {square}, float {scalar.literal(coefficient, f32)}"
        ratio = t.let(f"call float @llvm.fma.f32({operands})")
    return _clamped(t, t.let(f"fmul float {ratio}, {inside}"), 1.0)


def half_erf(machine: Approximations, t: Builder, x: str, factor: str) -> str:
    """(1 + erf(factor · x)) / 2, between 0 and 1, where the factor is a literal.

    Only the square is bounded: beyond that the polynomial grows with x, and the last multiply-add ends at 0 or 1
    without a further instruction. NaN becomes 0, and what it is times stays NaN.
    """
    scale: float = struct.unpack("<d", struct.pack("<Q", int(factor, 16)))[0]
    t.use("declare float @llvm.fma.f32(float, float, float)")
    t.use("declare float @llvm.minimum.f32(float, float)")
    bound = scalar.literal((tables.NEAR_ERF_BOUND / scale) ** 2, f32)
    square = t.let(f"call float @llvm.minimum.f32(float {t.let(f'fmul float {x}, {x}')}, float {bound})")
    last = len(tables.NEAR_ERF) - 1
    powers = [c / 2 * scale ** (2 * (last - i) + 1) for i, c in enumerate(tables.NEAR_ERF)]
    total = scalar.literal(powers[0], f32)
    for coefficient in powers[1:]:
        operands = f"float {total}, float {square}, float {scalar.literal(coefficient, f32)}"
        total = t.let(f"call float @llvm.fma.f32({operands})")
    half = scalar.literal(0.5, f32)
    return machine.saturated_fma(t, total, x, half)


def sigmoid(machine: Approximations, t: Builder, x: str) -> str:
    """Approximate 1 / (1 + exp(-x)) by two instructions: exp(-x) that overflows has the quotient 0."""
    falling = machine.exp2(t, t.let(f"fmul float {x}, {scalar.literal(-math.log2(math.e), f32)}"))
    return machine.reciprocal(t, t.let(f"fadd float {falling}, {scalar.literal(1.0, f32)}"))


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


__all__ = ["Approximations", "called", "declared"]
