"""Convolutions against loops over single elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail import ops
from dovetail.errors import BindError, TraceError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bf16, f16, f32, f64, i32
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops import convolution
from dovetail.ops.primitive import Primitive
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close

Array = NDArray[Any]


def naive_conv(
    x: Array, w: Array, strides: list[int], dilations: list[int], before: list[int], after: list[int], groups: int
) -> Array:
    """One multiplication at a time."""
    spatial, kernel = x.shape[2:], w.shape[2:]
    out = [
        (n + b + a - ((k - 1) * d + 1)) // s + 1
        for n, k, s, d, b, a in zip(spatial, kernel, strides, dilations, before, after, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    for n, m, *place in np.ndindex(*y.shape):
        group = m // (w.shape[0] // groups)
        for c, *tap in np.ndindex(*w.shape[1:]):
            at = [p * s + t * d - b for p, s, t, d, b in zip(place, strides, tap, dilations, before, strict=True)]
            if all(0 <= i < size for i, size in zip(at, spatial, strict=True)):
                y[(n, m, *place)] += x[(n, group * w.shape[1] + c, *at)] * w[(m, c, *tap)]
    return y


def naive_transpose(
    x: Array,
    w: Array,
    strides: list[int],
    dilations: list[int],
    before: list[int],
    after: list[int],
    extra: list[int],
    groups: int,
) -> Array:
    """Every element of x is spread over the result by the kernel."""
    spatial, kernel = x.shape[2:], w.shape[2:]
    out = [
        s * (n - 1) + e + (k - 1) * d + 1 - b - a
        for n, k, s, d, b, a, e in zip(spatial, kernel, strides, dilations, before, after, extra, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[1] * groups, *out))
    for n, c, *place in np.ndindex(*x.shape):
        group = c // (x.shape[1] // groups)
        for m, *tap in np.ndindex(*w.shape[1:]):
            at = [p * s + t * d - b for p, s, t, d, b in zip(place, strides, tap, dilations, before, strict=True)]
            if all(0 <= i < size for i, size in zip(at, out, strict=True)):
                y[(n, group * w.shape[1] + m, *at)] += x[(n, c, *place)] * w[(c, m, *tap)]
    return y


def numbers(*shape: int) -> Array:
    rng = np.random.default_rng(sum(shape))
    return rng.integers(-4, 5, shape).astype(np.float64)


def run(value: Value, **feeds: Array) -> Array:
    found = evaluate(Graph.of(value), feeds)["y"]
    assert value.shape == found.shape or not value.tensor.is_static
    return found


CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 8), (4, 3, 3), {}),
    ((2, 4, 9), (6, 2, 3), {"groups": 2, "strides": 2, "padding": (2, 0)}),
    ((1, 4, 7), (4, 1, 2), {"groups": 4, "dilations": 3}),
    ((2, 3, 5, 6), (2, 3, 3, 2), {"strides": (2, 1), "dilations": (1, 2), "padding": (1, 0, 2, 3)}),
    ((1, 2, 6, 5), (3, 2, 1, 1), {"strides": (3, 2)}),
    ((1, 2, 4, 5, 3), (4, 1, 2, 3, 2), {"groups": 2, "padding": 1, "strides": (1, 2, 1)}),
    ((0, 2, 4), (3, 2, 2), {}),
    ((1, 0, 4), (3, 0, 2), {}),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "attrs"), CASES)
def test_conv(x_shape: tuple[int, ...], w_shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    count = len(x_shape) - 2
    x, w = numbers(*x_shape), numbers(*w_shape)
    value = ops.conv(leaf.input("x", f64[x_shape]), leaf.input("w", f64[w_shape]), **attrs)
    strides, dilations, padding = (value.attrs[k] for k in ("strides", "dilations", "padding"))
    assert len(strides) == len(dilations) == count and len(padding) == 2 * count
    expected = naive_conv(x, w, strides, dilations, padding[:count], padding[count:], attrs.get("groups", 1))
    found = run(value, x=x, w=w)
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5), (3, 4, 3), {}),
    ((1, 4, 4), (4, 2, 3), {"groups": 2, "strides": 3, "padding": (1, 2), "output_padding": 2}),
    ((1, 4, 5), (4, 1, 2), {"groups": 4, "dilations": 2, "strides": 2}),
    ((2, 2, 3, 4), (2, 3, 3, 2), {"strides": (2, 3), "dilations": (2, 1), "padding": (1, 0, 2, 1)}),
    ((1, 2, 3, 2), (2, 1, 1, 1), {"strides": (3, 2), "output_padding": (4, 1)}),
    ((1, 2, 2, 3, 2), (2, 2, 2, 3, 2), {"groups": 2, "padding": 1, "strides": (2, 1, 2), "output_padding": 1}),
    ((0, 2, 4), (2, 3, 2), {}),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "attrs"), TRANSPOSED)
def test_conv_transpose(x_shape: tuple[int, ...], w_shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    count = len(x_shape) - 2
    x, w = numbers(*x_shape), numbers(*w_shape)
    value = ops.conv_transpose(leaf.input("x", f64[x_shape]), leaf.input("w", f64[w_shape]), **attrs)
    strides, dilations, padding, extra = (value.attrs[k] for k in ("strides", "dilations", "padding", "output_padding"))
    groups = attrs.get("groups", 1)
    expected = naive_transpose(x, w, strides, dilations, padding[:count], padding[count:], extra, groups)
    found = run(value, x=x, w=w)
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()


def _between(image: Array, at: list[float]) -> float:
    """An image at a place between pixels; there is nothing around it."""
    total = 0.0
    low = [math.floor(a) for a in at]
    for step in np.ndindex(*(2,) * len(at)):
        pixel = [start + s for start, s in zip(low, step, strict=True)]
        if all(0 <= i < size for i, size in zip(pixel, image.shape, strict=True)):
            total += float(image[tuple(pixel)]) * math.prod(1 - abs(a - i) for a, i in zip(at, pixel, strict=True))
    return total


@pytest.mark.parametrize("count", [1, 2, 3])
def test_deform_conv(count: int) -> None:
    rng = np.random.default_rng(count)
    spatial, kernel, strides, dilations, before = (5, 4, 6)[:count], (2, 3, 2)[:count], (2, 1, 2), (1, 1, 2), (1, 0, 1)
    x, w = rng.standard_normal((2, 4, *spatial)), rng.standard_normal((6, 2, *kernel))
    plain = {"strides": strides[:count], "dilations": dilations[:count], "padding": before[:count], "groups": 2}
    places = evaluate(Graph.of(ops.conv(leaf.constant(x), leaf.constant(w), **plain)), {})["y"].shape[2:]
    offset = rng.uniform(-2, 2, (2, 2, *kernel, count, *places))
    mask = rng.uniform(0, 1, (2, 2, *kernel, *places))
    expected = np.zeros((2, 6, *places))
    for n, m, *place in np.ndindex(*expected.shape):
        for c, *tap in np.ndindex(2, *kernel):
            channel = m // 3 * 2 + c
            where = (n, channel // 2, *tap)
            start = [place[i] * strides[i] - before[i] + tap[i] * dilations[i] for i in range(count)]
            at = [start[i] + offset[(*where, i, *place)] for i in range(count)]
            expected[(n, m, *place)] += _between(x[n, channel], at) * mask[(*where, *place)] * w[(m, c, *tap)]
    flat = [offset.reshape(2, -1, *places), mask.reshape(2, -1, *places)]
    value = ops.deform_conv(*map(leaf.constant, (x, w, *flat)), **plain, offset_groups=2)
    assert_close(evaluate(Graph.of(value), {})["y"], expected, f64)


def test_what_deform_conv_does_not_take() -> None:
    x, w = leaf.input("x", f32[1, 4, 5, 5]), leaf.input("w", f32[3, 4, 3, 3])
    offset, mask = leaf.input("o", f32[1, 18, 3, 3]), leaf.input("m", f32[1, 9, 3, 3])
    assert ops.deform_conv(x, w, offset, mask).shape == (1, 3, 3, 3)
    with pytest.raises(TypeRuleError, match="offsets and mask, against taps and places"):
        ops.deform_conv(x, w, mask, mask)
    with pytest.raises(TypeRuleError, match="rank 4"):
        ops.deform_conv(x, w, offset, leaf.input("m", f32[9, 3, 3]))
    with pytest.raises(TypeRuleError, match="groups of offsets"):
        ops.deform_conv(x, w, offset, mask, offset_groups=0)


def test_a_large_image_is_taken_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x, w = leaf.constant(rng.standard_normal((2, 4, 7, 5))), leaf.constant(rng.standard_normal((6, 2, 3, 2)))
    value = Graph.of(ops.conv(x, w, strides=(2, 1), padding=(1, 0, 2, 1), groups=2))
    whole = evaluate(value, {})["y"]
    monkeypatch.setattr(convolution, "_MOST_SEEN", 2 * 4 * 6 * 5)
    assert_close(evaluate(value, {})["y"], whole, f64)


def test_a_conv_by_hand() -> None:
    x = np.array([[[1, 2, 3, 4]]], np.float32)
    w = np.array([[[10, 1]]], np.float32)
    plain = ops.conv(leaf.input("x", f32[1, 1, 4]), leaf.input("w", f32[1, 1, 2]))
    assert run(plain, x=x, w=w).tolist() == [[[12, 23, 34]]]
    back = ops.conv_transpose(leaf.input("x", f32[1, 1, 4]), leaf.input("w", f32[1, 1, 2]), strides=2)
    assert run(back, x=x, w=w).tolist() == [[[10, 1, 20, 2, 30, 3, 40, 4]]]


def test_every_dtype_in_its_own_type() -> None:
    x, w = numbers(1, 2, 6), numbers(3, 2, 3) / 4
    expected = naive_conv(x, w, [1], [1], [0], [0], 1)
    for dtype in (f16, bf16, f32):
        value = ops.conv(leaf.input("x", dtype[1, 2, 6]), leaf.input("w", dtype[3, 2, 3]))
        assert_close(run(value, x=x.astype(dtype.numpy), w=w.astype(dtype.numpy)), expected, dtype)
    whole = ops.conv(leaf.input("x", i32[1, 1, 1]), leaf.input("w", i32[1, 1, 1]))
    wrapped = run(whole, x=np.array([[[2**30]]], np.int32), w=np.array([[[4]]], np.int32))
    assert wrapped.tolist() == [[[0]]]


def test_symbolic_sizes() -> None:
    n, h = symbol("n"), symbol("h")
    x, w = leaf.input("x", TensorType(f32, (n, 2, h, 8))), leaf.input("w", f32[4, 2, 3, 3])
    value = ops.conv(x, w, strides=2, padding=1)
    assert value.shape == (n, 4, (h - 1) // 2 + 1, 4)
    for height in (1, 2, 7):
        image, kernel = numbers(2, 2, height, 8), numbers(4, 2, 3, 3)
        expected = naive_conv(image, kernel, [2, 2], [1, 1], [1, 1], [1, 1], 1)
        assert run(value, x=image.astype(np.float32), w=kernel.astype(np.float32)).tolist() == expected.tolist()
    short = ops.conv(x, w)
    with pytest.raises(BindError, match="at least"):
        run(short, x=np.ones((1, 2, 2, 8), np.float32), w=np.ones((4, 2, 3, 3), np.float32))
    assert ops.conv_transpose(x, leaf.input("v", f32[2, 3, 2, 2]), strides=2).shape == (n, 3, 2 * h, 16)


def test_same_padding_of_a_symbolic_size() -> None:
    s = symbol("s")
    needed = ((s - 1) // 2) * 2 + 3 - s
    value = ops.conv(
        leaf.input("x", TensorType(f32, (1, 1, s))), leaf.input("w", f32[1, 1, 3]), strides=2, padding=(0, needed)
    )
    for size in (4, 5):
        assert run(value, x=np.ones((1, 1, size), np.float32), w=np.ones((1, 1, 3), np.float32)).shape[2] == -(
            -size // 2
        )


X = leaf.input("x", f32[1, 4, 8])
REFUSED: list[tuple[TensorType, dict[str, Any], str]] = [
    (f32[4, 3, 3], {}, "channels"),
    (f32[4, 4, 3], {"groups": 2}, "channels"),
    (f32[3, 2, 3], {"groups": 2}, "groups"),
    (f32[4, 4, 3], {"groups": 0}, "0 groups"),
    (f32[4, 4, 9], {}, "reach"),
    (f32[4, 4, 4], {"dilations": 3}, "reach"),
    (f32[4, 4, 0], {}, "window"),
    (f32[4, 4, 3, 3], {}, "weights"),
    (f64[4, 4, 3], {}, "f64"),
    (f32[4, 4, 3], {"strides": (1, 1)}, "strides has 2"),
    (f32[4, 4, 3], {"strides": 0}, "strides"),
    (f32[4, 4, 3], {"padding": (1, 1, 1)}, "padding has 3"),
    (f32[4, 4, 3], {"padding": -1}, "padding"),
    (f32[4, 4, 3], {"padding": 1.5}, "integer"),
]


@pytest.mark.parametrize(("weights", "attrs", "said"), REFUSED)
def test_what_conv_does_not_take(weights: TensorType, attrs: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeRuleError, match=said) as caught:
        ops.conv(X, leaf.input("w", weights), **attrs)
    assert caught.value.hint


def test_what_conv_transpose_does_not_take() -> None:
    with pytest.raises(TypeRuleError, match="channels"):
        ops.conv_transpose(X, leaf.input("w", f32[3, 4, 3]))
    with pytest.raises(TypeRuleError, match="groups"):
        ops.conv_transpose(X, leaf.input("w", f32[4, 4, 3]), groups=3)
    with pytest.raises(TypeRuleError, match="output padding"):
        ops.conv_transpose(X, leaf.input("w", f32[4, 4, 3]), output_padding=-1)
    with pytest.raises(TypeRuleError, match="left of an axis"):
        ops.conv_transpose(X, leaf.input("w", f32[4, 4, 3]), padding=6)
    with pytest.raises(TypeRuleError, match="spatial"):
        ops.conv(leaf.input("x", f32[1, 4]), leaf.input("w", f32[4, 4]))


def test_a_pattern_writes_one_number_for_each_axis() -> None:
    x, w = leaf.hole("x"), leaf.hole("w")
    assert ops.conv(x, w, strides=(1, 1), dilations=(1, 1), padding=(0, 0, 0, 0)).known_type is None
    with pytest.raises(TraceError, match="unknown rank"):
        ops.conv(x, w)


def test_flops() -> None:
    value = ops.conv(leaf.input("x", f32[2, 4, 10]), leaf.input("w", f32[6, 2, 3]), groups=2)
    back = ops.conv_transpose(leaf.input("x", f32[2, 4, 10]), leaf.input("w", f32[4, 3, 3]), groups=2)
    for of, expected in ((value, 2 * (2 * 6 * 8) * 2 * 3), (back, 2 * (2 * 4 * 10) * 3 * 3)):
        assert isinstance(of.op, Primitive)
        assert of.op.flops(of.type, tuple(v.type for v in of.operands), of.attrs) == expected
