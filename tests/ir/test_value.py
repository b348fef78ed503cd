"""Interning: equal means identical, and what == confuses is told apart."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TraceError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32, f64, i64
from dovetail.ir.graph import Subgraph
from dovetail.ir.origin import Recorder, recording
from dovetail.ir.type import TensorType, TupleType
from dovetail.ir.value import Value, attrs_key, is_interned, make
from tests.ir.graphs import anything

X, Y = leaf.input("x", f32[2, 3]), leaf.input("y", f32[2, 3])


def test_equal_values_are_identical() -> None:
    assert ops.relu(X + Y) is ops.relu(X + Y)
    assert leaf.input("x", f32[2, 3]) is X
    assert ops.flip(X, axes=1) is ops.flip(X, axes=(-1,))
    assert leaf.constant(np.ones(3, np.float32)) is leaf.constant(np.ones(3), f32)
    assert is_interned(X)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda: X + Y, lambda: Y + X),
        (lambda: leaf.input("x", f32[2, 3]), lambda: leaf.param("x", f32[2, 3])),
        (lambda: leaf.input("x", f32[2, 3]), lambda: leaf.input("x", f64[2, 3])),
        (lambda: leaf.constant(0.0, f32), lambda: leaf.constant(-0.0, f32)),
        (lambda: leaf.constant(0.0, f32), lambda: leaf.constant(0.0, f64)),
        (lambda: leaf.scalar(1, f32), lambda: leaf.scalar(1, i64)),
        (lambda: leaf.constant(np.ones(1), f32), lambda: leaf.constant(np.ones((1, 1)), f32)),
        (lambda: ops.flip(X, axes=0), lambda: ops.flip(X, axes=1)),
    ],
)
def test_different_values_are_not(left: Any, right: Any) -> None:
    assert left() is not right()
    assert left() is left()


ALIKE: tuple[Any, ...] = (
    *(0, 0.0, -0.0, False, 1, 1.0, True, None, "1", f32, symbol("s"), float("inf"), TensorType(f32, (1,))),
    *((1,), (True,), (1.0,), (0.0,), (-0.0,), ((1,),), ((True,),), (), (None,), Subgraph((f32[1],), ())),
)


def test_attributes_that_compare_equal_are_told_apart() -> None:
    values = [make(anything, (X,), {"a": a}) for a in ALIKE]
    assert len(set(values)) == len(ALIKE)
    for value, attribute in zip(values, ALIKE, strict=True):
        found = value.attrs["a"]
        assert (type(found), repr(found)) == (type(attribute), repr(attribute))
        assert make(anything, (X,), {"a": attribute}) is value


def test_nan_equals_itself_as_an_attribute() -> None:
    nan = float("nan")
    assert make(anything, (), {"a": nan}) is make(anything, (), {"a": float("nan")})
    assert make(anything, (), {"a": (nan,)}) is make(anything, (), {"a": (float("nan"),)})


def test_names_and_order_of_attributes_count() -> None:
    assert make(anything, (), {"a": 1}) is not make(anything, (), {"b": 1})
    assert attrs_key({"a": 1, "b": 2}) != attrs_key({"b": 2, "a": 1})


def test_values_cannot_be_changed_through_what_made_them() -> None:
    attrs = {"a": 1}
    value = make(anything, (), attrs)
    attrs["a"] = 2
    assert value.attrs["a"] == 1
    with pytest.raises(TypeError):
        value.attrs["a"] = 3  # type: ignore[index]
    array = np.zeros(3, np.float32)
    constant = leaf.constant(array)
    array[0] = 1
    assert constant.attrs["value"].array[0] == 0


@pytest.mark.exhaustive
def test_dead_values_are_forgotten() -> None:
    def build() -> int:
        return id(ops.exp(leaf.input("short_lived", f32[7])))

    build()
    gc.collect()
    before = _living()
    for i in range(100):
        make(anything, (), {"number": i})
    gc.collect()
    assert _living() <= before


def _living() -> int:
    """How many values there are, by type: objects of other packages may warn when they are asked for their class."""
    return sum(issubclass(type(o), Value) for o in gc.get_objects())


def test_a_value_that_is_made_while_an_equal_one_dies_stays() -> None:
    made: list[Value] = []
    value = leaf.input("dying", f32[3])
    watch = weakref.ref(value, lambda dead: made.append(leaf.input("dying", f32[3])))
    del value
    assert watch() is None
    assert len(made) == 1 and is_interned(made[0])
    assert leaf.input("dying", f32[3]) is made[0]


def test_threads_agree() -> None:
    found: list[list[Value]] = []
    barrier = threading.Barrier(8)

    def build() -> None:
        barrier.wait()
        values: list[Value] = []
        value = leaf.input("threaded", f32[3])
        for i in range(500):
            value = make(anything, (value,), {"step": i})
            values.append(value)
        found.append(values)

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for others in zip(*found, strict=True):
        assert len(set(others)) == 1


def test_types_are_asked_of_typed_values_only() -> None:
    assert (X.shape, X.dtype, X.rank) == ((2, 3), f32, 2)
    hole = ops.relu(leaf.hole("h"))
    assert hole.known_type is None
    with pytest.raises(TraceError, match="no type while a pattern is traced"):
        _ = hole.shape
    with pytest.raises(TraceError):
        list(hole)


def test_several_results() -> None:
    pair = ops.top_k(X, axis=-1, k=2, largest=True)
    assert isinstance(pair.type, TupleType)
    values, places = pair
    assert values is pair[0]
    assert places is pair[1]
    with pytest.raises(TypeRuleError, match="2 results, and one tensor is wanted"):
        _ = pair.shape
    with pytest.raises(TypeRuleError, match="item 2 of 2"):
        _ = pair[2]
    with pytest.raises(TypeRuleError, match="one result, and several are wanted"):
        list(X)


def test_an_error_in_a_type_rule_says_where() -> None:
    with pytest.raises(TypeRuleError) as caught:
        ops.matmul(X, Y)
    assert caught.value.where == "matmul(f32[2, 3], f32[2, 3])"
    assert caught.value.hint


def test_constraints_come_from_the_rule() -> None:
    left, right = leaf.input("l", f32["s"]), leaf.input("r", f32["t"])
    assert [str(c) for c in (left + right).constraints] == ["s equals t"]
    assert (X + Y).constraints == ()


def test_other_operands_with_the_same_op() -> None:
    value = ops.flip(X, axes=1)
    assert value.with_operands((X,)) is value
    assert value.with_operands((Y,)) is ops.flip(Y, axes=1)


def test_a_recorder_hears_of_values_that_exist_already() -> None:
    known = ops.relu(X)
    recorder = Recorder()
    with recording(recorder):
        assert ops.relu(X) is known
    assert [str(o)[:14] for o in recorder.origins[known]] == ["test_value.py:"]


def test_a_dtype_is_no_sequence() -> None:
    with pytest.raises(TypeError, match="holds no items"):
        list(f32)
