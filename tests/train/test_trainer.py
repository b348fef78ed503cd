"""The trainer: optimizers against NumPy in float64, learning, checkpoints, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dovetail import Builder, Graph, load, save
from dovetail.dtypes import f32
from dovetail.errors import BindError, GradientError, LoadError, OptionError
from dovetail.graphs import print_graph
from dovetail.train import schedules
from dovetail.train.matrices import Adafactor, Muon
from dovetail.train.optimizers import SGD, Adam, AdamW, Lion, Optimizer
from dovetail.train.step import Group
from dovetail.train.trainer import Trainer
from tests.train.models import batches, classifier

RNG = np.random.default_rng(11)


def line() -> Graph:
    """w·x, whose loss against t has a gradient that is easy to write down."""
    builder = Builder("line", lines=False)
    builder.output("y", builder.input("x", f32["n", 3]) @ builder.param("w", f32[3, 2]))
    return builder.graph()


def test_an_update_is_one_kernel_for_each_weight_and_its_state() -> None:
    """Of AdamW: it reads weight, gradient and both means once, and writes three of them in place."""
    trainer = Trainer(line(), "mean_squared", AdamW(), clip_norm=1.0, groups=[Group("w", lr_scale=0.5)])
    plan = trainer.program.plan
    (update,) = [s for s in plan.steps if len(s.results) == 3]
    assert [str(v.attrs["name"]) for v in update.overs if v is not None] == ["w", "w.mean", "w.square"]
    assert all(not donation.copied for donation in plan.donations)


def test_memory_that_compiling_took_goes_back_after_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run compiles the last kernels, so that nothing is freed before it."""
    seen: list[int] = []
    trainer = Trainer(line(), "mean_squared", SGD(0.1))
    monkeypatch.setattr("dovetail.train.trainer.trim", lambda: seen.append(trainer.steps))
    batch = {"x": np.ones((4, 3), np.float32), "labels": np.ones((4, 2), np.float32)}
    trainer.fit([batch] * 3)
    assert seen == [0]


def by_hand(optimizer: Optimizer, w: Any, feeds: list[dict[str, Any]], decay: float) -> Any:
    """The weights after steps, in float64, as the papers have them."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, batch in enumerate(feeds, 1):
        x, wanted = batch["x"].astype(np.float64), batch["labels"].astype(np.float64)
        g = 2 * x.T @ (x @ w - wanted) / wanted.size
        match optimizer:
            case AdamW(rate, (b1, b2), eps):
                w = w - rate * decay * w
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
                w = w - rate * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
            case Adam(rate, (b1, b2), eps):
                g = g + decay * w
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
                w = w - rate * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
            case Lion(rate, (b1, b2)):
                w = w - rate * (np.sign(b1 * m + (1 - b1) * g) + decay * w)
                m = b2 * m + (1 - b2) * g
            case SGD(rate, momentum, nesterov):
                g = g + decay * w
                m = momentum * m + g
                w = w - rate * (g + momentum * m if nesterov else m)
            case Muon(rate, momentum):
                m = momentum * m + (1 - momentum) * g
                x = (1 - momentum) * g + momentum * m
                x = x / np.linalg.norm(x)
                for _ in range(optimizer.iterations):
                    # Tall matrices are iterated as they stand here, from the other side.
                    gram = x.T @ x
                    x = 3.4445 * x + x @ (-4.7750 * gram + 2.0315 * gram @ gram)
                w = w - rate * decay * w - rate * np.sqrt(max(1, w.shape[0] / w.shape[1])) * x
            case Adafactor(rate):
                share = t**-0.8
                m[:, :1] += share * ((g * g).mean(1, keepdims=True) - m[:, :1])
                v[:1] += share * ((g * g).mean(0, keepdims=True) - v[:1])
                x = g / np.sqrt(np.maximum(m[:, :1] @ v[:1] / m[:, :1].mean(), 1e-30))
                x = x / max(1, np.sqrt(np.mean(x * x)))
                size = max(1e-3, np.sqrt(np.mean(w * w)))
                w = w - rate * decay * w - min(rate, t**-0.5) * size * x
            case _:
                raise AssertionError
    return w


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(0.1, weight_decay=0.01),
    "momentum": SGD(0.1, momentum=0.9),
    "nesterov": SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.02),
    "adam": Adam(0.05, weight_decay=0.02),
    "adamw": AdamW(0.05, weight_decay=0.1),
    "lion": Lion(0.01, weight_decay=0.1),
    "adafactor": Adafactor(0.05, weight_decay=0.1),
    "muon": Muon(0.05, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_do_what_they_are_defined_to(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    w = RNG.normal(size=(3, 2)).astype(np.float32)
    feeds = [
        {"x": RNG.normal(size=(5, 3)).astype(np.float32), "labels": RNG.normal(size=(5, 2)).astype(np.float32)}
        for _ in range(12)
    ]
    trainer = Trainer(line(), "mean_squared", optimizer, params={"w": w})
    for batch in feeds:
        trainer.step(batch)
    np.testing.assert_allclose(
        trainer.params["w"], by_hand(optimizer, w.astype(float), feeds, optimizer.weight_decay), atol=2e-5
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("optimizer", [Adafactor(0.5), Muon(0.02)])
def test_vectors_are_trained_beside_matrices(optimizer: Optimizer) -> None:
    told = Trainer(classifier(), "cross_entropy", optimizer).fit(batches(60))
    assert told[-1].loss < 0.7 * told[0].loss


@pytest.mark.slow
def test_a_classifier_learns_and_evaluates() -> None:
    trainer = Trainer(classifier(), "cross_entropy", AdamW(0.01), schedule=schedules.warm_up(5, schedules.cosine(200)))
    told = trainer.fit(batches(200))
    assert [m.step for m in told] == list(range(1, 201))
    assert told[-1].loss < 0.3 * told[0].loss
    (batch,) = batches(1, 500)
    found = trainer.evaluate(batch)
    assert np.mean(np.argmax(found["logits"], -1) == batch["labels"]) > 0.9
    assert trainer.steps == 200 and float(found["loss"]) < 0.5


@pytest.mark.slow
def test_a_resumed_run_is_equal_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    whole = Trainer(classifier(), "cross_entropy", AdamW(0.01), clip_norm=1.0, schedule=schedules.linear(40))
    whole.fit(batches(40))
    every = list(batches(40))
    first = Trainer(classifier(), "cross_entropy", AdamW(0.01), clip_norm=1.0, schedule=schedules.linear(40))
    first.fit(every[:17], checkpoint=path, every=10)
    second = Trainer(
        classifier(), "cross_entropy", AdamW(0.01), clip_norm=1.0, schedule=schedules.linear(40), threads=1, seed=9
    )
    second.load(path)
    assert second.steps == 17
    second.fit(every[17:])
    for name, array in whole.params.items():
        assert array.tobytes() == second.params[name].tobytes(), name


def test_clipping() -> None:
    w, x = np.zeros((3, 2), np.float32), np.full((1, 3), 10, np.float32)
    batch = {"x": x, "labels": np.full((1, 2), 100, np.float32)}
    plain = Trainer(line(), "mean_squared", SGD(1.0), params={"w": w}).step(batch)
    assert plain.norm == pytest.approx(np.sqrt(6) * 1000)
    normed = Trainer(line(), "mean_squared", SGD(1.0), params={"w": w}, clip_norm=0.5)
    assert normed.step(batch).norm == pytest.approx(plain.norm)
    assert np.linalg.norm(normed.params["w"]) == pytest.approx(0.5, rel=1e-5)
    valued = Trainer(line(), "mean_squared", SGD(1.0), params={"w": w}, clip_value=0.25)
    valued.step(batch)
    np.testing.assert_allclose(valued.params["w"], 0.25)


@pytest.mark.slow
def test_frozen_weights_and_groups() -> None:
    before = Trainer(classifier(), "cross_entropy").params
    groups = [Group("*", lr_scale=1.0), Group("b*", lr_scale=0.0, weight_decay=0.0)]
    trainer = Trainer(classifier(), "cross_entropy", AdamW(0.1, weight_decay=0.5), wrt=["w1", "b1"], groups=groups)
    trainer.fit(batches(3))
    after = trainer.params
    assert after["w0"].tobytes() == before["w0"].tobytes() and after["b0"].tobytes() == before["b0"].tobytes()
    assert after["b1"].tobytes() == before["b1"].tobytes()
    assert abs(after["w1"] - before["w1"]).max() > 0.01


@pytest.mark.slow
def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no output 'loss'"):
        Trainer(classifier())
    with pytest.raises(OptionError, match="no loss 'entropy'"):
        Trainer(classifier(), "entropy")
    with pytest.raises(OptionError, match="no weight fits"):
        Trainer(classifier(), "cross_entropy", groups=[Group("q*")])
    with pytest.raises(OptionError, match="learning rate"):
        SGD(-1.0)
    with pytest.raises(OptionError, match="clip_norm"):
        Trainer(classifier(), "cross_entropy", clip_norm=0.0)
    with pytest.raises(OptionError, match="clip_value"):
        Trainer(classifier(), "cross_entropy", clip_value=float("nan"))
    with pytest.raises(OptionError, match="every 0 steps"):
        Trainer(classifier(), "cross_entropy").fit(batches(1), every=0)
    trainer = Trainer(classifier(), "cross_entropy")
    (batch,) = batches(1)
    for name in ("w0", "train.lr"):
        for call in (trainer.step, trainer.evaluate):
            with pytest.raises(BindError, match=f"{name} belongs to the trainer") as caught:
                call({**batch, name: np.zeros((8, 16), np.float32)})
            assert "pass what the model reads, and labels" in caught.value.hint
    with pytest.raises(GradientError, match="step 1 has the loss nan"):
        trainer.step({**batch, "x": np.full((32, 8), np.nan, np.float32)})
    trainer.save(tmp_path / "a.safetensors")
    with pytest.raises(LoadError, match="another model or optimizer"):
        Trainer(classifier(), "cross_entropy", SGD()).load(tmp_path / "a.safetensors")
    with pytest.raises(LoadError, match="cannot be written"):
        trainer.save(tmp_path / "nowhere" / "a.safetensors")


def with_frozen() -> Graph:
    """x @ w + b with a table that the model does not train."""
    builder = Builder("frozen", lines=False)
    x = builder.input("x", f32["n", 3]) + builder.param("table", f32[3], np.full(3, 0.5, np.float32))
    builder.output("y", x @ builder.param("w", f32[3, 2]))
    return replace(builder.graph(), frozen={"table": "a buffer"})


def test_what_a_model_does_not_train_stays_unless_it_is_named(tmp_path: Path) -> None:
    batch = {"x": np.ones((4, 3), np.float32), "labels": np.ones((4, 2), np.float32)}
    save(with_frozen(), tmp_path / "frozen.dvt")
    (tmp_path / "frozen.txt").write_text(print_graph(with_frozen()), encoding="utf-8")
    for model in (with_frozen(), tmp_path / "frozen.dvt"):
        trainer = Trainer(model, "mean_squared", SGD(0.1))
        trainer.fit([batch] * 3)
        assert trainer.weights == ("w",) and (trainer.params["table"] == 0.5).all()
        assert trainer.summary.splitlines() == [
            "trains 1 of 2 parameters, 6 numbers: w",
            "leaves as they are table (a buffer)",
        ]
    assert load(tmp_path / "frozen.txt").frozen == {"table": "a buffer"}
    every = Trainer(with_frozen(), "mean_squared", SGD(0.1), wrt=["*", "table"])
    every.fit([batch] * 3)
    assert (every.params["table"] != 0.5).all()
    with pytest.raises(GradientError, match=r"fits 'tab\*' but table \(a buffer\)"):
        Trainer(with_frozen(), "mean_squared", SGD(0.1), wrt="tab*")


def test_the_hint_about_weights_that_the_loss_does_not_reach_can_be_followed() -> None:
    builder = Builder("apart", lines=False)
    builder.output("y", builder.input("x", f32["n", 3]) @ builder.param("w", f32[3, 2]))
    builder.output("z", builder.param("u", f32[3]) * 2.0)
    with pytest.raises(GradientError, match=r'wrt=\["\*", "!u"\], or pass unreached="zeros"'):
        Trainer(builder.graph(), "mean_squared", SGD(0.1))
    batch = {"x": np.ones((4, 3), np.float32), "labels": np.ones((4, 2), np.float32)}
    ways: tuple[dict[str, Any], ...] = ({"wrt": ["*", "!u"]}, {"unreached": "zeros"})
    for how in ways:
        trainer = Trainer(builder.graph(), "mean_squared", SGD(0.1), **how)
        before = trainer.params
        trainer.step(batch)
        assert (trainer.params["u"] == before["u"]).all() and (trainer.params["w"] != before["w"]).all()


def test_options_are_named_before_anything_else() -> None:
    trainer_of: Any = Trainer
    with pytest.raises(OptionError, match="no option 'nonsense'"):
        trainer_of("nowhere.onnx", "no loss", nonsense=1)
    with pytest.raises(OptionError, match="did you mean clip_norm"):
        trainer_of(line(), "mean_squared", clip_nrom=1.0)
    with pytest.raises(OptionError, match="did you mean 'adam'"):
        Trainer(line(), "mean_squared", "adamv")
    with pytest.raises(OptionError, match=r"make one: AdamW\(\)"):
        Trainer(line(), "mean_squared", cast(Any, AdamW))


def test_optimizers_have_names() -> None:
    batch = {"x": np.ones((4, 3), np.float32), "labels": np.ones((4, 2), np.float32)}
    made: list[Any] = []
    for optimizer in ("adamw", AdamW(), None):
        trainer = Trainer(line(), "mean_squared", optimizer)
        trainer.fit([batch] * 3)
        made.append(trainer.params["w"])
    assert (made[0] == made[1]).all() and (made[1] == made[2]).all()


def test_batches_are_dicts_or_lists_in_the_order_of_the_inputs() -> None:
    trainer = Trainer(line(), "mean_squared", SGD(0.1))
    x, y = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    assert trainer.step({"x": x, "labels": y}).loss > trainer.step([x, y]).loss
    assert set(trainer.evaluate((x, y))) == {"y", "loss"}
    wrong: list[tuple[Any, str]] = [
        ({"X": x, "labels": y}, "has X, which nothing reads and lacks x"),
        ({"x": x, "labels": y, "w": x}, "the batch has w, and w belongs to the trainer"),
        ([x], "a batch of 1 arrays"),
        (7, "a int for a batch"),
    ]
    for batch, message in wrong:
        with pytest.raises(BindError, match=message) as raised:
            trainer.step(batch)
        assert "x, labels" in str(raised.value) and "train." not in str(raised.value)
