"""Convolution, its transpose and its deformable form over [n, c, *spatial], weights as ONNX has them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import FLOATS, NUMBERS, DType
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops.conv_adjoint import cut_to, kernel_gradient, spread_back
from dovetail.ops.gradient import Parts, Refused
from dovetail.ops.primitive import Array, family, primitive
from dovetail.ops.rules import one_dtype, tensor
from dovetail.ops.sampling import pixels_at, weigh
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


def _conv_kind(operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> str:
    """Depthwise filters share no operands; dense 3×3 windows of stride 1 overlap, as Winograd's algorithm needs it."""
    filters, groups = tensor(operands[1]).shape, attrs["groups"]
    if groups > 1 and filters[1] == 1:
        return "conv.depthwise"
    steps = (*attrs["strides"], *attrs["dilations"])
    return "conv.3x3" if groups == 1 and filters[2:] == (3, 3) and all(s == 1 for s in steps) else "conv"


def _conv_pull(
    g: Value,
    y: Value,
    x: Value,
    w: Value,
    *,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[Size, ...],
    groups: int,
) -> Parts:
    image = spread_back(g, w, x.shape, strides=strides, dilations=dilations, padding=padding, groups=groups)
    return image, kernel_gradient(x, g, w.shape, strides, dilations, padding, groups)


@primitive(_conv, flops=_conv_flops, cost_kind=_conv_kind, pull=_conv_pull)
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
    padded = padded_by(x.astype(wide(x.dtype)), padding[:count], padding[count:], 0)
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    steps = tuple(slice(None, None, step) for step in (*strides, *dilations))
    seen = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, x.ndim)))[(..., *steps)]
    places = seen.shape[2 : 2 + count]
    weights = w.astype(padded.dtype).reshape((groups, w.shape[0] // groups, math.prod(w.shape[1:])))
    total = np.zeros((x.shape[0], w.shape[0], *places), padded.dtype)
    # Some rows at a time: all that every window sees is many times the image.
    rows = max(1, _MOST_SEEN // max(1, x.shape[1] * math.prod(kernel) * math.prod(places[1:])))
    for image, start in itertools.product(range(x.shape[0]), range(0, places[0], rows)):
        onto = total[image, :, start : start + rows]
        columns = np.moveaxis(seen[image, :, start : start + rows], range(1, 1 + count), range(-count, 0))
        columns = columns.reshape((groups, weights.shape[2], math.prod(onto.shape[1:])))
        onto[...] = np.matmul(weights, columns).reshape(onto.shape)
    return total.astype(x.dtype)


_MOST_SEEN = 2**22
"""How many numbers are gathered for one product of matrices."""


def _grouped(x: Array, w: Array, groups: int) -> Array:
    """[n, c, *spatial] in its wide type times [m, c / groups], each group of m on its own group of c."""
    split = x.reshape((x.shape[0], groups, w.shape[1], math.prod(x.shape[2:])))
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


def _conv_transpose_pull(
    g: Value,
    y: Value,
    x: Value,
    w: Value,
    *,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[Size, ...],
    output_padding: tuple[int, ...],
    groups: int,
) -> Parts:
    image = conv(g, w, strides=strides, dilations=dilations, padding=padding, groups=groups)
    # Output padding of a stride or more holds places that no pixel was spread from.
    image = cut_to(image, x.shape)
    return image, kernel_gradient(g, x, w.shape, strides, dilations, padding, groups)


@primitive(_conv_transpose, flops=_conv_transpose_flops, cost_kind="conv.transposed", pull=_conv_transpose_pull)
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

    Padding is cut off the result; output padding is added after it first.
    """
    count, kernel = x.ndim - 2, w.shape[2:]
    channels = w.shape[1] * groups
    spread = [
        (x.shape[2 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + output_padding[i] for i in range(count)
    ]
    total = np.zeros((x.shape[0], channels, *spread), wide(x.dtype))
    # Per group the weights are [c, m]; transposed they are [m, c], as a convolution has them.
    turned = w.reshape((groups, w.shape[0] // groups, *w.shape[1:])).swapaxes(1, 2)
    turned = turned.reshape((channels, w.shape[0] // groups, *kernel))
    image = x.astype(total.dtype)
    for tap in taps(kernel):
        onto = tapped(total, tap, x.shape[2:], strides, dilations)
        onto += _grouped(image, turned[(..., *tap)], groups)
    kept = [slice(padding[i], spread[i] - padding[count + i]) for i in range(count)]
    return total[(slice(None), slice(None), *kept)].astype(x.dtype)


_DEFORMED = Refused("moved taps have no rule yet", "train with conv, or freeze what is before it")


def _deform_conv(
    facts: Facts,
    x: Type,
    w: Type,
    offset: Type,
    mask: Type,
    *,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[Size, ...],
    groups: int,
    offset_groups: int,
) -> Type:
    image, moved, weight = tensor(x), tensor(offset), tensor(mask)
    result = tensor(_conv(facts, x, w, strides=strides, dilations=dilations, padding=padding, groups=groups))
    one_dtype(facts, [image, moved, weight], FLOATS)
    if offset_groups < 1:
        raise TypeRuleError(f"{facts.op} in {offset_groups} groups of offsets", hint="groups are 1 or more")
    facts.multiple(image.shape[1], offset_groups, "the channels, against the groups of offsets")
    numbers = product(tensor(w).shape[2:]) * offset_groups
    for of, count in ((moved, numbers * (image.rank - 2)), (weight, numbers)):
        expected = (image.shape[0], count, *result.shape[2:])
        if of.rank != len(expected):
            raise TypeRuleError(f"{facts.op}: offsets or mask of {of}", hint=f"they have rank {len(expected)}")
        for actual, size in zip(of.shape, expected, strict=True):
            facts.equal(actual, size, "offsets and mask, against taps and places")
    return result


@primitive(_deform_conv, flops=_conv_flops, cost_kind="conv.deformed", pull=_DEFORMED)
def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    mask: Array,
    *,
    strides: PerAxis = 1,
    dilations: PerAxis = 1,
    padding: Around = 0,
    groups: int = 1,
    offset_groups: int = 1,
) -> Array:
    """Convolution whose taps are moved by offsets to places between pixels, each weighed by a mask.

    Offsets are [n, offset group, *kernel, axis] and the mask [n, offset group, *kernel], each for every place.
    """
    count, kernel, places = x.ndim - 2, w.shape[2:], offset.shape[2:]
    shape = (len(x), offset_groups, *kernel)
    moved, weight = offset.reshape((*shape, count, *places)), mask.reshape((*shape, *places))
    images = x.astype(wide(x.dtype)).reshape((len(x), offset_groups, x.shape[1] // offset_groups, *x.shape[2:]))
    images = np.moveaxis(images, 2, -1)
    corner = [grid.reshape(-1, *(1,) * (count - 1 - i)) for i, grid in enumerate(map(np.arange, places))]
    first = np.indices(shape[:2], sparse=True)
    first = [index.reshape((*index.shape, *(1,) * count)) for index in first]
    total = np.zeros((len(x), w.shape[0], *places), wide(x.dtype))
    for tap in taps(kernel):
        axes: list[list[tuple[Array, Array]]] = []
        for i, size in enumerate(x.shape[2:]):
            at = corner[i] * strides[i] - padding[i] + tap[i] * dilations[i]
            at = at + moved[(slice(None), slice(None), *tap, i)].astype(np.float64)
            axes.append(pixels_at(at, size, "linear", "zeros", (0.0, 0.0)))
        seen = np.zeros((*shape[:2], *places, images.shape[-1]), total.dtype)
        for pixel in itertools.product(*axes):
            share = np.prod(np.broadcast_arrays(*(s for _, s in pixel)), axis=0)
            seen = seen + weigh(images[(*first, *(i for i, _ in pixel))], share[..., None])
        seen = seen * weight[(slice(None), slice(None), *tap)].astype(total.dtype)[..., None]
        total += _grouped(np.moveaxis(seen, -1, 2).reshape((*x.shape[:2], *places)), w[(..., *tap)], groups)
    return total.astype(x.dtype)


FAMILY = family(globals())

__all__ = ["conv", "conv_transpose", "deform_conv"]
