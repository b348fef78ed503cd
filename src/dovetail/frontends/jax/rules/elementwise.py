"""Elementwise operations: operands have one shape, so each is a primitive or a short chain of them."""

from __future__ import annotations

from collections.abc import Callable

from dovetail import ops
from dovetail.frontends.jax.importing import Node, of_operands, rule
from dovetail.frontends.shared.error_functions import complementary, inverse
from dovetail.ir.dtype import BY_NAME, bf16, bool_, f16, f64
from dovetail.ir.value import Value
from dovetail.ops import build

_COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {
    "EQ": ops.equal,
    "NE": ops.not_equal,
    "LT": ops.less,
    "LE": ops.less_equal,
    "GT": ops.greater,
    "GE": ops.greater_equal,
}
_HALVES = {(8, 7): bf16, (5, 10): f16}
"""Floats by the bits of their exponents and mantissas."""


def direction(n: Node) -> str:
    """LT of a comparison."""
    return str(n.attrs["comparison_direction"]).split()[-1].rstrip(">")


@rule("stablehlo.compare")
def compare(n: Node) -> Value:
    x, y = n.operands
    if "TOTALORDER" in str(n.attrs.get("compare_type", "")):
        raise n.unsupported("a total order of floats outside of a sort")
    if x.dtype is bool_:
        x, y = (ops.cast(v, dtype=BY_NAME["i8"]) for v in (x, y))
    return _COMPARISONS[direction(n)](x, y)


@rule("stablehlo.select")
def select(n: Node) -> Value:
    chosen, x, y = n.operands
    return ops.where(chosen, x, y)


@rule("stablehlo.clamp")
def clamp(n: Node) -> Value:
    least, x, most = n.operands
    return ops.minimum(ops.maximum(x, least), most)


@rule("stablehlo.shift_right_logical")
def shift_right_logical(n: Node) -> Value:
    x, by = n.operands
    if x.dtype.kind == "uint":
        return ops.shift_right(x, by)
    own, bare = x.dtype.name, x.dtype.name.replace("i", "u")
    x, by = (ops.bitcast(v, source=own, target=bare) for v in (x, by))
    return ops.bitcast(ops.shift_right(x, by), source=bare, target=own)


@rule("stablehlo.shift_right_arithmetic")
def shift_right_arithmetic(n: Node) -> Value:
    if n.x.dtype.kind != "int":
        raise n.unsupported(f"of {n.x.dtype}")
    return ops.shift_right(*n.operands)


@rule("stablehlo.bitcast_convert")
def bitcast(n: Node) -> Value:
    if n.dtype.bits != n.x.dtype.bits:
        raise n.unsupported(f"{n.x.type} to {n.type}, of another width")
    return ops.bitcast(n.x, source=n.x.dtype.name, target=n.dtype.name)


@rule("stablehlo.reduce_precision")
def reduce_precision(n: Node) -> Value:
    narrow = _HALVES.get((int(n.attrs["exponent_bits"]), int(n.attrs["mantissa_bits"])))
    if narrow is None:
        raise n.unsupported(
            f"to {n.attrs['exponent_bits']} bits of exponent and {n.attrs['mantissa_bits']} of mantissa"
        )
    return ops.cast(ops.cast(n.x, dtype=narrow), dtype=n.x.dtype)


@rule("stablehlo.convert")
def convert(n: Node) -> Value:
    return ops.cast(n.x, dtype=n.dtype)


def _is_finite(x: Value) -> Value:
    return ops.bit_not(ops.bit_or(ops.is_nan(x), ops.is_inf(x)))


def _round_half_away(x: Value) -> Value:
    cut = ops.trunc(x)
    return ops.where(ops.greater_equal(ops.abs_(x - cut), 0.5), cut + ops.sign(x), cut)


def _cbrt(x: Value) -> Value:
    wide = ops.cast(x, dtype=f64)
    return ops.cast(ops.sign(wide) * ops.pow_(ops.abs_(wide), 1.0 / 3.0), dtype=x.dtype)


def _erfc(x: Value) -> Value:
    return ops.cast(complementary(ops.cast(x, dtype=f64)), dtype=x.dtype)


def _erf_inv(x: Value) -> Value:
    return ops.cast(inverse(ops.cast(x, dtype=f64)), dtype=x.dtype)


def _one_inf(sign: float) -> Callable[[Value], Value]:
    return lambda x: ops.equal(x, build.full_like(x, sign * float("inf")))


_STABLEHLO: dict[str, Callable[..., Value]] = {
    "abs": ops.abs_,
    "add": ops.add,
    "and": ops.bit_and,
    "atan2": ops.atan2,
    "cbrt": _cbrt,
    "ceil": ops.ceil,
    "complex": ops.complex_,
    "cosine": ops.cos,
    "divide": ops.div,
    "exponential": ops.exp,
    "exponential_minus_one": ops.expm1,
    "floor": ops.floor,
    "imag": ops.imag,
    "is_finite": _is_finite,
    "log": ops.log,
    "log_plus_one": ops.log1p,
    "logistic": ops.sigmoid,
    "maximum": ops.maximum,
    "minimum": ops.minimum,
    "multiply": ops.mul,
    "negate": ops.neg,
    "not": ops.bit_not,
    "or": ops.bit_or,
    "power": ops.pow_,
    "real": ops.real,
    "remainder": ops.rem,
    "round_nearest_afz": _round_half_away,
    "round_nearest_even": ops.round_,
    "rsqrt": ops.rsqrt,
    "shift_left": ops.shift_left,
    "sign": ops.sign,
    "sine": ops.sin,
    "sqrt": ops.sqrt,
    "subtract": ops.sub,
    "tan": ops.tan,
    "tanh": ops.tanh,
    "xor": ops.bit_xor,
}
_CHLO: dict[str, Callable[[Value], Value]] = {
    "acos": ops.acos,
    "acosh": ops.acosh,
    "asin": ops.asin,
    "asinh": ops.asinh,
    "atan": ops.atan,
    "atanh": ops.atanh,
    "cosh": ops.cosh,
    "erf": ops.erf,
    "erf_inv": _erf_inv,
    "erfc": _erfc,
    "is_inf": ops.is_inf,
    "is_neg_inf": _one_inf(-1),
    "is_pos_inf": _one_inf(1),
    "sinh": ops.sinh,
    "square": lambda x: x * x,
    "tan": ops.tan,
}

STABLEHLO = of_operands("stablehlo", _STABLEHLO)
CHLO = of_operands("chlo", _CHLO)

__all__ = ["direction"]
