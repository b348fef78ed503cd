"""Pools."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from dovetail import ops
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import rule
from dovetail.frontends.torch.rules.windows import batched, each
from dovetail.ir.dim import Dim, Size
from dovetail.ir.value import Value
from dovetail.ops import build


def _axes(n: Node) -> int:
    """How many spatial axes an operator has, from its name."""
    return int(n.op_type.partition("d.")[0].partition("d_with")[0][-1])


def _window(
    n: Node,
    image: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
) -> dict[str, Any]:
    count = _axes(n)
    size = each(kernel, count)
    around = each(padding, count)
    reach = [_within(k, image.shape[axis - count], around[axis]) if ceil else k for axis, k in enumerate(size)]
    return {
        "window": tuple(reach),
        "strides": each(stride, count) if stride else size,
        "padding": (*around, *around),
        "dilations": each(dilation, count),
        "ceil": ceil,
    }


def _within(kernel: int, length: Size, padding: int) -> int:
    """A window that is wider than its padded image, which a size that is rounded up allows, is as wide as the image."""
    return kernel if isinstance(length, Dim) else min(kernel, length + 2 * padding)


@rule("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def max_pool(
    n: Node,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Value:
    """The maximum over each window."""
    image, alone = batched(x, _axes(n))
    y = ops.max_pool(image, **_window(n, image, kernel_size, stride, padding, dilation, ceil_mode))
    return build.squeeze_dims(y, 0) if alone else y


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default", "max_pool1d_with_indices.default")
def max_pool_with_indices(
    n: Node,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Made:
    """The maximum over each window, and where in its channel it stands."""
    image, alone = batched(x, _axes(n))
    window = _window(n, image, kernel_size, stride, padding, dilation, ceil_mode)
    if not n.makes(1):
        y = ops.max_pool(image, **window)
        return (build.squeeze_dims(y, 0) if alone else y), None
    found = ops.max_pool_indices(image, **window)
    return tuple(build.squeeze_dims(found[i], 0) if alone else found[i] for i in (0, 1))


@rule("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def average_pool(
    n: Node,
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """The mean over each window."""
    count = _axes(n)
    image, alone = batched(x, count)
    window = _window(n, image, kernel_size, stride, padding, (1,), ceil_mode)
    if divisor_override is None:
        y = ops.average_pool(image, **window, count_padding=count_include_pad)
    else:
        if ceil_mode:
            image, window = _filled(n, image, window)
        whole = 1
        for size in window["window"]:
            whole *= size
        y = ops.average_pool(image, **window, count_padding=True) * (whole / divisor_override)
    return build.squeeze_dims(y, 0) if alone else y


def _filled(n: Node, x: Value, window: dict[str, Any]) -> tuple[Value, dict[str, Any]]:
    """An image with zeros for all that its windows reach beyond it, and windows without padding."""
    count = len(window["window"])
    before = window["padding"][:count]
    after: list[int] = []
    for axis, (size, step, front) in enumerate(zip(window["window"], window["strides"], before, strict=True)):
        length, places = x.shape[axis - count], n.shape[axis - count]
        if isinstance(length, Dim) or isinstance(places, Dim):
            raise n.unsupported("divisor_override with ceil_mode of sizes that are not known", hint="fix the sizes")
        after.append(max((places - 1) * step + size - front - length, 0))
    padded = build.pad_dims(x, (0, 0, *before), (0, 0, *after), 0.0)
    for axis, (size, step) in enumerate(zip(window["window"], window["strides"], strict=True)):
        padded = build.cut(padded, axis - count, 0, (n.shape[axis - count] - 1) * step + size)
    return padded, window | {"padding": (0,) * (2 * count), "ceil": False}


@rule(
    "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default",
    "adaptive_avg_pool3d.default",
    "_adaptive_avg_pool2d.default",
    "_adaptive_avg_pool3d.default",
)
def adaptive_average_pool(n: Node, x: Value, output_size: Sequence[Size | None]) -> Value:
    """The mean over windows, as many as there are results."""
    count = len(output_size)
    axes = tuple(range(-count, 0))
    if all(size == 1 for size in output_size):
        return ops.reduce_mean(x, axes=axes)
    for axis, wanted in zip(axes, output_size, strict=True):
        x = _pooled_to(n, x, axis, wanted, ops.reduce_mean)
    return x


@rule("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(n: Node, x: Value, output_size: Sequence[Size | None]) -> Made:
    """The maximum over windows, as many as there are results, and where in its channel it stands."""
    if n.makes(1):
        return _adaptive_indices(n, x, output_size)
    for axis, wanted in zip(range(-len(output_size), 0), output_size, strict=True):
        x = _pooled_to(n, x, axis, wanted, ops.reduce_max)
    return x, None


def _adaptive_indices(n: Node, x: Value, output_size: Sequence[Size | None]) -> Made:
    """The maximum over each window and its index, window by window."""
    count = len(output_size)
    sizes, wanted = x.shape[-count:], n.shape[-count:]
    if any(isinstance(s, Dim) for s in (*sizes, *wanted)):
        raise n.unsupported("the index of an adaptive maximum of sizes that are not known", hint="fix the sizes")
    lengths, places = [int(str(s)) for s in sizes], [int(str(s)) for s in wanted]
    numbers = build.reshape(ops.iota(size=math.prod(lengths)), lengths)
    values: list[Value] = []
    indices: list[Value] = []
    for at in itertools.product(*(range(p) for p in places)):
        seen, numbered = x, numbers
        for axis, (i, whole, many) in enumerate(zip(at, lengths, places, strict=True)):
            bounds = (i * whole // many, -(-(i + 1) * whole // many))
            seen, numbered = (build.cut(v, axis - count, *bounds) for v in (seen, numbered))
        flat = build.reshape(seen, (*x.shape[:-count], -1))
        best = ops.arg_max(flat, axis=-1)
        values.append(ops.gather_elements(flat, best, axis=-1))
        indices.append(ops.gather(build.reshape(numbered, (-1,)), best, axis=-1))
    return tuple(
        build.reshape(made[0] if len(made) == 1 else ops.concat(*made, axis=-1), n.type_of(i).shape)
        for i, made in enumerate((values, indices))
    )


def _pooled_to(n: Node, x: Value, axis: int, wanted: Size | None, reduce: Callable[..., Value]) -> Value:
    whole = x.shape[axis]
    if wanted is None or wanted == whole:
        return x
    if wanted == 1:
        return reduce(x, axes=(axis,))
    if isinstance(whole, Dim) or isinstance(wanted, Dim):
        if isinstance(wanted, Dim) or whole % wanted != 0:
            raise n.unsupported("an adaptive pool of sizes that are not known", hint="export it with fixed sizes")
        split = ops.split(x, axis=axis, parts=wanted)
        return build.squeeze_dims(reduce(split, axes=(axis,)), axis)
    pieces = [
        reduce(build.cut(x, axis, i * whole // wanted, -(-(i + 1) * whole // wanted)), axes=(axis,))
        for i in range(wanted)
    ]
    return ops.concat(*pieces, axis=axis)
