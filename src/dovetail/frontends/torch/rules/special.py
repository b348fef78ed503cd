"""The gamma function and its relatives, and the error function and its inverse. All are computed in f64."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.torch.importing.node import Node, common_shape
from dovetail.frontends.torch.importing.rule import Number, rule
from dovetail.ir import leaf
from dovetail.ir.dtype import f64
from dovetail.ir.value import Value
from dovetail.ops import build

_SHIFT = 10
"""The asymptotic series are exact to f64 from here on."""
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
_PSI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def _horner(x: Value, coefficients: Sequence[float]) -> Value:
    """A polynomial; the coefficient of the highest power comes first."""
    total: Value = leaf.scalar(coefficients[0], x.dtype)
    for number in coefficients[1:]:
        total = total * x + number
    return total


def _is_integer(x: Value) -> Value:
    return ops.equal(x, ops.floor(x))


def log_gamma(x: Value) -> Value:
    """log |gamma(x)| of f64: Stirling's series of x + 10, less the logarithm of the factors between."""
    reflected = ops.less(x, 0.5)
    z = ops.where(reflected, 1.0 - x, x)
    factors = z
    for step in range(1, _SHIFT):
        factors = factors * (z + float(step))
    small = ops.less(z, float(_SHIFT))
    far = ops.where(small, z + float(_SHIFT), z)
    inverse = ops.reciprocal(far)
    series = _horner(inverse * inverse, _STIRLING[::-1]) * inverse
    high = (far - 0.5) * ops.log(far) - far + 0.5 * math.log(2 * math.pi) + series
    found = ops.where(small, high - ops.log(ops.where(small, factors, 1.0)), high)
    sine = ops.abs_(ops.sin((x - ops.round_(x)) * math.pi))
    mirrored = math.log(math.pi) - ops.log(sine) - found
    result = ops.where(reflected, mirrored, found)
    endless = ops.bit_or(ops.is_inf(x), ops.bit_and(ops.less_equal(x, 0.0), _is_integer(x)))
    return ops.where(endless, math.inf, result)


def _digamma(x: Value) -> Value:
    reflected = ops.less(x, 0.0)
    z = ops.where(reflected, 1.0 - x, x)
    small = ops.less(z, float(_SHIFT))
    lost: Value = leaf.scalar(0.0, f64)
    for step in range(_SHIFT):
        lost = lost + ops.reciprocal(z + float(step))
    far = ops.where(small, z + float(_SHIFT), z)
    inverse = ops.reciprocal(far)
    square = inverse * inverse
    high = ops.log(far) - inverse * 0.5 - square * _horner(square, _PSI[::-1])
    found = ops.where(small, high - lost, high)
    mirrored = found - math.pi / ops.tan((x - ops.trunc(x)) * math.pi)
    result = ops.where(reflected, ops.where(_is_integer(x), math.nan, mirrored), found)
    return ops.where(ops.equal(x, 0.0), -ops.reciprocal(x), result)


_BERNOULLI = (
    12.0,
    -720.0,
    30240.0,
    -1209600.0,
    47900160.0,
    -1307674368000.0 / 691,
    74724249600.0,
    -10670622842880000.0 / 3617,
    5109094217170944000.0 / 43867,
    -802857662698291200000.0 / 174611,
    155112100433309859840000.0 / 854513,
    -1693824136731743669452800000.0 / 236364091,
)
"""(2k)! over the Bernoulli number 2k: the divisors of the series of Euler and Maclaurin."""


def _zeta(x: Value, q: Value) -> Value:
    """The sum of (q + k) ** -x over k, of f64: terms up to q + k > 9, then the series of Euler and Maclaurin."""
    shape = common_shape(x.shape, q.shape)
    x, q = build.broadcast_to(x, shape), build.broadcast_to(q, shape)
    total, at = ops.pow_(q, -x), q
    for _ in range(9):
        at = at + 1.0
        total = total + ops.pow_(at, -x)

    def more(total: Value, at: Value, x: Value) -> Value:
        left = ops.less_equal(at, 9.0)
        return build.reshape(ops.reduce_any(left, axes=tuple(range(-left.rank, 0))), ()) if left.rank else left

    def added(total: Value, at: Value, x: Value) -> tuple[Value, Value]:
        low = ops.less_equal(at, 9.0)
        return ops.where(low, total + ops.pow_(at + 1.0, -x), total), ops.where(low, at + 1.0, at)

    total, at = ops.while_loop(more, added, [total, at], [x]).carries
    last = ops.pow_(at, -x)
    found = total + last * at / (x - 1.0) - last * 0.5
    rising, power, k = x, last / at, 0.0
    for divisor in _BERNOULLI:
        found = found + rising * power / divisor
        rising = rising * (x + (k + 1.0)) * (x + (k + 2.0))
        power = power / at / at
        k += 2.0
    # Where the terms have become too small to count, the products of the series may overflow.
    found = ops.where(ops.less(ops.abs_(last), ops.abs_(total) * 2.0**-53), total, found)
    negative = ops.less_equal(q, 0.0)
    found = ops.where(ops.bit_and(negative, ops.bit_not(_is_integer(x))), math.nan, found)
    found = ops.where(ops.bit_and(negative, _is_integer(q)), math.inf, found)
    return ops.where(ops.equal(x, 1.0), math.inf, ops.where(ops.less(x, 1.0), math.nan, found))


@rule("lgamma.default")
def lgamma(n: Node, x: Value) -> Value:
    """The logarithm of the modulus of the gamma function."""
    return cast(log_gamma(cast(x, f64)), n.dtype)


@rule("digamma.default")
def digamma(n: Node, x: Value) -> Value:
    """The slope of the logarithm of the gamma function."""
    return cast(_digamma(cast(x, f64)), n.dtype)


@rule("polygamma.default")
def polygamma(n: Node, order: int, x: Value) -> Value:
    """A derivative of digamma."""
    wide = cast(x, f64)
    if order == 0:
        return cast(_digamma(wide), n.dtype)
    factor = math.factorial(order) * (1.0 if order % 2 else -1.0)
    return cast(_zeta(leaf.scalar(float(order + 1), f64), wide) * factor, n.dtype)


@rule("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar")
def zeta(n: Node, x: Number, other: Number) -> Value:
    """Hurwitz' zeta function: the sum of (q + k) ** -x over all k."""
    return cast(_zeta(n.value(x, f64), n.value(other, f64)), n.dtype)
