"""LoRA: the graph computes what it did, pairs alone are trained, and pairs can be added to their weights."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import Builder, Graph, library, ops
from dovetail.dtypes import f32
from dovetail.errors import OptionError
from dovetail.models import random_weights
from dovetail.train import AdamW, Trainer, merged
from dovetail.train.step import step_graph
from tests.train.models import batches


def model() -> Graph:
    """A declared linear layer, and a matrix that is read transposed, as torch stores it."""
    builder = Builder("model", lines=False)
    x = builder.input("x", f32["n", 8])
    hidden = library.linear(x, builder.param("w0", f32[8, 16]), builder.param("b0", f32[16]), act="relu")
    builder.output("logits", hidden @ ops.permute(builder.param("w1", f32[4, 16]), order=(-1, -2)))
    return builder.graph()


@pytest.mark.slow
def test_pairs_are_trained_and_merged() -> None:
    plain = model()
    params = {n: 10 * a for n, a in random_weights(plain).items()}
    graph = dovetail.train.lora(plain, "w*", rank=2)
    (batch,) = batches(1)
    trainer = Trainer(graph, "cross_entropy", AdamW(0.02), wrt="*.lora_*", params=params, target="reference")
    first = dovetail.evaluate(plain, {"x": batch["x"]}, params=params)["logits"]
    np.testing.assert_allclose(trainer.evaluate(batch)["logits"], first, rtol=1e-6)
    told = trainer.fit(batches(40))
    assert told[-1].loss < 0.8 * told[0].loss
    after = trainer.params
    assert all(after[n].tobytes() == params[n].tobytes() for n in params)
    alone = merged(graph, after)
    assert set(alone) == set(params) and abs(alone["w1"] - params["w1"]).max() > 0.01
    found = dovetail.evaluate(plain, {"x": batch["x"]}, params=alone)["logits"]
    np.testing.assert_allclose(trainer.evaluate(batch)["logits"], found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alpha", [None, 1.0, 24.0])
def test_the_scale_of_pairs_is_kept_in_the_graph(alpha: float | None) -> None:
    plain = model()
    graph = dovetail.train.lora(plain, "w*", rank=2, **({} if alpha is None else {"alpha": alpha}))
    params = {n: 10 * a for n, a in random_weights(graph).items()}
    (batch,) = batches(1)
    x = {"x": batch["x"]}
    apart = dovetail.evaluate(graph, x, params=params)["logits"]
    whole = dovetail.evaluate(plain, x, params=merged(graph, params))["logits"]
    np.testing.assert_allclose(whole, apart, rtol=1e-4, atol=1e-4)


def test_no_gradient_of_a_frozen_matrix_is_made() -> None:
    trainer = Trainer(dovetail.train.lora(model(), "w0", rank=3), "cross_entropy", wrt="*.lora_*", target="reference")
    made = step_graph(trainer.graph, AdamW(), wrt="*.lora_*", loss="loss")
    assert set(made.weights) == {"w0.lora_a", "w0.lora_b"}
    products = [v for v in made.graph.values if v.op is ops.matmul]
    assert products and not [v for v in products if v.shape in ((8, 16), (16, 4), (4, 16))]


def test_what_is_refused() -> None:
    with pytest.raises(OptionError, match="no matrix fits 'b0'"):
        dovetail.train.lora(model(), "b0")
    with pytest.raises(OptionError, match="rank 0"):
        dovetail.train.lora(model(), "w0", rank=0)
    builder = Builder("table", lines=False)
    builder.output("y", ops.gather(builder.param("t", f32[4, 3]), builder.input("i", dovetail.dtypes.i64[2]), axis=0))
    with pytest.raises(OptionError, match="no product reads t"):
        dovetail.train.lora(builder.graph(), "t")
