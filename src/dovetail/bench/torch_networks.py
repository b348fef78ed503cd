# pyright: basic
"""Networks as users have them: modules of transformers at their real sizes, with random weights."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from dovetail.errors import OptionError

CACHED = 256
"""Tokens in the cache of a decoder's step."""


def _transformers() -> Any:
    """transformers, without a torchvision that cannot be imported because it was built for another torch."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        sys.modules["torchvision"] = None  # pyright: ignore[reportArgumentType]  # as if it were not installed
    return importlib.import_module("transformers")


def _bert(length: int) -> tuple[nn.Module, dict[str, Any]]:
    library = _transformers()
    ids = torch.randint(0, 1000, (1, length))
    return library.BertModel(library.BertConfig()), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class _Step(nn.Module):
    """One token after those in a static cache, which the step changes in place."""

    def __init__(self, model: Any, library: Any) -> None:
        super().__init__()
        self.model = model
        self.make_cache: Callable[[], Any] = lambda: library.StaticCache(config=model.config, max_cache_len=CACHED + 1)

    def forward(self, token: Any, position: Any, *held: Any) -> Any:
        cache = self.make_cache()
        for index, layer in enumerate(cache.layers):
            keys, values = held[2 * index : 2 * index + 2]
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values, layer.cumulative_length = keys, values, position.clone()
        return self.model(token, past_key_values=cache, position_ids=position.view(1, 1), use_cache=True).logits


def _llama_step() -> tuple[nn.Module, dict[str, Any]]:
    library = _transformers()
    config = library.LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    shape = (1, config.num_key_value_heads, CACHED + 1, config.hidden_size // config.num_attention_heads)
    held = {f"held_{i}": torch.randn(shape) for i in range(2 * config.num_hidden_layers)}
    step = _Step(library.LlamaForCausalLM(config), library)
    return step, {"token": torch.tensor([[7]]), "position": torch.tensor(CACHED), **held}


def _image(model: str, config: str) -> tuple[nn.Module, dict[str, Any]]:
    library = _transformers()
    made = getattr(library, model)(getattr(library, config)())
    return made, {"pixel_values": torch.randn(1, 3, 224, 224)}


def _whisper_encoder() -> tuple[nn.Module, dict[str, Any]]:
    library = _transformers()
    config = library.WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
    return library.WhisperModel(config).encoder, {"input_features": torch.randn(1, 80, 3000)}


NETWORKS: Mapping[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "torch/bert_1x16": lambda: _bert(16),
    "torch/bert_1x128": lambda: _bert(128),
    "torch/llama_step": _llama_step,
    "torch/resnet50": lambda: _image("ResNetForImageClassification", "ResNetConfig"),
    "torch/vit": lambda: _image("ViTForImageClassification", "ViTConfig"),
    "torch/whisper_encoder": _whisper_encoder,
}


def network(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """A module, and the arguments of a call by name, in their order; the same in every process."""
    if name not in NETWORKS:
        raise OptionError(f"there is no network {name!r}", hint=f"there are {', '.join(NETWORKS)}")
    torch.manual_seed(0)
    made, arguments = NETWORKS[name]()
    return made.eval().requires_grad_(False), arguments


def tensors_of(result: Any) -> list[Any]:
    """The tensors that a call returned, in their order."""
    if isinstance(result, torch.Tensor):
        return [result]
    items = result.values() if isinstance(result, Mapping) else result
    return [tensor for item in items or () for tensor in tensors_of(item)]
