"""Elementwise primitives in JAX, with the meaning that NumPy's dtypes have."""
# pyright: basic, reportPrivateUsage=true
# Arrays of JAX have no types here.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dovetail.ir.dtype import BY_NAME, DType, bool_
from dovetail.ops.conversion import EIGHT_BIT_FLOATS
from dovetail.targets.xla.package import jax, jnp, lax

Meaning = Callable[..., Any]


def is_integer(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


def is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def in_wide(function: Meaning) -> Meaning:
    """A chain of steps that rounds narrow floats once, at its end."""

    def meaning(x: Any, *others: Any, **attrs: Any) -> Any:
        if not (is_float(x) and x.dtype.itemsize < 4):
            return function(x, *others, **attrs)
        wide = [o.astype(jnp.float32) for o in (x, *others)]
        return function(*wide, **attrs).astype(x.dtype)

    return meaning


def _by_zero(of_integers: Meaning, of_floats: Meaning) -> Meaning:
    """Integers divided by 0 give 0."""

    def meaning(x: Any, y: Any) -> Any:
        x, y = jnp.broadcast_arrays(x, y)
        if not is_integer(x):
            return of_floats(x, y)
        none = y == 0
        return jnp.where(none, jnp.zeros((), x.dtype), of_integers(x, jnp.where(none, jnp.ones((), y.dtype), y)))

    return meaning


def _integer_power(x: Any, y: Any) -> Any:
    """By squaring, one bit of the exponent after the other; products wrap."""
    x, y = jnp.broadcast_arrays(x, y)

    def step(bit: Any, state: Any) -> Any:
        total, square = state
        odd = jnp.bitwise_and(lax.shift_right_logical(y, jnp.full_like(y, bit)), jnp.ones((), y.dtype)) == 1
        return jnp.where(odd, total * square, total), square * square

    return lax.fori_loop(0, 8 * y.dtype.itemsize, step, (jnp.ones_like(x), x))[0]


def _power(x: Any, y: Any) -> Any:
    if not is_integer(x):
        return jnp.power(x, y)
    positive = _integer_power(x, jnp.maximum(y, jnp.zeros((), y.dtype)))
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return positive
    one = jnp.ones((), x.dtype)
    inverse = jnp.where(x == 1, one, jnp.where(x == -1, one - 2 * (y % 2), 0 * one))
    return jnp.where(y < 0, inverse, positive)


def maximum(x: Any, y: Any) -> Any:
    """The larger; 0.0 is larger than -0.0, which XLA leaves open."""
    larger = jnp.maximum(x, y)
    return jnp.where((x == 0) & (y == 0), x + y, larger) if is_float(larger) else larger


def _minimum(x: Any, y: Any) -> Any:
    smaller = jnp.minimum(x, y)
    return jnp.where((x == 0) & (y == 0), -(-x + -y), smaller) if is_float(smaller) else smaller


def _shifted(x: Any, y: Any, shift: Meaning, beyond: Any) -> Any:
    x, y = jnp.broadcast_arrays(x, y)
    bits = x.dtype.itemsize * 8
    inside = (y >= 0) & (y < bits)
    return jnp.where(inside, shift(x, jnp.where(inside, y, 0)), beyond)


def _shift_left(x: Any, y: Any) -> Any:
    return _shifted(x, y, lax.shift_left, jnp.zeros((), x.dtype))


def _shift_right(x: Any, y: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return _shifted(x, y, lax.shift_right_logical, jnp.zeros((), x.dtype))
    return _shifted(x, y, lax.shift_right_arithmetic, jnp.where(x < 0, -1, 0).astype(x.dtype))


def whole(x: Any, dtype: np.dtype[Any]) -> Any:
    """Floats as integers: cut towards zero, kept in range, NaN as 0."""
    limits = np.iinfo(dtype)
    cut = jnp.trunc(x.astype(jnp.float64))
    below, above = cut <= float(limits.min), cut >= float(limits.max)
    inside = jnp.where(below | above | jnp.isnan(cut), 0.0, cut).astype(dtype)
    return jnp.where(below, dtype.type(limits.min), jnp.where(above, dtype.type(limits.max), inside))


def _cast(x: Any, *, dtype: DType) -> Any:
    target = dtype.numpy
    if x.dtype == target:
        return x
    if dtype is bool_:
        return x != 0
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and dtype.kind != "complex":
        x = x.real
    if dtype.is_integer and is_float(x):
        return whole(x, target)
    return _eight_bits(x, dtype) if dtype in EIGHT_BIT_FLOATS else lax.convert_element_type(x, target)


def _eight_bits(x: Any, dtype: DType) -> Any:
    """Kept in range, then rounded once: f64 is rounded to odd on the way, so that no half arises."""
    x = jnp.clip(x.astype(jnp.float64), *dtype.range)
    near = x.astype(jnp.float32)
    even = lax.bitcast_convert_type(near, jnp.uint32) & 1 == 0
    moved = jnp.isfinite(near) & (near.astype(jnp.float64) != x) & even
    odd = jnp.nextafter(near, jnp.where(x > near, jnp.inf, -jnp.inf).astype(jnp.float32))
    return jnp.where(moved, odd, near).astype(dtype.numpy)


def _bitcast(x: Any, *, source: str, target: str) -> Any:
    bits = _cast(x, dtype=BY_NAME[source])
    bits = bits.astype(jnp.uint8) if bits.dtype == bool else bits
    if BY_NAME[target] is bool_:
        return lax.bitcast_convert_type(bits, jnp.uint8) != 0
    return lax.bitcast_convert_type(bits, BY_NAME[target].numpy)


_SAME_NAME = (
    "floor ceil trunc equal not_equal less less_equal greater greater_equal real imag where abs sign".split()  # noqa: SIM905
)
_IN_WIDE = "exp expm1 log log1p sqrt sin cos tan sinh cosh tanh".split()  # noqa: SIM905

MEANINGS: dict[str, Meaning] = {
    **{name: getattr(jnp, name) for name in _SAME_NAME},
    **{name: in_wide(getattr(jnp, name)) for name in _IN_WIDE},
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "neg": jnp.negative,
    "div": _by_zero(lax.div, lax.div),
    "rem": _by_zero(lax.rem, in_wide(lax.rem)),
    "mod": _by_zero(jnp.mod, in_wide(jnp.mod)),
    "pow": in_wide(_power),
    "maximum": maximum,
    "minimum": _minimum,
    "asin": in_wide(jnp.arcsin),
    "acos": in_wide(jnp.arccos),
    "atan": in_wide(jnp.arctan),
    "atan2": in_wide(jnp.arctan2),
    "asinh": in_wide(jnp.arcsinh),
    "acosh": in_wide(jnp.arccosh),
    "atanh": in_wide(jnp.arctanh),
    "erf": in_wide(lax.erf),
    "sigmoid": in_wide(jax.nn.sigmoid),
    "softplus": in_wide(lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))),
    "relu": lambda x: maximum(x, jnp.zeros((), x.dtype)),
    "rsqrt": in_wide(lambda x: 1 / jnp.sqrt(x)),
    "reciprocal": in_wide(lambda x: 1 / x),
    "round": jnp.rint,
    "bit_and": jnp.bitwise_and,
    "bit_or": jnp.bitwise_or,
    "bit_xor": jnp.bitwise_xor,
    "bit_not": jnp.bitwise_not,
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "is_nan": jnp.isnan,
    "is_inf": jnp.isinf,
    "complex": lambda x, y: lax.complex(*jnp.broadcast_arrays(x, y)),
    "cast": _cast,
    "bitcast": _bitcast,
}
