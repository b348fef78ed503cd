"""Functions of f64 without a C library, for GPUs: within 1e-13 of the result, branch-free.

`wide` has those whose series are long enough already; here are those that need the range of f64. What is in neither,
such as erf and sin of f64, is not compiled there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dovetail.codegen.llvm.maths import wide
from dovetail.codegen.llvm.maths.text import Lines

_MAGIC = 6755399441055744.0
"""1.5 * 2**52: adding it to a small number rounds that to an integer, which is then in the last bits."""
_MAGIC_BITS = 0x4338000000000000
_INF = math.inf
_SMALLEST_NORMAL = 2.2250738585072014e-308


def _scaled(t: Lines, x: str) -> tuple[str, str]:
    """exp(r) - 1 and n of x = n ln 2 + r, for x that is neither huge nor tiny."""
    shifted = t.fma(x, 1.0 / math.log(2.0), _MAGIC)
    n = t.sub(shifted, _MAGIC)
    r = t.fma(n, -0.6931471805598903, x)  # 2**-44 and above, so that n times it is exact
    r = t.fma(n, -5.497923018708371e-14, r)
    p = t.polynomial(r, [1.0 / math.factorial(k) for k in range(14, 0, -1)])
    return t.mul(p, r), t.integer("sub", t.bits(shifted), _MAGIC_BITS)


def _power_of_two(t: Lines, n: str) -> str:
    return t.of_bits(t.integer("shl", t.integer("add", n, 1023), 52))


def _exp(t: Lines, x: str) -> str:
    """The power of two in two halves, so that neither end overflows too early."""
    p, n = _scaled(t, t.clamp(x, -746.0, 710.0))
    half = t.integer("ashr", n, 1)
    power, rest = _power_of_two(t, half), _power_of_two(t, t.integer("sub", n, half))
    return t.mul(t.fma(p, power, power), rest)


def _expm1(t: Lines, x: str) -> str:
    p, n = _scaled(t, t.clamp(x, -40.0, 40.0))
    power = _power_of_two(t, n)
    near = t.fma(p, power, t.sub(power, 1.0))
    return t.select(t.test("ogt", t.abs(x), 40.0), t.sub(_exp(t, x), 1.0), near)


def _log(t: Lines, x: str) -> str:
    """Denormals are scaled by 2**54 first."""
    small = t.test("olt", x, _SMALLEST_NORMAL)
    log = wide.log_of_positive(t, t.select(small, t.mul(x, 2.0**54), x))
    log = t.select(small, t.sub(log, 54 * math.log(2.0)), log)
    return wide.log_ends(t, x, log)


def _log1p(t: Lines, x: str) -> str:
    return wide.FUNCTIONS["log1p"](t, x)


def _tanh(t: Lines, x: str) -> str:
    e = _expm1(t, t.mul(t.abs(x), -2.0))
    return t.signed(t.div(t.neg(e), t.add(e, 2.0)), x)


def _sigmoid(t: Lines, x: str) -> str:
    small = _exp(t, t.neg(t.abs(x)))
    return t.div(t.select(t.test("olt", x, 0.0), small, 1.0), t.add(small, 1.0))


def _softplus(t: Lines, x: str) -> str:
    small = _log1p(t, _exp(t, t.neg(t.abs(x))))
    return t.add(t.select(t.test("olt", x, 0.0), 0.0, x), small)


def _sinh(t: Lines, x: str) -> str:
    e = _expm1(t, t.abs(x))
    half = t.mul(t.add(e, t.div(e, t.add(e, 1.0))), 0.5)
    return t.signed(t.select(t.test("oeq", e, _INF), _INF, half), x)


def _cosh(t: Lines, x: str) -> str:
    e = _exp(t, t.abs(x))
    return t.mul(t.add(e, t.div(1.0, e)), 0.5)


def _asinh(t: Lines, x: str) -> str:
    size = t.abs(x)
    square = t.mul(size, size)
    inside = t.add(size, t.div(square, t.add(t.sqrt(t.add(square, 1.0)), 1.0)))
    huge = t.add(_log(t, size), math.log(2.0))
    return t.signed(t.select(t.test("ogt", size, 1e150), huge, _log1p(t, inside)), x)


def _acosh(t: Lines, x: str) -> str:
    less, more = t.sub(x, 1.0), t.add(x, 1.0)
    near = _log1p(t, t.add(less, t.sqrt(t.mul(less, more))))
    result = t.select(t.test("ogt", x, 1e150), t.add(_log(t, x), math.log(2.0)), near)
    return t.select(t.test("olt", x, 1.0), math.nan, result)


FUNCTIONS: dict[str, Callable[..., str]] = {
    "exp": _exp, "exp_falling": _exp, "expm1": _expm1, "log": _log, "log1p": _log1p, "tanh": _tanh,
    "sigmoid": _sigmoid, "softplus": _softplus, "sinh": _sinh, "cosh": _cosh, "asinh": _asinh, "acosh": _acosh,
    **{name: wide.FUNCTIONS[name] for name in ("atanh", "atan", "atan2", "asin", "acos")},
}  # fmt: skip
