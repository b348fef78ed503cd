"""Fourier transforms, windows and mel filters."""

from __future__ import annotations

import math

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Ints, Sizes, rule
from dovetail.ir import leaf
from dovetail.ir.dim import Size, smallest
from dovetail.ir.dtype import DType, f32, f64, i64
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import axis_from_end


@rule("DFT", since=20)
def dft(
    n: Node,
    x: Value,
    dft_length: Sizes | None = None,
    axis: Ints | None = None,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> Value:
    """The Fourier transform along an axis; the last axis holds real and imaginary parts."""
    return _transformed(n, x, dft_length, -2 if axis is None else axis[0], inverse, onesided)


@rule("DFT", since=17, until=19)
def dft_of_axis(
    n: Node,
    x: Value,
    dft_length: Sizes | None = None,
    *,
    axis: int = 1,
    inverse: bool = False,
    onesided: bool = False,
) -> Value:
    """The same with the axis as an attribute."""
    return _transformed(n, x, dft_length, axis, inverse, onesided)


def _transformed(n: Node, x: Value, length: Sizes | None, axis: int, inverse: bool, onesided: bool) -> Value:
    at = axis_from_end(axis, x.rank)
    if at == -1 or x.shape[-1] not in (1, 2):
        raise n.malformed(
            f"axis {axis} of {x.tensor}", hint="the last axis holds the real, or real and imaginary parts"
        )
    half = onesided and inverse
    if onesided and (x.shape[-1] == 2) != inverse:
        raise n.malformed(f"a one-sided transform of {x.tensor}", hint="it goes from real to complex numbers or back")
    fronted = build.move_axis(x, at, -2)
    points = fronted.shape[-2]
    count = length[0] if length is not None else (points - 1) * 2 if half else points
    fitted = _fitted(fronted, count // 2 + 1 if half else count)
    spectrum = _fourier(_mirrored(fitted, count) if half else fitted, inverse)
    if half:
        spectrum = build.cut(spectrum, -1, 0, 1)
    elif onesided:
        spectrum = build.cut(spectrum, -2, 0, count // 2 + 1)
    return build.move_axis(spectrum, -2, at)


def _fitted(x: Value, count: Size) -> Value:
    """The last axis but one cut off at the count, or filled up to it with zeros."""
    kept = smallest(x.shape[-2], count)
    shorter = build.cut(x, -2, 0, kept)
    if kept == count:
        return shorter
    return ops.pad(shorter, leaf.scalar(0, x.dtype), axis=-2, after=count - kept)


def _mirrored(half: Value, count: Size) -> Value:
    """All points of a spectrum whose second half mirrors the first, with the sign of imaginary parts turned."""
    rest = count - half.shape[-2]
    if rest == 0:
        return half
    other = ops.flip(build.cut(half, -2, 1, 1 + rest), axes=(-2,))
    real, imaginary = (ops.part(other, axis=-1, index=i, parts=2) for i in (0, 1))
    return ops.concat(half, ops.concat(real, -imaginary, axis=-1), axis=-2)


def _fourier(x: Value, inverse: bool) -> Value:
    """The transform; points without an imaginary part have 0 for it."""
    if x.shape[-1] == 1:
        x = ops.pad(x, leaf.scalar(0, x.dtype), axis=-1, after=1)
    return ops.fourier(x, inverse=inverse)


@rule("STFT")
def stft(
    n: Node,
    signal: Value,
    frame_step: Ints,
    window: Value | None = None,
    frame_length: Sizes | None = None,
    *,
    onesided: bool = True,
) -> Value:
    """The Fourier transform of every frame of a signal, each times a window."""
    if signal.rank == 2:
        # Exporters leave the last axis out, and onnxruntime reads it so.
        signal = ops.unsqueeze(signal, axes=(-1,))
    if signal.rank != 3 or signal.shape[-1] not in (1, 2) or (onesided and signal.shape[-1] == 2):
        raise n.malformed(
            f"a signal of {signal.tensor}", hint="[batch, points, 1], or 2 for complex ones if not onesided"
        )
    points = signal.shape[1]
    length = frame_length[0] if frame_length is not None else points if window is None else window.shape[0]
    step = frame_step[0]
    if step < 1:
        raise n.malformed(f"frame_step is {step}", hint="it is 1 or more")
    frames = (points - length) // step + 1
    places = build.expand_dims(ops.iota(size=frames) * step, -1) + ops.iota(size=length)
    framed = ops.gather(signal, places, axis=-2)
    if window is not None:
        framed = framed * build.expand_dims(window, -1)
    spectrum = _fourier(framed, inverse=False)
    return build.cut(spectrum, -2, 0, length // 2 + 1) if onesided else spectrum


@rule("HannWindow")
def hann_window(n: Node, size: Value, *, output_datatype: DType = f32, periodic: bool = True) -> Value:
    """0.5 - 0.5 cos over one turn."""
    return _window(n, size, (0.5, 0.5), output_datatype, periodic)


@rule("HammingWindow")
def hamming_window(n: Node, size: Value, *, output_datatype: DType = f32, periodic: bool = True) -> Value:
    """25/46 - 21/46 cos over one turn."""
    return _window(n, size, (25 / 46, 21 / 46), output_datatype, periodic)


@rule("BlackmanWindow")
def blackman_window(n: Node, size: Value, *, output_datatype: DType = f32, periodic: bool = True) -> Value:
    """0.42 - 0.5 cos over one turn + 0.08 cos over two."""
    return _window(n, size, (0.42, 0.5, 0.08), output_datatype, periodic)


def _window(n: Node, size: Value, weights: tuple[float, ...], dtype: DType, periodic: bool) -> Value:
    count = build.reshape(size, ())
    turn = ops.cast(count, dtype=f64) - (0.0 if periodic else 1.0)
    angle = ops.cast(n.counted(count, f"{n.name}_size"), dtype=f64) * (2 * math.pi) / turn
    total = weights[0] - weights[1] * ops.cos(angle)
    if len(weights) > 2:
        total = total + weights[2] * ops.cos(angle * 2.0)
    return ops.cast(total, dtype=dtype)


@rule("MelWeightMatrix")
def mel_weight_matrix(
    n: Node,
    num_mel_bins: Value,
    dft_length: Value,
    sample_rate: Value,
    lower_edge_hertz: Value,
    upper_edge_hertz: Value,
    *,
    output_datatype: DType = f32,
) -> Value:
    """Triangles that gather the bins of a spectrum into bands of the mel scale."""
    bands, length, rate, lower, upper = (
        build.reshape(v, ()) for v in (num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz)
    )
    length = ops.cast(length, dtype=i64)
    low, high = (ops.log1p(ops.cast(v, dtype=f64) / 700.0) * (2595 / math.log(10)) for v in (lower, upper))
    step = (high - low) / (ops.cast(bands, dtype=f64) + 2.0)
    band = ops.cast(n.counted(bands, f"{n.name}_bands"), dtype=f64)

    def edge(number: int) -> Value:
        hertz = ops.expm1(((band + float(number)) * step + low) * (math.log(10) / 2595)) * 700.0
        return ops.floor(hertz * ops.cast(length + 1, dtype=f64) / ops.cast(rate, dtype=f64))

    left, centre, right = edge(0), edge(1), edge(2)
    numbers = n.counted(length / 2 + 1, f"{n.name}_bins")
    bin_ = build.expand_dims(ops.cast(numbers, dtype=f64), -1)
    falling = ops.where(ops.less(bin_, right), (right - bin_) / (right - centre), 0.0)
    rising = ops.where(ops.less(bin_, left), 0.0, (bin_ - left) / (centre - left))
    slope = ops.where(ops.less(bin_, centre), rising, falling)
    return ops.cast(ops.where(ops.equal(bin_, centre), 1.0, slope), dtype=output_datatype)
