"""The complementary error function, its scaled form and the inverses, and incomplete gamma functions, all in f64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dovetail import ops
from dovetail.frontends.torch.importing.node import Node, cast
from dovetail.frontends.torch.importing.rule import collected, rule
from dovetail.frontends.torch.rules.special import log_gamma
from dovetail.ir import leaf
from dovetail.ir.dtype import f64
from dovetail.ir.value import Value
from dovetail.ops import build

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


def _scaled(x: Value) -> Value:
    """exp(x²) erfc(x) for x of at least 0.46875."""
    middle = _ratio(x, 2.15311535474403846e-8, (*_MIDDLE[0], *_MIDDLE[1]), (*_MIDDLE[2], *_MIDDLE[3]))
    y = ops.reciprocal(x * x)
    tail = y * _ratio(y, 1.63153871373020978e-2, (*_FAR[0], 6.58749161529837803e-4), (*_FAR[1], 2.33520497626869185e-3))
    far = (1.0 / _ROOT_PI - tail) / x
    return ops.where(ops.less_equal(x, 4.0), middle, far)


_NEAR = 0.46875


def half_line(x: Value) -> Value:
    """The modulus of x, for an odd function that is computed on one side: its slope at 0 is 1, that of `abs` is 0."""
    return ops.where(ops.less(x, 0.0), -x, x)


def complementary(x: Value) -> Value:
    """1 - erf(x) of f64, exact where it is small."""
    size = ops.abs_(x)
    away = ops.maximum(size, _NEAR)
    # The square is split, so that the exponent of its small part does not lose digits.
    coarse = ops.trunc(away * 16.0) / 16.0
    small = ops.exp(-(coarse * coarse)) * ops.exp(-((away - coarse) * (away + coarse))) * _scaled(away)
    found = ops.where(ops.less(x, 0.0), 2.0 - small, small)
    found = ops.where(ops.less(size, _NEAR), 1.0 - ops.erf(x), found)
    return ops.where(ops.is_inf(x), ops.where(ops.less(x, 0.0), 2.0, leaf.scalar(0.0, f64)), found)


@rule("erfc.default", "special_erfc.default")
def erfc(n: Node, x: Value) -> Value:
    """1 - erf(x), exact where it is small."""
    return cast(complementary(cast(x, f64)), n.dtype)


@rule("special_erfcx.default")
def erfcx(n: Node, x: Value) -> Value:
    """exp(x²) erfc(x)"""
    wide = cast(x, f64)
    size = ops.abs_(wide)
    away = _scaled(ops.maximum(size, _NEAR))
    grown = ops.exp(wide * wide)
    found = ops.where(ops.less(size, _NEAR), grown * (1.0 - ops.erf(wide)), away)
    found = ops.where(ops.less_equal(wide, -_NEAR), grown * 2.0 - away, found)
    return cast(ops.where(ops.is_nan(wide), wide, found), n.dtype)


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


def _inverse(y: Value, tail: Value) -> Value:
    """The x with erf(x) = y, for y of at least 0 and tail = (1 - y) / 2, by Halley's method."""
    x = _guess(y, tail)
    near = ops.less_equal(y, 0.5)
    for _ in range(3):
        missing = ops.where(near, ops.erf(x) - y, tail * 2.0 - complementary(x))
        step = missing * (0.5 * _ROOT_PI) * ops.exp(x * x)
        x = x - step / (1.0 + x * step)
    return x


@rule("erfinv.default", "special_erfinv.default")
def erfinv(n: Node, x: Value) -> Value:
    """The inverse of the error function."""
    wide = cast(x, f64)
    size = half_line(wide)
    inside = ops.less(size, 1.0)
    y = ops.where(inside, size, 0.0)
    found = _inverse(y, (1.0 - y) * 0.5)
    found = ops.where(inside, found, ops.where(ops.equal(size, 1.0), math.inf, leaf.scalar(math.nan, f64)))
    return cast(ops.where(ops.less(wide, 0.0), -found, found), n.dtype)


@rule("special_ndtri.default")
def ndtri(n: Node, x: Value) -> Value:
    """The number below which a normal variable is with a probability."""
    wide = cast(x, f64)
    low = ops.less_equal(wide, 0.5)
    inside = ops.bit_and(ops.greater(wide, 0.0), ops.less(wide, 1.0))
    tail = ops.where(inside, ops.where(low, wide, 1.0 - wide), 0.25)
    found = _inverse(1.0 - tail * 2.0, tail) * math.sqrt(2.0)
    edge = ops.bit_or(ops.equal(wide, 0.0), ops.equal(wide, 1.0))
    found = ops.where(inside, found, ops.where(edge, math.inf, leaf.scalar(math.nan, f64)))
    return cast(ops.where(low, -found, found), n.dtype)


_TINY = 2.0**-54
Loop = Callable[..., Value]


def _lower_series(a: Value, x: Value, active: Value) -> Value:
    """The sum of x ** k / ((a + 1) … (a + k)) over k."""

    def more(k: Value, term: Value, total: Value, a: Value, x: Value, active: Value) -> Value:
        return _any(ops.bit_and(active, ops.greater(term, total * _TINY)))

    def added(k: Value, term: Value, total: Value, a: Value, x: Value, active: Value) -> tuple[Value, Value, Value]:
        following = term * x / (a + k)
        return k + 1.0, following, total + following

    one = build.full(a.shape, 1.0, f64)
    return ops.while_loop(more, added, [leaf.scalar(1.0, f64), one, one], [a, x, active]).carries[2]


def _upper_fraction(a: Value, x: Value, active: Value) -> Value:
    """The continued fraction of the upper incomplete gamma function, by Lentz' method."""

    def more(i: Value, b: Value, c: Value, d: Value, h: Value, change: Value, a: Value, active: Value) -> Value:
        return _any(ops.bit_and(active, ops.greater(ops.abs_(change - 1.0), _TINY * 4.0)))

    def step(
        i: Value, b: Value, c: Value, d: Value, h: Value, change: Value, a: Value, active: Value
    ) -> tuple[Value, Value, Value, Value, Value, Value]:
        factor = i * (a - i)
        b = b + 2.0
        d = ops.reciprocal(_kept(factor * d + b))
        c = _kept(b + factor / c)
        change = d * c
        return i + 1.0, b, c, d, h * change, change

    b = x + 1.0 - a
    d = ops.reciprocal(_kept(b))
    start = [leaf.scalar(1.0, f64), b, build.full(a.shape, 1e300, f64), d, d, build.full(a.shape, 2.0, f64)]
    return ops.while_loop(more, step, start, [a, active]).carries[4]


def _kept(x: Value) -> Value:
    """x away from 0."""
    return ops.where(ops.less(ops.abs_(x), 1e-300), 1e-300, x)


def _any(x: Value) -> Value:
    return build.reshape(ops.reduce_any(x, axes=tuple(range(-x.rank, 0))), ()) if x.rank else x


@rule("igamma.default", "igammac.default")
def incomplete_gamma(n: Node, a: Value, x: Value) -> Value:
    """The share of the gamma function's integral below x, or above it."""
    if n.type.count == 0:
        return build.zeros(n.shape, n.dtype)
    order, at = (build.broadcast_to(cast(v, f64), n.shape) for v in (a, x))
    known = ops.bit_and(ops.greater(order, 0.0), ops.greater(at, 0.0))
    known = ops.bit_and(known, ops.bit_and(ops.is_finite(order), ops.is_finite(at)))
    p, q = ops.where(known, order, 1.0), ops.where(known, at, 1.0)
    below = ops.less(q, p + 1.0)
    scale = p * ops.log(q) - q
    lower = ops.exp(scale - log_gamma(p + 1.0)) * _lower_series(p, ops.where(below, q, 0.0), below)
    above = ops.bit_not(below)
    # Where the series serves, the fraction is of a point at which it converges at once.
    upper = ops.exp(scale - log_gamma(p)) * _upper_fraction(ops.where(below, 1.0, p), ops.where(below, 4.0, q), above)
    is_lower = n.op_type.startswith("igamma.")
    found = ops.where(below, lower, 1.0 - upper) if is_lower else ops.where(below, 1.0 - lower, upper)
    # At the edges all of the integral is above (x is 0, or a infinite), or below (x infinite, or a is 0).
    none, whole = (
        (leaf.scalar(0.0, f64), leaf.scalar(1.0, f64))
        if is_lower
        else (
            leaf.scalar(1.0, f64),
            leaf.scalar(0.0, f64),
        )
    )
    empty = ops.bit_or(ops.equal(at, 0.0), ops.is_inf(order))
    edge = ops.where(empty, none, whole)
    wrong = ops.bit_or(ops.less(order, 0.0), ops.less(at, 0.0))
    for first, second in ((ops.equal(order, 0.0), ops.equal(at, 0.0)), (ops.is_inf(order), ops.is_inf(at))):
        wrong = ops.bit_or(wrong, ops.bit_and(first, second))
    wrong = ops.bit_or(wrong, ops.bit_or(ops.is_nan(order), ops.is_nan(at)))
    return cast(ops.where(wrong, math.nan, ops.where(known, found, edge)), n.dtype)


RULES = collected(globals())
