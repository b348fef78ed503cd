"""Builders that ask for shapes, held against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.errors import DovetailError, TraceError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, bool_, f64, i32, i64
from dovetail.ir.leaf import hole, input
from dovetail.ops import build
from dovetail.targets.reference.interpreter import evaluate
from tests.ops.meaning import run

Array = NDArray[Any]


def numbers(*shape: int) -> Array:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def check(function: Callable[[Value], Value], array: Array, wanted: Array) -> Value:
    """The builder on a constant gives what NumPy gives."""
    value = function(leaf.constant(array))
    got = run(value)
    assert got.dtype == wanted.dtype
    assert value.shape == wanted.shape
    assert np.array_equal(got, wanted)
    return value


# Order of axes.


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (-1, 0, 1), (1, 0, 2)])
def test_transpose(order: tuple[int, ...]) -> None:
    check(lambda x: build.transpose(x, order), numbers(2, 3, 4), np.transpose(numbers(2, 3, 4), order))


def test_transpose_is_written_for_the_last_axes_only() -> None:
    x = input("x", f32[2, 3, 4, 5])
    assert build.transpose(x, (0, 1, 3, 2)) is ops.permute(x, order=(-1, -2))
    assert build.transpose(x, (0, 1, 2, 3)) is x
    assert build.transpose(x) is ops.permute(x, order=(-1, -2, -3, -4))


@pytest.mark.parametrize("order", [(0, 1), (0, 0, 1), (0, 1, 3)])
def test_transpose_names_each_axis_once(order: tuple[int, ...]) -> None:
    with pytest.raises(TypeRuleError):
        build.transpose(input("x", f32[2, 3, 4]), order)


@pytest.mark.parametrize(("a", "b"), list(product(range(-3, 3), range(-3, 3))))
def test_swap_and_move(a: int, b: int) -> None:
    check(lambda x: build.swap(x, a, b), numbers(2, 3, 4), np.swapaxes(numbers(2, 3, 4), a, b))
    check(lambda x: build.move_axis(x, a, b), numbers(2, 3, 4), np.moveaxis(numbers(2, 3, 4), a, b))


def test_swap_fits_into_a_pattern() -> None:
    x = hole("x")
    assert build.swap(x, -1, -2) is ops.permute(x, order=(-1, -2))
    assert build.swap(x, -3, -1) is ops.permute(x, order=(-1, -2, -3))
    assert build.swap(x, -2, -3) is ops.permute(x, order=(-2, -3, -1))
    assert build.swap(x, -2, -2) is x
    with pytest.raises(TraceError):
        build.swap(x, 0, -1)


# Axes of size 1, and broadcasts.


def test_expand_and_squeeze_dims() -> None:
    check(lambda x: build.expand_dims(x, (0, -1)), numbers(2, 3), numbers(1, 2, 3, 1))
    check(lambda x: build.expand_dims(x, 1), numbers(2, 3), numbers(2, 1, 3))
    check(lambda x: build.squeeze_dims(x), numbers(1, 2, 1, 3), numbers(2, 3))
    check(lambda x: build.squeeze_dims(x, 0), numbers(1, 2, 1, 3), numbers(2, 1, 3))
    x = input("x", f32["n", 3])
    assert build.squeeze_dims(x) is x
    assert build.expand_dims(x, ()) is x
    assert [str(c) for c in build.squeeze_dims(x, 0).constraints] == ["n equals 1"]
    with pytest.raises(TypeRuleError):
        build.squeeze_dims(x, 1)


@pytest.mark.parametrize("shape", [(2, 3), (5, 2, 3), (4, 1, 2, 3)])
def test_broadcast_to(shape: tuple[int, ...]) -> None:
    check(lambda x: build.broadcast_to(x, shape), numbers(2, 1), np.broadcast_to(numbers(2, 1), shape))


def test_broadcast_to_its_own_shape_is_nothing() -> None:
    x = input("x", f32["n", 3])
    assert build.broadcast_to(x, x.shape) is x


def test_broadcast_of_what_may_not_fit() -> None:
    x, s = input("x", f32["n", 3]), symbol("s")
    stretched = build.broadcast_to(x, (s, 3))
    assert stretched.shape == (s, 3)
    assert [str(c) for c in stretched.constraints] == ["n equals s"]
    with pytest.raises(TypeRuleError, match="only 1 does"):
        build.broadcast_to(x, (s, 4))
    with pytest.raises(TypeRuleError):
        build.broadcast_to(x, (3,))


def test_full() -> None:
    for dtype in (f32, i32, bool_):
        check(lambda x: build.full((2, 3), 1, x.dtype), np.zeros((), dtype.numpy), np.ones((2, 3), dtype.numpy))
    check(lambda x: build.zeros((0, 2), x.dtype), numbers(1), np.zeros((0, 2), np.float32))
    check(lambda x: build.full_like(x, 3), numbers(2, 2), np.full((2, 2), 3, np.float32))


# Slices.

_BOUNDS = (None, 0, 1, 3, 4, 5, 9, 2**63 - 1, -1, -3, -4, -5, -(2**63))


@pytest.mark.parametrize("step", [1, 2, 3, 5, -1, -2, -3])
def test_slices_count_as_python_does(step: int) -> None:
    array = numbers(2, 4)
    for start, stop in product(_BOUNDS, _BOUNDS):
        cut = build.slice_axis(leaf.constant(array), axis=1, start=start, stop=stop, step=step)
        wanted = array[:, start:stop:step]
        assert cut.shape == wanted.shape
        assert np.array_equal(run(cut), wanted), (start, stop, step)


def test_slices_in_their_simplest_form() -> None:
    x = input("x", f32[2, 8])
    assert build.slice_axis(x, axis=-1) is x
    assert build.slice_axis(x, axis=1, start=4, stop=2**63 - 1) is ops.part(x, axis=-1, index=1, parts=2)
    assert build.slice_axis(x, axis=1, start=1, stop=4) is ops.slice_(x, axis=-1, start=1, stop=4)
    assert build.slice_axis(x, axis=1, step=-1) is ops.flip(x, axes=(-1,))


def test_slices_of_a_symbolic_axis() -> None:
    """Nothing is clamped that is not known: what a bound takes for granted is recorded."""
    x = input("x", f32["n"])
    n = x.shape[0]
    assert build.slice_axis(x, axis=0, start=0, stop=2**63 - 1) is x
    first = build.slice_axis(x, axis=0, stop=10)
    assert first.shape == (10,)
    assert [str(c) for c in first.constraints] == ["n at_least 10"]
    assert build.slice_axis(x, axis=0, start=-2).shape == (2,)
    assert build.slice_axis(x, axis=0, start=-(2**63), stop=-1).shape == (n - 1,)
    table = input("table", f32[512])
    assert build.slice_axis(table, axis=0, stop=n).shape == (n,)
    for start, stop, step in ((None, -1, 1), (-3, None, 1), (1, None, -1), (None, None, -2), (2, 4, 1)):
        cut = build.slice_axis(x, axis=0, start=start, stop=stop, step=step)
        got = evaluate(Graph.of(cut, inputs=[x]), {"x": numbers(6)})["y"]
        assert np.array_equal(got, numbers(6)[start:stop:step])


def test_slices_of_halves_that_are_symbolic() -> None:
    x = input("x", f32["2*n"])
    n = symbol("n")
    assert build.slice_axis(x, axis=0, start=n, stop=2 * n) is ops.part(x, axis=-1, index=1, parts=2)


def test_select() -> None:
    for index in range(-3, 3):
        check(lambda x, i=index: build.select(x, axis=1, index=i), numbers(2, 3), numbers(2, 3)[:, index])
    x = input("x", f32["n", 3])
    last = build.select(x, axis=0, index=-1)
    assert np.array_equal(evaluate(Graph.of(last), {"x": numbers(4, 3)})["y"], numbers(4, 3)[-1])
    with pytest.raises(TypeRuleError):
        build.select(x, axis=1, index=3)


def test_split_axis() -> None:
    array = numbers(2, 6)
    for sizes in ((2, 2, 2), (1, 5), (6,), (0, 6), (3, 1, 2)):
        pieces = build.split_axis(leaf.constant(array), sizes, axis=1)
        wanted = np.split(array, np.cumsum(sizes)[:-1].tolist(), axis=1)
        assert all(np.array_equal(run(p), w) for p, w in zip(pieces, wanted, strict=True))
    thirds = build.split_axis(input("x", f32["s", 6]), (2, 2, 2), axis=-1)
    assert [v.op.name for v in thirds] == ["part"] * 3
    with pytest.raises(TypeRuleError, match="add up to 5"):
        build.split_axis(leaf.constant(array), (2, 3), axis=1)
    n, x = symbol("n"), input("x", f32["m"])
    assert [v.shape for v in build.split_axis(x, (n, 2), axis=0)] == [(n,), (2,)]


# Repeats, joins and padding.


def test_stack() -> None:
    for axis in range(-3, 3):
        check(
            lambda x, a=axis: build.stack([x, -x], axis=a),
            numbers(2, 3),
            np.stack([numbers(2, 3), -numbers(2, 3)], axis),
        )
    with pytest.raises(TypeRuleError):
        build.stack([])


@pytest.mark.parametrize("repeats", [(1, 1), (2, 1), (1, 3), (2, 2), (0, 1)])
def test_tile_and_repeat(repeats: tuple[int, int]) -> None:
    for shape in ((2, 3), (1, 3), (2, 1)):
        check(lambda x: build.tile(x, repeats), numbers(*shape), np.tile(numbers(*shape), repeats))
        for axis in (0, -1):
            wanted = np.repeat(numbers(*shape), repeats[axis], axis)
            check(lambda x, a=axis: build.repeat(x, repeats[a], axis=a), numbers(*shape), wanted)
    with pytest.raises(TypeRuleError):
        build.tile(input("x", f32[2, 3]), (2,))


def test_pad_dims() -> None:
    wanted = np.pad(numbers(2, 3), ((1, 0), (2, 1)), constant_values=7)
    check(lambda x: build.pad_dims(x, (1, 2), (0, 1), 7), numbers(2, 3), wanted)
    check(lambda x: build.pad_dims(x, (0, -1), (1, -1)), numbers(2, 3), np.pad(numbers(2, 3)[:, 1:2], ((0, 1), (0, 0))))
    x = input("x", f32[2, 3])
    assert build.pad_dims(x, (0, 0), (0, 0)) is x


@pytest.mark.parametrize("dtype", [i64, i32, f32, f64], ids=str)
@pytest.mark.parametrize(
    ("start", "stop", "step"), [(0, 5, 1), (2, 9, 3), (5, 0, -2), (3, 3, 1), (4, 1, 1), (-2, 2, 1)]
)
def test_arange(start: int, stop: int, step: int, dtype: DType) -> None:
    got = run(build.arange(start, stop, step, dtype=dtype))
    assert np.array_equal(got, np.arange(start, stop, step).astype(dtype.numpy))


def test_arange_of_symbolic_bounds() -> None:
    x, n = input("x", f32["n"]), symbol("n")
    numbered = build.arange(n, 2 * n + 1) + ops.cast(build.zeros((n + 1,), f32), dtype=i64)
    graph = Graph.of({"y": numbered, "x": x})
    assert np.array_equal(evaluate(graph, {"x": numbers(3)})["y"], np.arange(3, 7))


@pytest.mark.parametrize("offset", range(-4, 5))
def test_trilu(offset: int) -> None:
    array = numbers(2, 3, 4) + 1
    check(lambda x: build.trilu(x, upper=False, offset=offset), array, np.tril(array, offset))
    check(lambda x: build.trilu(x, upper=True, offset=offset), array, np.triu(array, offset))


def test_mistakes_are_told() -> None:
    x = input("x", f32[2, 3])
    mistakes: list[Callable[[], object]] = [
        lambda: build.slice_axis(x, axis=2),
        lambda: build.slice_axis(x, axis=0, step=0),
        lambda: build.arange(0, 3, 0),
        lambda: build.trilu(input("v", f32[3]), upper=True),
        lambda: build.pad_dims(x, (1,), (1,)),
        lambda: build.flatten(x, axis=3),
    ]
    for mistake in mistakes:
        with pytest.raises(DovetailError) as caught:
            mistake()
        assert caught.value.hint
