"""2^x of several vectors at once, one step after the other, for cores whose schedulers hold few instructions.

LLVM's scheduler puts the chain of one vector after the other, so that each waits for its own latencies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.codegen.llvm.handles import Ptr, Vec
from dovetail.codegen.llvm.maths.tables import EXP2_CENTRED
from dovetail.codegen.llvm.maths.vectors import SHIFT, power_of_two
from dovetail.codegen.llvm.vector import VectorBuilder

_, *_ADDENDS = EXP2_CENTRED


def exp2_addends(t: VectorBuilder) -> dict[float, Ptr]:
    """The coefficients that are added, in memory: FMLA overwrites its addend, and a load is cheaper than a copy."""
    return {c: t.variable(t.constant(c)) for c in _ADDENDS[::2]}


def exp2_of_negatives(t: VectorBuilder, xs: Sequence[Vec], addends: Mapping[float, Ptr]) -> list[Vec]:
    """2^x of each vector for x <= 0, with Estrin's scheme; 0 below -127, and NaN stays."""
    # 2^-127 has the bits of 0.
    xs = [t.intrinsic("maximum", x, t.constant(-127.0)) for x in xs]
    shifted = _in_order(t, [t.fadd(x, t.constant(SHIFT)) for x in xs])
    rs = [t.fsub(x, t.fsub(s, t.constant(SHIFT))) for x, s in zip(xs, shifted, strict=True)]
    rs = _in_order(t, rs)
    squares = [t.fmul(r, r) for r in rs]
    pairs = zip(EXP2_CENTRED[::2], EXP2_CENTRED[1::2], strict=True)
    polynomials, *rest = [
        _in_order(t, [t.fma(t.constant(high), r, _loaded(t, addends[low])) for r in rs]) for high, low in pairs
    ]
    for lines in rest:
        polynomials = [t.fma(p, square, line) for p, square, line in zip(polynomials, squares, lines, strict=True)]
    return [t.fmul(p, power_of_two(t, s)) for p, s in zip(polynomials, shifted, strict=True)]


def _in_order(t: VectorBuilder, xs: Sequence[Vec]) -> list[Vec]:
    """The vectors out of an empty asm each, which LLVM does not reorder."""
    return [Vec(t.let(f'call {t.vec} asm sideeffect "", "=w,0"({t.vec} {x})')) for x in xs]


def _loaded(t: VectorBuilder, slot: Ptr) -> Vec:
    """A load in each iteration: a plain one would be moved out of the loop, and copied there."""
    return Vec(t.let(f"load volatile {t.vec}, ptr {slot}, align {t.bytes}"))


__all__ = ["exp2_addends", "exp2_of_negatives"]
