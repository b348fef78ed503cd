"""conv_bias_act: a convolution with bias, residual add and activation in its epilogue."""

from __future__ import annotations

from dovetail.declare import Change, fused_op, typed
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.library.activation import Activation, activation
from dovetail.ops.convolution import conv


@fused_op(shapes="x[n, c, h, w] w[m, c, i, j] b[m, 1, 1] residual[n, m, h - i + 1, w - j + 1]")
def conv_bias_act(
    x: Value,
    w: Value,
    b: Value | None = None,
    residual: Value | None = None,
    *,
    act: Activation = "none",
    strides: tuple[int, ...] = (1, 1),
    dilations: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    groups: int = 1,
) -> Value:
    """Convolution with bias, residual add and activation in its epilogue: one kernel, one write."""
    y = conv(x, w, strides=strides, dilations=dilations, padding=padding, groups=groups)
    if b is not None:
        y = y + b
    return activation(act, y if residual is None else y + residual)


@conv_bias_act.requires(
    reason="the bias is {b.type} and the weights are {w.type}; one number is added to a channel",
    hint="give the bias one number for each channel",
)
def bias_is_one_for_each_channel(w: Value, b: Value | None) -> bool:
    return b is None or is_one_for_each_channel(b, w)


@conv_bias_act.remedy(bias_is_one_for_each_channel)
def bias_as_one_for_each_channel(w: Value, b: Value) -> Change:
    """The bias is one number for each channel."""
    return {"b": typed(b, shape=for_each_channel(w))}


@conv_bias_act.requires(
    reason="the residual is {residual.type}, and its sum with the convolution is {result.type}; one number is added "
    "where one is written",
    hint="give the residual the shape of the convolution",
)
def residual_has_the_shape_of_the_convolution(
    x: Value,
    w: Value,
    residual: Value | None,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[int, ...],
    groups: int,
) -> bool:
    if residual is None:
        return True
    # The sizes of a convolution are worked out axis by axis, for any number of them: no condition says that.
    return residual.shape == conv(x, w, strides=strides, dilations=dilations, padding=padding, groups=groups).shape


@conv_bias_act.remedy(residual_has_the_shape_of_the_convolution)
def residual_in_the_shape_of_the_convolution(
    x: Value,
    w: Value,
    residual: Value,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[int, ...],
    groups: int,
) -> Change:
    """The residual has the shape of the convolution."""
    y = conv(x, w, strides=strides, dilations=dilations, padding=padding, groups=groups)
    return {"residual": typed(residual, shape=y.shape)}


def for_each_channel(w: Value) -> tuple[Size, ...]:
    """The shape of one number for each channel that the weights make, with a 1 for each spatial axis."""
    return (w.shape[0], *(1,) * (w.rank - 2))


def is_one_for_each_channel(vector: Value, w: Value) -> bool:
    """Whether it is one number for each channel that the weights make, with a 1 for each spatial axis."""
    return vector.rank == w.rank - 1 and vector.shape[0] == w.shape[0] and vector.shape[1:] == (1,) * (w.rank - 2)
