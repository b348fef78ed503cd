"""Training forms of models: dropout, batch norm, micro-batches, precision, and steps that are not finite."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Builder, Graph, ops
from dovetail.dtypes import f32
from dovetail.errors import BindError, GradientError, OptionError
from dovetail.train import SGD, AdamW, Metrics, Trainer, dropout
from dovetail.train.modes import step_key
from tests.train.models import batches, classifier

RNG = np.random.default_rng(3)


def with_dropout() -> Graph:
    builder = Builder("dropped", lines=False)
    x = builder.input("x", f32["n", 8])
    hidden = dropout(ops.relu(x @ builder.param("w0", f32[8, 16])), 0.4, place="hidden")
    builder.output("logits", dropout(hidden, 0.1, place="more") @ builder.param("w1", f32[16, 4]))
    return builder.graph()


def only_dropout() -> Graph:
    builder = Builder("only", lines=False)
    builder.output("y", dropout(builder.input("x", f32["n", 64]) * builder.param("w", f32[64]), 0.25, place="here"))
    return builder.graph()


def with_batch_norm() -> Graph:
    """A convolution over pixels and a batch norm with stored statistics, as models for inference have them."""
    builder = Builder("normed", lines=False)
    x = builder.input("x", f32["n", 3, 4, 4])
    y = ops.conv(x, builder.param("w", f32[5, 3, 1, 1]))
    gain, bias, mean, variance = (builder.param(n, f32[5, 1, 1]) for n in ("gain", "bias", "mean", "variance"))
    y = ops.relu((y - mean) * ops.rsqrt(variance + 1e-5) * gain + bias)
    builder.output("y", ops.squeeze(ops.reduce_mean(y, axes=(-2, -1)), axes=(-2, -1)))
    return builder.graph()


def weights_of(trainer: Trainer) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in trainer.params.items()}


def run(make: Any, feeds: list[dict[str, Any]], **options: Any) -> tuple[Trainer, list[Metrics]]:
    trainer = Trainer(make(), "cross_entropy", AdamW(0.01), clip_norm=1.0, **options)
    return trainer, trainer.fit(feeds)


@pytest.mark.heavy
def test_dropout_is_the_same_at_any_number_of_threads_and_after_resume(tmp_path: Path) -> None:
    feeds = list(batches(12))
    whole, told = run(with_dropout, feeds, seed=5)
    first, _ = run(with_dropout, feeds[:7], seed=5, threads=1)
    first.save(tmp_path / "a.safetensors")
    second, _ = run(with_dropout, [], seed=99)
    second.load(tmp_path / "a.safetensors")
    again = second.fit(feeds[7:])
    assert weights_of(whole) == weights_of(second) and told[7:] == again
    assert weights_of(
        run(with_dropout, feeds, seed=6, params=run(with_dropout, [], seed=5)[0].params)[0]
    ) != weights_of(whole)


def threefry(key: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """Threefry-2x32 of 20 rounds, as its paper writes it."""
    schedule = [int(key[0]), int(key[1]), int(key[0]) ^ int(key[1]) ^ 0x1BD11BDA]
    x, y = (low + schedule[0]) % 2**32, (high + schedule[1]) % 2**32
    for turn in range(20):
        by = (13, 15, 26, 6, 17, 29, 16, 24)[turn % 8]
        x = (x + y) % 2**32
        y = ((y << by | y >> 32 - by) % 2**32) ^ x
        if turn % 4 == 3:
            s = turn // 4 + 1
            x, y = (x + schedule[s % 3]) % 2**32, (y + schedule[(s + 1) % 3] + s) % 2**32
    return x, y


@pytest.mark.slow
def test_dropout_draws_from_seed_step_and_place() -> None:
    """The masks of two steps, computed from the paper's cipher in Python's own integers."""
    x = np.ones((2, 64), np.float32)
    trainer = Trainer(only_dropout(), "mean_squared", SGD(0.5), params={"w": np.ones(64, np.float32)}, seed=7)
    for step in (1, 2):
        before = trainer.params["w"]
        trainer.step({"x": x, "labels": np.zeros((2, 64), np.float32)})
        key = threefry((7, 0), step, 0)
        assert tuple(step_key(7, step, 0)) == key
        placed = key[0] ^ 0x706C6163, key[1] ^ zlib.crc32(b"here")
        unit = np.array([threefry(placed, i, 0)[0] >> 8 for i in range(128)]).reshape(2, 64) * 2.0**-24
        scale = np.where(unit >= 0.25, 1 / 0.75, 0)
        gradient = (2 * before * scale * scale / 128).sum(0)
        np.testing.assert_allclose(trainer.params["w"], before - 0.5 * gradient, rtol=1e-5)


@pytest.mark.slow
def test_evaluation_drops_nothing() -> None:
    trainer = Trainer(only_dropout(), "mean_squared", SGD(0.1))
    x = RNG.normal(size=(3, 64)).astype(np.float32)
    found = trainer.evaluate({"x": x, "labels": x})
    np.testing.assert_allclose(found["y"], x * trainer.params["w"], rtol=1e-6)
    with pytest.raises(OptionError, match="dropout of 1"):
        dropout(ops.iota(size=3, dtype=f32), 1.0, place="x")


@pytest.mark.slow
def test_batch_norm_trains_with_the_statistics_of_the_batch() -> None:
    first = {
        "w": RNG.normal(size=(5, 3, 1, 1)), "gain": 1 + 0.1 * RNG.normal(size=(5, 1, 1)),
        "bias": 0.1 * RNG.normal(size=(5, 1, 1)), "mean": RNG.normal(size=(5, 1, 1)),
        "variance": 1 + RNG.random(size=(5, 1, 1)),
    }  # fmt: skip
    params = {n: a.astype(np.float32) for n, a in first.items()}
    trainer = Trainer(with_batch_norm(), "mean_squared", SGD(0.0), params=params, batch_norm_momentum=0.3)
    assert trainer.statistics == ("mean", "variance") and set(trainer.weights) == {"w", "gain", "bias"}
    x = RNG.normal(size=(6, 3, 4, 4)).astype(np.float32)
    wanted = RNG.normal(size=(6, 5)).astype(np.float32)
    told = trainer.step({"x": x, "labels": wanted})
    y = np.einsum("nchw,mc->nmhw", x.astype(np.float64), params["w"][:, :, 0, 0].astype(np.float64))
    mean, variance = y.mean((0, 2, 3), keepdims=True)[0], y.var((0, 2, 3), keepdims=True)[0]
    normal = np.maximum((y - mean) / np.sqrt(variance + 1e-5) * params["gain"] + params["bias"], 0).mean((2, 3))
    assert told.loss == pytest.approx(float(((normal - wanted) ** 2).mean(dtype=np.float64)), rel=1e-5)
    after = trainer.params
    np.testing.assert_allclose(after["mean"], 0.7 * params["mean"] + 0.3 * mean, atol=1e-5)
    unbiased = variance * (6 * 16) / (6 * 16 - 1)
    np.testing.assert_allclose(after["variance"], 0.7 * params["variance"] + 0.3 * unbiased, atol=1e-5)
    stored = (y - after["mean"]) / np.sqrt(after["variance"] + 1e-5) * params["gain"] + params["bias"]
    found = trainer.evaluate({"x": x, "labels": wanted})["y"]
    np.testing.assert_allclose(found, np.maximum(stored, 0).mean((2, 3)), atol=1e-4)


@pytest.mark.exhaustive
def test_micro_batches_are_one_batch(tmp_path: Path) -> None:
    feeds = list(batches(6))
    whole, told = run(classifier, feeds)
    parts, same = run(classifier, feeds, accumulate=4)
    np.testing.assert_allclose([m.loss for m in same], [m.loss for m in told], rtol=1e-4)
    for name, array in whole.params.items():
        np.testing.assert_allclose(parts.params[name], array, atol=1e-4)
    first, _ = run(with_dropout, feeds[:3], accumulate=2)
    first.save(tmp_path / "a.safetensors")
    second, _ = run(with_dropout, [], accumulate=2, seed=4)
    second.load(tmp_path / "a.safetensors")
    second.fit(feeds[3:])
    assert weights_of(second) == weights_of(run(with_dropout, feeds, accumulate=2)[0])
    with pytest.raises(BindError, match="32 rows in 3 micro-batches"):
        run(classifier, feeds, accumulate=3)
    with pytest.raises(OptionError, match="0 micro-batches"):
        run(classifier, feeds, accumulate=0)


def dividing() -> Graph:
    """Logarithms of what may be 0."""
    builder = Builder("dividing", lines=False)
    x = builder.input("x", f32["n", 4])
    builder.output("y", ops.log(x * builder.param("w", f32[4])))
    return builder.graph()


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_that_is_not_finite_changes_nothing(accumulate: int) -> None:
    w = np.ones(4, np.float32)
    trainer = Trainer(
        dividing(), "mean_squared", AdamW(0.1), params={"w": w}, accumulate=accumulate, target="reference"
    )
    good = {"x": np.full((2, 4), 2, np.float32), "labels": np.zeros((2, 4), np.float32)}
    trainer.step(good)
    before = {n: a.copy() for n, a in trainer._state.host().items()}  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(GradientError, match=r"step 2 .* 1 elements of .*log.* are the first"):
        trainer.step({**good, "x": np.where(np.arange(8).reshape(2, 4) == 5, 0, 2).astype(np.float32)})
    with pytest.raises(GradientError, match="1 elements of x are not finite"):
        trainer.step({**good, "x": np.where(np.arange(8).reshape(2, 4) == 5, np.nan, 2).astype(np.float32)})
    for name, array in before.items():
        assert array.tobytes() == trainer._state.host()[name].tobytes(), name  # pyright: ignore[reportPrivateUsage]
    assert trainer.steps == 1 and np.isfinite(trainer.step(good).loss)


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_is_named_by_its_place() -> None:
    builder = Builder("roots", lines=False)
    builder.output("y", ops.sqrt(builder.input("x", f32["n", 4]) * builder.param("w", f32[4])))
    trainer = Trainer(builder.graph(), "mean_squared", SGD(0.1), params={"w": np.ones(4, np.float32)})
    with pytest.raises(GradientError, match="gradients of norm"):
        trainer.step({"x": np.zeros((1, 4), np.float32), "labels": np.ones((1, 4), np.float32)})
    assert trainer.params["w"].tolist() == [1, 1, 1, 1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_products_in_low_precision_keep_weights_in_f32(precision: Any, tmp_path: Path) -> None:
    feeds = list(batches(30))
    plain, told = run(classifier, feeds)
    narrow, found = run(classifier, feeds, precision=precision)
    assert all(a.dtype == np.float32 for a in narrow.params.values())
    apart = max(abs(a.loss - b.loss) for a, b in zip(told, found, strict=True))
    assert 0 < apart < (0.05 if precision == "bf16" else 0.01)
    first, _ = run(classifier, feeds[:9], precision=precision)
    first.save(tmp_path / "a.safetensors")
    second, _ = run(classifier, [], precision=precision)
    second.load(tmp_path / "a.safetensors")
    second.fit(feeds[9:])
    assert weights_of(second) == weights_of(narrow) and plain.steps == narrow.steps
    with pytest.raises(OptionError, match="a precision of 'f8'"):
        run(classifier, [], precision="f8")


@pytest.mark.slow
def test_gradients_that_overflow_f16_are_left_out_and_the_scale_is_halved() -> None:
    (batch,) = batches(1)
    trainer = Trainer(classifier(), "cross_entropy", SGD(0.1), precision="f16")
    before = weights_of(trainer)
    large = {**batch, "x": batch["x"] * 3e3}
    assert trainer.scale is not None
    start, told = trainer.scale.now, trainer.step(large)
    assert told.skipped and weights_of(trainer) == before and trainer.scale.now == start / 2
    while told.skipped and told.step < 30:
        told = trainer.step(large)
    assert not told.skipped and weights_of(trainer) != before
