"""Bessel functions of orders 0 and 1, in f64: power series near 0, asymptotic series far out, integrals between."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.shared.error_functions import half_line
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import Rule, rule
from dovetail.ir import leaf
from dovetail.ir.dtype import f64
from dovetail.ir.value import Value

_FAR = 25.0
"""From here on 34 terms of the asymptotic series are exact to f64."""
_EULER = 0.5772156649015329


def _series(x: Value, coefficients: Sequence[float]) -> Value:
    """A power series; the coefficient of x ** 0 comes first."""
    total: Value = leaf.scalar(coefficients[-1], f64)
    for number in reversed(coefficients[:-1]):
        total = total * x + number
    return total


def _hankel(order: int) -> list[float]:
    """The coefficients of 1 / x ** k in Hankel's asymptotic series."""
    found = [1.0]
    for k in range(1, 34):
        found.append(found[-1] * (4.0 * order**2 - (2 * k - 1) ** 2) / (8.0 * k))
    return found


def _power_terms(order: int) -> list[float]:
    """1 / (k! (k + order)!), of which powers of x² / 4 make modified functions of the first kind."""
    return [1.0 / (math.factorial(k) * math.factorial(k + order)) for k in range(56)]


def _modified_first(x: Value, order: int, *, scaled: bool) -> Value:
    """I(x), or exp(-|x|) I(x)."""
    size = half_line(x) if order else ops.abs_(x)
    near = ops.minimum(size, _FAR)
    inner = _series(near * near * 0.25, _power_terms(order)) * (near * 0.5 if order else 1.0)
    far = ops.maximum(size, _FAR)
    signs = [a * (-1.0) ** k for k, a in enumerate(_hankel(order))]
    outer = _series(ops.reciprocal(far), signs) / ops.sqrt(far * (2.0 * math.pi))
    close = ops.less_equal(size, _FAR)
    if scaled:
        found = ops.where(close, inner * ops.exp(-near), outer)
    else:
        # Half of the exponent on each side: the product overflows where the result does, and not before.
        half = ops.exp(far * 0.5)
        found = ops.where(close, inner, outer * half * half)
    if order:
        found = ops.where(ops.less(x, 0.0), -found, found)
    return ops.where(ops.is_nan(x), x, found)


_STEP = 0.125


def _modified_second(x: Value, order: int, *, scaled: bool) -> Value:
    """K(x), or exp(x) K(x)."""
    low = ops.clip(x, 1e-300, 2.0)
    y = low * low * 0.25
    first = _modified_first(low, order, scaled=False)
    harmonic = [sum(1.0 / j for j in range(1, k + 1)) for k in range(22)]
    if order == 0:
        rest = _series(y, [h / math.factorial(k) ** 2 for k, h in enumerate(harmonic[:20])])
        inner = rest - (ops.log(low * 0.5) + _EULER) * first
    else:
        sums = [
            (harmonic[k] + harmonic[k + 1] - 2.0 * _EULER) / (math.factorial(k) * math.factorial(k + 1))
            for k in range(20)
        ]
        inner = ops.reciprocal(low) + ops.log(low * 0.5) * first - low * 0.25 * _series(y, sums)
    # The integral of exp(-x (cosh t - 1)) cosh(order t): the trapezoidal rule converges exponentially.
    middle = ops.clip(x, 2.0, _FAR)
    total: Value = leaf.scalar(0.5, f64)
    for k in range(1, 32):
        t = k * _STEP
        total = total + ops.exp(middle * (1.0 - math.cosh(t))) * math.cosh(order * t)
    between = total * _STEP
    far = ops.maximum(x, _FAR)
    outer = _series(ops.reciprocal(far), _hankel(order)) * ops.sqrt(math.pi / (far * 2.0))
    beyond = ops.where(ops.less_equal(x, _FAR), between, outer)
    if scaled:
        found = ops.where(ops.less_equal(x, 2.0), inner * ops.exp(low), beyond)
    else:
        found = ops.where(ops.less_equal(x, 2.0), inner, beyond * ops.exp(-x))
    found = ops.where(ops.equal(x, 0.0), math.inf, found)
    return ops.where(ops.bit_or(ops.less(x, 0.0), ops.is_nan(x)), math.nan, found)


_NODES = 16


def _first(x: Value, order: int) -> Value:
    """J(x): its integral over a period by the trapezoidal rule, which is exact there, and Hankel's series far out."""
    size = half_line(x) if order else ops.abs_(x)
    near = ops.minimum(size, _FAR)
    total: Value = leaf.scalar(0.0, f64)
    for k in range(_NODES + 1):
        sine = math.sin(k * math.pi / (2 * _NODES))
        weight = 0.5 if k in (0, _NODES) else 1.0
        total = total + (ops.sin(near * sine) * (sine * weight) if order else ops.cos(near * sine) * weight)
    inner = total / float(_NODES)
    far = ops.maximum(size, _FAR)
    inverse = ops.reciprocal(far)
    square = inverse * inverse
    terms = _hankel(order)
    even = _series(square, [a * (-1.0) ** k for k, a in enumerate(terms[::2])])
    odd = _series(square, [a * (-1.0) ** k for k, a in enumerate(terms[1::2])]) * inverse
    # cos and sin of x less an eighth turn, and less a quarter for each order, without a difference that rounds.
    sine, cosine = ops.sin(far), ops.cos(far)
    root = math.sqrt(0.5)
    turned = (
        ((sine - cosine) * root, -(cosine + sine) * root) if order else ((cosine + sine) * root, (sine - cosine) * root)
    )
    outer = (even * turned[0] - odd * turned[1]) * ops.sqrt(2.0 / (far * math.pi))
    found = ops.where(ops.less_equal(size, _FAR), inner, outer)
    if order:
        found = ops.where(ops.less(x, 0.0), -found, found)
    return ops.where(ops.is_nan(x), x, ops.where(ops.is_inf(x), 0.0, found))


def _spherical(x: Value) -> Value:
    """sin(x) / x, and 1 at 0."""
    small = ops.less(ops.abs_(x), 0.5)
    y = ops.where(small, x * x, 0.0)
    near = _series(y, [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(9)])
    found = ops.where(small, near, ops.sin(x) / ops.where(small, 1.0, x))
    return ops.where(ops.is_inf(x), 0.0, found)


def _functions(declared: Mapping[str, tuple[Callable[[Value], Value], str]]) -> tuple[Rule, ...]:
    def rules(op: str, function: Callable[[Value], Value], doc: str) -> tuple[Rule, ...]:
        def read(n: Node, x: Value) -> Value:
            return cast(function(cast(x, f64)), n.dtype)

        read.__doc__ = doc
        return rule(f"{op}.default")(read)

    return tuple(r for op, (function, doc) in declared.items() for r in rules(op, function, doc))


FUNCTIONS = _functions(
    {
        "i0": (lambda x: _modified_first(x, 0, scaled=False), "Modified Bessel function I0"),
        "special_i0e": (lambda x: _modified_first(x, 0, scaled=True), "exp(-|x|) I0(x)"),
        "special_i1": (lambda x: _modified_first(x, 1, scaled=False), "Modified Bessel function I1"),
        "special_i1e": (lambda x: _modified_first(x, 1, scaled=True), "exp(-|x|) I1(x)"),
        "special_modified_bessel_i0": (lambda x: _modified_first(x, 0, scaled=False), "Modified Bessel function I0"),
        "special_modified_bessel_i1": (lambda x: _modified_first(x, 1, scaled=False), "Modified Bessel function I1"),
        "special_modified_bessel_k0": (lambda x: _modified_second(x, 0, scaled=False), "Modified Bessel function K0"),
        "special_modified_bessel_k1": (lambda x: _modified_second(x, 1, scaled=False), "Modified Bessel function K1"),
        "special_scaled_modified_bessel_k0": (lambda x: _modified_second(x, 0, scaled=True), "exp(x) K0(x)"),
        "special_scaled_modified_bessel_k1": (lambda x: _modified_second(x, 1, scaled=True), "exp(x) K1(x)"),
        "special_bessel_j0": (lambda x: _first(x, 0), "Bessel function J0"),
        "special_bessel_j1": (lambda x: _first(x, 1), "Bessel function J1"),
        "special_spherical_bessel_j0": (_spherical, "Spherical Bessel function j0: sin(x) / x"),
    }
)
