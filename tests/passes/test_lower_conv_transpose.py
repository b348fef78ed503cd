"""Transposed convolutions as convolutions of their phases, against their meaning in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dovetail
from dovetail import Graph, Value, ops
from dovetail.dtypes import f16, f32, f64
from dovetail.errors import TypeRuleError
from dovetail.ir.dim import evaluate as evaluate_size
from dovetail.ir.dtype import DType
from dovetail.ir.leaf import input, param
from dovetail.passes.legalize import legalize
from dovetail.passes.lowerings import LOWERINGS
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close


def lowered(value: Value) -> Graph:
    return legalize(Graph.of(value), CPU, lowerings=LOWERINGS).graph


def static(value: Value) -> tuple[int, ...]:
    return tuple(evaluate_size(size, {}) for size in value.shape)


def numbers(shape: tuple[int, ...], dtype: DType, seed: int) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype.numpy)


def check(value: Value, *shapes: tuple[int, ...]) -> None:
    """The lowered graph and the compiled program agree with the transposed convolution."""
    graph, (x, w) = Graph.of(value), value.operands
    params = {"w": numbers(static(w), w.dtype, 1)}
    program = dovetail.compile(graph, params=params)
    new = lowered(value)
    for shape in shapes:
        feed = {"x": numbers(shape, x.dtype, 2)}
        (wanted,) = evaluate(graph, feed, params=params, lift=True).values()
        (spelled,) = evaluate(new, feed, params=params, lift=True).values()
        np.testing.assert_allclose(spelled, wanted, rtol=1e-9, atol=1e-9)
        (got,) = program.run(feed).values()
        assert_close(got, wanted, x.dtype)


@st.composite
def transposed(draw: st.DrawFn) -> Value:
    count = draw(st.integers(1, 3))
    groups, channels, filters = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    x = input("x", f32[draw(st.integers(1, 2)), groups * channels, *each(1, 6)])
    w = param("w", f32[groups * channels, filters, *each(1, 5)])
    attrs: dict[str, Any] = {"strides": each(1, 4), "dilations": each(1, 3), "output_padding": each(0, 3)}
    try:
        value = ops.conv_transpose(x, w, padding=(*each(0, 3), *each(0, 3)), groups=groups, **attrs)
        assert value.type is not None
    except TypeRuleError:
        assume(False)
        raise
    return value


@pytest.mark.slow
@given(transposed())
def test_any_transposed_convolution(value: Value) -> None:
    check(value, static(value.operands[0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "attrs"),
    [
        (2, {"strides": 2}),
        (3, {"strides": 2, "padding": 1, "output_padding": 1}),
        (4, {"strides": 2, "padding": 1}),
        (5, {"strides": 2, "padding": 2, "output_padding": 1}),
        (3, {"strides": 1, "padding": 1}),
        (16, {"strides": 8, "padding": 4}),
        (1, {"strides": 3}),
    ],
)
def test_usual_ones_of_any_size_are_one_convolution(window: int, attrs: dict[str, Any]) -> None:
    value = ops.conv_transpose(input("x", f32["n", 8, "h", "w"]), param("w", f32[8, 6, window, window]), **attrs)
    found = [v.op.name for v in lowered(value).values]
    assert "conv_transpose" not in found and found.count("conv") == 1
    check(value, (1, 8, 1, 1), (2, 8, 5, 9), (1, 8, 16, 3))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, f64])
def test_dtypes(dtype: DType) -> None:
    value = ops.conv_transpose(input("x", dtype[1, 4, 5, 6]), param("w", dtype[4, 3, 4, 4]), strides=2, padding=1)
    check(value, (1, 4, 5, 6))


def test_a_stride_of_the_window_reads_every_weight_once() -> None:
    """Up-sampling by 2×2 windows is a pointwise convolution: no weight is 0."""
    value = ops.conv_transpose(input("x", f32[1, 8, 4, 4]), param("w", f32[8, 6, 2, 2]), strides=2)
    (conv,) = [v for v in lowered(value).values if v.op is ops.conv]
    assert conv.operands[1].shape == (24, 8, 1, 1)


@pytest.mark.slow
def test_steps_after_it_are_one_kernel_with_the_shuffle() -> None:
    y = ops.conv_transpose(input("x", f32[1, 8, 4, 4]), param("w", f32[8, 6, 2, 2]), strides=2)
    y = ops.tanh(ops.add(y, param("b", f32[6, 1, 1])))
    program = dovetail.compile(Graph.of(y))
    assert [k.op for k in program.report.kernels if k.phase == "run"] == ["conv", "region"]


USUAL: list[tuple[int, dict[str, Any]]] = [
    (2, {"strides": 2}),
    (3, {"strides": 2, "padding": 1, "output_padding": 1}),
    (3, {"strides": 1, "padding": 1}),
    (5, {"strides": 3}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("window", "attrs"), USUAL)
def test_every_kernel_of_it_lists_the_users_nodes(window: int, attrs: dict[str, Any]) -> None:
    y = ops.conv_transpose(input("x", f32[1, 8, 4, 4]), param("w", f32[8, 6, window, window]), **attrs)
    for result in (y, ops.relu(ops.add(y, param("b", f32[6, 1, 1])))):
        report = dovetail.compile(Graph.of(result), cache="off").report
        assert all("conv_transpose" in [n.op for n in k.works_for] for k in report.kernels)
        assert all(entry.nodes for entry in report.fused)


@pytest.mark.parametrize(("window", "attrs"), USUAL)
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_an_infinite_pixel_reaches_its_window_only_where_compiles_are_strict(
    window: int, attrs: dict[str, Any], odd: float
) -> None:
    """Phases with fewer taps than others multiply the pixel by 0; the transposed convolution never reads it there."""
    value = ops.conv_transpose(input("x", f32[1, 2, 5, 5]), param("w", f32[2, 3, window, window]), **attrs)
    params, x = {"w": numbers((2, 3, window, window), f32, 1)}, numbers((1, 2, 5, 5), f32, 2)
    x[0, 0, 2, 2] = odd
    program = dovetail.compile(Graph.of(value), params=params, strict=True, cache="off")
    assert [k.op for k in program.report.kernels] == ["conv_transpose"]
    (got,) = program.run({"x": x}).values()
    (wanted,) = evaluate(Graph.of(value), {"x": x}, params=params).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
