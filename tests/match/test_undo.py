"""What a pattern finds although it is spelled with another op."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import bool_, f16, f32, f64, i64
from dovetail.ir import leaf
from dovetail.ir.leaf import Hole, hole, input, scalar
from dovetail.match import Bound, match

X = input("x", f32[2, 5, 12])
HEADS = ops.split(X, axis=-1, parts=3)
ROWS = ops.permute(HEADS, order=(-2, -3, -1))


def caught(pattern: Value, value: Value, name: str = "x") -> object:
    found = match(pattern, value)
    return found.names[name] if isinstance(found, Bound) else None


SWAPPED = ops.permute(hole("x"), order=(-1, -2))


def test_any_view_with_the_innermost_axis_before_the_last_is_rows_swapped() -> None:
    assert caught(SWAPPED, ops.permute(ROWS, order=(-1, -2))) is ROWS
    assert caught(SWAPPED, ops.permute(HEADS, order=(-2, -1, -3))) is ROWS
    wide = ops.merge(ops.expand(ops.unsqueeze(ROWS, axes=(-3,)), axis=-3, size=2), axis=-3)
    inside = ops.unsqueeze(ops.permute(HEADS, order=(-2, -1, -3)), axes=(-3,))
    columns = ops.merge(ops.expand(inside, axis=-3, size=2), axis=-3)
    assert caught(SWAPPED, columns) is wide


def test_other_views_are_not() -> None:
    for value in (X, HEADS, ROWS, ops.merge(ops.permute(ROWS, order=(-2, -3, -1)), axis=-1), X + 1.0):
        assert caught(SWAPPED, value) is None


def test_what_is_caught_makes_the_value() -> None:
    """The same elements at the same places, checked with numbers."""
    from dovetail import Graph
    from dovetail.targets.reference.interpreter import evaluate

    value = ops.permute(HEADS, order=(-2, -1, -3))
    back = caught(SWAPPED, value)
    assert isinstance(back, Value)
    feeds = {"x": np.arange(120, dtype=np.float32).reshape(2, 5, 12)}
    got = evaluate(Graph.of({"value": value, "back": back}), feeds)
    assert (np.swapaxes(got["back"], -1, -2) == got["value"]).all()


def test_a_negated_mask_is_any_mask_negated() -> None:
    pattern = ops.where(ops.bit_not(hole("keep")), hole("a"), hole("b"))
    a, b, mask, ids = input("a", f32[3]), input("b", f32[3]), input("mask", bool_[3]), input("ids", i64[3])
    assert caught(pattern, ops.where(ops.bit_not(mask), a, b), "keep") is mask
    assert caught(pattern, ops.where(mask, a, b), "keep") is ops.bit_not(mask)
    assert caught(pattern, ops.where(ops.equal(ids, 0), a, b), "keep") is ops.not_equal(ids, 0)
    assert caught(pattern, ops.where(ops.not_equal(ids, 0), a, b), "keep") is ops.equal(ids, 0)
    # A comparison of floats has no such opposite: NaN is neither less nor not less.
    less = ops.less(a, b)
    assert caught(pattern, ops.where(less, a, b), "keep") is ops.bit_not(less)


def test_a_quotient_is_a_product_with_the_inverse() -> None:
    times, over = ops.relu(hole("x") * Hole("c")), ops.relu(hole("x") / Hole("c"))  # type: ignore[operator]
    assert caught(times, ops.relu(X / 8.0), "c") == 0.125
    assert caught(over, ops.relu(X * 0.125), "c") == 8.0
    assert caught(over, ops.relu(leaf.constant(0.125, f32) * X), "c") == 8.0
    assert caught(times, ops.relu(X * 3.0), "c") == 3.0
    fixed = ops.relu(hole("x") / 4.0)
    assert caught(fixed, ops.relu(X * 0.25)) is X
    assert caught(fixed, ops.relu(X * 0.5)) is None
    whole = input("whole", i64[3])
    assert caught(ops.abs_(hole("x") * Hole("c")), ops.abs_(whole / 2), "c") is None  # type: ignore[operator]


def test_a_quotient_of_two_tensors_is_none() -> None:
    assert caught(ops.relu(hole("x") * hole("y")), ops.relu(X / X)) is None


@pytest.mark.parametrize("dtype", (f16, f32, f64))
@pytest.mark.parametrize("number", (0.5, 0.125, 2.0, 1e-3, 3.0, 0.1))
def test_the_simplest_number_behind_a_root_or_an_inverse(dtype: object, number: float) -> None:
    assert dtype in (f16, f32, f64)
    x = input("x", dtype[3])  # type: ignore[index]
    plain = caught(ops.relu(hole("x") * Hole("c")), ops.relu(x * number), "c")  # type: ignore[operator]
    root = ops.relu(hole("x") * (Hole("c") ** 0.5))  # type: ignore[operator]
    inverse = ops.relu(hole("x") + (1 / Hole("c")))  # type: ignore[operator]
    if dtype is not f16:
        # A half has too few digits to tell 0.1 from its neighbours by its root.
        assert caught(root, ops.relu(x * math.sqrt(number)), "c") == plain
    assert caught(inverse, ops.relu(x + 1 / number), "c") == pytest.approx(plain, rel=1e-3)


def test_a_split_is_one_by_parts_and_by_size() -> None:
    by_size, by_parts = ops.split(hole("x"), axis=-1, size=4), ops.split(hole("x"), axis=-1, parts=Hole("n"))
    assert caught(by_size, HEADS) is X
    assert caught(ops.split(hole("x"), axis=-1, size=3), HEADS) is None
    assert caught(by_parts, ops.split(X, axis=-1, size=4), "n") == 3
    assert caught(ops.split(hole("x"), axis=-2, parts=3), HEADS) is None


def test_a_part_is_a_slice_and_the_other_way_round() -> None:
    part = ops.part(hole("x"), axis=-1, index=1, parts=3)
    assert caught(part, ops.slice_(X, axis=-1, start=4, stop=8)) is X
    assert caught(part, ops.slice_(X, axis=-1, start=3, stop=7)) is None
    assert caught(part, ops.slice_(X, axis=-1, start=4, stop=8, step=2)) is None
    tail = ops.slice_(hole("x"), axis=-1, start=Hole("n"), stop=12)
    assert caught(tail, ops.part(X, axis=-1, index=2, parts=3), "n") == 8
    assert caught(tail, ops.part(X, axis=-1, index=1, parts=3), "n") is None


def test_halves_of_a_slice_are_slices_of_the_whole() -> None:
    """Canonical graphs have no slice of a slice; the pattern's halves are found all the same."""
    x = hole("x")
    turned = x * hole("c") + ops.concat(
        -ops.part(x, axis=-1, index=1, parts=2), ops.part(x, axis=-1, index=0, parts=2), axis=-1
    )
    first = ops.part(X, axis=-1, index=0, parts=2)
    c = input("c", f32[6])

    def spelled(bound: int) -> Value:
        low, high = (ops.slice_(X, axis=-1, start=a, stop=b) for a, b in ((0, bound), (bound, 2 * bound)))
        return first * c + ops.concat(-high, low, axis=-1)

    assert caught(turned, spelled(3)) is first
    x_alone = ops.part(x, axis=-1, index=0, parts=2)
    assert caught(x_alone, ops.slice_(X, axis=-1, start=0, stop=3)) is None


def test_an_axis_within_a_tuple_is_caught() -> None:
    found = match(
        ops.reduce_sum(hole("x"), axes=(Hole("axis"),)),  # type: ignore[arg-type]
        ops.reduce_sum(X, axes=(-2,)),
    )
    assert isinstance(found, Bound)
    assert found.names == {"x": X, "axis": -2}
    two = match(ops.reduce_sum(hole("x"), axes=(Hole("axis"),)), ops.reduce_sum(X, axes=(-2, -1)))  # type: ignore[arg-type]
    assert not isinstance(two, Bound)


def test_whole_numbers_stay_whole() -> None:
    ids = input("ids", i64[3])
    number = caught(ops.less(hole("x") - Hole("n"), hole("y")), ops.less(ids - 2, ids), "n")  # type: ignore[operator]
    assert number == 2
    assert isinstance(number, int)


def test_a_constant_of_a_pattern_keeps_its_dtype() -> None:
    assert caught(ops.relu(hole("x") + scalar(0.5, None)), ops.relu(X + 0.5)) is X
