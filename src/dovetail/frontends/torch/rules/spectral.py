"""Fourier transforms and complex numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail import ops
from dovetail.frontends.torch.importing.node import Node, axis_of
from dovetail.frontends.torch.importing.rule import rule
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import c64, f32
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("_fft_c2c.default")
def fft_c2c(n: Node, x: Value, dim: Sequence[int], normalization: int, forward: bool) -> Value:
    """The Fourier transform of complex numbers along axes, or its inverse."""
    pair = build.stack([ops.real(x), ops.imag(x)], axis=-1)
    for axis in dim:
        pair = _along(pair, axis_of(x, axis) - 1, inverse=not forward)
    return _complex(_scaled(n, pair, [x.shape[a] for a in dim], normalization, forward))


@rule("_fft_r2c.default")
def fft_r2c(n: Node, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Value:
    """The Fourier transform of real numbers along axes; one half of it where it is one-sided."""
    pair = build.stack([x, x * 0.0], axis=-1)
    for axis in reversed(dim):
        pair = _along(pair, axis_of(x, axis) - 1, inverse=False)
    pair = _scaled(n, pair, [x.shape[a] for a in dim], normalization, True)
    if onesided:
        last = axis_of(x, dim[-1]) - 1
        pair = build.cut(pair, last, 0, n.shape[last + 1])
    return _complex(pair)


@rule("_fft_c2r.default")
def fft_c2r(n: Node, x: Value, dim: Sequence[int], normalization: int, last_dim_size: Size) -> Value:
    """Real numbers from one half of their Fourier transform along axes."""
    if isinstance(last_dim_size, Dim):
        raise n.unsupported("a transform to a size that is not known", hint="export it with fixed sizes")
    last = axis_of(x, dim[-1])
    pair = build.stack([ops.real(x), ops.imag(x)], axis=-1)
    for axis in dim[:-1]:
        pair = _along(pair, axis_of(x, axis) - 1, inverse=True)
    half = build.cut(pair, last - 1, 0, last_dim_size // 2 + 1)
    mirrored = ops.flip(build.cut(half, last - 1, 1, (last_dim_size + 1) // 2), axes=(last - 1,))
    sign = leaf.constant(np.array([1.0, -1.0], pair.dtype.numpy))
    whole = ops.concat(half, mirrored * sign, axis=last - 1)
    pair = _along(whole, last - 1, inverse=True)
    lengths = [last_dim_size if a == dim[-1] else x.shape[a] for a in dim]
    return build.select(_scaled(n, pair, lengths, normalization, False), axis=-1, index=0)


def _along(pair: Value, axis: int, *, inverse: bool) -> Value:
    """Pairs of real and imaginary parts, transformed along an axis; the inverse is not divided by the length."""
    at = axis + pair.rank
    moved = build.move_axis(pair, at, -2) if axis != -2 else pair
    found = ops.fourier(moved, inverse=inverse)
    if inverse:
        length = moved.shape[-2]
        found = found * (float(length) if isinstance(length, int) else ops.cast(ops.extent(size=length), dtype=f32))
    return build.move_axis(found, -2, at) if axis != -2 else found


def _scaled(n: Node, pair: Value, lengths: Sequence[Size], normalization: int, forward: bool) -> Value:
    """torch's normalisation: 0 none, 1 by the root of the length, 2 by the length."""
    if normalization == 0:
        return pair
    total: Size = 1
    for length in lengths:
        total = total * length
    if isinstance(total, Dim):
        raise n.unsupported("a normalised transform of a size that is not known", hint="export it with fixed sizes")
    return pair * (1.0 / total if normalization == 2 else total**-0.5)


def _complex(pair: Value) -> Value:
    real, imag = (build.select(pair, axis=-1, index=i) for i in (0, 1))
    return ops.complex_(real, imag)


@rule("real.default", "imag.default")
def part(n: Node, x: Value) -> Value:
    """The real or imaginary part."""
    if x.dtype is not c64:
        return x
    return ops.real(x) if n.op_type.startswith("real") else ops.imag(x)


@rule("_conj.default", "_conj_physical.default", "conj_physical.default")
def conj(n: Node, x: Value) -> Value:
    """The complex conjugate."""
    return ops.complex_(ops.real(x), -ops.imag(x)) if x.dtype is c64 else x
