"""Products, convolutions and pools. f32 products are f32: XLA would round their factors on TPUs and GPUs."""
# pyright: basic, reportPrivateUsage=true
# Arrays of JAX have no types here.

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from dovetail.ops.pooling import Slide
from dovetail.ops.special import lowest
from dovetail.ops.window import tapped, taps
from dovetail.targets.xla.meanings.elementwise import Meaning, in_wide, is_float
from dovetail.targets.xla.package import jnp, lax

EXACT = "highest"


def _sums(x: Any) -> Any:
    """What a product is summed in; narrow floats are rounded once."""
    return jnp.float32 if is_float(x) and x.dtype.itemsize < 4 else x.dtype


def _matmul(x: Any, y: Any) -> Any:
    return jnp.matmul(x, y, precision=EXACT, preferred_element_type=_sums(x)).astype(x.dtype)


def _dot(
    x: Any,
    y: Any,
    *,
    left: tuple[int, ...],
    right: tuple[int, ...],
    left_batch: tuple[int, ...],
    right_batch: tuple[int, ...],
) -> Any:
    def at(a: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i % a.ndim for i in axes)

    axes = ((at(x, left), at(y, right)), (at(x, left_batch), at(y, right_batch)))
    return lax.dot_general(x, y, axes, precision=EXACT, preferred_element_type=_sums(x)).astype(x.dtype)


def _conv(
    x: Any,
    w: Any,
    *,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[int, ...],
    groups: int,
    spread: tuple[int, ...] | None = None,
) -> Any:
    """`spread` puts zeros between the pixels of x: the strides of a transposed convolution."""
    count = x.ndim - 2
    return lax.conv_general_dilated(
        x,
        w,
        strides,
        list(zip(padding[:count], padding[count:], strict=True)),
        lhs_dilation=spread,
        rhs_dilation=dilations,
        feature_group_count=groups,
        precision=EXACT,
        preferred_element_type=_sums(x),
    ).astype(x.dtype)


def _conv_transpose(
    x: Any,
    w: Any,
    *,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
) -> Any:
    count, kernel = x.ndim - 2, w.shape[2:]
    # [c, m / groups, *kernel] as [m, c / groups, *kernel], with the taps in the other order.
    turned = w.reshape((groups, w.shape[0] // groups, *w.shape[1:])).swapaxes(1, 2)
    turned = turned.reshape((w.shape[1] * groups, w.shape[0] // groups, *kernel))
    turned = jnp.flip(turned, tuple(range(2, x.ndim)))
    reach = [(kernel[i] - 1) * dilations[i] for i in range(count)]
    before = tuple(reach[i] - padding[i] for i in range(count))
    after = tuple(reach[i] - padding[count + i] + output_padding[i] for i in range(count))
    ones = (1,) * count
    return _conv(x, turned, strides=ones, dilations=dilations, padding=(*before, *after), groups=groups, spread=strides)


def _windows(x: Any, slide: Slide, start: Any, step: Meaning) -> Any:
    """A reduction of every window, the padding and what hangs over it included as `start`."""
    around = zip(slide.before, [a + o for a, o in zip(slide.after, slide.over, strict=True)], strict=True)
    return lax.reduce_window(
        x,
        start,
        step,
        (1, 1, *slide.window),
        (1, 1, *slide.strides),
        [(0, 0), (0, 0), *around],
        window_dilation=(1, 1, *slide.dilations),
    )


def _max_pool(x: Any, **window: Any) -> Any:
    return _windows(x, Slide(x, **window), np.asarray(lowest(np.dtype(x.dtype)), x.dtype), lax.max)


def _max_pool_indices(x: Any, **window: Any) -> tuple[Any, Any]:
    slide = Slide(x, **window)
    nothing = np.asarray(lowest(np.dtype(x.dtype)), x.dtype)
    around = [(0, 0), (0, 0), *zip(slide.before, map(sum, zip(slide.after, slide.over, strict=True)), strict=True)]
    padded = jnp.pad(x, around, constant_values=nothing)
    numbers = np.arange(math.prod(slide.spatial), dtype=np.int64).reshape((1, 1, *slide.spatial))
    numbered = np.pad(numbers, around, constant_values=-1)
    shape = (*x.shape[:2], *slide.places)
    best, place = jnp.full(shape, nothing), jnp.full(shape, -1, jnp.int64)
    for tap in taps(slide.window):
        element, at = (tapped(a, tap, slide.places, slide.strides, slide.dilations) for a in (padded, numbered))
        is_nan = (element != element) & (best == best)
        better = (at >= 0) & ((place < 0) | (element > best) | is_nan)
        best, place = jnp.where(better, element, best), jnp.where(better, at, place)
    return best, place


def _average_pool(x: Any, *, count_padding: bool, **window: Any) -> Any:
    slide = Slide(x, **window)
    # How many elements each window counts is known now.
    counted = np.ones((1, 1, *slide.spatial), np.int64)
    counts: Any = reduce(np.add, slide.seen(counted, int(count_padding), 0))
    return _windows(x, slide, np.zeros((), x.dtype), lax.add) / counts.astype(x.dtype)


def _lp_pool(x: Any, *, p: float, **window: Any) -> Any:
    return _windows(jnp.abs(x) ** p, Slide(x, **window), np.zeros((), x.dtype), lax.add) ** (1 / p)


def _fourier(x: Any, *, inverse: bool) -> Any:
    points = lax.complex(x[..., 0].astype(jnp.float64), x[..., 1].astype(jnp.float64))
    spectrum = jnp.fft.ifft(points, axis=-1) if inverse else jnp.fft.fft(points, axis=-1)
    return jnp.stack([spectrum.real, spectrum.imag], axis=-1).astype(x.dtype)


MEANINGS: dict[str, Meaning] = {
    "matmul": _matmul,
    "dot": _dot,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "max_pool": _max_pool,
    "max_pool_indices": _max_pool_indices,
    "average_pool": in_wide(_average_pool),
    "lp_pool": in_wide(_lp_pool),
    "fourier": _fourier,
    "det": in_wide(jnp.linalg.det),
}

__all__ = ["MEANINGS"]
