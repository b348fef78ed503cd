"""Norms, and the softmax family."""

from __future__ import annotations

from collections.abc import Callable

from dovetail import library, ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.shared.norms import affine, batch_norm, by_channel, channel_moments, moments, over_last
from dovetail.frontends.shared.rule import Made
from dovetail.ir.dim import Dim, product
from dovetail.ir.dtype import DType, f32, f64
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import axis_from_end


@rule("Softmax", since=13)
def softmax(n: Node, x: Value, *, axis: int = -1) -> Value:
    """Exponentials along an axis, divided by their sum."""
    return library.softmax.body(x, axis=axis_from_end(axis, x.rank))


@rule("LogSoftmax", since=13)
def log_softmax(n: Node, x: Value, *, axis: int = -1) -> Value:
    """The logarithm of softmax along an axis."""
    return library.log_softmax.body(x, axis=axis_from_end(axis, x.rank))


@rule("Softmax", until=12)
def flat_softmax(n: Node, x: Value, *, axis: int = 1) -> Value:
    """Exponentials divided by their sum over all axes from `axis` on."""
    return _from_axis(x, axis, lambda flat: library.softmax.body(flat, axis=-1))


@rule("LogSoftmax", until=12)
def flat_log_softmax(n: Node, x: Value, *, axis: int = 1) -> Value:
    """The logarithm of softmax over all axes from `axis` on."""
    return _from_axis(x, axis, lambda flat: library.log_softmax.body(flat, axis=-1))


def _from_axis(x: Value, axis: int, function: Callable[[Value], Value]) -> Value:
    """A function of the last axis, applied to all axes from `axis` on as if they were one."""
    return over_last(x, 0 if axis == x.rank else -axis_from_end(axis, x.rank), function)


@rule("LayerNormalization", since=17)
def layer_normalization(
    n: Node,
    x: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: DType = f32,
) -> Made:
    """All axes from `axis` on brought to mean 0 and variance 1, scaled and shifted."""
    wide = _stashed(x, stash_type)
    y = _from_axis(wide, axis, lambda flat: library.layer_norm.body(flat, eps=epsilon))
    y = affine(cast(y, x.dtype), scale, bias)
    if not (n.makes(1) or n.makes(2)):
        return y
    axes = tuple(range(axis_from_end(axis, x.rank), 0))
    mean, spread = moments(wide, axes)
    return y, cast(mean, stash_type), cast(ops.rsqrt(spread + epsilon), stash_type)


@rule("RMSNormalization", since=23)
def rms_normalization(
    n: Node, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: DType = f32
) -> Value:
    """All axes from `axis` on divided by their root mean square, scaled."""
    y = _from_axis(_stashed(x, stash_type), axis, lambda flat: library.rms_norm.body(flat, eps=epsilon))
    return affine(cast(y, scale.dtype), scale, None)


def _stashed(x: Value, stash_type: DType) -> Value:
    """x in the dtype that it is normalised in; f64 is not narrowed."""
    return x if x.dtype is f64 else cast(x, stash_type)


@rule("InstanceNormalization", since=6)
def instance_normalization(n: Node, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5) -> Value:
    """Each channel of each image brought to mean 0 and variance 1, scaled and shifted."""
    if x.rank < 3:
        raise n.malformed(f"an input of rank {x.rank}", hint="it is [n, c, *spatial]")
    y = over_last(x, x.rank - 2, lambda flat: library.layer_norm.body(flat, eps=epsilon))
    return affine(y, by_channel(scale, x.rank), by_channel(bias, x.rank))


@rule("GroupNormalization", since=18, until=20)
def old_group_normalization(
    n: Node, x: Value, scale: Value, bias: Value, *, num_groups: int, epsilon: float = 1e-5
) -> Value:
    """Groups of channels brought to mean 0 and variance 1; each group has one scale and one bias."""
    each = x.shape[1] // num_groups
    return _grouped(x, x, build.repeat(scale, each, axis=-1), build.repeat(bias, each, axis=-1), num_groups, epsilon)


@rule("GroupNormalization", since=21)
def group_normalization(
    n: Node,
    x: Value,
    scale: Value,
    bias: Value,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: DType = f32,
) -> Value:
    """Groups of channels brought to mean 0 and variance 1; each channel has its scale and bias."""
    return _grouped(x, _stashed(x, stash_type), scale, bias, num_groups, epsilon)


def _grouped(x: Value, wide: Value, scale: Value, bias: Value, groups: int, eps: float) -> Value:
    if x.rank == 4:
        y = library.group_norm.body(wide, groups=groups, eps=eps)
    else:
        rows = ops.split(wide, axis=1, parts=groups)
        flat = library.layer_norm.body(ops.merge(rows, axis=-1, count=rows.rank - 2), eps=eps)
        y = build.reshape(flat, x.shape)
    return affine(cast(y, x.dtype), by_channel(scale, x.rank), by_channel(bias, x.rank))


@rule("BatchNormalization", since=14)
def batch_normalization(
    n: Node,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: bool = False,
) -> Made:
    """Channels shifted and scaled by stored statistics; in training by their own, which move the stored ones."""
    if not training_mode:
        return batch_norm(x, scale, bias, mean, variance, epsilon)
    middle, spread = (build.reshape(v, mean.shape) for v in channel_moments(cast(x, mean.dtype)))
    moved = [old * momentum + new * (1.0 - momentum) for old, new in ((mean, middle), (variance, spread))]
    return batch_norm(x, scale, bias, middle, spread, epsilon), *moved


@rule("BatchNormalization", since=6, until=13)
def old_batch_normalization(
    n: Node,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,  # moves the stored statistics in training, which is refused
    spatial: bool = True,
    is_test: bool = False,  # one output says the same
) -> Value:
    """Channels shifted and scaled by stored statistics; without `spatial` each feature has its own."""
    if any(n.makes(i) for i in range(1, 5)):
        raise n.unsupported("training before opset 14", hint="export the model for inference, or with opset 14")
    if not spatial:
        if any(v.shape != x.shape[1:] for v in (scale, bias, mean, variance)):
            raise n.unsupported("statistics that are not one for each feature", hint="export it with opset 9")
        return affine((x - mean) * ops.rsqrt(variance + epsilon), scale, bias)
    return batch_norm(x, scale, bias, mean, variance, epsilon)


@rule("LRN")
def lrn(n: Node, x: Value, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Value:
    """x divided by a power of the mean square of the channels around it."""
    if x.rank < 2 or size < 1:
        raise n.malformed(f"{size} channels of {x.type}", hint="it takes one channel or more of [n, c, *spatial]")
    channels = x.shape[1]
    # Channels beyond the first and the last add nothing.
    before, after = (s if isinstance(channels, Dim) else min(s, channels) for s in ((size - 1) // 2, size // 2))
    rows = build.reshape(x * x, (x.shape[0], 1, channels, product(x.shape[2:])))
    width = before + after + 1
    mean = ops.average_pool(rows, window=(width, 1), padding=(before, 0, after, 0), count_padding=True)
    return x / (build.reshape(mean, x.shape) * (alpha * width / size) + bias) ** beta


@rule("LpNormalization")
def lp_normalization(n: Node, x: Value, *, axis: int = -1, p: int = 2) -> Value:
    """x divided by its length along an axis, 0 where that is 0."""
    if p not in (1, 2):
        raise n.malformed(f"p is {p}", hint="it is 1 or 2")
    length = (ops.reduce_l1 if p == 1 else ops.reduce_l2)(x, axes=(axis,))
    return ops.where(ops.equal(length, 0.0), 0.0, x / length)
