"""Operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import Number, Rule, rule
from dovetail.frontends.torch.rules.logic import truth
from dovetail.ir.dtype import bool_, c64, f32
from dovetail.ir.value import Value
from dovetail.ops import build

Unary = Callable[[Value], Value]
Binary = Callable[[Value, Value], Value]


def _unary(functions: Mapping[str, tuple[Unary, str]]) -> tuple[Rule, ...]:
    """Functions of one tensor, computed in the dtype of the result: integers become floats first."""

    def declared(op: str, function: Unary, doc: str) -> tuple[Rule, ...]:
        def read(n: Node, x: Value) -> Value:
            return function(cast(x, n.dtype))

        read.__doc__ = doc
        return rule(f"{op}.default")(read)

    return tuple(r for op, (function, doc) in functions.items() for r in declared(op, function, doc))


UNARY = _unary(
    {
        "acos": (ops.acos, "Inverse cosine"),
        "acosh": (ops.acosh, "Inverse hyperbolic cosine"),
        "asin": (ops.asin, "Inverse sine"),
        "asinh": (ops.asinh, "Inverse hyperbolic sine"),
        "atan": (ops.atan, "Inverse tangent"),
        "atanh": (ops.atanh, "Inverse hyperbolic tangent"),
        "cos": (ops.cos, "Cosine"),
        "cosh": (ops.cosh, "Hyperbolic cosine"),
        "erf": (ops.erf, "Error function"),
        "exp": (ops.exp, "e to the power x"),
        "exp2": (ops.exp2, "2 to the power x"),
        "expm1": (ops.expm1, "exp(x) - 1, exact near 0"),
        "log": (ops.log, "Natural logarithm"),
        "log10": (ops.log10, "Logarithm to base 10"),
        "log1p": (ops.log1p, "log(1 + x), exact near 0"),
        "log2": (ops.log2, "Logarithm to base 2"),
        "neg": (ops.neg, "-x"),
        "reciprocal": (ops.reciprocal, "1 / x"),
        "relu": (ops.relu, "max(x, 0)"),
        "rsqrt": (ops.rsqrt, "1 / sqrt(x)"),
        "sigmoid": (ops.sigmoid, "1 / (1 + exp(-x))"),
        "sin": (ops.sin, "Sine"),
        "sinh": (ops.sinh, "Hyperbolic sine"),
        "sqrt": (ops.sqrt, "Square root"),
        "square": (ops.square, "x * x"),
        "tan": (ops.tan, "Tangent"),
        "tanh": (ops.tanh, "Hyperbolic tangent"),
        "deg2rad": (lambda x: x * (math.pi / 180.0), "Degrees in radians"),
        "rad2deg": (lambda x: x * (180.0 / math.pi), "Radians in degrees"),
        "log_sigmoid": (ops.log_sigmoid, "log(sigmoid(x))"),
        "positive": (lambda x: x, "x"),
    }
)


@rule("abs.default")
def absolute(n: Node, x: Value) -> Value:
    """Absolute value; the modulus of a complex number."""
    return x if x.dtype.kind in ("uint", "bool") else ops.abs_(x)


@rule("sign.default")
def sign(n: Node, x: Value) -> Value:
    """-1, 0 or 1."""
    if x.dtype is bool_:
        return x
    if x.dtype.is_float:
        # torch has sign(NaN) = 0.
        return ops.where(ops.is_nan(x), 0.0, ops.sign(x))
    return ops.sign(x) if x.dtype.kind != "uint" else cast(ops.not_equal(x, 0), x.dtype)


def _rounding(functions: Mapping[str, tuple[Unary, str]]) -> tuple[Rule, ...]:
    """Rounding of floats; integers stay as they are."""

    def declared(op: str, function: Unary, doc: str) -> tuple[Rule, ...]:
        def read(n: Node, x: Value) -> Value:
            return function(x) if x.dtype.is_float else x

        read.__doc__ = doc
        return rule(f"{op}.default")(read)

    return tuple(r for op, (function, doc) in functions.items() for r in declared(op, function, doc))


ROUNDING = _rounding(
    {
        "ceil": (ops.ceil, "Smallest integer not below x"),
        "floor": (ops.floor, "Largest integer not above x"),
        "round": (ops.round_, "Nearest integer, halves to even"),
        "trunc": (ops.trunc, "Towards zero"),
        "frac": (lambda x: x - ops.trunc(x), "x without its integer part"),
    }
)


@rule("isnan.default")
def is_nan(n: Node, x: Value) -> Value:
    """Whether x is not a number."""
    return ops.is_nan(x) if x.dtype.is_float else build.full(x.shape, False, bool_)


@rule("isinf.default")
def is_inf(n: Node, x: Value) -> Value:
    """Whether x is infinite."""
    return ops.is_inf(x) if x.dtype.is_float else build.full(x.shape, False, bool_)


@rule("isposinf.default", "isneginf.default")
def is_one_inf(n: Node, x: Value) -> Value:
    """Whether x is one of the infinities."""
    if not x.dtype.is_float:
        return build.full(x.shape, False, bool_)
    return ops.equal(x, math.inf if "pos" in n.op_type else -math.inf)


@rule("isfinite.default")
def is_finite(n: Node, x: Value) -> Value:
    """Whether x is neither infinite nor NaN."""
    return ops.is_finite(x) if x.dtype.is_float else build.full(x.shape, True, bool_)


def _scaled(n: Node, x: Value, alpha: Number) -> Value:
    """x times alpha, as add and sub take it."""
    if alpha == 1 and not isinstance(alpha, Value):
        return x
    return ops.bit_and(x, n.value(alpha, bool_)) if x.dtype is bool_ else x * n.value(alpha, x.dtype)


@rule("add.Tensor")
def add(n: Node, x: Number, other: Number, *, alpha: Number = 1) -> Value:
    """x + alpha * y"""
    a, b = n.value(x, n.dtype), _scaled(n, n.value(other, n.dtype), alpha)
    return ops.bit_or(a, b) if n.dtype is bool_ else a + b


@rule("add.Scalar")
def add_number(n: Node, x: Number, other: Number, alpha: Number = 1) -> Value:
    """x + alpha * y"""
    a, b = n.value(x, n.dtype), _scaled(n, n.value(other, n.dtype), alpha)
    return ops.bit_or(a, b) if n.dtype is bool_ else a + b


@rule("sub.Tensor")
def sub(n: Node, x: Number, other: Number, *, alpha: Number = 1) -> Value:
    """x - alpha * y"""
    return n.value(x, n.dtype) - _scaled(n, n.value(other, n.dtype), alpha)


@rule("sub.Scalar")
def sub_number(n: Node, x: Number, other: Number, alpha: Number = 1) -> Value:
    """x - alpha * y"""
    return n.value(x, n.dtype) - _scaled(n, n.value(other, n.dtype), alpha)


@rule("rsub.Scalar")
def rsub(n: Node, x: Number, other: Number, alpha: Number = 1) -> Value:
    """y - alpha * x"""
    return n.value(other, n.dtype) - _scaled(n, n.value(x, n.dtype), alpha)


@rule("mul.Tensor", "mul.Scalar")
def mul(n: Node, x: Number, other: Number) -> Value:
    """x * y"""
    a, b = n.value(x, n.dtype), n.value(other, n.dtype)
    return ops.bit_and(a, b) if n.dtype is bool_ else a * b


@rule("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(n: Node, x: Number, other: Number) -> Value:
    """x / y; integers become floats first"""
    return n.value(x, n.dtype) / n.value(other, n.dtype)


@rule("div.Tensor_mode", "div.Scalar_mode")
def div_rounded(n: Node, x: Number, other: Number, *, rounding_mode: str | None = None) -> Value:
    """x / y, rounded down or towards zero."""
    a, b = n.value(x, n.dtype), n.value(other, n.dtype)
    match rounding_mode:
        case None:
            return a / b
        case "trunc":
            return ops.trunc(a / b) if n.dtype.is_float else a / b
        case "floor":
            return _floored(a, b)
        case _:
            raise n.malformed(f"rounding_mode is {rounding_mode!r}")


@rule("floor_divide.default")
def floor_divide(n: Node, x: Number, other: Number) -> Value:
    """x / y rounded down."""
    return _floored(n.value(x, n.dtype), n.value(other, n.dtype))


def _floored(a: Value, b: Value) -> Value:
    """The quotient rounded down, by the remainder as Python has it: a quotient that rounds up to an integer is not."""
    if not a.dtype.is_float:
        return ops.floor_div(a, b)
    left = ops.mod(a, b)
    exact = (a - left) / b
    near = ops.floor(exact)
    whole = ops.where(ops.greater(exact - near, 0.5), near + 1.0, near)
    found = ops.where(ops.equal(exact, 0.0), (a / b) * 0.0, whole)
    return ops.where(ops.equal(b, 0.0), a / b, found)


@rule("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(n: Node, x: Number, other: Number) -> Value:
    """The remainder with the sign of y."""
    return ops.mod(n.value(x, n.dtype), n.value(other, n.dtype))


@rule("fmod.Tensor", "fmod.Scalar")
def fmod(n: Node, x: Number, other: Number) -> Value:
    """The remainder with the sign of x."""
    return ops.rem(n.value(x, n.dtype), n.value(other, n.dtype))


@rule("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(n: Node, x: Number, exponent: Number) -> Value:
    """x to the power y."""
    a = n.value(x, n.dtype)
    if isinstance(exponent, int | float) and not isinstance(exponent, bool):
        if exponent == 1:
            return a
        if exponent == 2:
            return a * a
        if exponent == 0.5 and n.dtype.is_float:
            return ops.sqrt(a)
        if exponent == -1 and n.dtype.is_float:
            return ops.reciprocal(a)
    return ops.pow_(a, n.value(exponent, n.dtype))


@rule("maximum.default")
def maximum(n: Node, x: Value, other: Value) -> Value:
    """The larger of both; NaN wins."""
    return _extreme(n, ops.maximum, ops.bit_or, x, other)


@rule("minimum.default")
def minimum(n: Node, x: Value, other: Value) -> Value:
    """The smaller of both; NaN wins."""
    return _extreme(n, ops.minimum, ops.bit_and, x, other)


def _extreme(n: Node, numbers: Binary, truths: Binary, x: Value, y: Value) -> Value:
    a, b = cast(x, n.dtype), cast(y, n.dtype)
    return truths(a, b) if n.dtype is bool_ else numbers(a, b)


@rule("fmax.default", "fmin.default")
def ignoring_nan(n: Node, x: Value, other: Value) -> Value:
    """The larger or smaller of both; NaN loses."""
    numbers, truths = (ops.maximum, ops.bit_or) if "fmax" in n.op_type else (ops.minimum, ops.bit_and)
    found = _extreme(n, numbers, truths, x, other)
    if not n.dtype.is_float:
        return found
    a, b = cast(x, n.dtype), cast(other, n.dtype)
    return ops.where(ops.is_nan(a), b, ops.where(ops.is_nan(b), a, found))


@rule("atan2.default")
def atan2(n: Node, x: Value, other: Value) -> Value:
    """The angle of the point (other, x)."""
    return ops.atan2(cast(x, n.dtype), cast(other, n.dtype))


@rule("clamp.default", "clamp.Tensor", "clip.default", "hardtanh.default")
def clamp(n: Node, x: Value, min: Number | None = None, max: Number | None = None) -> Value:
    """x between min and max; NaN stays."""
    if "hardtanh" in n.op_type:
        min, max = -1.0 if min is None else min, 1.0 if max is None else max
    low, high = (None if bound is None else n.value(bound, n.dtype) for bound in (min, max))
    return ops.clip(cast(x, n.dtype), low, high)


@rule("clamp_min.default", "clamp_min.Tensor")
def clamp_min(n: Node, x: Value, min: Number) -> Value:
    """x, at least min."""
    return ops.maximum(cast(x, n.dtype), n.value(min, n.dtype))


@rule("clamp_max.default", "clamp_max.Tensor")
def clamp_max(n: Node, x: Value, max: Number) -> Value:
    """x, at most max."""
    return ops.minimum(cast(x, n.dtype), n.value(max, n.dtype))


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(n: Node, condition: Value, x: Number, other: Number) -> Value:
    """x where the condition holds, y elsewhere."""
    return ops.where(truth(condition), n.value(x, n.dtype), n.value(other, n.dtype))


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(n: Node, x: Value, mask: Value, value: Number) -> Value:
    """A number where the mask holds, x elsewhere."""
    return ops.where(mask, n.value(value, n.dtype), x)


@rule("_to_copy.default", "to.dtype", "to.other", "type_as.default", "prims.convert_element_type.default")
def to_copy(n: Node, x: Value, *_: Any) -> Value:
    """x in another dtype."""
    return ops.not_equal(x, 0) if n.dtype is bool_ and x.dtype is not bool_ else cast(x, n.dtype)


@rule("hypot.default")
def hypot(n: Node, x: Value, other: Value) -> Value:
    """sqrt(x² + y²) that does not overflow."""
    a, b = (ops.abs_(cast(v, n.dtype)) for v in (x, other))
    large, small = ops.maximum(a, b), ops.minimum(a, b)
    ratio = small / ops.where(ops.equal(large, 0.0), 1.0, large)
    found = large * ops.sqrt(ratio * ratio + 1.0)
    return ops.where(ops.bit_or(ops.is_inf(a), ops.is_inf(b)), math.inf, found)


@rule("round.decimals")
def round_to(n: Node, x: Value, *, decimals: int = 0) -> Value:
    """The nearest number with n decimals, halves to even."""
    if not x.dtype.is_float:
        return x
    scale = float(10 ** abs(decimals))
    return ops.round_(x * scale) / scale if decimals >= 0 else ops.round_(x / scale) * scale


@rule("lerp.Tensor", "lerp.Scalar")
def lerp(n: Node, x: Value, end: Value, weight: Number) -> Value:
    """x + weight * (end - x), from the nearer end."""
    w = n.value(weight, n.dtype)
    low, high = x + w * (end - x), end - (end - x) * (1.0 - w)
    return ops.where(ops.less(ops.abs_(w), 0.5), low, high)


@rule("addcmul.default", "addcdiv.default")
def addc(n: Node, x: Value, first: Value, second: Value, *, value: Number = 1) -> Value:
    """x + value * (first times or divided by second)"""
    a, b, c = (cast(v, n.dtype) for v in (x, first, second))
    factor = n.value(value, n.dtype)
    return a + (factor * b * c if "addcmul" in n.op_type else factor * (b / c))


@rule("angle.default")
def angle(n: Node, x: Value) -> Value:
    """The angle of a complex number; of a real one 0, or pi where it is negative."""
    if x.dtype is c64:
        return ops.atan2(ops.imag(x), ops.real(x))
    wide = cast(x, n.dtype)
    return ops.where(ops.is_nan(wide), wide, ops.where(ops.less(wide, 0.0), math.pi, n.value(0, n.dtype)))


@rule("complex.default")
def complex_(n: Node, real: Value, imag: Value) -> Value:
    """The complex number real + i * imag."""
    return ops.complex_(cast(real, f32), cast(imag, f32))


@rule("polar.default")
def polar(n: Node, abs: Value, angle: Value) -> Value:
    """The complex number of a modulus and an angle."""
    return ops.complex_(abs * ops.cos(angle), abs * ops.sin(angle))
