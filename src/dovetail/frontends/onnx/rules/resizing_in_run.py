"""Resampling to sizes that a run computes: elements at computed places are gathered and weighed, axis by axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.shared.computed import numbers_in, size_value
from dovetail.ir.dtype import DType, bf16, f16, f32, f64, i64
from dovetail.ir.value import Value
from dovetail.ops import build


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a place in the result is one in the input, and what is read there."""

    mode: str
    coordinates: str
    rounding: str
    a: float
    exclude_outside: bool
    antialias: bool


def by_sizes_in_run(n: Node, x: Value, axes: tuple[int, ...], sizes: Value, how: Sampling) -> Value:
    """x with axes brought to sizes that the run computes."""
    if _decides(how):
        raise n.needs(sizes, "sizes")
    for axis, size in zip(axes, numbers_in(n, sizes, "sizes"), strict=True):
        if n.sizes(size) != (x.shape[axis],):
            x = _resized(n, x, axis, size, None, how)
    return x


def by_scales_in_run(n: Node, x: Value, axes: tuple[int, ...], scales: Value, how: Sampling) -> Value:
    """x with axes scaled by numbers that the run computes."""
    if _decides(how) or how.coordinates == "align_corners":
        raise n.needs(scales, "scales")
    for i, axis in enumerate(axes):
        scale = ops.cast(build.select(scales, axis=0, index=i), dtype=f32)
        whole = ops.cast(size_value(x.shape[axis]), dtype=f32)
        x = _resized(n, x, axis, ops.cast(ops.floor(whole * scale), dtype=i64), scale, how)
    return x


def _decides(how: Sampling) -> bool:
    """Whether sizes decide what is computed: how many pixels are read, and which region."""
    return how.antialias or how.coordinates == "tf_crop_and_resize"


def _resized(n: Node, x: Value, axis: int, size: Value, scale: Value | None, how: Sampling) -> Value:
    # Where a scale puts places between two pixels by its rounding alone, float32 decides, as in `ops.resize`.
    precise = f32 if how.mode == "nearest" and scale is not None else f64
    axis -= x.rank if axis >= 0 else 0
    at = _places(n, x, axis, size, scale, how, n.counted(size, "resize"), precise)
    last = ops.cast(size_value(x.shape[axis]), dtype=precise) - 1
    if how.mode == "nearest":
        return ops.gather(x, _index(_ROUND[how.rounding](at), last), axis=axis)
    wide = x if x.dtype not in (f16, bf16) else ops.cast(x, dtype=f32)
    reach = 1 if how.mode == "linear" else 2
    elements = [ops.floor(at) + offset for offset in range(1 - reach, reach + 1)]
    weights = [_weight(how, ops.abs_(element - at)) for element in elements]
    if how.exclude_outside:
        inside = [ops.bit_and(ops.greater_equal(e, 0), ops.less_equal(e, last)) for e in elements]
        weights = [ops.where(within, w, 0) for within, w in zip(inside, weights, strict=True)]
        total = sum(weights[1:], weights[0])
        weights = [w / total for w in weights]
    parts: list[Value] = []
    for element, weight in zip(elements, weights, strict=True):
        along = ops.cast(weight, dtype=wide.dtype)
        along = build.expand_dims(along, tuple(range(1, -axis))) if axis < -1 else along
        read = ops.gather(wide, _index(element, last), axis=axis)
        # What has no weight is not read: 0 times infinity would be NaN.
        parts.append(ops.where(ops.equal(along, 0), 0, read * along))
    return ops.cast(sum(parts[1:], parts[0]), dtype=x.dtype)


def _places(
    n: Node, x: Value, axis: int, size: Value, scale: Value | None, how: Sampling, steps: Value, precise: DType
) -> Value:
    """Where in the input each place of the result is."""
    at, count, length = (ops.cast(v, dtype=precise) for v in (steps, size, size_value(x.shape[axis])))

    def stretched(distance: Value) -> Value:
        # Multiplied first: integers stay integers, so that floor and ceil do not jump.
        return distance * length / count if scale is None else distance / ops.cast(scale, dtype=precise)

    match how.coordinates:
        case "half_pixel":
            return stretched(at + 0.5) - 0.5
        case "half_pixel_symmetric":
            return length / 2 - stretched(count / 2) + stretched(at + 0.5) - 0.5
        case "pytorch_half_pixel":
            return ops.where(ops.greater(count, 1), stretched(at + 0.5) - 0.5, 0)
        case "asymmetric":
            return stretched(at)
        case "tf_half_pixel_for_nn":
            return stretched(at + 0.5)
        case "align_corners":
            return at * (length - 1) / ops.maximum(count - 1, 1)
        case _:
            raise n.malformed(f"coordinate_transformation_mode is {how.coordinates!r}")


def _index(element: Value, last: Value) -> Value:
    return ops.cast(ops.minimum(ops.maximum(element, 0), last), dtype=i64)


def _weight(how: Sampling, distance: Value) -> Value:
    if how.mode == "linear":
        return ops.maximum(1 - distance, 0)
    a, d = how.a, distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return ops.where(ops.less_equal(d, 1), near, ops.where(ops.less(d, 2), far, 0))


_ROUND: Mapping[str, Callable[[Value], Value]] = MappingProxyType(
    {
        "round_prefer_floor": lambda at: ops.ceil(at - 0.5),
        "round_prefer_ceil": lambda at: ops.floor(at + 0.5),
        "floor": ops.floor,
        "ceil": ops.ceil,
    }
)
