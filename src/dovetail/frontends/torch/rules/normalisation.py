"""Norms, and the softmax family. Each is written as the library writes it, so that it fuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail import library, ops
from dovetail.frontends.shared.dtypes import cast, computed_in_f32
from dovetail.frontends.shared.norms import affine, batch_norm, by_channel, channel_moments, moments, over_last
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node, axis_of, with_axis
from dovetail.frontends.torch.importing.rule import rule
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType
from dovetail.ir.value import Value
from dovetail.ops import build

_EPS = {"f16": 0.0009765625, "bf16": 0.0078125, "f32": 1.1920928955078125e-07, "f64": 2.220446049250313e-16}


@rule("softmax.int")
def softmax(n: Node, x: Value, dim: int, dtype: DType | None = None) -> Value:
    """Exponentials along an axis, divided by their sum."""
    return _along(n, cast(x, n.dtype), dim, lambda y, axis: library.softmax.body(y, axis=axis))


@rule("log_softmax.int")
def log_softmax(n: Node, x: Value, dim: int, dtype: DType | None = None) -> Value:
    """The logarithm of softmax along an axis."""
    return _along(n, cast(x, n.dtype), dim, lambda y, axis: library.log_softmax.body(y, axis=axis))


@rule("_softmax.default", "_safe_softmax.default")
def old_softmax(n: Node, x: Value, dim: int, half_to_float: bool | DType | None = False) -> Value:
    """Exponentials along an axis, divided by their sum; the safe form gives 0 where all are -inf."""
    empty = "zero" if "safe" in n.op_type else "nan"
    return _along(n, cast(x, n.dtype), dim, lambda y, axis: library.softmax.body(y, axis=axis, empty=empty))


@rule("_log_softmax.default")
def old_log_softmax(n: Node, x: Value, dim: int, half_to_float: bool = False) -> Value:
    """The logarithm of softmax along an axis."""
    return _along(n, cast(x, n.dtype), dim, lambda y, axis: library.log_softmax.body(y, axis=axis))


def _along(n: Node, x: Value, dim: int, function: Callable[[Value, int], Value]) -> Value:
    wide = computed_in_f32(with_axis(x))
    return build.reshape(cast(function(wide, axis_of(wide, dim)), n.dtype), n.shape)


@rule("layer_norm.default")
def layer_norm(
    n: Node,
    x: Value,
    normalized_shape: Sequence[Size],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    """The last axes brought to mean 0 and variance 1, scaled and shifted."""
    return _layer_norm(x, len(normalized_shape), weight, bias, eps)


@rule("native_layer_norm.default")
def native_layer_norm(
    n: Node,
    x: Value,
    normalized_shape: Sequence[Size],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> Made:
    """layer_norm, with the mean and the inverse deviation."""
    count = len(normalized_shape)
    y = _layer_norm(x, count, weight, bias, eps)
    if not (n.makes(1) or n.makes(2)):
        return y, None, None
    mean, spread = moments(computed_in_f32(x), range(-count, 0))
    return y, cast(mean, n.type_of(1).dtype), cast(ops.rsqrt(spread + eps), n.type_of(2).dtype)


def _layer_norm(x: Value, count: int, weight: Value | None, bias: Value | None, eps: float) -> Value:
    if count == 1 and x.dtype.bits >= 32:
        return library.layer_norm.body(x, weight, bias, eps=eps)
    y = over_last(computed_in_f32(x), count, lambda flat: library.layer_norm.body(flat, eps=eps))
    return cast(affine(y, weight, bias), x.dtype)


@rule("rms_norm.default")
def rms_norm(
    n: Node, x: Value, normalized_shape: Sequence[Size], weight: Value | None = None, eps: float | None = None
) -> Value:
    """The last axes divided by their root mean square, scaled."""
    small = _EPS[x.dtype.name] if eps is None else eps
    count = len(normalized_shape)
    if count == 1 and x.dtype.bits >= 32 and (weight is None or weight.dtype is x.dtype):
        return library.rms_norm.body(x, weight, eps=small)
    y = over_last(computed_in_f32(x), count, lambda flat: library.rms_norm.body(flat, eps=small))
    return cast(affine(y, weight, None), n.dtype)


@rule("group_norm.default")
def group_norm(
    n: Node,
    x: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    """Groups of channels brought to mean 0 and variance 1, scaled and shifted."""
    return _group_norm(x, num_groups, weight, bias, eps)


@rule("native_group_norm.default")
def native_group_norm(
    n: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    size: Size,
    channels: Size,
    pixels: Size,
    group: int,
    eps: float,
) -> Made:
    """group_norm, with the mean and the inverse deviation of each group."""
    y = _group_norm(x, group, weight, bias, eps)
    if not (n.makes(1) or n.makes(2)):
        return y, None, None
    rows = build.reshape(computed_in_f32(x), (x.shape[0], group, -1))
    mean, spread = moments(rows, (-1,))
    flat = [build.squeeze_dims(v, -1) for v in (mean, ops.rsqrt(spread + eps))]
    return y, cast(flat[0], n.type_of(1).dtype), cast(flat[1], n.type_of(2).dtype)


def _group_norm(x: Value, groups: int, weight: Value | None, bias: Value | None, eps: float) -> Value:
    wide = computed_in_f32(x)
    gain, shift = (None if v is None else by_channel(cast(v, wide.dtype), x.rank) for v in (weight, bias))
    if x.rank == 4:
        return cast(library.group_norm.body(wide, gain, shift, groups=groups, eps=eps), x.dtype)
    rows = build.reshape(wide, (x.shape[0], groups, -1))
    y = build.reshape(library.layer_norm.body(rows, eps=eps), x.shape)
    return cast(affine(y, gain, shift), x.dtype)


@rule("_native_batch_norm_legit_no_training.default")
def batch_norm_by_stored(
    n: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> Made:
    """Channels shifted and scaled by stored statistics."""
    y = batch_norm(x, weight, bias, running_mean, running_var, eps)
    return y, *_without_statistics(n)


def _without_statistics(n: Node) -> tuple[Value, Value]:
    """What torch gives for the statistics of a batch that are not computed: tensors without elements."""
    first, second = (build.zeros(n.type_of(i).shape, n.type_of(i).dtype) for i in (1, 2))
    return first, second


@rule("_native_batch_norm_legit.default", "_native_batch_norm_legit_functional.default")
def batch_norm_in_training(
    n: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> Made:
    """Channels brought to mean 0 and variance 1 by their own statistics, which move the stored ones."""
    if not training:
        y = batch_norm(x, weight, bias, running_mean, running_var, eps)
        return y, *_without_statistics(n), running_mean, running_var
    mean, spread = channel_moments(computed_in_f32(x))
    count = 1
    for axis, size in enumerate(x.shape):
        count = count * size if axis != 1 else count
    if not isinstance(count, int):
        raise n.unsupported("training statistics over sizes that change", hint="export with fixed sizes")
    flat_mean, flat_spread = (build.reshape(v, running_mean.shape) for v in (mean, spread))
    unbiased = flat_spread * (count / (count - 1) if count > 1 else float("nan"))
    moved = [
        cast(old * (1.0 - momentum) + cast(new, old.dtype) * momentum, old.dtype)
        for old, new in ((running_mean, flat_mean), (running_var, unbiased))
    ]
    y = batch_norm(x, weight, bias, flat_mean, flat_spread, eps)
    return y, flat_mean, ops.rsqrt(flat_spread + eps), *moved


@rule("_native_batch_norm_legit.no_stats")
def batch_norm_by_own(
    n: Node, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> Made:
    """Channels brought to mean 0 and variance 1 by their own statistics."""
    mean, spread = (build.reshape(v, (x.shape[1],)) for v in channel_moments(computed_in_f32(x)))
    return batch_norm(x, weight, bias, mean, spread, eps), mean, ops.rsqrt(spread + eps)


@rule("instance_norm.default")
def instance_norm(
    n: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Value:
    """Each channel of each image brought to mean 0 and variance 1, scaled and shifted."""
    if not use_input_stats and running_mean is not None and running_var is not None:
        return batch_norm(x, weight, bias, running_mean, running_var, eps)
    wide = computed_in_f32(x)
    flat = build.reshape(wide, (*x.shape[:2], -1))
    y = build.reshape(library.layer_norm.body(flat, eps=eps), x.shape)
    gain, shift = (None if v is None else by_channel(cast(v, y.dtype), x.rank) for v in (weight, bias))
    return cast(affine(y, gain, shift), x.dtype)
