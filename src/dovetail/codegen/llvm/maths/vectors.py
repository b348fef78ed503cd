"""Functions such as exp and erf on whole vectors: what templates apply to accumulators."""

from __future__ import annotations

from dovetail.codegen.llvm.handles import Mask, Vec
from dovetail.codegen.llvm.maths import functions as maths
from dovetail.codegen.llvm.maths.tables import (
    EXP2_CENTRED,
    EXP2_FRACTION,
    LOG2_E,
    TANH_BOUND,
    TANH_DENOMINATOR,
    TANH_NUMERATOR,
)
from dovetail.codegen.llvm.maths.text import Lines
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.ir.dtype import f32

SHIFT = 12582912.0 + 127.0
"""1.5 · 2^23 plus the bias of exponents: a sum with it has the rounded integer in its lowest bits, which a shift by 23
makes a power of two."""


class _VectorLines(Lines):
    """The scalar functions' instructions, on vectors."""

    def __init__(self, t: VectorBuilder) -> None:
        super().__init__(f32, [], t.uses)
        self.builder = t
        self.kind, self.suffix, self.whole = t.vec, f"v{t.lanes}f32", t.int_vec

    def let(self, instruction: str) -> str:
        return self.builder.let(instruction)

    def number(self, x: str | float) -> str:
        return x if isinstance(x, str) else self.builder.constant(x)

    def select(self, where: str, x: str | float, y: str | float) -> str:
        return self.builder.select(Mask(where), Vec(self.number(x)), Vec(self.number(y)))


def erf(t: VectorBuilder, x: Vec) -> Vec:
    """The error function of every lane."""
    return Vec(maths.erf(_VectorLines(t), x))


def tanh(t: VectorBuilder, x: Vec) -> Vec:
    """The hyperbolic tangent of every lane, 1 where it rounds to it."""
    return Vec(maths.tanh(_VectorLines(t), x))


def fast_tanh(t: VectorBuilder, x: Vec) -> Vec:
    """The hyperbolic tangent as x times a quotient of polynomials in its square."""
    x = t.clamp(x, -TANH_BOUND, TANH_BOUND)
    square = t.fmul(x, x)
    above = t.fmul(x, t.polynomial(square, TANH_NUMERATOR))
    return t.fdiv(above, t.polynomial(square, TANH_DENOMINATOR))


def exp_of_negative(t: VectorBuilder, x: Vec) -> Vec:
    """exp(x) for x <= 0, 0 where it would be denormal; NaN stays."""
    below = t.fcmp("olt", x, t.constant(-87.0))
    shifted = t.fma(x, t.constant(LOG2_E), t.constant(SHIFT))
    n = t.fsub(shifted, t.constant(SHIFT))
    r = t.fma(x, t.constant(LOG2_E), t.fneg(n))
    power = t.fmul(t.polynomial(r, EXP2_CENTRED), power_of_two(t, shifted))
    return t.select(below, t.constant(0.0), power)


def exp2_of_negative(t: VectorBuilder, x: Vec) -> Vec:
    """2^x for x <= 0, 0 where it would be denormal; NaN stays."""
    below = t.fcmp("olt", x, t.constant(-126.0))
    if t.device.emits("scale_by_power_of_two"):
        # VREDUCEPS gives the fraction above ⌊x⌋; VSCALEFPS takes ⌊x⌋ of x by itself.
        r = Vec(t.let(f'call {t.vec} asm "vreduceps $$1, $1, $0", "=v,v"({t.vec} {x})'))
        p = t.polynomial(r, EXP2_FRACTION)
        scale = "llvm.x86.avx512.mask.scalef.ps.512"
        t.use(f"declare {t.vec} @{scale}({t.vec}, {t.vec}, {t.vec}, i16, i32)")
        operands = ", ".join(f"{t.vec} {v}" for v in (p, x, ZERO))
        power = Vec(t.let(f"call {t.vec} @{scale}({operands}, i16 -1, i32 4)"))
    else:
        shifted = t.fadd(x, t.constant(SHIFT))
        p = t.polynomial(t.fsub(x, t.fsub(shifted, t.constant(SHIFT))), EXP2_CENTRED)
        power = t.fmul(p, power_of_two(t, shifted))
    return t.select(below, t.constant(0.0), power)


def power_of_two(t: VectorBuilder, shifted: Vec) -> Vec:
    """Two to the power of the integer in the lowest bits of a sum with `SHIFT`."""
    bits = t.let(f"bitcast {t.vec} {shifted} to {t.int_vec}")
    power = t.let(f"shl {t.int_vec} {bits}, splat (i32 23)")
    return Vec(t.let(f"bitcast {t.int_vec} {power} to {t.vec}"))


def sigmoid(t: VectorBuilder, x: Vec) -> Vec:
    """1 / (1 + exp(-x)), 0 where exp would be denormal: sums of denormals take a hundred times as long."""
    falling = exp_of_negative(t, t.fneg(t.intrinsic("fabs", x)))
    one = t.constant(1.0)
    return t.fdiv(t.select(t.fcmp("olt", x, t.constant(0.0)), falling, one), t.fadd(falling, one))


__all__ = ["LOG2_E", "erf", "exp2_of_negative", "exp_of_negative", "fast_tanh", "sigmoid", "tanh"]
