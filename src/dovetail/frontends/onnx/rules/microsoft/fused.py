"""Products and windows with what optimisers put into them."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Ints, rule
from dovetail.frontends.onnx.rules import contraction, convolution
from dovetail.frontends.onnx.rules.microsoft.activations import MICROSOFT
from dovetail.frontends.onnx.rules.quantised import one
from dovetail.frontends.shared.spatial import ConvAttributes, spatial
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(
    n: Node,
    a: Value,
    b: Value,
    *,
    alpha: float = 1.0,
    transA: bool = False,
    transB: bool = False,
    transBatchA: bool = False,
    transBatchB: bool = False,
) -> Value:
    """alpha * a @ b, both optionally transposed; with transBatch the first axis is moved after the other batch axes."""
    if a.rank == 0 or b.rank == 0:
        raise n.malformed("a product with a number")
    product = _turned(a, transA, transBatchA, -2) @ _turned(b, transB, transBatchB, -1)
    gone = tuple(axis for axis, of in ((-2, a), (-1, b)) if of.rank == 1)
    product = build.squeeze_dims(product, gone) if gone else product
    return product if alpha == 1.0 else product * alpha


def _turned(x: Value, turned: bool, batch: bool, vector_axis: int) -> Value:
    """A matrix as it is multiplied; a vector is never turned."""
    if x.rank == 1:
        return ops.unsqueeze(x, axes=(vector_axis,))
    if batch and x.rank > 2:
        x = build.move_axis(x, 0, -2)
    return ops.permute(x, order=(-1, -2)) if turned else x


def activated(n: Node, y: Value, activation: str, numbers: tuple[float, ...]) -> Value:
    """An activation by name, with its numbers."""
    wanted = _NUMBERS.get(activation)
    if wanted is None:
        raise n.unsupported(f"the activation {activation!r}", hint=f"use one of {', '.join(filter(None, _NUMBERS))}")
    if len(numbers) < wanted:
        raise n.malformed(f"{activation} with {len(numbers)} numbers", hint=f"it takes {wanted}")
    match activation:
        case "Relu":
            return ops.relu(y)
        case "Tanh":
            return ops.tanh(y)
        case "Sigmoid":
            return ops.sigmoid(y)
        case "LeakyRelu":
            return ops.leaky_relu(y, slope=numbers[0])
        case "Elu":
            return ops.elu(y, alpha=numbers[0])
        case "Clip":
            return ops.clip(y, numbers[0], numbers[1])
        case "HardSigmoid":
            return ops.hard_sigmoid(y, alpha=numbers[0], beta=numbers[1])
        case "HardSwish":
            return y * ops.hard_sigmoid(y, alpha=numbers[0], beta=numbers[1])
        case "Softplus":
            return ops.softplus(y)
        case "Softsign":
            return ops.softsign(y)
        case _:
            return y


_NUMBERS = {
    "": 0,
    "Relu": 0,
    "Tanh": 0,
    "Sigmoid": 0,
    "Softplus": 0,
    "Softsign": 0,
    "LeakyRelu": 1,
    "Elu": 1,
    "Clip": 2,
    "HardSigmoid": 2,
    "HardSwish": 2,
}


@rule("FusedGemm", domain=MICROSOFT)
def fused_gemm(
    n: Node,
    a: Value,
    b: Value,
    c: Value | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,
    transB: bool = False,
) -> Value:
    """alpha * a @ b + beta * c, then an activation."""
    y = one(contraction.gemm, n, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    numbers = tuple(x for x in (activation_alpha, activation_beta, activation_gamma) if x is not None)
    return activated(n, y, activation, numbers)


@rule("FusedConv", domain=MICROSOFT)
def fused_conv(
    n: Node,
    x: Value,
    w: Value,
    b: Value | None = None,
    z: Value | None = None,
    *,
    activation: str = "",
    activation_params: tuple[float, ...] = (),
    conv: ConvAttributes,
) -> Value:
    """Convolution plus bias plus z, then an activation."""
    y = one(
        convolution.conv,
        n,
        x,
        w,
        b,
        conv=conv,
    )
    return activated(n, y if z is None else y + z, activation, activation_params)


@rule("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def nhwc_fused_conv(
    n: Node,
    x: Value,
    w: Value,
    b: Value | None = None,
    z: Value | None = None,
    *,
    activation: str = "",
    activation_params: tuple[float, ...] = (),
    conv: ConvAttributes,
) -> Value:
    """FusedConv of an image with its channels last."""
    image = channels_first(x)
    convolved = one(
        convolution.conv,
        n,
        image,
        w,
        b,
        conv=conv,
    )
    y = channels_last(convolved)
    return activated(n, y if z is None else y + z, activation, activation_params)


def channels_first(x: Value) -> Value:
    """[n, *spatial, c] as [n, c, *spatial]."""
    return build.move_axis(x, -1, 1)


def channels_last(x: Value) -> Value:
    """[n, c, *spatial] as [n, *spatial, c]."""
    return build.move_axis(x, 1, -1)


@rule("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(
    n: Node,
    x: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    """The maximum over each window, of an image with its channels last."""
    if ceil_mode and auto_pad != "NOTSET":
        raise n.unsupported(f"ceil_mode with auto_pad {auto_pad}", hint="write the pads")
    image = channels_first(x)
    window = spatial(n, image, kernel_shape, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    pooled = ops.max_pool(
        image,
        window=kernel_shape,
        strides=window.strides,
        dilations=window.dilations,
        padding=window.padding,
        ceil=ceil_mode,
    )
    return channels_last(pooled)


@rule("Trilu", domain=MICROSOFT)
def trilu(n: Node, x: Value, k: Ints | None = None, *, upper: bool = True) -> Value:
    """The matrix on and above a diagonal, or on and below it, and 0 elsewhere."""
    return build.trilu(x, upper=upper, offset=k[0] if k else 0)
