"""Weights of published checkpoints, in the places that our models have for them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dovetail
from dovetail.errors import LoadError
from dovetail.models import BertShape, bert, bert_shape, bert_weights

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 20,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


def checkpoint(shape: BertShape, prefix: str = "") -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Random weights under the names that Hugging Face gives them, written out apart from the code under test."""
    rng = np.random.default_rng(0)
    sizes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (shape.vocabulary, shape.hidden),
        "embeddings.position_embeddings.weight": (shape.positions, shape.hidden),
        "embeddings.token_type_embeddings.weight": (shape.types, shape.hidden),
        "embeddings.LayerNorm.weight": (shape.hidden,),
        "embeddings.LayerNorm.bias": (shape.hidden,),
        "pooler.dense.weight": (shape.hidden, shape.hidden),
    }
    for i in range(shape.layers):
        for part, out, into in (
            ("attention.self.query", shape.hidden, shape.hidden),
            ("attention.self.key", shape.hidden, shape.hidden),
            ("attention.self.value", shape.hidden, shape.hidden),
            ("attention.output.dense", shape.hidden, shape.hidden),
            ("intermediate.dense", shape.inner, shape.hidden),
            ("output.dense", shape.hidden, shape.inner),
        ):
            sizes[f"encoder.layer.{i}.{part}.weight"] = (out, into)
            sizes[f"encoder.layer.{i}.{part}.bias"] = (out,)
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            sizes[f"encoder.layer.{i}.{part}.weight"] = (shape.hidden,)
            sizes[f"encoder.layer.{i}.{part}.bias"] = (shape.hidden,)
    return {f"{prefix}{name}": rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}


def test_a_configuration_becomes_a_shape() -> None:
    assert bert_shape(json.loads(json.dumps(CONFIG))) == BertShape(2, 8, 2, 16, 20, 12, 2, 1e-12)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "relu"}, "relu"),
        ({"hidden_size": "8"}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"layer_norm_eps": None}, "eps"),
    ],
)
def test_another_configuration_is_refused(change: dict[str, object], found: str) -> None:
    with pytest.raises(LoadError, match=found):
        bert_shape({**CONFIG, **change})


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_every_parameter_gets_its_weight(prefix: str) -> None:
    shape = bert_shape(CONFIG)
    graph, held = bert(shape), checkpoint(shape, prefix)
    weights = bert_weights(held, shape)
    assert {n: a.shape for n, a in weights.items()} == {str(p.attrs["name"]): p.shape for p in graph.parameters}
    up = held[f"{prefix}encoder.layer.1.intermediate.dense.weight"]
    np.testing.assert_array_equal(weights["layers.1.up"], up.T)
    dovetail.compile(graph, params=weights)


def test_a_missing_weight_is_named() -> None:
    shape = bert_shape(CONFIG)
    held = checkpoint(shape)
    del held["encoder.layer.0.output.dense.bias"]
    with pytest.raises(LoadError, match=r"encoder\.layer\.0\.output\.dense\.bias"):
        bert_weights(held, shape)
