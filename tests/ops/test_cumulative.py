"""Running reductions against loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, INTEGERS, DType, bf16, bool_, c64, f16, i8
from dovetail.ops import cumulative
from dovetail.ops.primitive import Primitive
from tests.ops.meaning import Array, array, meaning, wrapped
from tests.tolerances import assert_close

STEPS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[DType], Any]]] = {
    "cum_sum": (lambda a, b: a + b, lambda d: 0),
    "cum_prod": (lambda a, b: a * b, lambda d: 1),
    "cum_max": (max, lambda d: int(np.iinfo(d.numpy).min) if d.is_integer else -math.inf),
    "cum_min": (min, lambda d: int(np.iinfo(d.numpy).max) if d.is_integer else math.inf),
}


def _looped(name: str, dtype: DType, x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    step, start = STEPS[name]
    result = np.empty(x.shape, object)
    for place in np.ndindex(*x.shape[:axis], *x.shape[axis + 1 :]):
        total = start(dtype)
        for i in reversed(range(x.shape[axis])) if reverse else range(x.shape[axis]):
            at = (*place[:axis], i, *place[axis:])
            after = step(total, x[at].item())
            result[at] = total if exclusive else after
            total = after
    return result


@pytest.mark.parametrize(("exclusive", "reverse"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize("op", cumulative.FAMILY, ids=str)
def test_running_reductions(op: Primitive, dtype: DType, exclusive: bool, reverse: bool) -> None:
    generator = np.random.default_rng(2)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        x = generator.integers(limits.min, limits.max, (2, 4, 3), dtype.numpy, endpoint=True)
    else:
        x = array(dtype, generator.normal(size=(2, 4, 3)))
    for axis in range(3):
        got = meaning(op, x, axis=axis, exclusive=exclusive, reverse=reverse)
        exact = x if dtype.is_integer else x.astype(np.float64)
        expected = _looped(op.name, dtype, exact, axis, exclusive, reverse)
        if dtype.is_integer:
            assert got.reshape(-1).tolist() == [wrapped(n, dtype) for n in expected.reshape(-1)]
        else:
            assert_close(got, expected.astype(np.float64), dtype, scale=0.1)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_narrow_sums_do_not_stop_growing(dtype: DType) -> None:
    assert meaning(ops.cum_sum, np.ones(4096, dtype.numpy), axis=0)[-1] == 4096


def test_complex_numbers() -> None:
    x = np.array([1 + 1j, 2j, -3], np.complex64)
    assert meaning(ops.cum_sum, x, axis=0).tolist() == [1 + 1j, 1 + 3j, -2 + 3j]
    assert meaning(ops.cum_prod, x, axis=0).tolist() == [1 + 1j, -2 + 2j, 6 - 6j]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_stays(dtype: DType) -> None:
    x = array(dtype, [1.0, math.nan, 2.0])
    for op in cumulative.FAMILY:
        assert np.isnan(meaning(op, x, axis=0).astype(np.float64)).tolist() == [False, True, True]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 3)])
@pytest.mark.parametrize("op", cumulative.FAMILY, ids=str)
def test_empty_and_single_axes(op: Primitive, shape: tuple[int, int]) -> None:
    for exclusive, reverse in itertools.product([False, True], repeat=2):
        assert meaning(op, np.ones(shape, np.float32), axis=0, exclusive=exclusive, reverse=reverse).shape == shape


def test_what_has_no_order_or_no_sum_is_refused() -> None:
    with pytest.raises(TypeRuleError, match="cum_max of c64"):
        ops.cum_max(leaf.constant(np.zeros(2, c64.numpy)), axis=0)
    with pytest.raises(TypeRuleError, match="cum_sum of bool"):
        ops.cum_sum(leaf.constant(np.zeros(2, bool_.numpy)), axis=0)
    with pytest.raises(TypeRuleError, match="axis 1"):
        ops.cum_sum(leaf.constant(np.zeros(2, i8.numpy)), axis=1)
