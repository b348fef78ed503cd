"""Products summed over axes: linear layers, matrix products, convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast, computed_in_f32
from dovetail.frontends.shared.matmul import matmul_or_dot
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import Number, rule
from dovetail.frontends.torch.rules.windows import batched, each
from dovetail.ir.dim import Size, floordiv
from dovetail.ir.value import Value
from dovetail.ops import build, conv_adjoint


@rule("linear.default")
def linear(n: Node, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x @ weightᵀ + bias"""
    if weight.rank == 1:
        y = matmul_or_dot(x, weight)
    elif x.rank == 1:
        y = build.squeeze_dims(ops.unsqueeze(x, axes=(-2,)) @ _swapped(weight), -2)
    else:
        y = x @ _swapped(weight)
    return y if bias is None else y + bias


def _swapped(w: Value) -> Value:
    return ops.permute(w, order=(-1, -2))


@rule("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default")
def matmul(n: Node, x: Value, other: Value) -> Value:
    """Matrix product over the last two axes; axes in front broadcast."""
    return matmul_or_dot(x, other)


@rule("addmm.default", "baddbmm.default", "addmv.default", "addbmm.default")
def addmm(n: Node, x: Value, first: Value, second: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    """beta * x + alpha * first @ second"""
    y = matmul_or_dot(first, second)
    if n.op_type.startswith("addbmm"):
        y = build.squeeze_dims(ops.reduce_sum(y, axes=(0 - y.rank,)), 0)
    y = _times(n, y, alpha)
    return y if beta == 0 and not isinstance(beta, Value) else y + _times(n, x, beta)


def _times(n: Node, x: Value, factor: Number) -> Value:
    return x if factor == 1 and not isinstance(factor, Value) else x * n.value(factor, x.dtype)


@rule("outer.default", "ger.default")
def outer(n: Node, x: Value, vec2: Value) -> Value:
    """Every product of two vectors."""
    a, b = n.value(x, n.dtype), n.value(vec2, n.dtype)
    return ops.unsqueeze(a, axes=(-1,)) * b


@rule("_trilinear.default")
def trilinear(
    n: Node,
    first: Value,
    second: Value,
    third: Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Value:
    """The product of three tensors with axes put in, summed over axes."""
    a, b, c = (build.expand_dims(v, list(axes)) for v, axes in ((first, expand1), (second, expand2), (third, expand3)))
    y = a * b * c
    return build.squeeze_dims(ops.reduce_sum(y, axes=tuple(sumdim)), list(sumdim)) if sumdim else y


def _biased(y: Value, bias: Value | None, count: int) -> Value:
    return y if bias is None else y + build.reshape(bias, (bias.shape[0], *(1,) * count))


@rule("conv1d.default", "conv2d.default", "conv3d.default")
def conv(
    n: Node,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Value:
    """Convolution with zeros around."""
    around = each(padding, weight.rank - 2)
    return _conv(x, weight, bias, stride, (*around, *around), dilation, groups)


@rule("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_padded(
    n: Node,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: str = "valid",
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Value:
    """Convolution whose padding keeps the size, or without padding."""
    count = weight.rank - 2
    if padding == "valid":
        return _conv(x, weight, bias, stride, (0,) * (2 * count), dilation, groups)
    totals = [(k - 1) * d for k, d in zip(weight.shape[2:], each(dilation, count), strict=True)]
    before = [floordiv(t, 2) for t in totals]
    after = [t - b for t, b in zip(totals, before, strict=True)]
    return _conv(x, weight, bias, stride, (*before, *after), dilation, groups)


def _conv(
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    around: tuple[Size, ...],
    dilation: Sequence[int],
    groups: int,
) -> Value:
    count = weight.rank - 2
    image, alone = batched(x, count)
    y = ops.conv(
        image,
        weight,
        strides=each(stride, count),
        padding=around,
        dilations=each(dilation, count),
        groups=groups,
    )
    y = _biased(y, bias, count)
    return build.squeeze_dims(y, 0) if alone else y


@rule("convolution.default")
def convolution(
    n: Node,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """Convolution, or its transpose."""
    if transposed:
        return _transposed(n, x, weight, bias, stride, padding, output_padding, groups, dilation)
    around = each(padding, weight.rank - 2)
    return _conv(x, weight, bias, stride, (*around, *around), dilation, groups)


@rule("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    n: Node,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Value:
    """What a convolution would spread back."""
    return _transposed(n, x, weight, bias, stride, padding, output_padding, groups, dilation)


def _transposed(
    n: Node,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Value:
    count = weight.rank - 2
    image, alone = batched(x, count)
    around = each(padding, count)
    y = ops.conv_transpose(
        image,
        weight,
        strides=each(stride, count),
        padding=(*around, *around),
        output_padding=each(output_padding, count),
        dilations=each(dilation, count),
        groups=groups,
    )
    y = _biased(y, bias, count)
    return build.squeeze_dims(y, 0) if alone else y


@rule("convolution_backward.default")
def convolution_backward(
    n: Node,
    g: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[Size] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    """The gradients of a convolution, or of its transpose: of the image, the weights and the bias."""
    count = weight.rank - 2
    (image, alone), (back, _) = batched(x, count), batched(g, count)
    strides, dilations, around = each(stride, count), each(dilation, count), each(padding, count) * 2
    asked = [is_asked and n.makes(i) for i, is_asked in enumerate(output_mask)]
    options: Any = {"strides": strides, "dilations": dilations, "padding": around, "groups": groups}
    of_image: Value | None = None
    if asked[0] and transposed:
        # Output padding of a stride or more holds places that no pixel was spread from.
        of_image = conv_adjoint.cut_to(ops.conv(back, weight, **options), image.shape)
    elif asked[0]:
        of_image = conv_adjoint.spread_back(back, weight, image.shape, **options)
    seen, sliding = (back, image) if transposed else (image, back)
    of_weight = conv_adjoint.kernel_gradient(seen, sliding, weight.shape, **options) if asked[1] else None
    of_bias: Value | None = None
    if asked[2]:
        summed = ops.reduce_sum(computed_in_f32(back), axes=(-back.rank, *range(-count, 0)))
        of_bias = cast(build.reshape(summed, (back.shape[1],)), back.dtype)
    if of_image is not None and alone:
        of_image = build.squeeze_dims(of_image, 0)
    return of_image, of_weight, of_bias


@rule("im2col.default")
def im2col(
    n: Node,
    x: Value,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """The windows of an image, each as a column."""
    image, alone = batched(x, 2)
    (ph, pw), (kh, kw), (dh, dw), (sh, sw) = padding, kernel_size, dilation, stride
    padded = build.pad_dims(image, (0, 0, ph, pw), (0, 0, ph, pw), 0.0)
    height, width = (
        floordiv(s - (k - 1) * d - 1, step) + 1
        for s, k, d, step in zip(padded.shape[2:], (kh, kw), (dh, dw), (sh, sw), strict=True)
    )
    rows = build.expand_dims(ops.iota(size=height) * sh, 0) + build.expand_dims(ops.iota(size=kh) * dh, 1)
    columns = build.expand_dims(ops.iota(size=width) * sw, 0) + build.expand_dims(ops.iota(size=kw) * dw, 1)
    seen = ops.gather(ops.gather(padded, rows, axis=-2), columns, axis=-1)
    moved = build.transpose(seen, (0, 1, 2, 4, 3, 5))
    batch, channels = image.shape[:2]
    y = build.reshape(moved, (batch, channels * kh * kw, height * width))
    return build.squeeze_dims(y, 0) if alone else y
