"""Convolutions and pools for the CUDA kernels: drawn at random, and layers of real models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dovetail import Value, library, ops
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, DType, bf16, f16, f32, f64, i32, u8
from dovetail.ir.leaf import constant
from dovetail.ops.resize import resize
from tests.targets.cuda.graphs import Case, x_of


def weights(dtype: DType, *shape: int) -> Value:
    """Known weights, whose sums are near 1."""
    drawn = np.random.default_rng(shape).normal(size=shape) / np.sqrt(np.prod(shape[1:]))
    return constant(drawn.astype(dtype.numpy))


def image(dtype: DType, *shape: int | str, name: str = "x", channels_last: bool = False) -> Value:
    """[n, c, *spatial], in memory as [n, *spatial, c] if its channels are last."""
    if not channels_last:
        return x_of(dtype, *shape, name=name)
    rank = len(shape)
    stored = x_of(dtype, shape[0], *shape[2:], shape[1], name=name)
    return ops.permute(stored, order=(-rank, -1, *range(1 - rank, -1)))


def _per_axis(rank: int, low: int, high: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(low, high)] * rank)


@st.composite
def convolutions(draw: st.DrawFn, dtypes: Sequence[DType]) -> Case:
    """A convolution of any attributes and layouts, or its transpose, with elementwise steps on its sums."""
    dtype, rank = draw(st.sampled_from(dtypes)), draw(st.integers(1, 3))
    groups, filters = draw(st.sampled_from((1, 1, 2, 3))), draw(st.sampled_from((1, 2, 5, 8)))
    channels = draw(st.sampled_from((1, 3, 8)))
    window, strides, dilations = (draw(_per_axis(rank, 1, high)) for high in (3, 3, 2))
    padding = draw(_per_axis(2 * rank, 0, 2))
    least = [(n - 1) * d + 1 for n, d in zip(window, dilations, strict=True)]
    spatial = [n + draw(st.integers(0, 4)) for n in least]
    x = image(dtype, draw(st.integers(1, 2)), groups * channels, *spatial, channels_last=draw(st.booleans()))
    moved: dict[str, Any] = {"strides": strides, "dilations": dilations, "padding": padding, "groups": groups}
    turned = draw(st.integers(0, 4)) == 0 and all(2 * n - 1 > 4 for n in spatial)
    shape = (groups * channels, filters, *window) if turned else (groups * filters, channels, *window)
    w = weights(dtype, *shape) if draw(st.booleans()) else x_of(dtype, *shape, name="w")
    y = ops.conv_transpose(x, w, **moved) if turned else ops.conv(x, w, **moved)
    steps = draw(st.sampled_from(("none", "bias", "residual", "region")))
    if steps == "none":
        return Case({"y": y}, scale=8.0)
    bias = leaf.input("b", dtype[(y.shape[1], *(1,) * rank)])
    if steps == "bias":
        return Case({"y": ops.relu(y + bias)}, scale=8.0)
    other = leaf.input("r", dtype[y.shape])
    return Case({"y": ops.maximum(y + other, bias) if steps == "region" else y + bias + other}, scale=16.0)


@st.composite
def pools(draw: st.DrawFn) -> Case:
    """A pool of any kind, dtype, window and layout."""
    rank = draw(st.integers(1, 3))
    window, strides, dilations = (draw(_per_axis(rank, 1, high)) for high in (3, 3, 2))
    reach = [(n - 1) * d + 1 for n, d in zip(window, dilations, strict=True)]
    padding = tuple(draw(st.integers(0, n - 1)) for n in (*reach, *reach))
    spatial = [n + draw(st.integers(0, 4)) for n in reach]
    kind = draw(st.sampled_from(("max", "indices", "average", "lp")))
    dtype = draw(st.sampled_from(FLOATS if kind in ("average", "lp") else (*FLOATS, i32, u8)))
    x = image(dtype, 2, draw(st.sampled_from((1, 3, 8, 16))), *spatial, channels_last=draw(st.booleans()))
    moved: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations, "padding": padding}
    moved["ceil"] = draw(st.booleans())
    match kind:
        case "max":
            return Case({"y": ops.max_pool(x, **moved)})
        case "indices":
            both = ops.max_pool_indices(x, **moved)
            return Case({"y": leaf.item(both, 0), "at": leaf.item(both, 1)})
        case "average":
            return Case({"y": ops.average_pool(x, count_padding=draw(st.booleans()), **moved)})
        case _:
            return Case(
                {"y": ops.lp_pool(x, p=draw(st.sampled_from((1.0, 2.0) if dtype is f64 else (1.0, 2.0, 3.0))), **moved)}
            )


@st.composite
def networks(draw: st.DrawFn) -> Case:
    """Some convolutions, pools and steps one after the other, whose images may be stored either way."""
    x = y = image(f16, draw(st.sampled_from((1, 2, "n"))), 8, draw(st.integers(5, 8)), 6)
    for number in range(draw(st.integers(2, 4))):
        channels = y.shape[1]
        assert isinstance(channels, int)
        filters = draw(st.sampled_from((8, 16, 20)))
        match draw(st.integers(0, 9)):
            case 0:
                y = ops.max_pool(y, window=2)
            case 1:
                y = ops.conv(y, weights(f16, channels, 1, 3, 3), padding=1, groups=channels)
            case 2:
                y = ops.concat(y, ops.relu(y), axis=-3)
            case 3:
                y = ops.sigmoid(y) * 2.0
            case 4:
                made = library.conv_bias_act(y, weights(f16, channels, channels, 3, 3), None, y, padding=(1, 1, 1, 1))
                y = made if number % 2 else ops.relu(made)
            case 5:
                y = ops.conv(y, weights(f16, filters, channels, 1, 1))
            case 8:
                y = resize(y, axes=(-2, -1), scales=(2.0, 1.5), mode="linear")
            case 7:
                y = ops.pad(y, leaf.scalar(0.5, f16), axis=draw(st.sampled_from((-1, -2, -3))), before=1, after=7)
            case 6:
                normed = library.layer_norm(ops.merge(y, axis=-1, count=2), eps=1e-3)
                y = ops.sigmoid(ops.reshape(normed * 0.5 + 1.0, y.shape))
            case _:
                y = ops.conv(y, weights(f16, filters, channels, 3, 3), padding=1, strides=draw(st.integers(1, 2)))
    match draw(st.sampled_from(("image", "mean", "flat"))):
        case "mean":
            y = ops.reduce_mean(y, axes=(-2, -1))
        case "flat":
            y = ops.merge(y, axis=-1, count=3)
        case _:
            pass
    one: tuple[Mapping[str, int], ...] = ({},)
    return Case({"y": y}, one if isinstance(x.shape[0], int) else ({"n": 1}, {"n": 2}), scale=64.0)


def layer(
    n: int, c: int, m: int, size: int, k: int, stride: int = 1, *, residual: bool = False, dtype: DType = f16
) -> Value:
    """A layer between others: images with channels innermost."""
    out = (size - 1) // stride + 1
    moved: dict[str, Any] = {"padding": (k // 2,) * 4, "strides": (stride, stride)}
    other = image(dtype, n, m, out, out, name="r", channels_last=True) if residual else None
    x, b = image(dtype, n, c, size, size, channels_last=True), x_of(dtype, m, 1, 1, name="b")
    return ops.max_pool(library.conv_bias_act(x, weights(dtype, m, c, k, k), b, other, act="relu", **moved), window=2)


def _stem() -> Value:
    x, b = x_of(f16, 1, 3, 224, 224), x_of(f16, 64, 1, 1, name="b")
    return library.conv_bias_act(x, weights(f16, 64, 3, 7, 7), b, padding=(3, 3, 3, 3), strides=(2, 2), act="relu")


def _depthwise() -> Value:
    x = image(f16, 1, 96, 56, 56, channels_last=True)
    return ops.max_pool(ops.conv(x, weights(f16, 96, 1, 3, 3), padding=1, groups=96), window=2)


LAYERS: dict[str, Value] = {
    "three_64": layer(1, 64, 64, 56, 3),
    "three_512": layer(1, 512, 512, 7, 3),
    "point": layer(32, 64, 256, 56, 1, residual=True),
    "strided": layer(32, 128, 128, 56, 3, 2, dtype=bf16),
    "stem": _stem(),
    "f32": library.conv_bias_act(x_of(f32, 8, 64, 56, 56), weights(f32, 64, 64, 3, 3), padding=(1, 1, 1, 1)),
    "depthwise": _depthwise(),
}
"""Layers of real models."""

__all__ = ["LAYERS", "convolutions", "image", "layer", "networks", "pools", "weights"]
