"""The parts of floats: sign, exponent and mantissa, and the next float."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import Number, rule
from dovetail.ir.dtype import bool_, f64, i64
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("signbit.default")
def signbit(n: Node, x: Value) -> Value:
    """Whether x is negative, -0.0 included."""
    if not x.dtype.is_float:
        return ops.less(x, 0) if x.dtype.kind == "int" else build.full(x.shape, False, bool_)
    return ops.bit_or(ops.less(x, 0.0), ops.less(ops.reciprocal(x), 0.0))


@rule("copysign.Tensor", "copysign.Scalar")
def copysign(n: Node, x: Value, other: Number) -> Value:
    """The modulus of x with the sign of y, which -0.0 has as well."""
    y = n.value(other, n.dtype)
    negative = ops.bit_or(ops.less(y, 0.0), ops.less(ops.reciprocal(y), 0.0))
    size = ops.abs_(cast(x, n.dtype))
    return ops.where(negative, -size, size)


@rule("ldexp.Tensor")
def ldexp(n: Node, x: Value, other: Value) -> Value:
    """x times 2 to the power y."""
    return cast(x, n.dtype) * ops.pow_(n.value(2.0, n.dtype), cast(other, n.dtype))


_LEAST = {"f32": 2.0**-149, "f64": 2.0**-1074}
_BITS = {"f32": "i32", "f64": "i64"}


@rule("nextafter.default")
def nextafter(n: Node, x: Value, other: Value) -> Value:
    """The next float from x towards y."""
    name = n.dtype.name
    if name not in _BITS:
        raise n.unsupported(f"neighbours of {name}", hint="cast to float32")
    a, b = cast(x, n.dtype), cast(other, n.dtype)
    bits = ops.bitcast(a, source=name, target=_BITS[name])
    # The bits of floats of one sign are in the order of their sizes.
    away = ops.bit_xor(ops.greater(b, a), ops.less(a, 0.0))
    here, near = (ops.bitcast(v, source=_BITS[name], target=name) for v in (bits, ops.where(away, bits + 1, bits - 1)))
    least = n.value(_LEAST[name], n.dtype)
    found = ops.where(ops.equal(a, 0.0), ops.where(ops.greater(b, 0.0), least, -least), near)
    # Bits have no gradient; x and the exact distance to its neighbour have that of x.
    found = ops.where(ops.is_finite(found - here), a + (found - here), found)
    found = ops.where(ops.equal(a, b), a, found)
    return ops.where(ops.bit_or(ops.is_nan(a), ops.is_nan(b)), float("nan"), found)


@rule("frexp.Tensor")
def frexp(n: Node, x: Value) -> Made:
    """A number from a half to 1 and the power of two that make x."""
    wide = cast(x, f64)
    # Numbers near the ends of the range are moved into it, so that they and the factor below are normal.
    small, large = (f(ops.abs_(wide), edge) for f, edge in ((ops.less, 2.0**-1000), (ops.greater, 2.0**1000)))
    scaled = ops.where(small, wide * 2.0**100, ops.where(large, wide * 2.0**-100, wide))
    stored = ops.bit_and(ops.shift_right(ops.bitcast(scaled, source="f64", target="i64"), 52), 0x7FF)
    power = stored - ops.where(small, 1122, ops.where(large, n.value(922, i64), 1022))
    # A product with a power of two is exact and has a gradient, which bits do not have.
    half = scaled * ops.bitcast(ops.shift_left(2045 - stored, 52), source="i64", target="f64")
    plain = ops.bit_or(ops.equal(wide, 0.0), ops.bit_not(ops.is_finite(wide)))
    mantissa = ops.where(plain, wide, half)
    exponent = ops.where(plain, n.value(0, i64), power)
    return cast(mantissa, n.type_of(0).dtype), cast(exponent, n.type_of(1).dtype)
