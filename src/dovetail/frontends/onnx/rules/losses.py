"""Losses, gradients, and steps of optimisers."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import library, ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.shared.rule import Made
from dovetail.grad.gradient import gradient as derivatives
from dovetail.ir import leaf
from dovetail.ir.rewrite import rebuild_values
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import Primitive

_TRAINING = "ai.onnx.preview.training"


@rule("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(
    n: Node,
    x: Value,
    target: Value,
    weight: Value | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Value:
    """Minus the logarithm of the probability of each target, each weighted or not, added up or averaged."""
    return _likelihood(n, x, target, weight, ignore_index, reduction)


@rule("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy_loss(
    n: Node,
    scores: Value,
    labels: Value,
    weights: Value | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Made:
    """The negative log-likelihood loss of the softmax over classes, and the logarithm of that softmax."""
    chances = library.log_softmax.body(scores, axis=1 - scores.rank)
    return _likelihood(n, chances, labels, weights, ignore_index, reduction), chances


def _likelihood(n: Node, x: Value, target: Value, weight: Value | None, ignored: int | None, reduction: str) -> Value:
    if reduction not in ("none", "sum", "mean"):
        raise n.malformed(f"the reduction {reduction!r}", hint="it is none, sum or mean")
    counts = None if ignored is None else ops.not_equal(target, ignored)
    # An index that is ignored need not be one of a class.
    index = target if counts is None else ops.where(counts, target, 0)
    axis = 1 - x.rank
    loss = -ops.squeeze(ops.gather_elements(x, ops.unsqueeze(index, axes=(axis,)), axis=axis), axes=(axis,))
    share = None if weight is None else ops.gather(weight, index, axis=-1)
    if share is not None:
        loss = loss * share
    if counts is not None:
        loss = ops.where(counts, loss, 0.0)
        share = ops.cast(counts, dtype=x.dtype) if share is None else ops.where(counts, share, 0.0)
    if reduction == "none":
        return loss
    if reduction == "mean" and share is None:
        return _over_all(ops.reduce_mean, loss)
    total = _over_all(ops.reduce_sum, loss)
    return total if reduction == "sum" or share is None else total / _over_all(ops.reduce_sum, share)


def _over_all(reduce: Primitive, x: Value) -> Value:
    axes = tuple(range(-x.rank, 0))
    return ops.squeeze(reduce(x, axes=axes), axes=axes) if axes else x


def _columns(n: Node, xs: Sequence[Value], width: int) -> list[tuple[Value, ...]]:
    """What belongs to each tensor that is optimised: it stands in `width` lists one behind the other."""
    if not xs or len(xs) % width:
        raise n.malformed(f"{len(xs)} tensors", hint=f"there are {width} for each that is optimised")
    count = len(xs) // width
    return [tuple(xs[i + count * part] for part in range(width)) for i in range(count)]


def _rows(results: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    """The results in the order of the outputs: all of the first kind, then all of the second."""
    return tuple(value for kind in zip(*results, strict=True) for value in kind)


def _scalar(x: Value, like: Value) -> Value:
    """One number in the dtype of a tensor."""
    flat = ops.squeeze(x, axes=tuple(range(-x.rank, 0))) if x.rank else x
    return flat if flat.dtype is like.dtype else ops.cast(flat, dtype=like.dtype)


@rule("Gradient", domain=_TRAINING)
def gradient_of(n: Node, *given: Value, xs: tuple[str, ...], y: str, zs: tuple[str, ...] = ()) -> Made:
    """The derivative of the sum of y by each of xs, where xs and zs are as given; zeros where y does not read one."""
    names = (*xs, *zs)
    if len(given) != len(names):
        raise n.malformed(f"{len(given)} inputs for {len(names)} names in xs and zs")
    found = {name: n.named(name) for name in (*names, y)}
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise n.malformed(f"no node before it makes {', '.join(missing)}", hint="xs, zs and y are names of the graph")
    known = {name: value for name, value in found.items() if value is not None}
    ones = build.full(known[y].shape, 1, known[y].dtype)
    made = derivatives(known[y], [known[name] for name in xs], ones, unreached="zeros")
    moved = {known[name]: value for name, value in zip(names, given, strict=True) if known[name] is not value}
    new = rebuild_values(made, lambda value, operands: moved.get(value)) if moved else {}
    return tuple([new.get(g, g) for g in made])


@rule("Momentum", domain=_TRAINING)
def momentum(
    n: Node, rate: Value, step: Value, *xs: Value, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> Made:
    """One step down the gradient, with standard or Nesterov's momentum."""
    if mode not in ("standard", "nesterov"):
        raise n.malformed(f"the mode {mode!r}", hint="it is standard or nesterov")
    results: list[tuple[Value, ...]] = []
    for x, gradient, speed in _columns(n, xs, 3):
        g = gradient + x * norm_coefficient
        share = ops.where(ops.greater(_scalar(step, x), 0.0), leaf.scalar(beta, x.dtype), leaf.scalar(1.0, x.dtype))
        faster = speed * alpha + g * share
        moved = g + faster * alpha if mode == "nesterov" else faster
        results.append((x - moved * _scalar(rate, x), faster))
    return _rows(results)


@rule("Adagrad", domain=_TRAINING)
def adagrad(
    n: Node,
    rate: Value,
    step: Value,
    *xs: Value,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> Made:
    """One step down the gradient, shorter where gradients were large."""
    results: list[tuple[Value, ...]] = []
    for x, gradient, squares in _columns(n, xs, 3):
        slowed = _scalar(rate, x) / (_scalar(step, x) * decay_factor + 1.0)
        g = gradient + x * norm_coefficient
        more = squares + g * g
        results.append((x - g * slowed / (ops.sqrt(more) + epsilon), more))
    return _rows(results)


@rule("Adam", domain=_TRAINING)
def adam(
    n: Node,
    rate: Value,
    step: Value,
    *xs: Value,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> Made:
    """One step of Adam: along the averaged gradient, divided by the root of its averaged square."""
    results: list[tuple[Value, ...]] = []
    for x, gradient, speed, squares in _columns(n, xs, 4):
        t, r = _scalar(step, x), _scalar(rate, x)
        g = gradient + x * norm_coefficient
        faster = speed * alpha + g * (1.0 - alpha)
        more = squares * beta + g * g * (1.0 - beta)
        adjusted = r * ops.sqrt(1.0 - ops.pow_(beta, t)) / (1.0 - ops.pow_(alpha, t))
        step_size = ops.where(ops.greater(t, 0.0), adjusted, r)
        moved = x - step_size * (faster / (ops.sqrt(more) + epsilon))
        results.append((moved * (1.0 - norm_coefficient_post), faster, more))
    return _rows(results)
