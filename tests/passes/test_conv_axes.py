"""Convolutions along fewer axes, against their meaning in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dovetail
from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.errors import TypeRuleError
from dovetail.ir.dim import evaluate as evaluate_size
from dovetail.ir.leaf import input, param
from dovetail.passes.canonicalize import canonicalize
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close


def static(value: Value) -> tuple[int, ...]:
    return tuple(evaluate_size(size, {}) for size in value.shape)


def numbers(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def check(value: Value, *shapes: tuple[int, ...]) -> Graph:
    """The canonical graph and the compiled program agree with the graph as written."""
    graph = Graph.of(value)
    params = {v.attrs["name"]: numbers(static(v), 1) for v in graph.values if v.op.name == "param"}
    program, new = dovetail.compile(graph, params=params), canonicalize(graph)
    for shape in shapes:
        feed = {"x": numbers(shape, 2)}
        (wanted,) = evaluate(graph, feed, params=params, lift=True).values()
        (spelled,) = evaluate(new, feed, params=params, lift=True).values()
        np.testing.assert_allclose(spelled, wanted, rtol=1e-9, atol=1e-9)
        (got,) = program.run(feed).values()
        assert_close(got, wanted, f32)
    return new


def ranks(graph: Graph) -> list[int]:
    return [v.rank - 2 for v in graph.values if v.op is ops.conv]


@st.composite
def convolutions(draw: st.DrawFn) -> Value:
    """Along one to three axes, many of size 1."""
    count = draw(st.integers(1, 3))
    groups, channels, filters = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.sampled_from([low, *range(low, high + 1)])) for _ in range(count))

    x = input("x", f32[draw(st.integers(1, 2)), groups * channels, *each(1, 6)])
    w = param("w", f32[groups * filters, channels, *each(1, 4)])
    attrs: dict[str, Any] = {"strides": each(1, 3), "dilations": each(1, 2), "groups": groups}
    try:
        value = ops.conv(x, w, padding=(*each(0, 3), *each(0, 3)), **attrs)
        assert value.type is not None
    except TypeRuleError:
        assume(False)
        raise
    return ops.tanh(value + param("b", f32[groups * filters, *(1,) * count])) if draw(st.booleans()) else value


@pytest.mark.exhaustive
@given(convolutions())
def test_any_convolution(value: Value) -> None:
    x = next(v for v in Graph.of(value).values if v.op.name == "input")
    assert all(rank <= 2 for rank in ranks(check(value, static(x))))


@pytest.mark.slow
def test_an_image_of_depth_one_is_planar_with_its_bias_and_activation() -> None:
    y = ops.conv(input("x", f32["n", 3, 1, "h", "w"]), param("w", f32[8, 3, 1, 5, 5]), padding=(0, 2, 2))
    y = ops.relu(y + param("b", f32[8, 1, 1, 1]))
    assert ranks(check(y, (1, 3, 1, 7, 9), (2, 3, 1, 16, 5))) == [2]
    kernels = dovetail.compile(Graph.of(y)).report.kernels
    assert [k.op for k in kernels if k.phase == "run"] == ["conv_bias_act"]


@pytest.mark.slow
@pytest.mark.parametrize("window", [(3, 1, 1), (1, 3, 3), (3, 3, 3), (1, 1, 1)])
def test_windows_along_three_axes_of_any_size(window: tuple[int, int, int]) -> None:
    padding = tuple(n // 2 for n in window)
    y = ops.conv(input("x", f32["n", 4, "d", "h", "w"]), param("w", f32[6, 4, *window]), padding=padding)
    assert ranks(check(y, (1, 4, 5, 6, 7), (2, 4, 3, 8, 3), (1, 4, 1, 1, 1))) == [2]


WINDOWS = [(3, 3, 3), (3, 1, 1), (1, 3, 3), (1, 1, 1)]


def _biased(x: Value, window: tuple[int, int, int], number: int) -> Value:
    """A convolution of four channels to as many, with its bias."""
    w, b = param(f"w{number}", f32[4, 4, *window]), param(f"b{number}", f32[4, 1, 1, 1])
    return ops.conv(x, w * 0.1, padding=tuple(n // 2 for n in window)) + b


@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("sizes", [(1, 5, 6, 7), (2, 3, 6, 7)], ids=["one", "batch"])
def test_bias_residual_and_activation_are_in_the_epilogue(
    window: tuple[int, int, int], sizes: tuple[int, int, int, int]
) -> None:
    n, *pixels = sizes
    x = ops.relu(_biased(input("x", f32[n, 4, *pixels]), window, 0))
    y = ops.relu(_biased(ops.relu(_biased(x, window, 1)), window, 2) + x)
    assert set(ranks(check(y, (n, 4, *pixels)))) <= {1, 2}
    kernels = dovetail.compile(Graph.of(y)).report.kernels
    found = [k.op for k in kernels if k.phase == "run" and k.op not in ("pad", "concat", "merge")]
    assert found == ["conv_bias_act"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS)
def test_steps_after_three_axes_of_any_size(window: tuple[int, int, int]) -> None:
    """A scale for each channel, a number, and an operand that is no view of a vector."""
    x = input("x", f32["n", 4, "d", "h", "w"])
    y = ops.tanh(_biased(x, window, 0) * param("s", f32[1, 4, 1, 1, 1]) * 0.5)
    if window != (1, 1, 1):
        y = y + x
    check(y, (1, 4, 5, 6, 7), (2, 4, 3, 8, 3), (1, 4, 1, 1, 1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", [(5, 1, 1), (6, 1), (7,), (2, 1, 1, 1, 1)], ids=str)
def test_vectors_along_other_axes_stay_right(shape: tuple[int, ...]) -> None:
    y = ops.conv(input("x", f32[2, 4, 5, 6, 7]), param("w", f32[4, 4, 3, 3, 3]), padding=1)
    check(ops.relu(y + param("v", f32[shape])), (2, 4, 5, 6, 7))


def test_a_width_of_one_is_one_axis() -> None:
    y = ops.conv(input("x", f32[2, 4, 30, 1]), param("w", f32[6, 4, 5, 1]), padding=(2, 0))
    assert ranks(check(y, (2, 4, 30, 1))) == [1]


def test_taps_that_only_read_padding_are_dropped() -> None:
    y = ops.conv(input("x", f32[1, 4, 1, 9, 9]), param("w", f32[6, 4, 3, 3, 3]), padding=1)
    assert ranks(check(y, (1, 4, 1, 9, 9))) == [2]
