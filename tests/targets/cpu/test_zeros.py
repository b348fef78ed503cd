"""The sign of zero and the way of NaN: kernels agree with the reference, alone and fused, at every length."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail import Builder, Value, ops
from dovetail.dtypes import f32, f64
from dovetail.ir.dtype import DType

Array = NDArray[Any]
NUMBERS = (-0.0, 0.0, -1.0, 1.0, float("nan"), float("inf"), float("-inf"), 6.0, 7.0, 1e-40, -1e-40)
UNARY: dict[str, Callable[[Value], Value]] = {
    "relu": ops.relu,
    "abs": ops.abs_,
    "neg": lambda x: -x,
    "sign": ops.sign,
    "leaky_relu": lambda x: ops.leaky_relu(x, slope=0.1),
    "prelu": lambda x: ops.prelu(x, 0.0),
    "relu6": ops.relu6,
    "clip": lambda x: ops.clip(x, -1.0, 1.0),
    "clip_at_zero": lambda x: ops.clip(x, 0.0, 6.0),
    "clip_below_zero": lambda x: ops.clip(x, -2.0, 0.0),
    "maximum_first": lambda x: ops.maximum(0.0, x),
    "maximum_negative": lambda x: ops.maximum(x, -0.0),
    "minimum": lambda x: ops.minimum(x, 0.0),
    "minimum_negative": lambda x: ops.minimum(x, -0.0),
    "where": lambda x: ops.where(ops.less(x, 0.0), 0.0, x),
    "elu": ops.elu,
    "hard_sigmoid": ops.hard_sigmoid,
    "hard_swish": ops.hard_swish,
    "threshold": ops.threshold,
    "floor": ops.floor,
    "ceil": ops.ceil,
    "round": ops.round_,
    "sqrt": ops.sqrt,
}


def same(found: Array, wanted: Array) -> None:
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    real = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[real]), np.signbit(wanted[real]))
    np.testing.assert_allclose(found[real], wanted[real], rtol=1e-5)


def both(graph: dovetail.Graph, strict: bool, **feeds: Array) -> tuple[Array, Array]:
    cpu, reference = (
        dovetail.compile(graph, target=target, strict=strict, cache="off")(**feeds)["y"]
        for target in ("cpu", "reference")
    )
    return cpu, reference


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name: str, dtype: DType) -> None:
    function = UNARY[name]
    wraps: tuple[Callable[[Value], Value], ...] = (lambda y: y, lambda y: 1.0 / y, lambda y: 1.0 / function(-y))
    # Each wrap meets a strict program of 3 numbers in one dtype, and one of 77 that may reassociate in the other.
    for number, wrap in enumerate(wraps):
        count = (3, 77)[(number + (dtype is f64)) % 2]
        x = np.resize(np.array(NUMBERS), count).astype(dtype.numpy)
        b = Builder("g")
        b.output("y", wrap(function(b.input("x", dtype[count]))))
        same(*both(b.graph(), count == 3, x=x))


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_of_two_numbers_order_zeros(name: str) -> None:
    pairs = np.array(list(itertools.product(NUMBERS, NUMBERS)), np.float32)
    x, z = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    b = Builder("g")
    b.output("y", getattr(ops, name)(b.input("x", f32[len(x)]), b.input("z", f32[len(x)])))
    cpu, reference = both(b.graph(), False, x=x, z=z)
    same(cpu, reference)
    zeros = (x == 0) & (z == 0)
    negative = np.signbit(x) & np.signbit(z) if name == "maximum" else np.signbit(x) | np.signbit(z)
    np.testing.assert_array_equal(np.signbit(cpu[zeros]), negative[zeros])
