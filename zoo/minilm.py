"""MiniLM: from safetensors into the BERT builder, as NumPy in float64, as an ONNX file, and exported by torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dovetail
from dovetail.frontends.safetensors import read_safetensors
from dovetail.models import bert, bert_shape, bert_weights
from zoo.minilm_onnx import OPSET, write

Array = NDArray[Any]
TORCH = "2.13.0"
"""The version of torch whose export is checked."""
_OPSET = 18


def built(folder: Path) -> tuple[dovetail.Graph, dict[str, Array]]:
    """The graph of the model, and its parameters."""
    shape = bert_shape(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    return bert(shape), bert_weights(read_safetensors(folder / "model.safetensors"), shape)


def judged(folder: Path, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The hidden states of the last layer in float64, written straight from the definition."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    w = {name: np.asarray(a, np.float64) for name, a in read_safetensors(folder / "model.safetensors").items()}
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]

    def dense(x: Array, name: str) -> Array:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def by_head(x: Array) -> Array:
        return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    erf = np.vectorize(math.erf, otypes=[np.float64])
    ids, types = feeds["input_ids"], feeds["token_type_ids"]
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][types]
    x = norm(x + w["embeddings.position_embeddings.weight"][: ids.shape[1]], "embeddings.LayerNorm")
    hidden = np.where(feeds["attention_mask"][:, None, None, :] == 0, -np.inf, 0.0)
    for index in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        q, k, v = (by_head(dense(x, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) + hidden
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (scores / scores.sum(-1, keepdims=True)) @ v
        seen = seen.transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(dense(seen, f"{layer}.attention.output.dense") + x, f"{layer}.attention.output.LayerNorm")
        up = dense(x, f"{layer}.intermediate.dense")
        up = up * 0.5 * (1.0 + erf(up / math.sqrt(2.0)))
        x = norm(dense(up, f"{layer}.output.dense") + x, f"{layer}.output.LayerNorm")
    return {"last_hidden_state": x}


def written(folder: Path) -> Path:
    """The model as an ONNX file, written once; it needs nothing but onnx."""
    path = folder / f"written-{OPSET}.onnx"
    if not path.is_file():
        write(folder, path)
    return path


def exported(folder: Path) -> Path | str:
    """The model as torch exports it to ONNX, made once; or the reason why there is none."""
    path = folder / f"exported-{TORCH}.onnx"
    if path.is_file():
        return path
    try:
        import torch  # pyright: ignore
    except ImportError:
        return f"torch is not installed: python -m pip install torch=={TORCH}"
    library: Any = torch
    found = str(library.__version__).partition("+")[0]
    if found != TORCH:
        return f"torch {found} is installed, and the export is checked for {TORCH}"
    from zoo.minilm_torch import export

    export(folder, path, opset=_OPSET)
    return path
