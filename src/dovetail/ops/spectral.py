"""The discrete Fourier transform. Real and imaginary parts are interleaved, so that every float has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import FLOATS
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint
from dovetail.ops.gradient import Parts
from dovetail.ops.primitive import Array, family, primitive
from dovetail.ops.rules import one_dtype, tensor


def _fourier(facts: Facts, x: Type, *, inverse: bool) -> Type:
    of = tensor(x)
    one_dtype(facts, [of], FLOATS)
    if of.rank < 2 or of.shape[-1] != 2:
        raise TypeRuleError(
            f"{facts.op} of {of}", hint="the last axis holds two numbers, real and imaginary; points lie before it"
        )
    facts.at_least(of.shape[-2], 1, "the points of a transform")
    return of


def _fourier_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    of: TensorType = tensor(result)
    points = of.shape[-2]
    return of.count * 5 * (max(1, math.ceil(math.log2(points))) if isinstance(points, int) and points else 10)


def _fourier_pull(g: Value, y: Value, x: Value, *, inverse: bool) -> Parts:
    """Return the conjugate transform, the adjoint: the other direction without its factor."""
    points = adjoint.count([x.shape[-2]], x.dtype)
    return (fourier(g) / points if inverse else fourier(g, inverse=True) * points,)


@primitive(_fourier, flops=_fourier_flops, pull=_fourier_pull)
def fourier(x: Array, *, inverse: bool = False) -> Array:
    """The Fourier transform of complex points along the last axis but one, or its inverse."""
    points = np.empty(x.shape[:-1], np.complex128 if x.dtype == np.float64 else np.complex64)
    points.real, points.imag = x[..., 0], x[..., 1]
    spectrum = np.fft.ifft(points, axis=-1) if inverse else np.fft.fft(points, axis=-1)
    return np.stack([spectrum.real, spectrum.imag], axis=-1).astype(x.dtype)


FAMILY = family(globals())


__all__ = ["fourier"]
