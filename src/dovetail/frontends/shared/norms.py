"""What norms of all frameworks have in common. Each is written as the library writes it, so that it fuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.ir.value import Value
from dovetail.ops import build


def affine(y: Value, gain: Value | None, shift: Value | None) -> Value:
    """y scaled and shifted, in its dtype."""
    y = y if gain is None else y * cast(gain, y.dtype)
    return y if shift is None else y + cast(shift, y.dtype)


def by_channel(vector: Value, rank: int) -> Value:
    """One number for each channel of [n, c, *spatial], as it broadcasts."""
    return ops.unsqueeze(vector, axes=tuple(range(2 - rank, 0))) if rank > 2 else vector


def over_last(x: Value, count: int, function: Callable[[Value], Value]) -> Value:
    """A function of the last axis, applied to so many last axes as if they were one; without any, to one of size 1."""
    if count == 0:
        return build.squeeze_dims(function(build.expand_dims(x, -1)), -1)
    return function(x) if count == 1 else build.reshape(function(ops.merge(x, axis=-1, count=count)), x.shape)


def moments(x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """The mean and the variance over axes, which stay with size 1."""
    mean = ops.reduce_mean(x, axes=tuple(axes))
    centred = x - mean
    return mean, ops.reduce_mean(centred * centred, axes=tuple(axes))


def channel_moments(x: Value) -> tuple[Value, Value]:
    """The mean and the variance of each channel of [n, c, *spatial]; of all where there are no channels."""
    return moments(x, [axis for axis in range(-x.rank, 0) if axis != 1 - x.rank])


def batch_norm(x: Value, gain: Value | None, shift: Value | None, mean: Value, variance: Value, eps: float) -> Value:
    """Channels shifted and scaled by statistics, which may be wider than x; the result is x's."""
    dtypes = [x.dtype, mean.dtype] + ([] if gain is None else [gain.dtype])
    widest = max(dtypes, key=lambda dtype: dtype.bits)
    middle, spread = (by_channel(cast(v, widest), x.rank) for v in (mean, variance))
    scale, bias = (None if v is None else by_channel(cast(v, widest), x.rank) for v in (gain, shift))
    return cast(affine((cast(x, widest) - middle) * ops.rsqrt(spread + eps), scale, bias), x.dtype)


__all__ = ["affine", "batch_norm", "by_channel", "channel_moments", "moments", "over_last"]
