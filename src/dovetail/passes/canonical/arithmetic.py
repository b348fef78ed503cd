"""Identities of arithmetic. Those that change rounding or the sign of zero say so."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, f16
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops.primitive import Primitive
from dovetail.passes.canonical.rule import dtype_if_known, listed, number_in, number_like, rule, under_numbers

_IDEMPOTENT = (ops.relu, ops.abs_, ops.floor, ops.ceil, ops.trunc, ops.round_, ops.sign)
_LONGEST = 4
"""How many views of keys are looked under."""
_LEAST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}


def _is_negative(number: float) -> bool:
    return math.copysign(1.0, number) < 0


def _is_complex(value: Value) -> bool:
    """Infinities times 0 are NaN in the parts of a complex product, so that 1 is no neutral element."""
    dtype = dtype_if_known(value)
    return dtype is not None and dtype.kind == "complex"


@rule(ops.add, ops.sub, on_constant=True)
def add_nothing(value: Value) -> Value | None:
    """x + 0 of whole numbers, x + -0.0 and x - 0.0 are x; x + 0.0 is not, where x is -0.0."""
    x, y = value.operands
    dtype, number = dtype_if_known(value), number_in(y)
    if dtype is None or number is None or number != 0:
        return None
    return x if dtype.is_integer or (dtype.is_float and _is_negative(number) == (value.op is ops.add)) else None


@rule(ops.add, ops.sub, on_constant=True, numerics="reassociated")
def add_zero(value: Value) -> Value | None:
    """x + 0.0 and x - -0.0 are x but for the sign of zero."""
    x, y = value.operands
    dtype, number = dtype_if_known(value), number_in(y)
    return x if dtype is not None and dtype.is_float and number is not None and number == 0 else None


@rule(ops.mul, ops.div, ops.pow_, on_constant=True)
def neutral_one(value: Value) -> Value | None:
    """x * 1, x / 1 and x to the power 1 are x."""
    x, y = value.operands
    return x if number_in(y) == 1 and not _is_complex(value) else None


@rule(ops.mul, on_constant=True)
def times_minus_one(value: Value) -> Value | None:
    """x * -1 is -x."""
    x, y = value.operands
    return ops.neg(x) if number_in(y) == -1 and not _is_complex(value) else None


@rule(ops.sub, on_constant=True)
def minus_negative(value: Value) -> Value | None:
    """x - -c is x + c."""
    x, y = value.operands
    number, dtype = number_in(y), dtype_if_known(value)
    if number is None or not number < 0 or (dtype is not None and -number > _largest(dtype)):
        return None
    return ops.add(x, number_like(-number, value))


@rule(ops.sub, on_constant=True)
def minus_known(value: Value) -> Value | None:
    """x minus a vector that is known is x plus its opposite."""
    x, known = value.operands
    if known.op is not leaf.CONST or not known.rank or not known.dtype.is_float or x.op is leaf.CONST:
        return None
    array = known.attrs["value"].array
    return ops.add(x, leaf.constant(-array)) if array.size <= _LARGEST_TURNED else None


@rule(ops.add, on_constant=True, numerics="reassociated")
def nested_known(value: Value) -> Value | None:
    """Two vectors that are known, added one after the other, are added at once."""
    total, known = value.operands
    if total.op is not ops.add or known.op is not leaf.CONST or not known.rank or not known.dtype.is_float:
        return None
    x, first = total.operands
    if first.op is not leaf.CONST or first.shape != known.shape or known.dtype is f16:
        return None
    arrays = [v.attrs["value"].array for v in (first, known)]
    if arrays[0].size > _LARGEST_TURNED or not all(np.isfinite(array).all() for array in arrays):
        return None
    return ops.add(x, leaf.constant(arrays[0] + arrays[1]))


_LARGEST_TURNED = 1 << 16
"""Elements of a constant that is written down anew."""


def _largest(dtype: DType) -> float:
    return 2 ** (dtype.bits - 1) - 1 if dtype.is_integer else math.inf


@rule(ops.neg)
def neg_of_neg(value: Value) -> Value | None:
    """-(-x) is x."""
    inner = value.operands[0]
    return inner.operands[0] if inner.op is ops.neg else None


@rule(ops.add, ops.sub)
def sum_with_neg(value: Value) -> Value | None:
    """x + -y is x - y, -x + y is y - x, x - -y is x + y; a mask is added to scores, with its sign."""
    x, y = value.operands
    if value.op is ops.add and any(
        mask.op is ops.neg and masks(total, mask) for total, mask in (value.operands, value.operands[::-1])
    ):
        return None
    if y.op is ops.neg:
        return (ops.sub if value.op is ops.add else ops.add)(x, y.operands[0])
    return ops.sub(y, x.operands[0]) if x.op is ops.neg and value.op is ops.add else None


@rule(*_IDEMPOTENT)
def done_twice(value: Value) -> Value | None:
    """relu, abs, floor and their kin change nothing the second time."""
    inner = value.operands[0]
    return inner if inner.op is value.op else None


@rule(ops.abs_)
def abs_of_neg(value: Value) -> Value | None:
    """|-x| is |x|, unless -x wraps to a large number."""
    inner = value.operands[0]
    dtype = dtype_if_known(inner)
    wraps = dtype is not None and dtype.kind == "uint"
    return ops.abs_(inner.operands[0]) if inner.op is ops.neg and not wraps else None


@rule(ops.maximum, ops.minimum, ops.bit_and, ops.bit_or)
def with_itself(value: Value) -> Value | None:
    """The larger, the smaller, the and, the or of x and x is x."""
    x, y = value.operands
    return x if x is y else None


@rule(ops.maximum, ops.minimum, on_constant=True)
def with_the_extreme(value: Value) -> Value | None:
    """The larger of x and -inf is x, and the smaller of x and inf: NaN stays NaN."""
    x, y = value.operands
    number, dtype = number_in(y), dtype_if_known(value)
    if number is None or dtype is None or not dtype.is_float:
        return None
    return x if number == (-math.inf if value.op is ops.maximum else math.inf) else None


@rule(ops.maximum, on_constant=True)
def maximum_is_relu(value: Value) -> Value | None:
    """max(x, 0) is relu(x)."""
    x, y = value.operands
    number = number_in(y)
    return ops.relu(x) if number is not None and number == 0 and not _is_negative(number) else None


@rule(ops.where)
def choice_is_relu(value: Value) -> Value | None:
    """Whole numbers where they are above 0, else 0, are relu."""
    dtype = dtype_if_known(value)
    return _relu_of(value, (ops.less, ops.less_equal, ops.greater, ops.greater_equal)) if _is_whole(dtype) else None


@rule(ops.where, numerics="reassociated")
def choice_is_float_relu(value: Value) -> Value | None:
    """0 where x < 0, else x, is relu(x) but for the sign of zero. With x > 0 it is not, where x is NaN."""
    dtype = dtype_if_known(value)
    return _relu_of(value, (ops.less, ops.less_equal)) if dtype is not None and dtype.is_float else None


def _is_whole(dtype: DType | None) -> bool:
    return dtype is not None and dtype.is_integer


def _relu_of(value: Value, asked: tuple[Primitive, ...]) -> Value | None:
    condition, yes, no = value.operands
    if condition.op not in asked:
        return None
    x, bound = condition.operands
    wanted, zero = (no, yes) if condition.op in (ops.less, ops.less_equal) else (yes, no)
    return ops.relu(x) if wanted is x and number_in(bound) == 0 and number_in(zero) == 0 else None


@rule(ops.pow_, on_constant=True)
def power_is_square(value: Value) -> Value | None:
    """x to the power 2 is x * x, which is how a square is written."""
    x, y = value.operands
    return ops.mul(x, x) if number_in(y) == 2 and not _is_complex(value) else None


@rule(ops.pow_, on_constant=True, numerics="reassociated")
def power_is_cube(value: Value) -> Value | None:
    """x to the power 3 is x * x * x."""
    x, y = value.operands
    return ops.mul(ops.mul(x, x), x) if number_in(y) == 3 and not _is_complex(value) else None


@rule(ops.div, on_constant=True)
def one_over(value: Value) -> Value | None:
    """1 / x of floats is reciprocal(x)."""
    one, x = value.operands
    dtype = dtype_if_known(value)
    return ops.reciprocal(x) if number_in(one) == 1 and (dtype is None or dtype.is_float) else None


@rule(ops.reciprocal)
def reciprocal_of_root(value: Value) -> Value | None:
    """1 / sqrt(x) is rsqrt(x)."""
    inner = value.operands[0]
    return ops.rsqrt(inner.operands[0]) if inner.op is ops.sqrt else None


@rule(ops.div, numerics="reassociated")
def over_root(value: Value) -> Value | None:
    """x / sqrt(y) is x * rsqrt(y), rounded once more."""
    x, y = value.operands
    return ops.mul(x, ops.rsqrt(y.operands[0])) if y.op is ops.sqrt else None


@rule(ops.div, on_constant=True)
def over_power_of_two(value: Value) -> Value | None:
    """x / c is x * (1 / c) where c is a power of two, so that 1 / c is exact."""
    x, y = value.operands
    number, dtype = number_in(y), dtype_if_known(value)
    if number is None or not math.isfinite(number) or number == 0 or (dtype is not None and not dtype.is_float):
        return None
    least = _LEAST_NORMAL["f64" if dtype is None else dtype.name]
    if abs(math.frexp(number)[0]) != 0.5 or not least <= abs(1 / number) <= 1 / least:
        return None
    return ops.mul(x, number_like(1 / number, value))


@rule(ops.add, ops.mul, on_constant=True)
def nested_whole_numbers(value: Value) -> Value | None:
    """(x + a) + b is x + (a + b) for whole numbers, and so are products: they wrap alike."""
    return _nested(value) if _is_whole(dtype_if_known(value)) else None


@rule(ops.add, ops.mul, on_constant=True, numerics="reassociated")
def nested_numbers(value: Value) -> Value | None:
    """(x + a) + b is x + (a + b), and (x * a) * b is x * (a * b), rounded once less."""
    return _nested(value) if not _is_complex(value) else None


def _nested(value: Value) -> Value | None:
    inner, b = value.operands
    if inner.op is not value.op or number_in(b) is None or number_in(inner.operands[1]) is None:
        return None
    x, a = inner.operands
    if a.op is leaf.CONST and b.op is leaf.CONST:
        op = ops.add if value.op is ops.add else ops.mul
        folded = leaf.constant(cast(Array, op.compute(a.attrs["value"].array, b.attrs["value"].array)))
        number = number_in(folded)
    else:
        first, second = number_in(a) or 0, number_in(b) or 0
        number = first + second if value.op is ops.add else first * second
        folded = number_like(number, value)
    return None if number is None or _is_lost(number, value) else value.with_operands((x, folded))


def _is_lost(number: float, value: Value) -> bool:
    """Whether a folded number is not that of its parts: it overflowed, or as a product it lost bits to underflow."""
    dtype = dtype_if_known(value)
    least = _LEAST_NORMAL.get("" if dtype is None else dtype.name, 0.0)
    return not math.isfinite(number) or (value.op is ops.mul and (number == 0 or abs(number) < least))


@rule(ops.add, numerics="reassociated")
def masks_first(value: Value) -> Value | None:
    """(q @ kᵀ + a) + b is q @ kᵀ + (a + b), but in f16: there a + b can overflow."""
    dtype = dtype_if_known(value)
    if dtype is None or not dtype.is_float or dtype is f16:
        return None
    for inner, b in (value.operands, value.operands[::-1]):
        if inner.op is ops.add:
            for x, a in (inner.operands, inner.operands[::-1]):
                if are_scores(x) and not are_scores(b):
                    return ops.add(x, ops.add(a, b))
    return None


@rule(ops.mul, ops.div, on_constant=True)
def scaled_before_filled(value: Value) -> Value | None:
    """Where c, q @ kᵀ, else f, times s is where c, q @ kᵀ * s, else f * s: each element by itself."""
    choice, scale = value.operands
    if choice.op is not ops.where or choice.known_type is None or number_in(scale) is None or scale.rank:
        return None
    condition, found, fill = choice.operands
    if fill.op is not leaf.CONST or fill.rank or not are_scores(found):
        return None
    op = ops.mul if value.op is ops.mul else ops.div
    number = cast(Array, op.compute(fill.attrs["value"].array, scale.attrs["value"].array))
    if not np.isfinite(number) and np.isfinite(fill.attrs["value"].array):
        return None  # in a wider type it would not overflow
    return ops.where(condition, op(found, scale), leaf.constant(number))


def are_scores(value: Value) -> bool:
    """Whether it is a product of two batches of rows, bent by numbers or not."""
    under = under_numbers(value)[1]
    if under.op is not ops.matmul or under.operands[1].rank < 3:
        return False
    keys = under_numbers(under.operands[1])[1]
    # Heads that share keys are repeated behind the swap.
    for _ in range(_LONGEST):
        if keys.op not in (ops.merge, ops.expand, ops.unsqueeze):
            break
        (keys,) = keys.operands
    return keys.op is ops.permute


def masks(total: Value, mask: Value) -> bool:
    """Whether the sum of two is the product of queries and keys, with masks or without, and a mask of keys."""
    if mask.known_type is None or not mask.rank or mask.shape[-1] == 1 or are_scores(mask):
        return False  # what is one for all keys may be the maximum that a softmax subtracts
    return are_scores(total) or (total.op is ops.add and any(map(are_scores, total.operands)))


RULES = listed(globals())
