"""Reductions against sums written out in Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, INTEGERS, NUMBERS, SIGNED, DType, bf16, bool_, c64, f16, f32, i64
from dovetail.ops import reduction
from dovetail.ops.primitive import Primitive
from tests.ops.meaning import Array, array, meaning, run, wrapped
from tests.tolerances import assert_close

SHAPE = (2, 3, 4)
WHOLE: dict[Primitive, Callable[[list[Any]], Any]] = {
    ops.reduce_sum: sum,
    ops.reduce_prod: math.prod,
    ops.reduce_max: max,
    ops.reduce_min: min,
}
REAL: dict[Primitive, Callable[[list[Any]], Any]] = {
    **WHOLE,
    ops.reduce_sum: math.fsum,
    ops.reduce_mean: lambda group: math.fsum(group) / len(group),
}
AXES = [axes for n in range(4) for axes in itertools.combinations((-3, -2, -1), n)]


def _written_out(x: Array, axes: tuple[int, ...], function: Callable[[list[Any]], Any]) -> list[Any]:
    """The function of every group of elements, with the groups in the order of memory."""
    groups: dict[tuple[int, ...], list[Any]] = {}
    for place in np.ndindex(x.shape):
        key = tuple(0 if i - x.ndim in axes else p for i, p in enumerate(place))
        groups.setdefault(key, []).append(x[place].item())
    return [function(groups[key]) for key in sorted(groups)]


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_whole_numbers(dtype: DType, axes: tuple[int, ...]) -> None:
    limits = np.iinfo(dtype.numpy)
    x = np.random.default_rng(0).integers(limits.min, limits.max, SHAPE, dtype.numpy, endpoint=True)
    for op, function in WHOLE.items():
        got = meaning(op, x, axes=axes)
        assert got.shape == tuple(1 if i - 3 in axes else s for i, s in enumerate(SHAPE))
        assert got.reshape(-1).tolist() == [wrapped(n, dtype) for n in _written_out(x, axes, function)]


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(dtype: DType, axes: tuple[int, ...]) -> None:
    x = array(dtype, np.random.default_rng(1).normal(size=SHAPE))
    exact = x.astype(np.float64)
    for op, function in REAL.items():
        got = meaning(op, x, axes=axes)
        expected = np.array(_written_out(exact, axes, function)).reshape(got.shape)
        assert_close(got, expected, dtype, scale=0.1)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_narrow_sums_do_not_stop_growing(dtype: DType, axis: int) -> None:
    """Added up one by one in its own type, 1 + 1 + ... stays at 256 in bf16 and at 2048 in f16."""
    x = np.ones((4096, 2) if axis == 0 else (2, 4096), dtype.numpy)
    assert meaning(ops.reduce_sum, x, axes=(axis,)).reshape(-1).tolist() == [4096, 4096]
    assert meaning(ops.reduce_mean, x, axes=(axis,)).reshape(-1).tolist() == [1, 1]


def test_a_narrow_mean_does_not_overflow() -> None:
    x = np.full(100, 60000, np.float16)
    assert meaning(ops.reduce_mean, x, axes=0).tolist() == [60000]
    assert meaning(ops.reduce_sum, x, axes=0).tolist() == [np.inf]


def test_complex_numbers_add_up_and_have_no_order() -> None:
    x = np.array([1 + 2j, 3 - 5j], np.complex64)
    assert meaning(ops.reduce_sum, x, axes=0).tolist() == [4 - 3j]
    assert meaning(ops.reduce_mean, x, axes=0).tolist() == [2 - 1.5j]
    assert meaning(ops.reduce_prod, x, axes=0).tolist() == [(1 + 2j) * (3 - 5j)]
    for op, attrs in ((ops.reduce_max, {"axes": 0}), (ops.reduce_min, {"axes": 0}), (ops.arg_max, {"axis": 0})):
        with pytest.raises(TypeRuleError, match="of c64"):
            op(leaf.constant(x), **attrs)


def test_bool() -> None:
    x = np.array([[False, True], [False, False], [True, True]])
    assert meaning(ops.reduce_any, x, axes=1).tolist() == [[True], [False], [True]]
    assert meaning(ops.reduce_all, x, axes=1).tolist() == [[False], [False], [True]]
    assert meaning(ops.reduce_max, x, axes=1).tolist() == [[True], [False], [True]]
    assert meaning(ops.reduce_min, x, axes=1).tolist() == [[False], [False], [True]]
    with pytest.raises(TypeRuleError, match="reduce_sum of bool"):
        ops.reduce_sum(leaf.constant(x), axes=1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_wins(dtype: DType) -> None:
    x = array(dtype, [[1.0, math.nan, -math.inf], [math.inf, 2.0, -3.0]])
    assert np.isnan(meaning(ops.reduce_max, x, axes=1).astype(np.float64)).tolist() == [[True], [False]]
    assert np.isnan(meaning(ops.reduce_min, x, axes=1).astype(np.float64)).tolist() == [[True], [False]]
    assert meaning(ops.arg_max, x, axis=1).tolist() == [[1], [0]]
    assert meaning(ops.arg_min, x, axis=1).tolist() == [[1], [2]]


@pytest.mark.parametrize("dtype", [*NUMBERS, bool_], ids=str)
def test_reductions_of_nothing(dtype: DType) -> None:
    empty = np.zeros((2, 0), dtype.numpy)
    limits = np.iinfo(dtype.numpy) if dtype.is_integer else None
    low = limits.min if limits else False if dtype is bool_ else -math.inf
    high = limits.max if limits else True if dtype is bool_ else math.inf
    if dtype is not bool_:
        assert meaning(ops.reduce_sum, empty, axes=1).tolist() == [[0], [0]]
        assert meaning(ops.reduce_prod, empty, axes=1).tolist() == [[1], [1]]
    if dtype is not c64:
        assert meaning(ops.reduce_max, empty, axes=1).tolist() == [[low], [low]]
        assert meaning(ops.reduce_min, empty, axes=1).tolist() == [[high], [high]]
    if dtype.is_inexact:
        assert np.isnan(meaning(ops.reduce_mean, empty, axes=1).astype(np.complex128)).all()


@pytest.mark.parametrize("op", reduction.FAMILY, ids=str)
def test_nothing_beside_the_axis_stays_nothing(op: Primitive) -> None:
    dtype = bool_ if op in (ops.reduce_any, ops.reduce_all) else f32
    named: dict[str, Any] = {"axis": 1} if op in (ops.arg_max, ops.arg_min) else {"axes": 1}
    assert meaning(op, np.zeros((0, 3), dtype.numpy), **named).shape == (0, 1)


@pytest.mark.parametrize("dtype", [*SIGNED, *FLOATS], ids=str)
def test_first_and_last_of_equals(dtype: DType) -> None:
    x = array(dtype, [[3, 1, 3, 1, 2], [0, 0, 0, 0, 0]])
    assert meaning(ops.arg_max, x, axis=-1).tolist() == [[0], [0]]
    assert meaning(ops.arg_max, x, axis=-1, last=True).tolist() == [[2], [4]]
    assert meaning(ops.arg_min, x, axis=-1).tolist() == [[1], [0]]
    assert meaning(ops.arg_min, x, axis=-1, last=True).tolist() == [[3], [4]]
    assert meaning(ops.arg_max, x, axis=0).tolist() == [[0] * 5]


def test_an_index_needs_an_axis_that_is_not_empty() -> None:
    with pytest.raises(TypeRuleError, match="0 and 1"):
        ops.arg_max(leaf.input("x", f32[2, 0]), axis=1)
    found = ops.arg_max(leaf.input("x", f32[2, "s"]), axis=1)
    assert [str(c) for c in found.constraints] == ["s at_least 1"]
    assert found.tensor == i64[2, 1]


def test_axes_are_counted_from_the_end_and_named_once() -> None:
    x = leaf.input("x", f32[2, "s", 4])
    assert ops.reduce_sum(x, axes=(0, 2)) is ops.reduce_sum(x, axes=(-1, -3))
    assert str(ops.reduce_sum(x, axes=(0, 2)).type) == "f32[1, s, 1]"
    with pytest.raises(TypeRuleError, match="twice"):
        ops.reduce_sum(x, axes=(0, -3))
    with pytest.raises(TypeRuleError, match="axis 3"):
        ops.reduce_sum(x, axes=3)


def test_flops_count_what_is_read() -> None:
    x = leaf.input("x", f32[2, "s", 4])
    total = ops.reduce_sum(x, axes=(-1,))
    assert str(ops.reduce_sum.flops(total.type, (x.type,), total.attrs)) == "8*s"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_lengths(dtype: DType) -> None:
    x = array(dtype, [[3.0, -4.0], [0.0, -2.0]])
    value = leaf.constant(x)
    assert run(ops.reduce_l1(value, axes=(-1,))).tolist() == [[7], [2]]
    assert run(ops.reduce_l2(value, axes=(-1,))).tolist() == [[5], [2]]
    assert run(ops.reduce_sum_square(value, axes=(-1,))).tolist() == [[25], [4]]


def _log_sum_exp(numbers: Sequence[float]) -> float:
    if math.inf in numbers:
        return math.inf
    top = max(numbers)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(n - top) for n in numbers))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_log_sum_exp_neither_overflows_nor_makes_nan(dtype: DType) -> None:
    inf = math.inf
    rows = [[1.0, 2.0, 3.0], [2000.0, 2000.0, 0.0], [-inf, -inf, -inf], [-inf, 4.0, -inf], [inf, 0.0, -inf]]
    got = run(ops.reduce_log_sum_exp(leaf.constant(array(dtype, rows)), axes=(-1,)))
    assert_close(got, np.array([[_log_sum_exp(r)] for r in rows]), dtype)
    nan = run(ops.reduce_log_sum_exp(leaf.constant(array(dtype, [[1.0, math.nan]])), axes=(-1,)))
    assert math.isnan(float(nan[0, 0]))
