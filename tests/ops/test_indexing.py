"""Gather, scatter, nonzero and unique against loops over every place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import BindError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import ALL, FLOATS, INTEGERS, NARROW, NUMBERS, DType, bf16, bool_, c64, f16, f32, i32, i64, u8
from dovetail.ir.value import Value
from tests.ops.meaning import Array, array, meaning, meanings, run


def _counting(dtype: DType, shape: tuple[int, ...]) -> Array:
    """Different elements, as far as the dtype has them."""
    numbers = np.arange(math.prod(shape)).reshape(shape)
    if dtype in NARROW:
        return (numbers % 2**dtype.bits).astype(np.uint8).view(dtype.numpy)
    return numbers % 2 == 1 if dtype is bool_ else numbers.astype(dtype.numpy)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("axis", [-3, -2, -1])
def test_gather_takes_slices(dtype: DType, axis: int) -> None:
    x, indices = _counting(dtype, (3, 4, 5)), np.array([[0, -1], [2, -3]])
    got = meaning(ops.gather, x, indices, axis=axis)
    at = axis + 3
    for place in np.ndindex(got.shape):
        index = int(indices[place[at : at + 2]])
        source = (*place[:at], index + x.shape[at] if index < 0 else index, *place[at + 2 :])
        assert got[place] == x[source]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_indices_of_any_whole_type(dtype: DType) -> None:
    x = np.arange(100)
    assert meaning(ops.gather, x, array(dtype, [99, 0]), axis=0).tolist() == [99, 0]
    assert meaning(ops.gather, x, array(dtype, 7), axis=0) == 7


@pytest.mark.parametrize("dtype", [d for d in INTEGERS if d.bits == 8], ids=str)
def test_narrow_indices_into_a_long_axis(dtype: DType) -> None:
    """An index of 8 bits must not wrap when it is compared with an axis that it cannot name."""
    assert meaning(ops.gather, np.arange(1000), array(dtype, [100]), axis=0).tolist() == [100]


def test_gather_of_nothing() -> None:
    assert meaning(ops.gather, np.ones((3, 2), np.float32), np.zeros((0, 4), np.int64), axis=0).shape == (0, 4, 2)
    assert meaning(ops.gather, np.ones((0, 2), np.float32), np.zeros(0, np.int64), axis=0).shape == (0, 2)


SMALL = np.arange(6, dtype=np.float32).reshape(3, 2)
TAKERS: dict[str, Callable[[Value, Value], Value]] = {
    "gather": lambda x, i: ops.gather(x, i, axis=0),
    "gather_elements": lambda x, i: ops.gather_elements(x, ops.unsqueeze(i, axes=(-1,)), axis=0),
    "gather_nd": lambda x, i: ops.gather_nd(x, ops.unsqueeze(i, axes=(-1,))),
    "scatter_elements": lambda x, i: ops.scatter_elements(
        x, ops.unsqueeze(i, axes=(-1,)), leaf.constant(np.ones((1, 1), np.float32)), axis=0
    ),
    "scatter_nd": lambda x, i: ops.scatter_nd(
        x, ops.unsqueeze(i, axes=(-1,)), leaf.constant(np.ones((1, 2), np.float32))
    ),
}


@pytest.mark.parametrize("index", [3, -4, 2**31])
@pytest.mark.parametrize("name", TAKERS)
def test_an_index_out_of_range_is_an_error(name: str, index: int) -> None:
    value = TAKERS[name](leaf.constant(SMALL), leaf.constant(np.array([index])))
    with pytest.raises(BindError) as caught:
        run(value)
    assert caught.value.message == f"{name}: index {index} into an axis of size 3"
    assert caught.value.hint == "indices go from -3 to 2"


def test_an_unsigned_index_does_not_turn_negative() -> None:
    with pytest.raises(BindError, match="18446744073709551615"):
        meaning(ops.gather, SMALL, np.array([2**64 - 1], np.uint64), axis=0)


def test_an_empty_axis_has_no_index() -> None:
    with pytest.raises(BindError, match="index 0 into an axis of size 0"):
        meaning(ops.gather, np.zeros((0, 2), np.float32), np.array([0]), axis=0)


@pytest.mark.parametrize("dtype", [f32, bool_, c64], ids=str)
def test_indices_are_whole_numbers(dtype: DType) -> None:
    with pytest.raises(TypeRuleError, match=f"indices of {dtype.name}"):
        ops.gather(leaf.constant(SMALL), leaf.constant(np.zeros(1, dtype.numpy)), axis=0)


@pytest.mark.parametrize("axis", [-3, -2, -1])
def test_gather_elements_walks_with_the_indices(axis: int) -> None:
    x = _counting(i32, (3, 4, 5))
    # Smaller than x beside the axis, longer along it.
    shape = [2, 2, 2]
    shape[axis] = 7
    indices = np.random.default_rng(3).integers(-x.shape[axis], x.shape[axis], shape)
    got = meaning(ops.gather_elements, x, indices, axis=axis)
    for place in np.ndindex(*shape):
        source = list(place)
        source[axis] = int(indices[place]) % x.shape[axis]
        assert got[place] == x[tuple(source)]


def test_gather_elements_asks_for_enough_beside_the_axis() -> None:
    x, indices = leaf.input("x", f32["s", 4]), leaf.input("i", i64[5, 9])
    found = ops.gather_elements(x, indices, axis=1)
    assert [str(c) for c in found.constraints] == ["s at_least 5"]
    assert found.tensor == f32[5, 9]
    with pytest.raises(TypeRuleError, match="rank 1"):
        ops.gather_elements(x, leaf.input("j", i64[5]), axis=1)


@pytest.mark.parametrize(
    ("x_shape", "shape", "batch"),
    [
        ((3, 4, 5), (2, 1), 0),
        ((3, 4, 5), (6, 2, 2), 0),
        ((3, 4, 5), (2, 3), 0),
        ((3, 4, 5), (3, 2), 1),
        ((3, 4, 5), (3, 6, 1), 1),
        ((3, 4, 5, 2), (3, 4, 7, 1), 2),
        ((3, 4), (0, 1), 0),
    ],
)
def test_gather_nd(x_shape: tuple[int, ...], shape: tuple[int, ...], batch: int) -> None:
    x, depth = _counting(i32, x_shape), shape[-1]
    generator = np.random.default_rng(4)
    sizes = x_shape[batch : batch + depth]
    indices = np.stack([generator.integers(-n, n, shape[:-1]) for n in sizes], axis=-1)
    got = meaning(ops.gather_nd, x, indices, batch=batch)
    assert got.shape == (*shape[:-1], *x_shape[batch + depth :])
    for row in np.ndindex(*shape[:-1]):
        named = [int(i) % n for i, n in zip(indices[row], sizes, strict=True)]
        np.testing.assert_array_equal(got[row], x[(*row[:batch], *named)])


def test_rows_of_indices_are_refused_where_they_name_too_much_or_nothing() -> None:
    x = leaf.input("x", f32[3, 4])
    with pytest.raises(TypeRuleError, match="rows of 3"):
        ops.gather_nd(x, leaf.input("i", i64[2, 3]))
    with pytest.raises(TypeRuleError, match="rows of 0"):
        ops.gather_nd(x, leaf.input("i", i64[2, 0]))
    with pytest.raises(TypeRuleError, match="after 2 batch axes"):
        ops.gather_nd(x, leaf.input("i", i64[2, 1]), batch=2)
    with pytest.raises(TypeRuleError, match="gather_nd by indices"):
        ops.gather_nd(x, leaf.input("i", i64[2, "s"]))
    with pytest.raises(TypeRuleError, match="batch sizes"):
        ops.gather_nd(x, leaf.input("i", i64[2, 1]), batch=1)


COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": max,
    "min": min,
}


@pytest.mark.parametrize("dtype", [i32, u8, f16, bf16, f32], ids=str)
@pytest.mark.parametrize("reduction", COMBINED)
@pytest.mark.parametrize("axis", [-2, -1])
def test_scatter_elements(axis: int, reduction: str, dtype: DType) -> None:
    generator = np.random.default_rng(5)
    x, updates = (array(dtype, generator.integers(0, 4, shape)) for shape in ((3, 4), (2, 3)))
    # Few places for many updates: some meet.
    indices = generator.integers(-x.shape[axis], x.shape[axis], (2, 3))
    expected = x.astype(np.float64)
    for place in np.ndindex(2, 3):
        target = list(place)
        target[axis] = int(indices[place]) % x.shape[axis]
        at = tuple(target)
        expected[at] = COMBINED[reduction](expected[at], float(updates[place]))
    got = meaning(ops.scatter_elements, x, indices, updates, axis=axis, reduction=reduction)
    assert got.astype(np.float64).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [i32, u8, f16, bf16, f32], ids=str)
@pytest.mark.parametrize("reduction", COMBINED)
@pytest.mark.parametrize("depth", [1, 2])
def test_scatter_nd(depth: int, reduction: str, dtype: DType) -> None:
    generator = np.random.default_rng(6)
    shape = (3, 2, 2)
    x = array(dtype, generator.integers(0, 4, shape))
    indices = np.stack([generator.integers(-n, n, (2, 3)) for n in shape[:depth]], axis=-1)
    updates = array(dtype, generator.integers(0, 4, (2, 3, *shape[depth:])))
    expected = x.astype(np.float64)
    for row in np.ndindex(2, 3):
        named = tuple(int(i) % n for i, n in zip(indices[row], shape[:depth], strict=True))
        for rest in np.ndindex(*shape[depth:]):
            at = (*named, *rest)
            expected[at] = COMBINED[reduction](expected[at], float(updates[(*row, *rest)]))
    got = meaning(ops.scatter_nd, x, indices, updates, reduction=reduction)
    assert got.astype(np.float64).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_scatter_writes_every_dtype(dtype: DType) -> None:
    x, new = np.zeros(3, dtype.numpy), np.ones(2, dtype.numpy)
    got = meaning(ops.scatter_elements, x, np.array([0, -1]), new, axis=0)
    assert got.tobytes() == b"".join(a.tobytes() for a in (new[0], x[1], new[1]))


def test_scatter_leaves_its_operand_as_it_was() -> None:
    for reduction in COMBINED:
        x = np.zeros(3, np.float64)
        ops.scatter_elements.compute(x, np.array([0]), np.ones(1), axis=-1, reduction=reduction)
        ops.scatter_nd.compute(x, np.array([[0]]), np.ones(1), reduction=reduction)
        assert x.tolist() == [0, 0, 0]


def test_scatter_adds_wide_and_wraps() -> None:
    many = np.zeros(4096, np.int64)
    for dtype in (f16, bf16):
        got = meaning(
            ops.scatter_elements, np.zeros(1, dtype.numpy), many, np.ones(4096, dtype.numpy), axis=0, reduction="add"
        )
        assert got.tolist() == [4096]
    got = meaning(
        ops.scatter_nd, np.array([200], np.uint8), np.array([[0]]), np.array([100], np.uint8), reduction="add"
    )
    assert got.tolist() == [44]


def test_nan_is_scattered() -> None:
    x, nan = np.array([1, 2], np.float32), np.array([np.nan], np.float32)
    for reduction in COMBINED:
        got = meaning(ops.scatter_elements, x, np.array([0]), nan, axis=0, reduction=reduction)
        assert np.isnan(got).tolist() == [True, False]


def test_scatter_of_nothing() -> None:
    got = meaning(ops.scatter_nd, SMALL, np.zeros((0, 1), np.int64), np.zeros((0, 2), np.float32), reduction="add")
    assert got.tolist() == SMALL.tolist()


def test_scatter_refuses_what_does_not_fit() -> None:
    x, indices = leaf.input("x", f32[3, 2]), leaf.input("i", i64[4, 1])
    with pytest.raises(TypeRuleError, match="against what the indices name"):
        ops.scatter_nd(x, indices, leaf.input("u", f32[4, 3]))
    with pytest.raises(TypeRuleError, match="updates of rank 1"):
        ops.scatter_nd(x, indices, leaf.input("u", f32[4]))
    with pytest.raises(TypeRuleError, match="f32 and i64"):
        ops.scatter_nd(x, indices, leaf.input("u", i64[4, 2]))
    with pytest.raises(TypeRuleError, match="against the updates"):
        ops.scatter_elements(x, leaf.input("i", i64[2, 2]), leaf.input("u", f32[2, 1]), axis=0)
    with pytest.raises(TypeRuleError, match="choices"):
        ops.scatter_nd(x, indices, leaf.input("u", f32[4, 2]), reduction="mean")
    flags = leaf.input("f", bool_[3])
    with pytest.raises(TypeRuleError, match="of bool"):
        ops.scatter_elements(flags, leaf.input("i", i64[3]), flags, axis=0, reduction="add")


@pytest.mark.parametrize("dtype", [*NUMBERS, bool_], ids=str)
def test_nonzero(dtype: DType) -> None:
    x = array(dtype, [[0, 1, 0], [1, 0, 1]])
    assert meaning(ops.nonzero, x, count=symbol("n")).tolist() == [[0, 1, 1], [1, 0, 2]]


def test_nonzero_counts_nan_and_not_negative_zero() -> None:
    x = np.array([0.0, -0.0, np.nan, np.inf])
    assert meaning(ops.nonzero, x, count=symbol("n")).tolist() == [[2, 3]]


def test_nonzero_at_the_edges() -> None:
    assert meaning(ops.nonzero, np.array(5.0), count=symbol("n")).shape == (0, 1)
    assert meaning(ops.nonzero, np.array(0.0), count=symbol("n")).shape == (0, 0)
    assert meaning(ops.nonzero, np.zeros((2, 0)), count=symbol("n")).shape == (2, 0)


def test_a_promised_count_is_kept() -> None:
    x = np.array([1, 0, 1])
    assert meaning(ops.nonzero, x, count=2).tolist() == [[0, 2]]
    with pytest.raises(BindError, match="found 2 where 3 were promised"):
        meaning(ops.nonzero, x, count=3)
    with pytest.raises(TypeRuleError, match="cannot be bound"):
        ops.nonzero(leaf.constant(x), count=symbol("n") * 2)


def _told_apart(items: list[Any], in_order: bool) -> tuple[list[Any], list[int], list[int], list[int]]:
    """Different items, first places, place of each item among them, and how often."""
    different: list[Any] = []
    for item in items:
        if item not in different:
            different.append(item)
    if in_order:
        different.sort()
    inverse = [different.index(item) for item in items]
    return different, [items.index(d) for d in different], inverse, [items.count(d) for d in different]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, bool_], ids=str)
def test_unique_elements(dtype: DType, in_order: bool) -> None:
    numbers = [[3, 1, 3], [0, 7, 1]] if dtype is not bool_ else [[True, False, True]]
    got = meanings(ops.unique, array(dtype, numbers), in_order=in_order, count=symbol("n"))
    expected = _told_apart([n for row in numbers for n in row], in_order)
    assert tuple(a.tolist() for a in got) == expected


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("dtype", [i32, bf16, f32], ids=str)
def test_unique_slices(dtype: DType, in_order: bool) -> None:
    rows = [[2, 1], [1, 3], [2, 1], [1, 2], [1, 3]]
    expected = _told_apart(rows, in_order)
    got = meanings(ops.unique, array(dtype, rows), axis=0, in_order=in_order, count=symbol("n"))
    assert tuple(a.tolist() for a in got) == expected
    columns = meanings(ops.unique, array(dtype, rows).T, axis=-1, in_order=in_order, count=symbol("n"))
    assert columns[0].T.tolist() == expected[0]
    assert tuple(a.tolist() for a in columns[1:]) == expected[1:]


def test_unique_tells_nan_from_nan_but_not_the_zeros() -> None:
    values, first, inverse, counts = meanings(
        ops.unique, np.array([np.nan, 0.0, -0.0, np.nan], np.float32), count=symbol("n")
    )
    assert values.tolist()[0] == 0
    assert np.isnan(values[1:]).all()
    assert (first.tolist(), inverse.tolist(), counts.tolist()) == ([1, 0, 3], [1, 0, 0, 2], [2, 1, 1])


@pytest.mark.parametrize(("shape", "axis"), [((0,), None), ((0, 2), 0), ((2, 0), 0), ((), None)])
def test_unique_at_the_edges(shape: tuple[int, ...], axis: int | None) -> None:
    values, _, inverse, counts = meanings(ops.unique, np.ones(shape, np.float32), axis=axis, count=symbol("n"))
    length = math.prod(shape) if axis is None else shape[axis]
    assert len(counts) == min(length, 1)
    assert inverse.tolist() == [0] * length
    assert values.shape == ((len(counts),) if axis is None else (len(counts), *shape[1:]))


def test_unique_of_a_promised_count() -> None:
    x = np.array([1, 1, 2])
    assert meanings(ops.unique, x, count=2)[0].tolist() == [1, 2]
    with pytest.raises(BindError, match="found 2 where 5"):
        meanings(ops.unique, x, count=5)
    found = ops.unique(leaf.input("x", f32["a", "b"]), count=symbol("n"))
    assert str(found.type) == "(f32[n], i64[n], i64[a*b], i64[n])"


@pytest.mark.parametrize("axis", [-2, -1])
def test_compress(axis: int) -> None:
    x = _counting(i32, (3, 4))
    mask = [True, False, True]
    value = ops.compress(leaf.constant(x), leaf.constant(np.array(mask)), axis=axis, count=symbol("n"))
    kept = [i for i, m in enumerate(mask) if m]
    expected = [x[i].tolist() for i in kept] if axis == -2 else [[row[i] for i in kept] for row in x.tolist()]
    assert run(value).tolist() == expected


def test_compress_behind_the_axis() -> None:
    value = ops.compress(
        leaf.constant(np.arange(2)), leaf.constant(np.array([False] * 2 + [True])), axis=0, count=symbol("n")
    )
    with pytest.raises(BindError, match="index 2 into an axis of size 2"):
        run(value)


@pytest.mark.parametrize("axis", [-1, -2, -3])
@pytest.mark.parametrize("dtype", [bool_, i64, f16, f32], ids=str)
def test_one_hot(axis: int, dtype: DType) -> None:
    indices = np.array([[0, 2, -1], [5, -6, 1]], np.int32)
    got = run(ops.one_hot(leaf.constant(indices), depth=3, axis=axis, dtype=dtype))
    assert got.dtype == dtype.numpy
    at = axis + 3
    for place in np.ndindex(2, 3):
        along = [got[(*place[:at], d, *place[at:])] for d in range(3)]
        index = int(indices[place])
        assert along == [-3 <= index < 3 and d == index % 3 for d in range(3)]


def test_one_hot_of_a_symbolic_depth() -> None:
    found = ops.one_hot(leaf.input("i", i64["b"]), depth=symbol("n"), dtype=f32)
    assert str(found.type) == "f32[b, n]"
