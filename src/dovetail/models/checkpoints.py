"""Weights as published checkpoints name them, for the parameters of our models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.errors import LoadError
from dovetail.ir.literal import Array
from dovetail.models.bert import BertShape


def bert_shape(config: Mapping[str, Any]) -> BertShape:
    """Return the sizes in a `config.json` of a BERT-style model."""
    kind, act = config.get("model_type", "bert"), config.get("hidden_act", "gelu")
    if kind != "bert" or act != "gelu":
        raise LoadError(f"a model of type {kind!r} with {act!r}", hint="a BERT model with gelu is wanted")
    sizes: dict[str, Any] = {field: config.get(name) for field, name in _SIZES.items()}
    eps = config.get("layer_norm_eps", BertShape.eps)
    wrong = [_SIZES[f] for f, s in sizes.items() if isinstance(s, bool) or not isinstance(s, int) or s < 1]
    if wrong or not isinstance(eps, float):
        raise LoadError(f"the configuration says nothing of {', '.join(wrong) or 'eps'}", hint="check its numbers")
    return BertShape(**sizes, eps=eps)


_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "types": "type_vocab_size",
}


def bert_weights(tensors: Mapping[str, Array], shape: BertShape) -> dict[str, Array]:
    """Return the parameters of `bert(shape)` from a checkpoint of Hugging Face's BertModel."""
    weights: dict[str, Array] = {}
    for ours, theirs, turned in _bert_names(shape.layers):
        array = tensors.get(theirs, tensors.get(f"bert.{theirs}"))
        if array is None:
            raise LoadError(f"the checkpoint has no tensor {theirs!r}", hint="a BertModel is wanted")
        # Linear layers are kept as [out, in] there, and multiply from the right here.
        weights[ours] = array.T if turned else array
    return weights


def _bert_names(layers: int) -> Iterator[tuple[str, str, bool]]:
    """Our name, the checkpoint's, and whether a matrix is transposed."""
    for ours, theirs in _EMBEDDINGS.items():
        yield f"embeddings.{ours}", f"embeddings.{theirs}", False
    for index in range(layers):
        for ours, (theirs, turned) in _LAYER.items():
            yield f"layers.{index}.{ours}", f"encoder.layer.{index}.{theirs}", turned


_EMBEDDINGS = {
    "words": "word_embeddings.weight",
    "positions": "position_embeddings.weight",
    "types": "token_type_embeddings.weight",
    "norm.gain": "LayerNorm.weight",
    "norm.bias": "LayerNorm.bias",
}
_LAYER = {
    "wq": ("attention.self.query.weight", True),
    "bq": ("attention.self.query.bias", False),
    "wk": ("attention.self.key.weight", True),
    "bk": ("attention.self.key.bias", False),
    "wv": ("attention.self.value.weight", True),
    "bv": ("attention.self.value.bias", False),
    "wo": ("attention.output.dense.weight", True),
    "bo": ("attention.output.dense.bias", False),
    "norm1.gain": ("attention.output.LayerNorm.weight", False),
    "norm1.bias": ("attention.output.LayerNorm.bias", False),
    "up": ("intermediate.dense.weight", True),
    "up.bias": ("intermediate.dense.bias", False),
    "down": ("output.dense.weight", True),
    "down.bias": ("output.dense.bias", False),
    "norm2.gain": ("output.LayerNorm.weight", False),
    "norm2.bias": ("output.LayerNorm.bias", False),
}
