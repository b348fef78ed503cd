"""Training: a compiled step whose weights are donated has the loss curve of NumPy float64 with gradients by hand."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail.ir.graph import Graph
from dovetail.targets.reference.interpreter import evaluate
from tests.grad.models import (
    LENGTH,
    MLP,
    TRANSFORMER,
    WORDS,
    Array,
    drawn,
    mlp_by_hand,
    sgd_step,
    transformer_by_hand,
)

RATE = 0.25
STEPS = 30
NAMES = ("mlp", "transformer")
HAND = {"mlp": mlp_by_hand, "transformer": transformer_by_hand}
SHAPES = {"mlp": MLP, "transformer": TRANSFORMER}


def batches(name: str) -> tuple[Array, Array]:
    """A batch that has something to learn."""
    rng = np.random.default_rng(9)
    if name == "mlp":
        x = rng.normal(size=(24, 6)).astype(np.float32)
        return x, np.argmax(x[:, :5] + 0.1 * rng.normal(size=(24, 5)), axis=1)
    x = rng.integers(0, WORDS, (8, LENGTH))
    return x, (x + 3) % WORDS


def curve_by_hand(name: str) -> list[float]:
    weights, (x, labels) = drawn(SHAPES[name]), batches(name)
    losses: list[float] = []
    for _ in range(STEPS):
        loss, lost = HAND[name](weights, x.astype(np.float64) if name == "mlp" else x, labels)
        losses.append(loss)
        weights = {n: w - RATE * lost[n] for n, w in weights.items()}
    return losses


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_by_hand(name: str) -> None:
    x, labels = batches(name)
    weights = drawn(SHAPES[name])
    graph = sgd_step(name, 1.0)
    found = evaluate(graph, {**weights, "x": x, "labels": labels}, lift=True)
    loss, lost = HAND[name](weights, x.astype(np.float64) if name == "mlp" else x, labels)
    assert abs(float(found["loss"]) - loss) < 1e-9
    for n, w in weights.items():
        assert np.abs(w - found[f"new.{n}"] - lost[n]).max() < 1e-9, n  # eps is kept in f32


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_step_trains(name: str) -> None:
    x, labels = batches(name)
    program = dovetail.compile(sgd_step(name, RATE), target="cpu")
    weights = {n: np.ascontiguousarray(w, np.float32) for n, w in drawn(SHAPES[name]).items()}
    losses: list[float] = []
    for _ in range(STEPS):
        found = program.run({**weights, "x": x, "labels": labels})
        losses.append(float(found["loss"]))
        assert all(found[f"new.{n}"] is w for n, w in weights.items()), "the weights are updated where they are"
    expected = curve_by_hand(name)
    assert losses[-1] < 0.5 * losses[0]
    assert np.abs(np.subtract(losses, expected)).max() < 1e-4


def test_a_joint_graph_is_written_and_read_again() -> None:
    graph = sgd_step("transformer", RATE)
    again = dovetail.graphs.parse(dovetail.graphs.print_graph(graph))
    assert isinstance(again, Graph)
    assert [v.op.name for v in again.values] == [v.op.name for v in graph.values]
    assert any(v.op.name == "layer_norm_back" for v in again.values)
