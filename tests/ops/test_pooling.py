"""Pools against a list of the elements under each window."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail import ops
from dovetail.errors import BindError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bf16, f16, f32, f64, i32, u8
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops.primitive import Primitive
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    ceil: bool = False

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            "window": self.window,
            "strides": self.strides,
            "dilations": self.dilations,
            "padding": (*self.before, *self.after),
            "ceil": self.ceil,
        }


def places(case: Case, axis: int) -> int:
    """Counted one by one: a window fits, or in ceil mode hangs over but starts before the padding at the end."""
    length, reach = case.shape[2 + axis], (case.window[axis] - 1) * case.dilations[axis] + 1
    padded = length + case.before[axis] + case.after[axis]
    count, start = 0, 0
    while start + reach <= padded:
        count, start = count + 1, start + case.strides[axis]
    # The window that hangs over is there only if something is left that no window has reached.
    left_over = start - case.strides[axis] + reach < padded
    return count + int(case.ceil and left_over and start < length + case.before[axis])


def pooled(x: Array, case: Case, of: Callable[[list[float], int, list[int]], float]) -> Array:
    """`of` the elements under each window, how many taps lie on the array or its padding, and their flat places."""
    out = [places(case, i) for i in range(x.ndim - 2)]
    y = np.zeros((*x.shape[:2], *out))
    for n, c, *place in np.ndindex(*y.shape):
        elements: list[float] = []
        flat: list[int] = []
        on_padded = 0
        for tap in np.ndindex(*case.window):
            at = [
                p * s + t * d - b
                for p, s, t, d, b in zip(place, case.strides, tap, case.dilations, case.before, strict=True)
            ]
            if all(0 <= i < size for i, size in zip(at, x.shape[2:], strict=True)):
                elements.append(float(x[(n, c, *at)]))
                flat.append(int(np.ravel_multi_index(at, x.shape[2:])))
            on_padded += all(
                -b <= i < size + a for i, size, b, a in zip(at, x.shape[2:], case.before, case.after, strict=True)
            )
        y[(n, c, *place)] = of(elements, on_padded, flat)
    return y


CASES = [
    Case((2, 3, 8), (3,), (1,), (1,), (0,), (0,)),
    Case((1, 2, 9), (3,), (2,), (1,), (1,), (0,)),
    Case((1, 2, 9), (3,), (2,), (2,), (1,), (1,), True),
    Case((2, 2, 5, 6), (2, 3), (2, 2), (1, 1), (0, 1), (1, 0)),
    Case((1, 2, 6, 6), (3, 3), (2, 2), (1, 1), (0, 0), (0, 0), True),
    Case((1, 1, 4, 5), (2, 2), (3, 3), (1, 1), (1, 1), (1, 1), True),
    Case((1, 1, 5, 7), (2, 3), (1, 2), (2, 2), (1, 2), (0, 3)),
    Case((1, 2, 4, 5, 4), (2, 2, 3), (2, 1, 2), (1, 2, 1), (1, 0, 1), (0, 1, 1), True),
    Case((0, 2, 4), (2,), (1,), (1,), (0,), (0,)),
]


def numbers(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(len(shape)).integers(-9, 10, shape).astype(np.float64)


def run(value: Value, x: Array) -> Array:
    found = evaluate(Graph.of(value), {"x": x})["y"]
    assert value.shape == found.shape or not value.tensor.is_static
    return found


@pytest.mark.parametrize("case", CASES)
def test_max_pool(case: Case) -> None:
    x = numbers(case.shape)
    found = run(ops.max_pool(leaf.input("x", f64[case.shape]), **case.attrs), x)
    assert found.tolist() == pooled(x, case, lambda e, n, f: max(e)).tolist()


@pytest.mark.parametrize("case", CASES)
def test_max_pool_with_indices(case: Case) -> None:
    x = numbers(case.shape)
    both = ops.max_pool_indices(leaf.input("x", f64[case.shape]), **case.attrs)
    assert run(both[0], x).tolist() == pooled(x, case, lambda e, n, f: max(e)).tolist()
    indices = run(both[1], x)
    assert indices.dtype == np.int64
    # list.index finds the first of equals.
    assert indices.tolist() == pooled(x, case, lambda e, n, f: f[e.index(max(e))]).tolist()


@pytest.mark.parametrize("case", CASES)
def test_average_pool(case: Case) -> None:
    x, value = numbers(case.shape), leaf.input("x", f64[case.shape])
    alone = run(ops.average_pool(value, **case.attrs), x)
    padded = run(ops.average_pool(value, **case.attrs, count_padding=True), x)
    assert_close(alone, pooled(x, case, lambda e, n, f: sum(e) / len(e)), f64)
    assert_close(padded, pooled(x, case, lambda e, n, f: sum(e) / n), f64)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("case", CASES[:5])
def test_lp_pool(case: Case, p: float) -> None:
    x = numbers(case.shape)
    found = run(ops.lp_pool(leaf.input("x", f64[case.shape]), **case.attrs, p=p), x)
    assert_close(found, pooled(x, case, lambda e, n, f: math.fsum(abs(v) ** p for v in e) ** (1 / p)), f64)


def test_ceil_mode_by_hand() -> None:
    x = np.array([[[1, 2, 3, 4, 5]]], np.float32)
    value = leaf.input("x", f32[1, 1, 5])
    assert run(ops.max_pool(value, window=2, strides=2), x).tolist() == [[[2, 4]]]
    assert run(ops.max_pool(value, window=2, strides=2, ceil=True), x).tolist() == [[[2, 4, 5]]]
    # The part of the last window beyond the padding counts for nothing, even where padding counts.
    hanging = ops.average_pool(value, window=3, strides=3, padding=(0, 0), ceil=True, count_padding=True)
    assert run(hanging, x).tolist() == [[[2, 4.5]]]
    # A window that would start in the padding behind is left out: 4 elements, windows at -1, 1, 3, not at 5.
    four = ops.max_pool(leaf.input("x", f32[1, 1, 4]), window=2, strides=2, padding=1, ceil=True)
    assert run(four, x[..., :4]).tolist() == [[[1, 3, 4]]]


def test_padding_never_wins_and_nan_does() -> None:
    x = np.array([[[-np.inf, -3, np.nan, 5]]], np.float32)
    both = ops.max_pool_indices(leaf.input("x", f32[1, 1, 4]), window=2, padding=1)
    values, places_ = run(both[0], x)[0, 0], run(both[1], x)[0, 0]
    assert values[0] == -np.inf and values[1] == -3 and np.isnan(values[2:4]).all() and values[4] == 5
    assert places_.tolist() == [0, 1, 2, 2, 3]


def test_every_dtype() -> None:
    x = numbers((1, 2, 6))
    case = Case((1, 2, 6), (2,), (1,), (1,), (1,), (0,))
    for dtype in (i32, f16, bf16, f32):
        value = leaf.input("x", dtype[1, 2, 6])
        expected = pooled(x, case, lambda e, n, f: max(e))
        assert_close(run(ops.max_pool(value, **case.attrs), x.astype(dtype.numpy)), expected, dtype)
        if dtype.is_float:
            mean = pooled(x, case, lambda e, n, f: sum(e) / len(e))
            assert_close(run(ops.average_pool(value, **case.attrs), x.astype(dtype.numpy)), mean, dtype)
    small = ops.max_pool(leaf.input("x", u8[1, 1, 2]), window=2, padding=1)
    assert run(small, np.array([[[0, 7]]], np.uint8)).tolist() == [[[0, 7, 7]]]
    with pytest.raises(TypeRuleError, match="i32"):
        ops.average_pool(leaf.input("x", i32[1, 2, 6]), window=2)


@pytest.mark.parametrize("ceil", [False, True])
def test_symbolic_sizes(ceil: bool) -> None:
    s = symbol("s")
    value = ops.max_pool(leaf.input("x", TensorType(f32, (1, 1, s))), window=3, strides=2, padding=1, ceil=ceil)
    for size in range(1, 9):
        case = Case((1, 1, size), (3,), (2,), (1,), (1,), (1,), ceil)
        x = numbers(case.shape)
        assert run(value, x.astype(np.float32)).tolist() == pooled(x, case, lambda e, n, f: max(e)).tolist()
    with pytest.raises(BindError, match="at least"):
        run(value, np.ones((1, 1, 0), np.float32))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"window": 9}, "reach"),
    ({"window": 0}, "window"),
    ({"window": (2, 2)}, "2 numbers"),
    ({"window": 2, "padding": 2}, "padding"),
    ({"window": 2, "strides": 0}, "strides"),
    ({}, "needs window"),
]


@pytest.mark.parametrize(("attrs", "said"), REFUSED)
def test_what_a_pool_does_not_take(attrs: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeRuleError, match=said) as caught:
        ops.max_pool(leaf.input("x", f32[1, 1, 8]), **attrs)
    assert caught.value.hint


def test_p_is_above_0() -> None:
    with pytest.raises(TypeRuleError, match="p = 0"):
        ops.lp_pool(leaf.input("x", f32[1, 1, 8]), window=2, p=0)


def test_flops() -> None:
    value = ops.max_pool_indices(leaf.input("x", f32[2, 3, 8]), window=3)
    assert isinstance(value.op, Primitive)
    assert value.op.flops(value.type, tuple(v.type for v in value.operands), value.attrs) == 2 * 3 * 6 * 3
