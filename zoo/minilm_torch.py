# pyright: basic
"""MiniLM in torch, written as people write it, for its exporter."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from safetensors.torch import load_file
from torch import nn  # pyright: ignore[reportMissingImports]


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, x: Any, mask: Any) -> Any:
        batch, length, hidden = x.shape

        def by_head(y: Any) -> Any:
            return y.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)

        q, k, v = by_head(self.query(x)), by_head(self.key(x)), by_head(self.value(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(hidden // self.heads) + mask
        seen = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, hidden)
        return self.dense(seen)


class Layer(nn.Module):
    def __init__(self, of: dict[str, Any]) -> None:
        super().__init__()
        hidden, inner, eps = of["hidden_size"], of["intermediate_size"], of["layer_norm_eps"]
        self.attention = Attention(hidden, of["num_attention_heads"])
        self.norm1, self.norm2 = nn.LayerNorm(hidden, eps), nn.LayerNorm(hidden, eps)
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x: Any, mask: Any) -> Any:
        x = self.norm1(self.attention(x, mask) + x)
        return self.norm2(self.down(nn.functional.gelu(self.up(x))) + x)


class Encoder(nn.Module):
    def __init__(self, of: dict[str, Any]) -> None:
        super().__init__()
        hidden = of["hidden_size"]
        self.words = nn.Embedding(of["vocab_size"], hidden)
        self.places = nn.Embedding(of["max_position_embeddings"], hidden)
        self.types = nn.Embedding(of["type_vocab_size"], hidden)
        self.norm = nn.LayerNorm(hidden, of["layer_norm_eps"])
        self.layers = nn.ModuleList(Layer(of) for _ in range(of["num_hidden_layers"]))

    def forward(self, input_ids: Any, token_type_ids: Any, attention_mask: Any) -> Any:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.types(token_type_ids) + self.places(places))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return x


NAMES = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "places",
    "embeddings.token_type_embeddings": "types",
    "embeddings.LayerNorm": "norm",
    "encoder.layer": "layers",
    "attention.self": "attention",
    "attention.output.dense": "attention.dense",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm2",
}


def renamed(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def export(folder: Path, path: Path, *, opset: int) -> None:
    """Write the model with open batch and length."""
    model = Encoder(json.loads((folder / "config.json").read_text(encoding="utf-8"))).eval()
    tensors = {renamed(n): t for n, t in load_file(folder / "model.safetensors").items()}
    kept = {n: t for n, t in tensors.items() if not n.startswith("pooler") and not n.endswith("position_ids")}
    model.load_state_dict(kept)
    ids = torch.ones(2, 9, dtype=torch.int64)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    half_made = path.with_suffix(".part")
    torch.onnx.export(
        model,
        (ids, torch.zeros_like(ids), torch.ones_like(ids)),
        str(half_made),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]},
        opset_version=opset,
        dynamo=False,
    )
    os.replace(half_made, path)
