"""One step of a random graph: a primitive on values that fit it, with bounds on its result.

A move takes the draft and gives the new value, or None where nothing fits. `MOVES` is all of them; a test that wants
more of something passes its own beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import bool_, i32, i64
from dovetail.ops.primitive import Primitive
from tests.draft import Draft, Held

Move: TypeAlias = Callable[[Draft], Held | None]
Interval: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """A function of one variable: where it is used, what it gives there, how steep it is."""

    op: Primitive
    image: Callable[[float, float], Interval]
    steepest: Callable[[float, float], float] = lambda low, high: 1.0
    domain: Interval = (-math.inf, math.inf)
    rounds: bool = True
    jumps: bool = False


def _rising(f: Callable[[float], float]) -> Callable[[float, float], Interval]:
    return lambda low, high: (f(low), f(high))


def _falling(f: Callable[[float], float]) -> Callable[[float, float], Interval]:
    return lambda low, high: (f(high), f(low))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


CURVES = (
    Curve(ops.neg, _falling(lambda x: -x), rounds=False),
    Curve(ops.abs_, lambda low, high: (0.0, max(-low, high)), rounds=False),
    Curve(ops.relu, _rising(lambda x: max(x, 0.0)), rounds=False),
    Curve(ops.tanh, _rising(math.tanh)),
    Curve(ops.sigmoid, _rising(_sigmoid), lambda low, high: 0.25),
    Curve(ops.erf, _rising(math.erf), lambda low, high: 1.2),
    Curve(ops.softplus, _rising(lambda x: math.log1p(math.exp(x)))),
    Curve(ops.exp, _rising(math.exp), lambda low, high: math.exp(high), (-8.0, 4.0)),
    Curve(ops.expm1, _rising(math.expm1), lambda low, high: math.exp(high), (-8.0, 4.0)),
    Curve(ops.sin, lambda low, high: (-1.0, 1.0)),
    Curve(ops.cos, lambda low, high: (-1.0, 1.0)),
    Curve(ops.sqrt, _rising(math.sqrt), lambda low, high: 0.5 / math.sqrt(low), (0.05, math.inf)),
    Curve(ops.rsqrt, _falling(lambda x: x**-0.5), lambda low, high: 0.5 * low**-1.5, (0.05, math.inf)),
    Curve(ops.reciprocal, _falling(lambda x: 1 / x), lambda low, high: low**-2, (0.1, math.inf)),
    Curve(ops.log, _rising(math.log), lambda low, high: 1 / low, (0.1, math.inf)),
    Curve(ops.log1p, _rising(math.log1p), lambda low, high: 1 / (1 + low), (-0.8, math.inf)),
    Curve(ops.floor, _rising(math.floor), rounds=False, jumps=True),
    Curve(ops.round_, _rising(round), rounds=False, jumps=True),
    Curve(ops.sign, lambda low, high: (-1.0, 1.0), rounds=False, jumps=True),
)
ON_WHOLE_NUMBERS = tuple(c for c in CURVES if c.op in (ops.neg, ops.abs_, ops.relu, ops.sign))


def curve(draft: Draft) -> Held | None:
    """An elementwise op of one operand."""
    whole = draft.draw(st.integers(0, 5)) == 5
    chosen = draft.one_of(ON_WHOLE_NUMBERS if whole else CURVES)
    low, high = chosen.domain

    def fits(x: Held) -> bool:
        # Where a function jumps, the smallest rounding error would be a large difference.
        kind = x.dtype.is_integer if whole else x.dtype is draft.dtype
        return kind and low <= x.low and x.high <= high and not (chosen.jumps and x.error)

    x = draft.pick(fits)
    if x is None:
        return None
    image = chosen.image(x.low, x.high)
    error = x.error * chosen.steepest(x.low, x.high)
    if chosen.rounds:
        # A polynomial is right to a few units, and wrong by more where the result is small beside its argument.
        error += 4 * max(abs(image[0]), abs(image[1])) + 1
    return Held(chosen.op(x.value), *image, error)


def stretches(shape: tuple[Size, ...], other: tuple[Size, ...]) -> bool:
    """Whether two shapes broadcast, whatever the symbols are."""
    return all(a == b or a == 1 or b == 1 for a, b in zip(reversed(shape), reversed(other), strict=False))


def _partner(draft: Draft, x: Held) -> Held | None:
    """A second operand that broadcasts against the first: one there is, or a new one."""
    if draft.chance():
        return draft.pick(lambda y: y.dtype is x.dtype and stretches(x.shape, y.shape))
    axes = draft.whole(0, x.rank)
    shape = tuple(1 if draft.draw(st.integers(0, 3)) == 3 else s for s in x.shape[x.rank - axes :])
    return draft.leaf(shape, x.dtype, *draft.one_of(((-2.0, 2.0), (1.0, 2.0))))


def arithmetic(draft: Draft) -> Held | None:
    """An elementwise op of two operands, with broadcasting."""
    x = draft.pick(lambda x: x.dtype is not bool_)
    y = None if x is None else _partner(draft, x)
    if x is None or y is None:
        return None
    if draft.chance():
        x, y = y, x
    choices = [ops.add, ops.mul, ops.sub, ops.maximum, ops.minimum]
    if x.dtype.is_float and (y.low >= 0.1 or y.high <= -0.1):
        choices.append(ops.div)
    op = draft.one_of(choices)
    return combined(op, x, y)


def combined(op: Primitive, x: Held, y: Held) -> Held:
    """The bounds of an elementwise op of two operands."""
    corners = [_ARITHMETIC[op](a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
    low, high = min(corners), max(corners)
    reach = max(abs(low), abs(high))
    if op in (ops.maximum, ops.minimum):
        error = max(x.error, y.error)
    elif op is ops.mul:
        error = x.error * y.reach + y.error * x.reach + reach
    elif op is ops.div:
        least = min(abs(y.low), abs(y.high))
        error = x.error / least + y.error * x.reach / least**2 + reach
    else:
        error = x.error + y.error + reach
    return Held(op(x.value, y.value), low, high, 0.0 if x.dtype.is_integer else error)


_ARITHMETIC: dict[Primitive, Callable[[float, float], float]] = {
    ops.add: lambda a, b: a + b,
    ops.sub: lambda a, b: a - b,
    ops.mul: lambda a, b: a * b,
    ops.div: lambda a, b: a / b,
    ops.maximum: max,
    ops.minimum: min,
}


def with_number(draft: Draft) -> Held | None:
    """A number on one side of an elementwise op."""
    x = draft.pick(lambda x: x.dtype is draft.dtype)
    if x is None:
        return None
    number = draft.one_of((2.0, 0.5, 1.0, -1.0, 0.25, 0.0))
    y = Held(leaf.scalar(number, x.dtype), number, number)
    if draft.chance():
        return combined(draft.one_of((ops.add, ops.mul, ops.maximum)), y, x)
    op = draft.one_of((ops.add, ops.mul, ops.sub, ops.div, ops.maximum, ops.minimum))
    return None if op is ops.div and number == 0 else combined(op, x, y)


def power(draft: Draft) -> Held | None:
    """A square or a cube, as an op of its own or as a product with itself."""
    x = draft.pick(lambda x: x.dtype is draft.dtype and x.reach <= 4)
    if x is None:
        return None
    n = draft.one_of((2, 3))
    image = (0.0, x.reach**2) if n == 2 else (x.low**3, x.high**3)
    value = x.value * x.value if n == 2 and draft.chance() else x.value**n
    return Held(value, *image, n * x.reach ** (n - 1) * x.error + 4 * x.reach**n)


def product_of_matrices(draft: Draft) -> Held | None:
    """A matmul with a new weight, or with a value that fits."""
    x = draft.pick(lambda x: x.dtype is draft.dtype and x.rank >= 2)
    if x is None:
        return None
    k = x.shape[-1]
    if draft.chance():
        y = draft.leaf((k, draft.one_of(draft.sizes)), draft.dtype, -0.5, 0.5)
    else:
        y = draft.pick(
            lambda y: y.dtype is x.dtype and y.rank >= 2 and y.shape[-2] == k and stretches(x.shape[:-2], y.shape[:-2])
        )
    if y is None:
        return None
    return Held(ops.matmul(x.value, y.value), *_contracted(x, y, draft.concrete(k)))


def contraction(draft: Draft) -> Held | None:
    """A general dot over one pair of axes, whatever their places."""
    x = draft.pick(lambda x: x.dtype is draft.dtype and 1 <= x.rank <= 3)
    if x is None:
        return None
    left = draft.whole(-x.rank, -1)
    k = x.shape[left]
    y = draft.pick(lambda y: y.dtype is x.dtype and 1 <= y.rank <= 2 and k in y.shape)
    if y is None:
        return None
    right = y.shape.index(k) - y.rank
    return Held(ops.dot(x.value, y.value, left=(left,), right=(right,)), *_contracted(x, y, draft.concrete(k)))


def _contracted(x: Held, y: Held, k: int) -> tuple[float, float, float]:
    reach = k * x.reach * y.reach
    return -reach, reach, k * (x.error * y.reach + y.error * x.reach) + reach * math.sqrt(k)


def reduction(draft: Draft) -> Held | None:
    """A reduction over one axis or more."""
    x = draft.pick(lambda x: x.rank >= 1)
    if x is None:
        return None
    axes = tuple(sorted(draft.draw(st.sets(st.integers(-x.rank, -1), min_size=1))))
    n = draft.concrete(product(tuple(x.shape[a] for a in axes)))
    if x.dtype is bool_:
        return Held(draft.one_of((ops.reduce_any, ops.reduce_all))(x.value, axes=axes), 0.0, 1.0)
    choices = [ops.reduce_sum]
    if n > 0:
        choices += [ops.reduce_max, ops.reduce_min]
        choices += [ops.reduce_mean] if x.dtype.is_float else []
    op = draft.one_of(choices)
    if op in (ops.reduce_max, ops.reduce_min):
        return Held(op(x.value, axes=axes), x.low, x.high, x.error)
    grown = 0.0 if x.dtype.is_integer else x.error + x.reach * math.sqrt(n)
    if op is ops.reduce_mean:
        return Held(op(x.value, axes=axes), x.low, x.high, grown + x.reach)
    return Held(op(x.value, axes=axes), n * min(x.low, 0.0), n * max(x.high, 0.0), n * grown)


def place_of_extreme(draft: Draft) -> Held | None:
    """Where the largest or smallest element is; of exact values only, because it jumps."""
    x = draft.pick(lambda x: x.rank >= 1 and not x.error and x.dtype is not bool_)
    if x is None:
        return None
    axis = draft.whole(-x.rank, -1)
    n = draft.concrete(x.shape[axis])
    if n == 0:
        return None
    op = draft.one_of((ops.arg_max, ops.arg_min))
    return Held(op(x.value, axis=axis, last=draft.chance()), 0.0, float(n - 1))


_COMPARE = (ops.less, ops.less_equal, ops.greater, ops.greater_equal, ops.equal, ops.not_equal)


def comparison(draft: Draft) -> Held | None:
    """A comparison of exact values."""
    x = draft.pick(lambda x: not x.error)
    if x is None:
        return None
    y = draft.pick(lambda y: not y.error and y.dtype is x.dtype and stretches(x.shape, y.shape))
    return None if y is None else Held(draft.one_of(_COMPARE)(x.value, y.value), 0.0, 1.0)


def choice(draft: Draft) -> Held | None:
    """One of two values by a condition, which is made where there is none."""
    x = draft.pick(lambda x: True)
    y = None if x is None else _partner(draft, x)
    if x is None or y is None:
        return None
    condition = draft.pick(
        lambda c: c.dtype is bool_ and stretches(c.shape, x.shape) and stretches(c.shape, y.shape)
    ) or draft.leaf(x.shape[-1:] if stretches(x.shape[-1:], y.shape) else (), bool_)
    value = ops.where(condition.value, x.value, y.value)
    return Held(value, min(x.low, y.low), max(x.high, y.high), max(x.error, y.error))


def conversion(draft: Draft) -> Held | None:
    """A cast between bool, whole numbers and the draft's float type."""
    x = draft.pick(lambda x: x.dtype is not draft.dtype or not x.error)
    if x is None:
        return None
    dtype = draft.one_of([d for d in (draft.dtype, i32, i64, bool_) if d is not x.dtype])
    value = ops.cast(x.value, dtype=dtype)
    if dtype is bool_:
        return Held(value, 0.0, 1.0)
    if dtype.is_integer:
        return Held(value, float(math.trunc(x.low)), float(math.trunc(x.high)))
    # Up to 256 every float type has all whole numbers.
    return Held(value, x.low, x.high, 0.0 if x.reach <= 256 else x.reach)


COMPUTING: tuple[Move, ...] = (
    *(curve,) * 5,
    *(arithmetic,) * 4,
    *(product_of_matrices,) * 3,
    *(reduction,) * 3,
    *(with_number,) * 2,
    contraction,
    power,
    choice,
    comparison,
    conversion,
    place_of_extreme,
)
"""As often as models have them, more or less."""
