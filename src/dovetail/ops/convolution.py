"""Convolution and its transpose over [n, c, *spatial], weights as ONNX has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import NUMBERS, DType
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ops.primitive import Array, family, primitive
from dovetail.ops.rules import one_dtype, tensor
from dovetail.ops.special import wide
from dovetail.ops.window import Around, PerAxis, Window, padded_by, slid, tapped, taps, windows


def _operands(facts: Facts, x: Type, w: Type, groups: int) -> tuple[TensorType, TensorType, DType]:
    image, weights = tensor(x), tensor(w)
    dtype = one_dtype(facts, [image, weights], NUMBERS)
    if image.rank != weights.rank:
        raise TypeRuleError(
            f"{facts.op} of {image} with weights {weights}", hint="weights have two axes of channels, then the kernel"
        )
    if groups < 1:
        raise TypeRuleError(f"{facts.op} in {groups} groups", hint="groups are 1 or more")
    return image, weights, dtype


def _conv(
    facts: Facts,
    x: Type,
    w: Type,
    *,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[Size, ...],
    groups: int,
) -> Type:
    image, weights, dtype = _operands(facts, x, w, groups)
    along = windows(facts, image, weights.shape[2:], strides, dilations, padding)
    facts.equal(image.shape[1], weights.shape[1] * groups, "the channels, against those of the weights in all groups")
    facts.multiple(weights.shape[0], groups, "the channels of the result, against the groups")
    return TensorType(dtype, (image.shape[0], weights.shape[0], *slid(facts, image, along)))


def _conv_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(result).count * 2 * product(tensor(operands[1]).shape[1:])


@primitive(_conv, flops=_conv_flops)
def conv(
    x: Array,
    w: Array,
    *,
    strides: PerAxis = 1,
    dilations: PerAxis = 1,
    padding: Around = 0,
    groups: int = 1,
) -> Array:
    """Convolution of [n, c, *spatial] with weights [m, c / groups, *kernel]; zeros around, no flip of the kernel."""
    count, kernel = x.ndim - 2, w.shape[2:]
    padded = padded_by(x, padding[:count], padding[count:], 0)
    places = [(padded.shape[2 + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(count)]
    total = np.zeros((x.shape[0], w.shape[0], *places), wide(x.dtype))
    for tap in taps(kernel):
        total += _grouped(tapped(padded, tap, places, strides, dilations), w[(..., *tap)], groups)
    return total.astype(x.dtype)


def _grouped(x: Array, w: Array, groups: int) -> Array:
    """[n, c, *spatial] times [m, c / groups], each group of m on its own group of c."""
    split = x.astype(wide(x.dtype)).reshape((x.shape[0], groups, w.shape[1], math.prod(x.shape[2:])))
    weights = w.astype(wide(w.dtype)).reshape((groups, w.shape[0] // groups, w.shape[1]))
    return np.matmul(weights, split).reshape((x.shape[0], w.shape[0], *x.shape[2:]))


def _conv_transpose(
    facts: Facts,
    x: Type,
    w: Type,
    *,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[Size, ...],
    output_padding: tuple[int, ...],
    groups: int,
) -> Type:
    image, weights, dtype = _operands(facts, x, w, groups)
    along = windows(facts, image, weights.shape[2:], strides, dilations, padding)
    if len(output_padding) != len(along) or any(n < 0 for n in output_padding):
        raise TypeRuleError(f"{facts.op}: output padding {output_padding}", hint="give each spatial axis 0 or more")
    facts.equal(image.shape[1], weights.shape[0], "the channels, against those of the weights")
    facts.multiple(image.shape[1], groups, "the channels, against the groups")
    spatial: list[Size] = []
    for length, window, extra in zip(image.shape[2:], along, output_padding, strict=True):
        facts.at_least(length, 1, "an axis that is spread out")
        size = _spread(length, window) + extra - window.before - window.after
        facts.at_least(size, 0, "what is left of an axis, once the padding is cut off")
        spatial.append(size)
    return TensorType(dtype, (image.shape[0], weights.shape[1] * groups, *spatial))


def _spread(length: Size, window: Window) -> Size:
    return (length - 1) * window.stride + window.reach


def _conv_transpose_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(operands[0]).count * 2 * product(tensor(operands[1]).shape[1:])


@primitive(_conv_transpose, flops=_conv_transpose_flops)
def conv_transpose(
    x: Array,
    w: Array,
    *,
    strides: PerAxis = 1,
    dilations: PerAxis = 1,
    padding: Around = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
) -> Array:
    """What a convolution would spread back: [n, c, *spatial] with weights [c, m / groups, *kernel].

    Padding is cut off the result; output padding is put behind it before.
    """
    count, kernel = x.ndim - 2, w.shape[2:]
    channels = w.shape[1] * groups
    spread = [
        (x.shape[2 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + output_padding[i] for i in range(count)
    ]
    total = np.zeros((x.shape[0], channels, *spread), wide(x.dtype))
    # Per group the weights are [c, m]; turned round they are [m, c], as a convolution has them.
    turned = w.reshape((groups, w.shape[0] // groups, *w.shape[1:])).swapaxes(1, 2)
    turned = turned.reshape((channels, w.shape[0] // groups, *kernel))
    for tap in taps(kernel):
        onto = tapped(total, tap, x.shape[2:], strides, dilations)
        onto += _grouped(x, turned[(..., *tap)], groups)
    kept = [slice(padding[i], spread[i] - padding[count + i]) for i in range(count)]
    return total[(slice(None), slice(None), *kept)].astype(x.dtype)


FAMILY = family(globals())

__all__ = ["conv", "conv_transpose"]
