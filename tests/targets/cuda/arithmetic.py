"""Arithmetic of what threads have: an integer that all share, one that follows from the thread, or an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from dovetail import ops
from dovetail.ir.dtype import DType, f8e4m3fn, f8e5m2, i64
from dovetail.ir.literal import Array
from tests.targets.cuda.places import Affine, Value, affine

_OPS = {op.name: op for op in ops.ALL}
_FP8 = {
    name: dtype
    for kind, dtype in {"e4m3": f8e4m3fn, "e5m2": f8e5m2}.items()
    for name in (f"{kind}_of_f32", f"f16_of_{kind}")
}
"""Conversion instructions, and their dtype of 8 bits."""


def apply(op: str, xs: Sequence[Array], dtype: DType) -> Array:
    """What an operation gives for arrays: the primitive's own meaning."""
    if op == "cast":
        return np.asarray(_OPS["cast"].meaning(xs[0], dtype=dtype)).astype(dtype.numpy, copy=False)
    if op == "bitcast":
        return xs[0].view(dtype.numpy)
    if op in _FP8:
        narrow = _FP8[op]
        return xs[0].view(narrow.numpy).astype(dtype.numpy) if op.startswith("f16") else _saturated(xs[0], narrow)
    if op in ("exp_falling", "near_exp", "fma"):
        return np.exp(xs[0]) if op != "fma" else xs[0] * xs[1] + xs[2]
    if op == "near_exp2":
        return np.exp2(xs[0])
    if op == "held":
        return xs[0]
    if op == "near_half_erf":
        return (1 + _meaning("erf")(xs[0] * xs[1])) / 2
    if op == "take_bytes":
        return _taken_bytes(*xs)
    found: Any = np.asarray(_meaning(op)(*xs))
    return found if found.dtype == dtype.numpy else found.astype(dtype.numpy)


def _taken_bytes(x: Array, y: Array, selector: Array) -> Array:
    """Four of the bytes of two words, which four bits each of a selector number."""
    x, y, selector = np.broadcast_arrays(x, y, selector)
    both = np.stack([x, y], axis=-1).astype("<u4").view(np.uint8)
    numbers = np.stack([(selector >> 4 * i) & 7 for i in range(4)], axis=-1)
    return np.take_along_axis(both, numbers.astype(np.int64), axis=-1).view("<u4")[..., 0]


@cache
def _meaning(op: str) -> Callable[..., Any]:
    return _OPS[op.removeprefix("fold_").removeprefix("near_")].meaning


def _saturated(x: Array, narrow: DType) -> Array:
    """Bits of the nearest number of 8 bits, which is finite."""
    least, most = narrow.range
    return np.clip(x, least, most).astype(narrow.numpy).view(np.uint8)


def operand(x: Value) -> Any:
    """What NumPy computes with."""
    return x.array if isinstance(x, Affine) else x


def _in_range(x: int) -> int:
    assert -(1 << 63) <= x < 1 << 63, "an index is an i64"
    return x


def _sum(x: Value, y: Value) -> Value:
    if isinstance(x, int):
        x, y = y, x
    if isinstance(y, int):
        if isinstance(x, int):
            return _in_range(x + y)
        return Affine(x.known, x.shared + y) if isinstance(x, Affine) else x + y
    if isinstance(x, Affine) and isinstance(y, Affine):
        return affine(x.known.plus(y.known), x.shared + y.shared)
    return operand(x) + operand(y)


def _difference(x: Value, y: Value) -> Value:
    if isinstance(y, int):
        return _sum(x, -y)
    if isinstance(y, Affine):
        return _sum(x, Affine(y.known.times(-1), -y.shared))
    return operand(x) - y


def _product(x: Value, y: Value) -> Value:
    if isinstance(x, int):
        x, y = y, x
    if isinstance(y, int):
        if isinstance(x, int):
            return _in_range(x * y)
        return affine(x.known.times(y), x.shared * y) if isinstance(x, Affine) else x * y
    return operand(x) * operand(y)


def _quotient(x: Value, y: Value) -> Value:
    """Towards 0; 0 where y is 0."""
    if isinstance(y, int) and y > 0:
        if isinstance(x, int):
            return x // y if x >= 0 else -(-x // y)
        if isinstance(x, Affine) and x.low >= 0:
            if x.low // y == x.high // y:
                return x.low // y
            if x.shared % y == 0:
                return Affine(x.known.over(y), x.shared // y)
    return _divided("div", x, y)


def _remainder(x: Value, y: Value) -> Value:
    """With the sign of x; 0 where y is 0."""
    if isinstance(y, int) and y > 0:
        if isinstance(x, int):
            return x % y if x >= 0 else -(-x % y)
        if isinstance(x, Affine) and x.low >= 0:
            if x.low // y == x.high // y:
                return Affine(x.known, x.shared - x.low // y * y)
            if x.shared % y == 0:
                return affine(x.known.modulo(y), 0)
    return _divided("rem", x, y)


def _divided(op: str, x: Value, y: Value) -> Value:
    left, right = np.asarray(operand(x)), np.asarray(operand(y))
    if op == "div" and not right.ndim and left.ndim and right > 0 and np.minimum.reduce(left) >= 0:
        return left // right
    found = apply(op, (left, right), i64)
    return found if found.ndim else int(found)


def _smaller(x: Value, y: Value) -> Value:
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    if isinstance(x, Affine) and isinstance(y, int):
        return affine(x.known.at_most(y - x.shared), x.shared)
    return np.minimum(operand(x), operand(y))


def _larger(x: Value, y: Value) -> Value:
    if isinstance(x, int) and isinstance(y, int):
        return max(x, y)
    if isinstance(x, Affine) and isinstance(y, int) and (x.low >= y or x.high <= y):
        return x if x.low >= y else y
    return np.maximum(operand(x), operand(y))


def less(x: Value, y: Value) -> Value:
    if isinstance(x, Affine) and isinstance(y, int):
        if x.high < y or x.low >= y:
            return x.high < y
        return x.known.first < y - x.shared
    return operand(x) < operand(y)


def _less_equal(x: Value, y: Value) -> Value:
    return less(x, y + 1) if isinstance(x, Affine) and isinstance(y, int) else operand(x) <= operand(y)


def _equal(x: Value, y: Value) -> Value:
    if isinstance(x, int):
        x, y = y, x
    if isinstance(x, Affine) and isinstance(y, int):
        return x.known.first == y - x.shared if x.low <= y <= x.high else False
    return operand(x) == operand(y)


def _not_equal(x: Value, y: Value) -> Value:
    found = _equal(x, y)
    return not found if isinstance(found, bool) else ~operand(found)


def _exclusive(x: Value, y: Value) -> Value:
    if isinstance(x, int):
        x, y = y, x
    if isinstance(x, Affine) and not x.shared:
        if isinstance(y, int):
            return affine(x.known.xor(y), 0)
        if isinstance(y, Affine) and not y.shared:
            return affine(x.known.xor(y.known), 0)
    return operand(x) ^ operand(y)


def inverted(x: Value) -> Value:
    return not x if isinstance(x, bool) else ~operand(x)


_Binary: TypeAlias = Callable[[Value, Value], Value]
COMPARISONS: dict[str, _Binary] = {
    "equal": _equal,
    "not_equal": _not_equal,
    "less": less,
    "less_equal": _less_equal,
    "greater": lambda x, y: less(y, x),
    "greater_equal": lambda x, y: _less_equal(y, x),
}
INTEGERS: dict[str, _Binary] = {
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "div": _quotient,
    "rem": _remainder,
    "minimum": _smaller,
    "maximum": _larger,
}
"""Of i64."""
BITS: dict[str, _Binary] = {
    "bit_and": lambda x, y: operand(x) & operand(y),
    "bit_or": lambda x, y: operand(x) | operand(y),
    "bit_xor": _exclusive,
}
"""Of i64 and bool."""

__all__ = ["BITS", "COMPARISONS", "INTEGERS", "apply", "inverted", "less", "operand"]
