"""Quantised numbers in primitives: q = x / scale + zero_point, for a tensor, along an axis, or in blocks of an axis."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.shared.site import Site
from dovetail.ir.dim import Size
from dovetail.ir.dtype import FLOATS, DType, f32, i8, i32, u8
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import Primitive


def one_number(x: Value) -> Value:
    """A tensor of one element as a number; exporters write [1] for it as well."""
    return build.reshape(x, ()) if x.rank and all(s == 1 for s in x.shape) else x


def along(vector: Value, rank: int, axis: int) -> Value:
    """One number, or numbers along an axis, shaped to broadcast against a tensor of this rank."""
    vector = one_number(vector)
    if vector.rank == 0:
        return vector
    counted = axis if axis < 0 else axis - rank
    return ops.unsqueeze(vector, axes=tuple(range(counted + 1, 0))) if counted < -1 else vector


def minus_zero_point(x: Value, zero_point: Value | None, dtype: DType = i32) -> Value:
    """x - zero_point in a type where nothing wraps."""
    wide = ops.cast(x, dtype=dtype)
    return wide if zero_point is None else wide - ops.cast(zero_point, dtype=dtype)


def saturated(x: Value, zero_point: Value | None, dtype: DType) -> Value:
    """x to the nearest integer, halves to even, plus the zero point, kept in the range of the dtype."""
    found = ops.round_(x)
    if found.dtype.bits < 32:
        found = ops.cast(found, dtype=f32)
    if zero_point is not None:
        found = found + ops.cast(zero_point, dtype=found.dtype)
    low, high = dtype.range
    return ops.cast(ops.clip(found, float(low), float(high)), dtype=dtype)


def quantised(
    n: Site,
    x: Value,
    scale: Value,
    zero_point: Value | None,
    dtype: DType,
    *,
    axis: int = 1,
    block: int = 0,
    saturate: bool = True,
) -> Value:
    """x / scale + zero_point in a narrow type; x and the scale have the type in which is divided."""
    blocked = _is_blocked(n, x, scale, block)
    if dtype.is_integer and dtype.bits >= 8 and not blocked:
        scale, zero, at = _steps(n, x, scale, zero_point, dtype, axis)
        return ops.quantise(x, scale, zero, dtype=dtype, axis=at)
    scale, zero = _broadcast_steps(n, x, scale, axis, block), _broadcast_or_none(n, x, zero_point, axis, block)
    if dtype.is_integer:
        return saturated(x / scale, zero, dtype)
    steps = x / scale
    if zero is not None and not _is_zero(n, zero):
        steps = steps + ops.cast(zero, dtype=steps.dtype)
    # Floats of 4 bits have no number but their largest for what exceeds it.
    return ops.cast(steps, dtype=dtype) if dtype.bits < 8 else ops.cast_f8(steps, dtype=dtype, saturate=saturate)


def dequantised(
    n: Site, q: Value, scale: Value, zero_point: Value | None, dtype: DType, *, axis: int = 1, block: int = 0
) -> Value:
    """(q - zero_point) * scale in a float type, rounded once."""
    if scale.dtype not in FLOATS:
        scale = ops.cast(scale, dtype=f32)
    if q.dtype.is_integer and not _is_blocked(n, q, scale, block):
        q = _as_bytes(q)
        zero_point = None if zero_point is None else _as_bytes(zero_point)
        scale, zero, at = _steps(n, q, scale, zero_point, q.dtype, axis)
        return ops.dequantise(q, scale, zero, dtype=dtype, axis=at)
    scale, zero = _broadcast_steps(n, q, scale, axis, block), _broadcast_or_none(n, q, zero_point, axis, block)
    if zero is not None and _is_zero(n, zero):
        zero = None
    wide = dtype if dtype.bits > 32 else f32
    steps = ops.cast(minus_zero_point(q, zero), dtype=wide) if q.dtype.is_integer else minus_zero_point(q, zero, wide)
    return ops.cast(steps * ops.cast(scale, dtype=wide), dtype=dtype)


def _as_bytes(q: Value) -> Value:
    """Integers of less than a byte as bytes."""
    return q if q.dtype.bits >= 8 else ops.cast(q, dtype=i8 if q.dtype.kind == "int" else u8)


def _is_zero(n: Site, x: Value) -> bool:
    known = n.known(x)
    return known is not None and all(e == 0 for e in known.flat)


def _is_blocked(n: Site, x: Value, scale: Value, block: int) -> bool:
    if block < 0:
        raise n.malformed(f"a block_size of {block}")
    if block and scale.rank != x.rank:
        raise n.malformed(f"blocks of {block} with a scale of {scale.type} for {x.type}")
    return block > 0


def _steps(
    n: Site, x: Value, scale: Value, zero_point: Value | None, dtype: DType, axis: int
) -> tuple[Value, Value, int | None]:
    """Scale and zero point of one shape, numbers or vectors, and the axis of the vectors."""
    scale = one_number(scale)
    zero = build.zeros(scale.shape, dtype) if zero_point is None else one_number(zero_point)
    if scale.rank > 1 or zero.rank > 1:
        raise n.malformed(f"a scale of {scale.type} and a zero point of {zero.type} without blocks")
    if scale.rank == zero.rank == 0:
        return scale, zero, None
    if not -x.rank <= axis < x.rank:
        raise n.malformed(f"axis {axis} of {x.type}")
    shape = (x.shape[axis],)
    return (
        scale if scale.rank else build.broadcast_to(scale, shape),
        zero if zero.rank else build.broadcast_to(zero, shape),
        axis,
    )


def _broadcast_steps(n: Site, x: Value, steps: Value, axis: int, block: int) -> Value:
    """Scales or zero points, shaped to broadcast against x; each serves a block of the axis where there are blocks."""
    if not block:
        return along(steps, x.rank, axis)
    if not -x.rank <= axis < x.rank:
        raise n.malformed(f"axis {axis} of {x.type}")
    length: Size = x.shape[axis]
    spread = build.repeat(steps, block, axis=axis)
    return spread if spread.shape[axis] == length else build.slice_axis(spread, axis=axis, start=0, stop=length)


def _broadcast_or_none(n: Site, x: Value, steps: Value | None, axis: int, block: int) -> Value | None:
    return None if steps is None else _broadcast_steps(n, x, steps, axis, block)


def dynamic(x: Value) -> tuple[Value, Value, Value]:
    """x in u8, with the scale and the zero point that its smallest and largest numbers need, 0 among them."""
    axes = tuple(range(-x.rank, 0))
    low, high = (
        ops.minimum(_over_all(ops.reduce_min, x, axes), 0.0),
        ops.maximum(_over_all(ops.reduce_max, x, axes), 0.0),
    )
    reach = (high - low) / 255.0
    # Where all numbers are 0, any scale will do but 0.
    scale = ops.where(ops.equal(reach, 0.0), 1.0, reach)
    zero = ops.cast(ops.clip(ops.round_(-low / scale), 0.0, 255.0), dtype=u8)
    return ops.quantise(x, scale, zero, dtype=u8, axis=None), scale, zero


def _over_all(reduce: Primitive, x: Value, axes: tuple[int, ...]) -> Value:
    return ops.squeeze(reduce(x, axes=axes), axes=axes) if axes else x
