"""The complementary error function and the inverse of the error function, of f64."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import f64
from dovetail.ir.value import Value

# W. J. Cody, Rational Chebyshev approximations for the error function (1969), as in netlib's CALERF.
_MIDDLE = (
    (5.64188496988670089e-1, 8.88314979438837594, 66.1191906371416295, 298.635138197400131),
    (881.952221241769090, 1712.04761263407058, 2051.07837782607147, 1230.33935479799725),
    (15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019),
    (3290.79923573345963, 4362.61909014324716, 3439.36767414372164, 1230.33935480374942),
)
_FAR = (
    (3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1, 1.60837851487422766e-2),
    (2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2),
)
_ROOT_PI = math.sqrt(math.pi)


def _ratio(x: Value, lead: float, over: Sequence[float], under: Sequence[float]) -> Value:
    """A ratio of polynomials; the one below starts with 1, and the highest power comes first."""
    top, bottom = x * lead, x
    for a, b in zip(over[:-1], under[:-1], strict=True):
        top, bottom = (top + a) * x, (bottom + b) * x
    return (top + over[-1]) / (bottom + under[-1])


def scaled(x: Value) -> Value:
    """exp(x²) erfc(x) for x of at least 0.46875."""
    middle = _ratio(x, 2.15311535474403846e-8, (*_MIDDLE[0], *_MIDDLE[1]), (*_MIDDLE[2], *_MIDDLE[3]))
    y = ops.reciprocal(x * x)
    tail = y * _ratio(y, 1.63153871373020978e-2, (*_FAR[0], 6.58749161529837803e-4), (*_FAR[1], 2.33520497626869185e-3))
    far = (1.0 / _ROOT_PI - tail) / x
    return ops.where(ops.less_equal(x, 4.0), middle, far)


NEAR = 0.46875
"""Below, 1 - erf(x) is exact enough."""


def half_line(x: Value) -> Value:
    """The modulus of x, for an odd function that is computed on one side: its slope at 0 is 1, that of `abs` is 0."""
    return ops.where(ops.less(x, 0.0), -x, x)


def complementary(x: Value) -> Value:
    """1 - erf(x) of f64, exact where it is small."""
    size = ops.abs_(x)
    away = ops.maximum(size, NEAR)
    # The square is split, so that the exponent of its small part does not lose digits.
    coarse = ops.trunc(away * 16.0) / 16.0
    small = ops.exp(-(coarse * coarse)) * ops.exp(-((away - coarse) * (away + coarse))) * scaled(away)
    found = ops.where(ops.less(x, 0.0), 2.0 - small, small)
    found = ops.where(ops.less(size, NEAR), 1.0 - ops.erf(x), found)
    return ops.where(ops.is_inf(x), ops.where(ops.less(x, 0.0), 2.0, leaf.scalar(0.0, f64)), found)


def _guess(y: Value, tail: Value) -> Value:
    """A first guess of the x with erf(x) = y, for y of at least 0 and tail = (1 - y) / 2."""
    z = y * y
    over = ((z * -0.140543331 + 0.914624893) * z - 1.645349621) * z + 0.886226899
    under = (((z * 0.012229801 - 0.329097515) * z + 1.442710462) * z - 2.118377725) * z + 1.0
    root = ops.sqrt(-ops.log(tail))
    far = (((root * 1.641345311 + 3.429567803) * root - 1.624906493) * root - 1.970840454) / (
        (root * 1.637067800 + 3.543889200) * root + 1.0
    )
    return ops.where(ops.less_equal(y, 0.7), y * over / under, far)


def half_inverse(y: Value, tail: Value) -> Value:
    """The x with erf(x) = y, for y of at least 0 and tail = (1 - y) / 2, by Halley's method."""
    x = _guess(y, tail)
    near = ops.less_equal(y, 0.5)
    for _ in range(3):
        missing = ops.where(near, ops.erf(x) - y, tail * 2.0 - complementary(x))
        step = missing * (0.5 * _ROOT_PI) * ops.exp(x * x)
        x = x - step / (1.0 + x * step)
    return x


def inverse(x: Value) -> Value:
    """The inverse of the error function of f64."""
    size = half_line(x)
    inside = ops.less(size, 1.0)
    y = ops.where(inside, size, 0.0)
    found = half_inverse(y, (1.0 - y) * 0.5)
    found = ops.where(inside, found, ops.where(ops.equal(size, 1.0), math.inf, leaf.scalar(math.nan, f64)))
    return ops.where(ops.less(x, 0.0), -found, found)


__all__ = ["NEAR", "complementary", "half_inverse", "half_line", "inverse", "scaled"]
