"""The matcher: what it catches, what it refuses, and how it says so."""

from __future__ import annotations

import numpy as np

from dovetail import Value, ops
from dovetail.dtypes import f32, i32
from dovetail.ir.leaf import Hole, constant, hole, input, scalar
from dovetail.match import Bound, Mismatch, match
from dovetail.ops.deferred_shape import dtype_of, size_of

X, Y, Z = (input(n, f32[4, 4]) for n in "xyz")


def caught(pattern: Value, value: Value) -> dict[str, object]:
    found = match(pattern, value)
    assert isinstance(found, Bound), str(found)
    return found.names


def missed(pattern: Value, value: Value) -> Mismatch:
    found = match(pattern, value)
    assert isinstance(found, Mismatch)
    return found


def test_holes_catch_operands() -> None:
    assert caught(hole("a") @ hole("b"), X @ Y) == {"a": X, "b": Y}


def test_one_hole_is_one_value() -> None:
    pattern = hole("a") * ops.sigmoid(hole("a"))
    assert caught(pattern, X * ops.sigmoid(X)) == {"a": X}
    assert "the same a" in missed(pattern, X * ops.sigmoid(Y)).expected


def test_a_shared_inner_value_is_one_value() -> None:
    inner = ops.exp(hole("a"))
    pattern = inner / ops.reduce_sum(inner, axes=(-1,))
    e = ops.exp(X)
    assert isinstance(match(pattern, e / ops.reduce_sum(e, axes=(-1,))), Bound)
    assert isinstance(match(pattern, e / ops.reduce_sum(ops.exp(Y), axes=(-1,))), Mismatch)


def test_commutative_operands_are_tried_both_ways() -> None:
    pattern = ops.exp(hole("a")) + hole("b")
    assert caught(pattern, Y + ops.exp(X)) == {"a": X, "b": Y}


def test_backtracking_undoes_what_it_caught() -> None:
    """The first order binds `a` and `b`, then fails far from there; the second must start clean."""
    a, b = hole("a"), hole("b")
    pattern = (a + b) * ops.exp(b)
    assert caught(pattern, (X + Y) * ops.exp(X)) == {"a": Y, "b": X}


def test_sub_is_not_commutative() -> None:
    assert isinstance(match(ops.exp(hole("a")) - hole("b"), Y - ops.exp(X)), Mismatch)


def test_numbers_are_caught_and_compared_in_their_own_dtype() -> None:
    assert caught(hole("a") * scalar(Hole("c"), None), X * 0.5) == {"a": X, "c": 0.5}
    assert caught(hole("a") * scalar(0.1, None), X * 0.1) == {"a": X}
    assert "constant 0.1" in missed(hole("a") * scalar(0.1, None), X * 0.2).expected


def test_no_whole_number_is_infinite() -> None:
    """The conversion to an integer raised, and ended the compilation of a graph that selects whole numbers."""
    seven, ints = constant(np.array(7, np.int32)), input("i", i32[4])
    for wanted in (-np.inf, np.nan):
        assert "constant" in missed(hole("a") + scalar(wanted, None), ints + seven).expected
    nought = constant(np.array(0, np.int32))
    assert missed(hole("a") + scalar(Hole("n", "inverse"), None), ints + nought).at is nought


def test_zeros_of_either_sign_are_two_numbers_and_nan_is_one() -> None:
    """x + 0.0 turns -0.0 into 0.0, and x + -0.0 does not."""
    nan = float("nan")
    for number, other in ((0.0, -0.0), (-0.0, 0.0)):
        assert caught(ops.exp(hole("a")) + scalar(number, None), ops.exp(X) + number) == {"a": X}
        missed(ops.exp(hole("a")) + scalar(number, None), ops.exp(X) + other)
        twice = ops.exp(hole("a") + scalar(Hole("c"), None)) * scalar(Hole("c"), None)
        assert caught(twice, ops.exp(X + number) * number)["a"] is X
        missed(twice, ops.exp(X + number) * other)
    assert caught(ops.exp(hole("a")) * scalar(nan, None), ops.exp(X) * nan) == {"a": X}
    assert caught(ops.exp(hole("a") + scalar(Hole("c"), None)) * scalar(Hole("c"), None), ops.exp(X + nan) * nan)


def test_a_root_and_an_inverse_are_recovered() -> None:
    root = caught(hole("a") * scalar(Hole("c") ** 0.5, None), X * 0.5)
    inverse = caught(hole("a") / scalar(1 / Hole("c"), None), X / 4.0)
    assert (root["c"], inverse["c"]) == (0.25, 0.25)


def test_attributes_are_caught_and_compared() -> None:
    pattern = ops.split(hole("a"), axis=-1, parts=Hole("h"))
    assert caught(pattern, ops.split(X, axis=1, parts=2)) == {"a": X, "h": 2}
    assert "axis=-1" in missed(pattern, ops.split(X, axis=0, parts=2)).expected


def test_sizes_and_dtypes_are_asked_of_what_was_caught() -> None:
    a = hole("a")
    sized = ops.expand(ops.unsqueeze(a, axes=(-1,)), axis=-1, size=size_of(a, -1))
    once = ops.unsqueeze(X, axes=(-1,))
    assert isinstance(match(sized, ops.expand(once, axis=-1, size=4)), Bound)
    assert isinstance(match(sized, ops.expand(once, axis=-1, size=5)), Mismatch)
    typed = ops.cast(ops.exp(a), dtype=dtype_of(a))
    assert isinstance(match(typed, ops.cast(ops.exp(X), dtype="f32")), Bound)
    assert isinstance(match(typed, ops.cast(ops.exp(X), dtype="f16")), Mismatch)


def test_a_mismatch_says_how_far_it_got() -> None:
    far = missed(ops.relu(hole("a") @ hole("b") + hole("c")), ops.relu(ops.exp(X) + Y))
    assert (far.expected, far.found, far.matched) == ("matmul", "exp", 2)


def test_forgiving_lets_one_op_differ_and_no_more() -> None:
    pattern = ops.relu(hole("a") @ hole("b") + hole("c"))
    near = match(pattern, ops.exp(X @ Y + Z), forgive=True)
    assert isinstance(near, Bound)
    assert near.forgiven is not None
    assert (near.forgiven.expected, near.forgiven.found) == ("relu", "exp")
    assert isinstance(match(pattern, ops.exp(X @ Y - Z), forgive=True), Mismatch)


def test_a_constant_array_is_no_number() -> None:
    weights = constant(np.ones(4), f32)
    assert "constant number" in missed(hole("a") * scalar(1.0, None), X * weights).expected


def test_a_new_axis_of_size_1_is_a_split() -> None:
    row = input("row", f32[3, 8])
    assert caught(ops.split(hole("a"), axis=-1, size=8), ops.unsqueeze(row, axes=(-2,))) == {"a": row}
    assert caught(ops.split(hole("a"), axis=-1, parts=8), ops.unsqueeze(row, axes=(-1,))) == {"a": row}
    missed(ops.split(hole("a"), axis=-1, size=4), ops.unsqueeze(row, axes=(-2,)))
    missed(ops.split(hole("a"), axis=-1, size=8), ops.unsqueeze(row, axes=(-3,)))


def test_which_axis_of_size_1_is_meant_changes_nothing() -> None:
    one, column = input("one", f32[1, 8]), input("column", f32[8, 1])
    assert caught(ops.unsqueeze(hole("a"), axes=(-2,)), ops.unsqueeze(one, axes=(-3,))) == {"a": one}
    assert caught(ops.squeeze(hole("a"), axes=(-1,)), ops.squeeze(column, axes=(-1,))) == {"a": column}
    missed(ops.unsqueeze(hole("a"), axes=(-2,)), ops.unsqueeze(column, axes=(-3,)))
    missed(ops.squeeze(hole("a"), axes=(-2,)), ops.squeeze(column, axes=(-1,)))
