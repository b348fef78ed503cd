"""Kernels of backward passes: what they take in, and their numbers against float64."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library
from dovetail.dtypes import f32, i64
from dovetail.ops.region import anchor_of, region
from dovetail.runtime.program import Program
from dovetail.train.losses import cross_entropy


def kernels(program: Program) -> list[str]:
    """The ops of a run, by anchor where a region has one; views and single numbers left out."""
    found: list[str] = []
    for step in program.plan.steps:
        anchor = anchor_of(step.value.attrs["body"]) if step.value.op is region else step.value
        if anchor is not None and any(not isinstance(n := r.tensor.count, int) or n > 1 for r in step.results):
            found.append(anchor.op.name)
    return found


@pytest.mark.slow
def test_the_gradient_of_logits_is_written_once() -> None:
    logits, labels = dovetail.input("logits", f32[24, 300]), dovetail.input("labels", i64[24])
    loss = cross_entropy(logits, labels)
    (d,) = dovetail.graphs.gradient(loss, [logits])
    program = dovetail.compile(Graph.of({"loss": loss, "d": d}, inputs=(logits, labels)), target="cpu", threads=1)
    assert [name for name in kernels(program) if name not in ("gather_elements", "iota")] == ["log_sum_exp"]
    large = [step for step in program.plan.steps if step.results[0].shape == (24, 300)]
    assert [step.value.op for step in large] == [region]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 300)).astype(np.float32) * 3, rng.integers(-300, 300, 24)
    found = program.run({"logits": x, "labels": y})
    wide = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    chances = wide / wide.sum(-1, keepdims=True)
    np.testing.assert_allclose(found["loss"], -np.log(chances[np.arange(24), y]).mean(), rtol=1e-6)
    chances[np.arange(24), y] -= 1
    np.testing.assert_allclose(found["d"], chances / 24, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_the_gradient_of_logits_is_written_over_them() -> None:
    """One tensor of their size is there: the logits, and then their gradient."""
    x, labels = dovetail.input("x", f32[24, 8]), dovetail.input("labels", i64[24])
    w = dovetail.input("w", f32[8, 300])
    loss = cross_entropy(x @ w, labels, smoothing=0.1, ignore_index=3)
    (d,) = dovetail.graphs.gradient(loss, [w])
    program = dovetail.compile(Graph.of({"loss": loss, "d": d}, inputs=(x, labels, w)), target="cpu", threads=1)
    product, gradient = [step for step in program.plan.steps if step.results[0].shape == (24, 300)]
    assert gradient.overs == product.results
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(24, 8)), rng.normal(size=(8, 300))
    y = rng.integers(0, 300, 24)
    y[:4] = 3
    feeds = {"x": x.astype(np.float32), "w": w.astype(np.float32), "labels": y}
    logits = feeds["x"].astype(np.float64) @ feeds["w"]
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = np.full((24, 300), 0.1 / 300)
    wanted[np.arange(24), y] += 0.9
    counted = (y != 3)[:, None] / (y != 3).sum()
    found = program.run(feeds)
    np.testing.assert_allclose(found["loss"], -(np.log(chances) * wanted * counted).sum(), rtol=1e-6)
    np.testing.assert_allclose(found["d"], x.T @ ((chances - wanted) * counted), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_gradients_by_row_take_steps_in() -> None:
    x, g = dovetail.input("x", f32[48, 96]), dovetail.input("g", f32[48, 96])
    (d,) = dovetail.graphs.gradient(library.softmax(x * 0.5), [x], g)
    graph = Graph.of({"d": d + g}, inputs=(x, g))
    program = dovetail.compile(graph, target="cpu", threads=1)
    assert kernels(program) == ["softmax_back"]
    rng = np.random.default_rng(1)
    feeds = {name: rng.normal(size=(48, 96)).astype(np.float32) for name in "xg"}
    wide = np.exp(feeds["x"].astype(np.float64) * 0.5)
    y = wide / wide.sum(-1, keepdims=True)
    expected = y * (feeds["g"] - (feeds["g"] * y).sum(-1, keepdims=True)) * 0.5 + feeds["g"]
    np.testing.assert_allclose(program.run(feeds)["d"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_residuals_join_the_gradient_of_a_norm() -> None:
    x, gain, g = dovetail.input("x", f32[48, 96]), dovetail.input("gain", f32[96]), dovetail.input("g", f32[48, 96])
    y = library.rms_norm(x, gain, eps=1e-5) + x
    (d,) = dovetail.graphs.gradient(y, [x], g)
    program = dovetail.compile(Graph.of({"d": d}, inputs=(x, gain, g)), target="cpu", threads=1)
    assert kernels(program) == ["rms_norm_back"]
    rng = np.random.default_rng(2)
    feeds = {n: rng.normal(size=s).astype(np.float32) for n, s in (("x", (48, 96)), ("gain", (96,)), ("g", (48, 96)))}
    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    shrunk = 1 / np.sqrt((wide["x"] ** 2).mean(-1, keepdims=True) + 1e-5)
    weighed = wide["g"] * wide["gain"]
    expected = shrunk * weighed - shrunk**3 * wide["x"] * (weighed * wide["x"]).mean(-1, keepdims=True) + wide["g"]
    np.testing.assert_allclose(program.run(feeds)["d"], expected, rtol=1e-4, atol=1e-5)
