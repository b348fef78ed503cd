"""Pools."""

from __future__ import annotations

from typing import Any

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Sizes, rule
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.shared.spatial import spatial
from dovetail.ir.dim import product
from dovetail.ir.dtype import f32, i64
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.reshaping import spell_shape


def _window(
    n: Node,
    x: Value,
    kernel_shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dilations: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    auto_pad: str,
    ceil: bool,
) -> dict[str, Any]:
    """The attributes of a pool."""
    found = spatial(n, x, kernel_shape, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    if ceil and auto_pad == "VALID" and any(s != 1 for s in found.strides):
        raise n.unsupported("ceil_mode with auto_pad VALID", hint="the specification and its implementations differ")
    return {
        "window": kernel_shape,
        "strides": found.strides,
        "dilations": found.dilations,
        "padding": found.padding,
        # The sizes that SAME promises are those of windows that fit.
        "ceil": ceil and not auto_pad.startswith("SAME"),
    }


@rule("MaxPool")
def max_pool(
    n: Node,
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    storage_order: int = 0,
    strides: tuple[int, ...] | None = None,
) -> Made:
    """The maximum over each window, and its index."""
    window = _window(n, x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    if not n.makes(1):
        return ops.max_pool(x, **window)
    pooled = ops.max_pool_indices(x, **window)
    return pooled[0], _in_memory(x, pooled[1], column_major=storage_order == 1)


def _in_memory(x: Value, place: Value, *, column_major: bool) -> Value:
    """Places within channels as places in the whole of x; in column-major order the first spatial axis runs fastest."""
    if column_major:
        rest, step = place, size_value(1)
        places: list[Value] = []
        for size in reversed(x.shape[2:]):
            places.append(ops.mod(rest, size_value(size)))
            rest = ops.floor_div(rest, size_value(size))
        place = build.zeros((), i64)
        for at, size in zip(reversed(places), x.shape[2:], strict=True):
            place, step = place + at * step, step * size_value(size)
    channels = build.arange(0, x.shape[0] * x.shape[1])
    start = build.reshape(channels * size_value(product(x.shape[2:])), (*x.shape[:2], *(1,) * (x.rank - 2)))
    return start + place


@rule("AveragePool")
def average_pool(
    n: Node,
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    """The mean over each window."""
    window = _window(n, x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    if kernel_shape == x.shape[2:] and not any(window["padding"]) and all(d == 1 for d in window["dilations"]):
        # One window is the whole image.
        return ops.reduce_mean(x, axes=tuple(range(2, x.rank)))
    return ops.average_pool(x, **window, count_padding=count_include_pad)


@rule("LpPool", since=2)
def lp_pool(
    n: Node,
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...],
    p: int = 2,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    """The p-norm over each window."""
    return ops.lp_pool(x, **_window(n, x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode), p=p)


def _spatial_axes(n: Node, x: Value) -> tuple[int, ...]:
    if x.rank < 3:
        raise n.malformed(f"a pool of {x.type}", hint="it takes [n, c, *spatial]")
    return tuple(range(2, x.rank))


@rule("GlobalAveragePool")
def global_average_pool(n: Node, x: Value) -> Value:
    """The mean of each channel."""
    return ops.reduce_mean(x, axes=_spatial_axes(n, x))


@rule("GlobalMaxPool")
def global_max_pool(n: Node, x: Value) -> Value:
    """The largest element of each channel."""
    return ops.reduce_max(x, axes=_spatial_axes(n, x))


@rule("GlobalLpPool", since=2)
def global_lp_pool(n: Node, x: Value, *, p: int = 2) -> Value:
    """The p-norm of each channel."""
    axes = _spatial_axes(n, x)
    if p < 1:
        raise n.malformed(f"p is {p}", hint="p is 1 or more")
    # Powers of narrow floats overflow long before their root would.
    y = ops.cast(x, dtype=f32) if x.dtype.bits < 32 else x
    if p == 1:
        y = ops.reduce_l1(y, axes=axes)
    elif p == 2:
        y = ops.reduce_l2(y, axes=axes)
    else:
        y = ops.pow_(ops.reduce_sum(ops.pow_(ops.abs_(y), float(p)), axes=axes), 1.0 / p)
    return ops.cast(y, dtype=x.dtype) if x.dtype.bits < 32 else y


@rule("MaxUnpool")
def max_unpool(
    n: Node,
    x: Value,
    i: Value,
    output_shape: Sizes | None = None,
    *,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    """Elements put back where a pool took them from, and 0 elsewhere."""
    window = spatial(n, x, kernel_shape, strides=strides, dilations=None, pads=pads, auto_pad="NOTSET")
    count = len(kernel_shape)
    spread = [
        (length - 1) * stride + size - before - after
        for length, stride, size, before, after in zip(
            x.shape[2:], window.strides, kernel_shape, window.padding[:count], window.padding[count:], strict=True
        )
    ]
    inferred = (*x.shape[:2], *spread)
    if output_shape is not None and output_shape[3:] != inferred[3:]:
        raise n.unsupported(
            f"output_shape {spell_shape(output_shape)}, where {spell_shape(inferred)} follows from the window",
            hint="it is open which of the two shapes the indices count in",
        )
    shape = inferred if output_shape is None else output_shape
    flat = ops.scatter_elements(
        build.zeros((product(shape),), x.dtype), build.reshape(i, (-1,)), build.reshape(x, (-1,)), axis=0
    )
    return build.reshape(flat, shape)
