"""Losses against their sums written out, and steps of optimisers for several tensors at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.dtypes import f32, i64
from dovetail.errors import BindError, LoadError
from dovetail.frontends.onnx import import_model
from tests.covering import covering
from tests.frontends.onnx.build import Array, by_dovetail, model, node

RNG = np.random.default_rng(7)


def _random(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def _loss(x: Array, target: Array, weight: Array | None, ignored: int | None, reduction: str) -> Array:
    total, shares, each = 0.0, 0.0, np.zeros(target.shape)
    for place in np.ndindex(*target.shape):
        c = int(target[place])
        if c == ignored:
            continue
        share = 1.0 if weight is None else float(weight[c])
        each[place] = -float(x[(place[0], c, *place[1:])]) * share
        total, shares = total + each[place], shares + share
    return {"none": each, "sum": np.array(total), "mean": np.array(total / shares)}[reduction]


@pytest.mark.parametrize(
    ("reduction", "ignored", "weighted", "shape"),
    covering(("none", "sum", "mean"), (None, -1, 2), (False, True), [(3, 5), (2, 5, 3, 2)], strength=3),
)
def test_losses(reduction: str, ignored: int | None, weighted: bool, shape: tuple[int, ...]) -> None:
    options: dict[str, Any] = {"reduction": reduction} | ({} if ignored is None else {"ignore_index": ignored})
    sizes = ("n", 5, *("h", "w")[: len(shape) - 2])
    inputs = {"x": f32[sizes], "t": i64[(sizes[0], *sizes[2:])], **({"w": f32[5]} if weighted else {})}
    name = "w" if weighted else "_"
    nodes = [
        node(f"NegativeLogLikelihoodLoss x t {name} -> a", **options),
        node(f"SoftmaxCrossEntropyLoss x t {name} -> b chances", **options),
    ]
    target = RNG.integers(0, 5, (shape[0], *shape[2:]))
    target.flat[0], target.flat[1] = (3, 4) if ignored is None else (ignored, 3)
    feed = {"x": _random(*shape), "t": target, **({"w": np.abs(_random(5)) + 0.1} if weighted else {})}
    (got,) = by_dovetail(model(nodes, inputs, ["a", "b", "chances"], opset=13), feed)
    chances = feed["x"] - np.log(np.exp(feed["x"]).sum(1, keepdims=True))
    np.testing.assert_allclose(
        got["a"], _loss(feed["x"], target, feed.get("w"), ignored, reduction), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        got["b"], _loss(chances, target, feed.get("w"), ignored, reduction), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(got["chances"], chances, rtol=1e-4, atol=1e-5)


def test_a_class_that_there_is_not_is_an_error() -> None:
    made = model(["NegativeLogLikelihoodLoss x t -> y"], {"x": f32[2, 3], "t": i64[2]}, ["y"], opset=13)
    with pytest.raises(BindError, match="index 3"):
        by_dovetail(made, {"x": _random(2, 3), "t": np.array([0, 3])})


def test_a_reduction_that_there_is_not_is_refused() -> None:
    loss = node("NegativeLogLikelihoodLoss x t -> y", reduction="most")
    with pytest.raises(LoadError, match="most"):
        import_model(model([loss], {"x": f32[2, 3], "t": i64[2]}, ["y"], opset=13))


TRAINING = "ai.onnx.preview.training"


def _step(description: str, feed: dict[str, Array], **options: Any) -> dict[str, Array]:
    made = node(description, domain=TRAINING, **options)
    inputs = {n: (i64 if a.dtype == np.int64 else f32)[a.shape] for n, a in feed.items()}
    (got,) = by_dovetail(model([made], inputs, list(made.output), domains={TRAINING: 1}), feed)
    return got


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 3])
def test_adam_moves_several_tensors(step: int) -> None:
    feed: dict[str, Array] = {"r": np.array(0.1, np.float32), "t": np.array(step)}
    feed |= {f"{n}{i}": np.abs(_random(2 + i)) for n in "xgvh" for i in (1, 2)}
    got = _step(
        "Adam r t x1 x2 g1 g2 v1 v2 h1 h2 -> y1 y2 w1 w2 k1 k2",
        feed,
        alpha=0.8,
        beta=0.9,
        epsilon=1e-3,
        norm_coefficient=0.01,
        norm_coefficient_post=0.1,
    )
    for i in (1, 2):
        x, g, v, h = (feed[f"{n}{i}"] for n in "xgvh")
        g = g + 0.01 * x
        v, h = 0.8 * v + 0.2 * g, 0.9 * h + 0.1 * g * g
        rate = 0.1 * np.sqrt(1 - 0.9**step) / (1 - 0.8**step) if step else 0.1
        np.testing.assert_allclose(got[f"y{i}"], 0.9 * (x - rate * v / (np.sqrt(h) + 1e-3)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got[f"w{i}"], v, rtol=1e-5)
        np.testing.assert_allclose(got[f"k{i}"], h, rtol=1e-5)


def test_adagrad() -> None:
    feed: dict[str, Array] = {"r": np.array(0.1, np.float32), "t": np.array(4)}
    feed |= {"x": _random(3), "g": _random(3), "h": np.abs(_random(3))}
    got = _step("Adagrad r t x g h -> y k", feed, decay_factor=0.5, norm_coefficient=0.1, epsilon=1e-3)
    g = feed["g"] + 0.1 * feed["x"]
    h = feed["h"] + g * g
    np.testing.assert_allclose(got["y"], feed["x"] - 0.1 / 3.0 * g / (np.sqrt(h) + 1e-3), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["standard", "nesterov"])
@pytest.mark.parametrize("step", [0, 2])
def test_momentum(mode: str, step: int) -> None:
    feed: dict[str, Array] = {"r": np.array([0.1], np.float32), "t": np.array([step])}
    feed |= {"x": _random(3), "g": _random(3), "v": _random(3)}
    got = _step("Momentum r t x g v -> y w", feed, alpha=0.9, beta=0.5, norm_coefficient=0.1, mode=mode)
    g = feed["g"] + 0.1 * feed["x"]
    v = 0.9 * feed["v"] + (0.5 if step else 1.0) * g
    np.testing.assert_allclose(got["w"], v, rtol=1e-4, atol=1e-6)
    moved = g + 0.9 * v if mode == "nesterov" else v
    np.testing.assert_allclose(got["y"], feed["x"] - 0.1 * moved, rtol=1e-4, atol=1e-6)


def test_tensors_that_do_not_divide_are_refused() -> None:
    with pytest.raises(LoadError, match="2 tensors"):
        _step(
            "Adagrad r t x g -> y",
            {"r": _random(1), "t": np.array([0]), "x": _random(2), "g": _random(2)},
        )


def test_gradient_at_the_values_given() -> None:
    """y = a * b + a, differentiated where b is what the node is given, and not what the graph made y from."""
    feed = {"a": _random(3), "b": _random(3), "c": _random(3)}
    inputs = {n: f32[3] for n in feed}
    nodes = [node("Mul a b -> p"), node("Add p a -> y")]
    asked = node("Gradient a c -> da", domain=TRAINING, xs=["a"], zs=["b"], y="y")
    (got,) = by_dovetail(model([*nodes, asked], inputs, ["da"], domains={TRAINING: 1}), feed)
    np.testing.assert_allclose(got["da"], feed["c"] + 1, rtol=1e-6)
    wrong = node("Gradient a -> d", domain=TRAINING, xs=["q"], y="y")
    with pytest.raises(LoadError, match="makes q"):
        import_model(model([*nodes, wrong], inputs, ["d"], domains={TRAINING: 1}))
