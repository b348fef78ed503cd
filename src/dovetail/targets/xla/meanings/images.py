"""Resizing, sampling and quantisation. Places and weights of a resize are known while it is traced."""
# pyright: basic, reportPrivateUsage=true
# Arrays of JAX have no types here.

from __future__ import annotations

from typing import Any

import numpy as np

from dovetail.ir.dtype import DType
from dovetail.ops.detection import sampled
from dovetail.ops.resize import axis_samples
from dovetail.targets.xla.meanings.elementwise import Meaning, in_wide, whole
from dovetail.targets.xla.package import jnp


def _resize(x: Any, *, axes: tuple[int, ...], extrapolation: float, **options: Any) -> Any:
    samples = axis_samples(x.shape, axes=axes, **options)
    for along in samples:
        shape = (-1, *(1,) * (-along.axis - 1))
        if along.weights is None:
            x = jnp.take(x, along.index[:, 0], along.axis)
            continue
        taps = zip(along.index.T, along.weights.T.astype(x.dtype), strict=True)
        # What has no weight is not read: 0 times infinity would be NaN.
        x = sum(jnp.where((w == 0).reshape(shape), 0, jnp.take(x, i, along.axis) * w.reshape(shape)) for i, w in taps)
    for along in samples:
        if along.outside is not None:
            cover = along.outside.reshape((-1, *(1,) * (-along.axis - 1)))
            x = jnp.where(cover, jnp.asarray(extrapolation).astype(x.dtype), x)
    return x


def _beside(steps: Any, axis: int | None) -> Any:
    return steps if axis is None else steps.reshape((-1, *(1,) * (-axis - 1)))


def _quantise(x: Any, scale: Any, zero_point: Any, *, dtype: DType, axis: int | None) -> Any:
    steps = jnp.rint(x / _beside(scale, axis)).astype(jnp.float64)
    return whole(steps + _beside(zero_point, axis), np.dtype(dtype.numpy))


def _dequantise(q: Any, scale: Any, zero_point: Any, *, dtype: DType, axis: int | None) -> Any:
    steps = q.astype(jnp.float64) - _beside(zero_point, axis).astype(jnp.float64)
    return (steps * _beside(scale.astype(jnp.float64), axis)).astype(dtype.numpy)


MEANINGS: dict[str, Meaning] = {
    "resize": lambda x, **attrs: _resize(x, **attrs) if attrs["mode"] == "nearest" else in_wide(_resize)(x, **attrs),
    "grid_sample": lambda x, grid, **attrs: sampled(x, grid, **attrs, of=jnp),
    "quantise": _quantise,
    "dequantise": _dequantise,
}
