"""Shape arithmetic is followed into sizes, and only as far as it is certain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import ops
from dovetail.frontends.shared.contents import Contents, Follower, settled, sign_of, sizes
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, evaluate, symbol
from dovetail.ir.dtype import f32, i8, i32, i64
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.targets.reference.interpreter import evaluate_values

B, S = symbol("b"), symbol("s")


def vector(*items: Size) -> Value:
    return build.stack([ops.extent(size=x) if isinstance(x, Dim) else leaf.scalar(x, i64) for x in items])


def contents(value: Value) -> list[Any] | None:
    found = Follower().contents(value)
    return None if found is None else list(found.flat)


def one(value: Value) -> Any:
    found = contents(value)
    return None if found is None else found[0]


def number(x: Size) -> Value:
    return ops.extent(size=x) if isinstance(x, Dim) else leaf.scalar(x, i64)


def test_a_shape_is_its_sizes() -> None:
    assert contents(vector(B, 4, S)) == [B, 4, S]


def test_gather_concat_slice_and_casts_keep_sizes() -> None:
    shape = vector(B, 4, S)
    picked = ops.gather(shape, leaf.constant(np.array([2, 0])), axis=0)
    assert contents(picked) == [S, B]
    assert contents(ops.concat(picked, leaf.constant(np.array([-1])), axis=0)) == [S, B, -1]
    assert contents(build.slice_axis(shape, axis=0, start=1)) == [4, S]
    assert contents(ops.cast(ops.cast(shape, dtype=i32), dtype=i64)) == [B, 4, S]
    assert contents(ops.cast(ops.cast(shape, dtype=f32), dtype=i64)) == [B, 4, S]


def test_a_type_that_cannot_hold_every_size_is_not_followed() -> None:
    assert contents(ops.cast(vector(B), dtype=i8)) is None


X, Y = ops.extent(size=B), ops.extent(size=S)
ZERO = leaf.scalar(0, i64)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (X + Y, B + S),
        (X - Y, B - S),
        (X * Y, B * S),
        (X / 2, B // 2),
        ((X * Y) / X, S),
        ((X * 3 - 6) / 3, B - 2),
        (-X, -1 * B),
        (ops.maximum(X, Y) - ops.maximum(X, Y), 0),
        (ops.where(ops.equal(X, X), Y, X), S),
        (ops.where(ops.less(X, X + 1), Y, X), S),
        (ops.where(ops.greater(X + 1, ZERO), Y, X), S),
    ],
)
def test_arithmetic_of_sizes(value: Value, expected: Size) -> None:
    assert one(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        ops.where(ops.equal(X, Y), X, Y),  # b may be s
        ops.where(ops.greater(X, ZERO), X, Y),  # b may be 0
        ops.mod(X - 5, leaf.scalar(2, i64)),  # a modulus is not the remainder below 0
    ],
)
def test_what_depends_on_the_run_is_not_known(value: Value) -> None:
    assert contents(value) is None


@pytest.mark.parametrize("b", [0, 3, 4, 5, 6, 7, 8, 30])
def test_division_truncates_towards_zero_on_both_sides(b: int) -> None:
    """tf.signal.frame counts frames as max(0, 1 + (n - length) / step)."""
    found = one((X - 6) / 2)
    assert evaluate(found, {"b": b}) == int((b - 6) / 2)
    found = one(ops.rem(X - 6, leaf.scalar(2, i64)))
    assert evaluate(found, {"b": b}) == int(np.fmod(b - 6, 2))


def test_floats_divide_exactly_or_not_at_all() -> None:
    as_float = ops.cast(number(2 * B), dtype=f32)
    assert one(ops.cast(as_float / 2.0, dtype=i64)) == B
    assert contents(ops.cast(ops.cast(number(B), dtype=f32) / 2.0, dtype=i64)) is None


def test_products_of_sizes() -> None:
    assert one(ops.reduce_prod(vector(B, 4, S), axes=(0,))) == 4 * B * S


def test_inputs_and_large_tensors_are_not_followed() -> None:
    assert contents(leaf.input("n", i64[1])) is None
    assert contents(ops.iota(size=10_000)) is None


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-3, 3))
def test_a_sign_that_is_claimed_holds_for_every_size(constant: int, slope: int, other: int) -> None:
    size = slope * B + other * S * S + constant
    claimed = sign_of(size)
    if claimed is not None:
        for b in (0, 1, 7):
            for s in (0, 1, 5):
                found = evaluate(size, {"b": b, "s": s})
                assert (found > 0) - (found < 0) == claimed


@given(st.lists(st.sampled_from([B, S, B * S, B + 1, 3, 0, -1]), min_size=1, max_size=4), st.data())
def test_known_contents_are_what_a_run_finds(items: list[Size], data: st.DataObject) -> None:
    value = vector(*items)
    for step in data.draw(st.lists(st.sampled_from(["add", "mul", "div", "max", "neg", "mod", "rem"]), max_size=3)):
        k = data.draw(st.integers(1, 5))
        match step:
            case "add":
                value = value + k
            case "mul":
                value = value * k
            case "div":
                value = value / k
            case "max":
                value = ops.maximum(value, k)
            case "mod":
                value = ops.mod(value, k)
            case "rem":
                value = ops.rem(value, k)
            case _:
                value = -value
    found = Follower().contents(value)
    if found is not None:
        binding = {"b": 3, "s": 4}
        (run,) = evaluate_values([value], {}, sizes=binding)
        assert [evaluate(x, binding) for x in found.flat] == run.tolist()


def test_settled_values_say_the_same() -> None:
    value = vector(B, 2, S) * 2
    known: Contents | None = Follower().contents(value)
    assert known is not None
    plain = settled(value, known)
    assert contents(plain) == [2 * B, 4, 2 * S]
    (run,) = evaluate_values([plain], {}, sizes={"b": 3, "s": 5})
    assert run.tolist() == [6, 4, 10]


def test_sizes_among_other_things_are_none() -> None:
    found = np.empty(2, dtype=object)
    found[:] = [B, 0.5]
    assert sizes(found) is None
    found[:] = [B, 2.0]
    assert sizes(found) == (B, 2)
    found[:] = [B, float("nan")]
    assert sizes(found) is None
