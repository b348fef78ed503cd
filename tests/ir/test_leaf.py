"""Inputs, parameters, constants and projections."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TypeRuleError, UnsupportedError
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, bf16, bool_, c64, f16, f32, i8, i32, u8, u64
from dovetail.ir.literal import Literal


def test_scalars_take_the_dtype_asked_for() -> None:
    for number, dtype in [(0.1, f32), (0.1, bf16), (3, i8), (2**64 - 1, u64), (True, bool_), (1 + 2j, c64), (1e9, f16)]:
        found = leaf.scalar(number, dtype).attrs["value"].array
        with np.errstate(over="ignore"):
            expected = np.array(number).astype(dtype.numpy)
        assert found.dtype == dtype.numpy
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(300, i8), (-1, u8), (2**64, u64), (1.5, i32), (float("nan"), i32), (float("inf"), i32), (1j, f32), (1j, i32),
     (10**400, f32), (10**400, i32)],
    ids=range(10),
)  # fmt: skip
def test_numbers_that_a_dtype_does_not_have(number: Any, dtype: DType) -> None:
    with pytest.raises(TypeRuleError) as caught:
        leaf.scalar(number, dtype)
    assert caught.value.hint


def test_arrays_that_are_none() -> None:
    wrong: list[tuple[Any, DType | None]] = [([[1, 2], [3]], None), ([[1, 2], [3]], f32), (300, i8), ("text", f32)]
    for array, dtype in wrong:
        with pytest.raises(TypeRuleError) as caught:
            leaf.constant(array, dtype)
        assert caught.value.hint
    with pytest.raises(UnsupportedError, match="dtype"):
        leaf.constant(np.array(["text"]))


def test_the_number_in_a_constant() -> None:
    assert leaf.scalar_of(leaf.constant(1.5, f32)) == 1.5
    assert leaf.scalar_of(leaf.constant(np.array([[2.0]], ml_dtypes.bfloat16))) == 2.0
    assert leaf.scalar_of(leaf.constant(np.array([1, 2]), i32)) is None
    assert leaf.scalar_of(leaf.input("x", f32[1])) is None


def test_items_of_a_pack_are_what_was_packed() -> None:
    x, y = leaf.input("x", f32[2]), leaf.input("y", f32[3])
    both = leaf.pack((x, y))
    assert both[0] is x
    assert both[1] is y
    with pytest.raises(TypeRuleError, match="item 5 of 2"):
        _ = both[5]
    with pytest.raises(TypeRuleError, match="a tuple within a tuple"):
        leaf.pack((both, x))


def test_a_literal_is_compared_by_content() -> None:
    zeros = Literal(np.zeros(20, np.float32))
    assert zeros == Literal(np.zeros(20, np.float32))
    assert hash(zeros) == hash(Literal(np.zeros(20, np.float32)))
    assert zeros != Literal(-np.zeros(20, np.float32))
    assert zeros != Literal(np.zeros((4, 5), np.float32))
    assert zeros != Literal(np.zeros(20, np.int32))
    assert Literal(np.full(3, np.nan)) == Literal(np.full(3, np.nan))
    assert Literal(np.array([1, 256], ">i4")) == Literal(np.array([1, 256], np.int32))
    assert not zeros.array.flags.writeable


def test_true_is_stored_as_one() -> None:
    odd = np.array([0, 2, 255], np.uint8).view(np.bool_)
    assert Literal(odd) == Literal(np.array([False, True, True]))
    assert Literal(np.array(2, np.uint8).view(np.bool_)) == Literal(np.array(True))


def test_types_are_written_with_names_and_numbers() -> None:
    assert str(f32["b", "2*s+1", 4]) == "f32[b, 2*s+1, 4]"
    wide: Any = np.int64(4)
    assert f32[wide] == f32[4]
    assert isinstance(f32[wide].shape[0], int)
    for size in (-1, "-1", 2.5, None, "s s"):
        wrong: Any = size
        with pytest.raises(Exception, match="size") as caught:
            _ = f32[wrong]
        assert caught.type.__module__ == "dovetail.errors"


def test_operands_and_attributes_of_leaves_are_checked() -> None:
    x = leaf.input("x", f32[2])
    for op, operands, attrs in [
        (leaf.INPUT, (x,), {"name": "y", "type": f32[2]}),
        (leaf.INPUT, (), {"name": "y"}),
        (leaf.PARAM, (), {"name": 3, "type": f32[2]}),
        (leaf.ARGUMENT, (), {"index": True, "type": f32[2]}),
        (leaf.ITEM, (), {"index": 0}),
        (leaf.CONST, (), {"value": 3}),
    ]:
        with pytest.raises(TypeRuleError):
            op.normal(operands, attrs)
    turned = {"type": f32[2], "name": "x"}
    assert list(leaf.INPUT.normal((), turned)) == ["name", "type"]


def test_primitives_refuse_attributes_of_other_kinds() -> None:
    x = leaf.input("x", f32[2, 3])
    attributes: list[Any] = [None, 1.5, "all", f32, object()]
    for axes in attributes:
        with pytest.raises(TypeRuleError):
            ops.flip(x, axes=axes)
