"""Examples of canonical rules around the axes of convolutions."""

from __future__ import annotations

from typing import Any

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import f64
from dovetail.ir.value import Value
from dovetail.ops import build
from tests.passes.example import Example


def _filters(x: Value, *window: int) -> Value:
    return leaf.param("w", x.dtype[5, 3, *window])


def _planar(x: Value) -> Value:
    w = ops.squeeze(build.slice_axis(_filters(x, 3, 2, 2), axis=2, start=1, stop=2), axes=(-3,))
    return ops.conv(ops.squeeze(x, axes=(-3,)), w)


def _pointwise(x: Value) -> Value:
    made = ops.conv(ops.merge(x, axis=-1, count=2), ops.merge(_filters(x, 3, 1, 1), axis=-1, count=2))
    return build.reshape(made, (2, 5, 2, 3, 2))


def _apart(images: Value) -> Value:
    """Six images of five channels as two of three planes each."""
    return build.transpose(build.reshape(images, (2, 3, *images.shape[1:])), (0, 2, 1, 3, 4))


def _along_planes(x: Value) -> Value:
    order = (0, 2, 1, 3, 4)
    images = ops.merge(build.transpose(x, order), axis=-4, count=2)
    made = ops.conv(images, ops.squeeze(_filters(x, 1, 2, 2), axes=(-3,)))
    return build.transpose(build.reshape(made, (2, 4, 5, 2, 1)), order)


_DTYPES: dict[str, Any] = {"dtypes": (f64,)}

CONVOLUTIONS: tuple[Example, ...] = (
    Example(
        "without_axes_of_one_pixel",
        lambda x: ops.conv(x, _filters(x, 3, 2, 2), padding=(1, 0, 0)),
        lambda x: ops.unsqueeze(_planar(x), axes=(-3,)),
        shape=(2, 3, 1, 4, 5),
        **_DTYPES,
    ),
    Example(
        "adjacent_points_as_one_axis",
        lambda x: ops.conv(x, _filters(x, 3, 1, 1)),
        _pointwise,
        shape=(2, 3, 4, 3, 2),
        **_DTYPES,
    ),
    Example(
        "third_axis_as_batch",
        lambda x: ops.conv(x, _filters(x, 1, 2, 2)),
        _along_planes,
        shape=(2, 3, 4, 3, 2),
        **_DTYPES,
    ),
    Example(
        "third_axis_later",
        lambda x: ops.tanh(_apart(ops.conv(x, _filters(x, 2, 2)))) + leaf.param("b", x.dtype[5, 1, 1, 1]),
        lambda x: _apart(
            ops.tanh(ops.conv(x, _filters(x, 2, 2))) + ops.squeeze(leaf.param("b", x.dtype[5, 1, 1, 1]), axes=(-3,))
        ),
        shape=(6, 3, 4, 3),
        **_DTYPES,
    ),
    Example(
        "one_pixel_axis_later",
        lambda x: (
            ops.tanh(ops.unsqueeze(ops.conv(x, _filters(x, 2, 2)), axes=(-3,))) + leaf.param("b", x.dtype[5, 1, 1, 1])
        ),
        lambda x: ops.unsqueeze(
            ops.tanh(ops.conv(x, _filters(x, 2, 2))) + ops.squeeze(leaf.param("b", x.dtype[5, 1, 1, 1]), axes=(-3,)),
            axes=(-3,),
        ),
        shape=(2, 3, 4, 3),
        **_DTYPES,
    ),
)
