"""Sizes that the run finds, where nobody reads what finds them."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import ops
from dovetail.frontends.onnx import import_model
from dovetail.frontends.shared.binding import with_binders
from dovetail.frontends.shared.computed import with_dependencies
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, bool_, f16, f32, i64
from dovetail.ir.graph import Graph
from dovetail.ir.walk import walk
from dovetail.targets.reference.interpreter import evaluate
from tests.frontends.onnx.build import assert_like_onnxruntime, model, node


@pytest.mark.slow
def test_what_binds_a_size_is_kept() -> None:
    m = model(
        ["NonZero x -> p", "Shape p -> s", node("Unique x -> u"), "Size u -> n"], {"x": f32["a", "b"]}, ["s", "n"]
    )
    x = np.array([[0, 2, 2], [3, 0, 0]], np.float32)
    assert_like_onnxruntime(m, {"x": x}, {"x": x[:, :1].copy()}, {"x": 0 * x})


def test_what_binds_a_size_by_a_size_is_kept_too() -> None:
    x, first, second = leaf.input("x", f32["n"]), symbol("first"), symbol("second")
    places = ops.nonzero(x, count=first)
    numbers = ops.counting(ops.extent(size=first), count=second)
    (result,) = with_binders([ops.extent(size=second)], [places, numbers])
    assert {places, numbers} <= set(walk([result]))
    assert evaluate(Graph.of(result), {"x": np.array([1, 0, 2], np.float32)})["y"] == 2


def test_nothing_changes_where_sizes_are_known() -> None:
    m = model(["NonZero x -> p", "Shape x -> s"], {"x": f32["a", "b"]}, ["p", "s"])
    used = {v.op for v in import_model(m).values}
    assert ops.nonzero in used and ops.gather not in used


@pytest.mark.parametrize("dtype", [f32, f16, i64, bool_], ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_a_value_behind_others_is_itself(dtype: DType, shape: tuple[int, ...]) -> None:
    x = leaf.input("x", dtype[shape])
    numbers = leaf.input("z", f32["n"])
    graph = Graph.of(with_dependencies(x, numbers, ops.cast(numbers, dtype=i64)))
    array = np.ones(shape, dtype.numpy)
    for z in ([], [-3.0, 5.0, float("nan"), float("inf")]):
        result = evaluate(graph, {"x": array, "z": np.array(z, np.float32)})["y"]
        assert result.dtype == array.dtype and np.array_equal(result, array)
