"""The complementary error function, its scaled form and the inverses, and incomplete gamma functions, all in f64."""

from __future__ import annotations

import math
from collections.abc import Callable

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.shared.error_functions import NEAR, complementary, half_inverse, inverse, scaled
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import rule
from dovetail.frontends.torch.rules.special import log_gamma
from dovetail.ir import leaf
from dovetail.ir.dtype import f64
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("erfc.default", "special_erfc.default")
def erfc(n: Node, x: Value) -> Value:
    """1 - erf(x), exact where it is small."""
    return cast(complementary(cast(x, f64)), n.dtype)


@rule("special_erfcx.default")
def erfcx(n: Node, x: Value) -> Value:
    """exp(x²) erfc(x)"""
    wide = cast(x, f64)
    size = ops.abs_(wide)
    away = scaled(ops.maximum(size, NEAR))
    grown = ops.exp(wide * wide)
    found = ops.where(ops.less(size, NEAR), grown * (1.0 - ops.erf(wide)), away)
    found = ops.where(ops.less_equal(wide, -NEAR), grown * 2.0 - away, found)
    return cast(ops.where(ops.is_nan(wide), wide, found), n.dtype)


@rule("erfinv.default", "special_erfinv.default")
def erfinv(n: Node, x: Value) -> Value:
    """The inverse of the error function."""
    return cast(inverse(cast(x, f64)), n.dtype)


@rule("special_ndtri.default")
def ndtri(n: Node, x: Value) -> Value:
    """The number below which a normal variable is with a probability."""
    wide = cast(x, f64)
    low = ops.less_equal(wide, 0.5)
    inside = ops.bit_and(ops.greater(wide, 0.0), ops.less(wide, 1.0))
    tail = ops.where(inside, ops.where(low, wide, 1.0 - wide), 0.25)
    found = half_inverse(1.0 - tail * 2.0, tail) * math.sqrt(2.0)
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
