"""Runs primitives by their meanings, and holds every result against the type that its rule promised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, evaluate, symbols
from dovetail.ir.dtype import DType, bool_, whole_range
from dovetail.ir.type import TensorType, tensors
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops.primitive import Primitive

Array = NDArray[Any]


def meaning(op: Primitive, *arrays: Array, **attrs: Any) -> Array:
    """What one primitive with one result makes of arrays."""
    (result,) = meanings(op, *arrays, **attrs)
    return result


def meanings(op: Primitive, *arrays: Array, **attrs: Any) -> tuple[Array, ...]:
    """What one primitive makes of arrays."""
    return _Run().results(op(*(leaf.constant(a) for a in arrays), **attrs))


def run(value: Value) -> Array:
    """The array of a value over constants."""
    (result,) = _Run().results(value)
    return result


def array(dtype: DType, numbers: Any) -> Array:
    """Numbers in a dtype, rounded where it is narrow."""
    if dtype.is_integer:
        return np.array(numbers, dtype.numpy)
    return np.asarray(numbers).astype(dtype.numpy)


def wrapped(number: int, dtype: DType) -> int:
    """A whole number as a dtype of so many bits holds it."""
    lowest = -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
    return (number - lowest) % 2**dtype.bits + lowest


def nasty(dtype: DType) -> Array:
    """The numbers of a dtype where things go wrong."""
    if dtype is bool_:
        return np.array([False, True])
    if dtype.is_integer:
        least, largest = whole_range(dtype)
        return np.array([wrapped(n, dtype) for n in (0, 1, 2, 3, 7, least, largest, largest - 1)], dtype.numpy)
    numbers = [0.0, -0.0, 1.0, -1.5, 2.5, 1e4, math.inf, -math.inf, math.nan]
    return array(dtype, numbers)


def same(got: Array, expected: list[float]) -> None:
    """Equal to the sign of zero; NaN where NaN is expected."""
    for a, b in zip(got.astype(np.float64).tolist(), expected, strict=True):
        assert (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b)), (got, b)


class _Run:
    def __init__(self) -> None:
        self.sizes: dict[str, Size] = {}

    def results(self, output: Value) -> tuple[Array, ...]:
        found: dict[Value, tuple[Array, ...]] = {}
        for value in walk([output]):
            if value.op is leaf.CONST:
                found[value] = (value.attrs["value"].array,)
            elif value.op is leaf.ITEM:
                found[value] = (found[value.operands[0]][value.attrs["index"]],)
            else:
                found[value] = self.compute(value, [found[v][0] for v in value.operands])
        return found[output]

    def compute(self, value: Value, operands: list[Array]) -> tuple[Array, ...]:
        assert isinstance(value.op, Primitive)
        result = value.op.compute(*operands, **{k: self.attribute(a) for k, a in value.attrs.items()})
        results = result if isinstance(result, tuple) else (result,)
        for found, type in zip(results, tensors(value.type), strict=True):
            self.check(value, found, type)
        return results

    def attribute(self, attr: Any) -> Any:
        if isinstance(attr, tuple):
            return tuple(self.attribute(a) for a in attr)  # pyright: ignore[reportUnknownVariableType]
        known = isinstance(attr, Dim) and symbols(attr) <= self.sizes.keys()
        return evaluate(attr, self.sizes) if known else attr

    def check(self, value: Value, found: Array, type: TensorType) -> None:
        assert found.dtype == type.dtype.numpy, f"{value.op.name} gave {found.dtype}, its type is {type}"
        assert found.ndim == type.rank, f"{value.op.name} gave {found.shape}, its type is {type}"
        for size, actual in zip(type.shape, found.shape, strict=True):
            if isinstance(size, Dim) and str(size) in symbols(size):
                self.sizes.setdefault(str(size), actual)
            assert evaluate(size, self.sizes) == actual, f"{value.op.name} gave {found.shape}, its type is {type}"
