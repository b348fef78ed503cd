"""Gradients of a user's own model: checked by differences, and what is not finite is named."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import library, ops
from dovetail.dtypes import f32, i64
from dovetail.errors import GradientError
from dovetail.inspect import verify_gradients
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.ops.gradient import Parts
from dovetail.runtime.random_inputs import RandomInputs
from dovetail.runtime.verify_gradients import first_not_finite


def model() -> Graph:
    builder = dovetail.Builder("model", lines=False)
    with builder.recording():
        x = builder.input("x", f32["n", 4])
        with dovetail.graphs.scope("first"):
            h = library.layer_norm(x @ builder.param("w", f32[4, 6]), builder.param("gain", f32[6]), eps=1e-5)
        with dovetail.graphs.scope("second"):
            y = ops.tanh(h) @ builder.param("v", f32[6, 3])
        builder.param("unused", f32[3])
        builder.output("y", y)
        builder.output("class", ops.arg_max(y, axis=-1))
    return builder.graph()


def test_a_model_holds_and_unreached_parameters_are_named() -> None:
    found = verify_gradients(model())
    assert found.holds and {c.name for c in found.checks} == {"w", "gain", "v"}
    assert max(c.deviation for c in found.checks) < 1e-6
    assert found.unreached == ("unused",)
    assert {c.name for c in verify_gradients(model(), wrt="x").checks} == {"x"}


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(g: Value, y: Value, x: Value) -> Parts:
        return (g * (1.0 - y),)

    monkeypatch.setattr(ops.tanh, "pull", wrong)
    found = verify_gradients(model())
    assert not found.holds
    assert {c.name for c in found.checks if not c.holds} == {"w", "gain"}, "v comes after the wrong rule"


def test_the_first_value_that_is_not_finite_is_named_with_its_place() -> None:
    builder = dovetail.Builder("roots", lines=False)
    with builder.recording():
        x = builder.input("x", f32[3])
        with dovetail.graphs.scope("forward"):
            y = ops.sqrt(x)
        builder.output("y", ops.squeeze(ops.reduce_sum(y, axes=(-1,)), axes=(-1,)))
    graph = builder.graph()
    both = dovetail.graphs.value_and_grad(graph, "x")

    def first(*numbers: float) -> tuple[str, str] | None:
        bad = first_not_finite(both, RandomInputs({"x": np.array(numbers, np.float32)}, {}, {}))
        return None if bad is None else (bad.value.op.name, bad.where)

    assert first(1, 2, 3) is None
    assert first(1, -2, 3) == ("sqrt", "forward")
    assert first(1, 0, 3) == ("div", "backward of forward")
    found = verify_gradients(graph, RandomInputs({"x": np.array([1, 0, 3], np.float32)}, {}, {}), wrt="x")
    assert found.not_finite is not None and not found.holds


def test_infinities_of_a_mask_may_pass_and_nan_made_of_them_may_not() -> None:
    x, keep = dovetail.input("x", f32[2, 3]), dovetail.input("keep", f32[2, 3])
    y = library.softmax(ops.where(keep > 0.0, x, float("-inf")))
    graph = Graph.of({"y": y}, inputs=(x, keep))
    numbers = np.ones((2, 3), np.float32)
    assert first_not_finite(graph, RandomInputs({"x": numbers, "keep": numbers}, {}, {})) is None
    masked = numbers.copy()
    masked[1] = 0
    bad = first_not_finite(graph, RandomInputs({"x": numbers, "keep": masked}, {}, {}))
    assert bad is not None and bad.value is y and bad.count == 3


def test_integers_alone_have_no_gradient() -> None:
    n = dovetail.input("n", i64[3])
    with pytest.raises(GradientError, match="no float outputs"):
        verify_gradients(Graph.of(n + n))
