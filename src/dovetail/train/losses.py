"""Losses: one number from predictions and targets, in the mean over all elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dovetail import library, ops
from dovetail.errors import OptionError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, i64
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value

Loss = Callable[[Value, Value], Value]
"""From predictions and targets to one number."""


def cross_entropy(logits: Value, labels: Value, *, ignore_index: int | None = None, smoothing: float = 0.0) -> Value:
    """Minus the log probability of each label, in the mean over the labels that are not ignored.

    Of the weight of a label, `smoothing` is spread evenly over all classes.
    """
    if labels.shape != logits.shape[:-1] or not labels.dtype.is_integer:
        raise TypeRuleError(
            f"labels {labels.type} for logits {logits.type}",
            hint="pass integers of the shape of the logits without its last axis, which counts the classes",
        )
    if not 0 <= smoothing < 1:
        raise OptionError(f"smoothing of {smoothing}", hint="pass a share from 0 to below 1")
    log_total = library.log_sum_exp(logits)
    counted = None if ignore_index is None else ops.not_equal(labels, leaf.scalar(ignore_index, labels.dtype))
    known = labels if counted is None else ops.where(counted, labels, leaf.scalar(0, labels.dtype))
    picked = ops.gather_elements(logits, ops.unsqueeze(known, axes=(-1,)), axis=-1)
    lost = ops.squeeze(log_total - picked, axes=(-1,))
    if smoothing:
        spread = ops.squeeze(log_total - ops.reduce_mean(logits, axes=(-1,)), axes=(-1,))
        lost = lost * (1.0 - smoothing) + spread * smoothing
    if counted is None:
        return mean(lost)
    share = ops.cast(counted, dtype=lost.dtype)
    return total(ops.where(counted, lost, leaf.scalar(0.0, lost.dtype))) / ops.maximum(total(share), _one(lost.dtype))


def binary_cross_entropy(logits: Value, targets: Value) -> Value:
    """Return the cross entropy of yes-or-no questions; targets are between 0 and 1."""
    _same_shape(logits, targets)
    positive = ops.maximum(logits, leaf.scalar(0.0, logits.dtype))
    return mean(positive - logits * targets + ops.softplus(-ops.abs_(logits)))


def mean_squared(predictions: Value, targets: Value) -> Value:
    """Return the square of the difference."""
    _same_shape(predictions, targets)
    return mean((predictions - targets) * (predictions - targets))


def mean_absolute(predictions: Value, targets: Value) -> Value:
    """Return the absolute difference."""
    _same_shape(predictions, targets)
    return mean(ops.abs_(predictions - targets))


def huber(predictions: Value, targets: Value, *, delta: float = 1.0) -> Value:
    """Half the square of a difference up to delta, and delta times what is linear beyond."""
    _same_shape(predictions, targets)
    apart = ops.abs_(predictions - targets)
    inner = ops.minimum(apart, leaf.scalar(delta, apart.dtype))
    return mean(inner * (apart - inner * 0.5))


def kl_divergence(log_predictions: Value, targets: Value) -> Value:
    """Return the divergence of predicted from target probabilities, averaged over rows; predictions are logarithms."""
    _same_shape(log_predictions, targets)
    safe = ops.maximum(targets, leaf.scalar(1e-37, targets.dtype))
    terms = targets * (ops.log(safe) - log_predictions)
    return mean(ops.squeeze(ops.reduce_sum(terms, axes=(-1,)), axes=(-1,)))


def contrastive(anchors: Value, positives: Value, *, temperature: float = 0.07) -> Value:
    """InfoNCE of pairs of rows: each picks its partner among all of the batch, by cosine, in both directions."""
    _same_shape(anchors, positives)
    if anchors.rank != 2:
        raise TypeRuleError(f"pairs of {anchors.type}", hint="pass one row of features for each pair")
    if not 0 < temperature < float("inf"):
        raise OptionError(f"a temperature of {temperature}", hint="pass a finite number above 0")
    logits = (_unit(anchors) @ ops.permute(_unit(positives), order=(-1, -2))) * (1.0 / temperature)
    partners = ops.iota(size=anchors.shape[0])
    both = [cross_entropy(each, partners) for each in (logits, ops.permute(logits, order=(-1, -2)))]
    return (both[0] + both[1]) * 0.5


def _unit(x: Value) -> Value:
    """Rows of length 1; those of zeros stay."""
    length = ops.sqrt(ops.reduce_sum(x * x, axes=(-1,)) + 1e-12)
    return x / length


def mean(x: Value) -> Value:
    """Return the mean of all elements, of rank 0."""
    return _whole(x, ops.reduce_mean)


def total(x: Value) -> Value:
    """Return the sum of all elements, of rank 0."""
    return _whole(x, ops.reduce_sum)


def _whole(x: Value, reduce: Callable[..., Value]) -> Value:
    axes = tuple(range(-x.rank, 0))
    return ops.squeeze(reduce(x, axes=axes), axes=axes) if axes else x


def _one(dtype: DType) -> Value:
    return leaf.scalar(1.0, dtype)


def _same_shape(predictions: Value, targets: Value) -> None:
    if predictions.type != targets.type:
        raise TypeRuleError(f"{predictions.type} and {targets.type} in a loss", hint="pass two tensors of one type")


LOSSES: Mapping[str, Loss] = MappingProxyType(
    {
        "cross_entropy": cross_entropy,
        "binary_cross_entropy": binary_cross_entropy,
        "mean_squared": mean_squared,
        "mean_absolute": mean_absolute,
        "huber": huber,
        "kl_divergence": kl_divergence,
        "contrastive": contrastive,
    }
)
"""By name, as `Trainer` and the command line take them."""


def target_type(name: str, output: TensorType) -> TensorType:
    """Return the type of the targets for a model with this output."""
    return i64[output.shape[:-1]] if name == "cross_entropy" else output


__all__ = [
    "LOSSES",
    "Loss",
    "binary_cross_entropy",
    "contrastive",
    "cross_entropy",
    "huber",
    "kl_divergence",
    "mean",
    "mean_absolute",
    "mean_squared",
    "target_type",
    "total",
]  # fmt: skip
