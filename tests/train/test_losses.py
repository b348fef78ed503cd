"""Losses and their gradients against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, Value
from dovetail.dtypes import f64, i64
from dovetail.errors import OptionError, TypeRuleError
from dovetail.train import losses

RNG = np.random.default_rng(4)
X, T = RNG.normal(size=(6, 5)), RNG.random(size=(6, 5))
LABELS = np.array([0, 4, 2, -1, 3, -1])


def log_softmax(x: Any) -> Any:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def softmax(x: Any) -> Any:
    return np.exp(log_softmax(x))


def loss_of(make: Callable[[Value, Value], Value], x: Any, t: Any) -> tuple[float, Any]:
    wanted = dovetail.input("t", i64[6] if t.dtype.kind == "i" else f64[6, 5])
    given = dovetail.input("x", f64[6, 5])
    y = make(given, wanted)
    assert y.rank == 0
    found = dovetail.evaluate(Graph.of({"y": y, "d": dovetail.graphs.gradient(y, [given])[0]}), {"x": x, "t": t})
    return float(found["y"]), found["d"]


def by_differences(make: Callable[[Value, Value], Value], x: Any, t: Any) -> Any:
    found = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = 1e-6
        found[i] = (loss_of(make, x + step, t)[0] - loss_of(make, x - step, t)[0]) / 2e-6
    return found


def numpy_cross_entropy(x: Any, labels: Any, smoothing: float = 0.0) -> float:
    chances = log_softmax(x)
    kept = labels >= 0
    picked = chances[np.arange(len(labels)), np.maximum(labels, 0)]
    lost = -(1 - smoothing) * picked - smoothing * chances.mean(-1)
    return float(lost[kept].sum() / max(1, kept.sum()))


def numpy_kl(x: Any, t: Any) -> float:
    return float((softmax(t) * (log_softmax(t) - log_softmax(x))).sum(-1).mean())


def numpy_contrastive(x: Any, t: Any, temperature: float) -> float:
    """Each row picks its partner among all, in both directions."""
    x, t = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (x, t))
    logits = x @ t.T / temperature
    return -float(np.mean(np.diag(log_softmax(logits))) + np.mean(np.diag(log_softmax(logits.T)))) / 2


CASES: dict[str, tuple[Callable[[Value, Value], Value], Any, Any, float]] = {
    "cross_entropy": (losses.cross_entropy, X, abs(LABELS), numpy_cross_entropy(X, abs(LABELS))),
    "ignored": (
        lambda x, t: losses.cross_entropy(x, t, ignore_index=-1),
        X,
        LABELS,
        numpy_cross_entropy(X, LABELS),
    ),
    "all_ignored": (lambda x, t: losses.cross_entropy(x, t, ignore_index=7), X, np.full(6, 7), 0.0),
    "smoothed": (
        lambda x, t: losses.cross_entropy(x, t, smoothing=0.1, ignore_index=-1),
        X,
        LABELS,
        numpy_cross_entropy(X, LABELS, 0.1),
    ),
    "binary": (
        losses.binary_cross_entropy,
        40 * X,
        T,
        float(np.mean(np.logaddexp(0, 40 * X) - 40 * X * T)),
    ),
    "squared": (losses.mean_squared, X, T, float(np.mean((X - T) ** 2))),
    "absolute": (losses.mean_absolute, X, T, float(np.mean(abs(X - T)))),
    "huber": (
        lambda x, t: losses.huber(x, t, delta=0.5),
        X,
        T,
        float(np.mean(np.where(abs(X - T) < 0.5, (X - T) ** 2 / 2, 0.5 * (abs(X - T) - 0.25)))),
    ),
    "contrastive": (
        lambda x, t: losses.contrastive(x, t, temperature=0.5),
        X,
        T,
        numpy_contrastive(X, T, 0.5),
    ),
    "kl": (
        losses.kl_divergence,
        log_softmax(X),
        softmax(T),
        numpy_kl(X, T),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    make, x, t, wanted = CASES[name]
    value, gradient = loss_of(make, x, t)
    assert abs(value - wanted) < 1e-12
    np.testing.assert_allclose(gradient, by_differences(make, x, t), atol=1e-7)


def test_labels_of_another_shape_are_refused() -> None:
    with pytest.raises(TypeRuleError, match="labels"):
        losses.cross_entropy(dovetail.input("x", f64[6, 5]), dovetail.input("t", i64[6, 1]))
    with pytest.raises(OptionError, match="smoothing"):
        losses.cross_entropy(dovetail.input("x", f64[6, 5]), dovetail.input("t", i64[6]), smoothing=1.0)
    with pytest.raises(TypeRuleError, match="in a loss"):
        losses.mean_squared(dovetail.input("x", f64[6, 5]), dovetail.input("t", f64[6]))
