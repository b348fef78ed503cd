# pyright: basic
"""Networks as users have them: modules of transformers at their real sizes, with random weights."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from dovetail.bench.workloads import CACHED
from dovetail.errors import OptionError
from dovetail.ir.literal import Array


def _transformers() -> Any:
    """transformers, without a torchvision that cannot be imported because it was built for another torch."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        sys.modules["torchvision"] = None  # pyright: ignore[reportArgumentType]  # as if it were not installed
    return importlib.import_module("transformers")


def _of_config(model: str, config: str) -> nn.Module:
    library = _transformers()
    return getattr(library, model)(getattr(library, config)())


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


def _llama_step() -> nn.Module:
    library = _transformers()
    config = library.LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    return _Step(library.LlamaForCausalLM(config), library)


def _whisper_encoder() -> nn.Module:
    library = _transformers()
    config = library.WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
    return library.WhisperModel(config).encoder


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "torch/bert_1x16": lambda: _of_config("BertModel", "BertConfig"),
    "torch/bert_1x128": lambda: _of_config("BertModel", "BertConfig"),
    "torch/llama_step": _llama_step,
    "torch/resnet50": lambda: _of_config("ResNetForImageClassification", "ResNetConfig"),
    "torch/vit": lambda: _of_config("ViTForImageClassification", "ViTConfig"),
    "torch/whisper_encoder": _whisper_encoder,
}


SOURCES: Mapping[str, str] = {
    "torch/bert_1x16": "bert",
    "torch/bert_1x128": "bert",
    "torch/llama_step": "llama",
    "torch/resnet50": "resnet",
    "torch/vit": "vit",
    "torch/whisper_encoder": "whisper",
}
"""The package of transformers that has the module."""


def import_sources(name: str) -> None:
    """Import what building the module would import."""
    _transformers()
    importlib.import_module(f"transformers.models.{SOURCES[name]}.modeling_{SOURCES[name]}")


def network(name: str) -> nn.Module:
    """A module; the same in every process."""
    if name not in NETWORKS:
        raise OptionError(f"there is no network {name!r}", hint=f"there are {', '.join(NETWORKS)}")
    import_sources(name)
    torch.manual_seed(0)
    with _weights_drawn_once():
        return NETWORKS[name]().eval().requires_grad_(False)


@contextmanager
def _weights_drawn_once() -> Iterator[None]:
    """The layers of torch start with zeros: transformers draws all weights again, with functions that it holds."""
    drawing = {function: getattr(nn.init, function) for function in ("uniform_", "normal_", "kaiming_uniform_")}
    try:
        for function in drawing:
            setattr(nn.init, function, lambda tensor, *_, **__: nn.init.zeros_(tensor))
        yield
    finally:
        for function, drawn in drawing.items():
            setattr(nn.init, function, drawn)


class _Positional(nn.Module):
    """A module that takes tensors in their order and returns a tuple of tensors, as an ONNX file does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *tensors: Any) -> Any:
        return tuple(tensors_of(self.module(*tensors)))


def export(name: str, feeds: Mapping[str, Array], path: Path) -> None:
    """Write a module as an ONNX file. The exporter that traces needs no package beside torch."""
    tensors = tuple(map(torch.from_numpy, feeds.values()))
    torch.onnx.export(_Positional(network(name)).eval(), tensors, str(path), dynamo=False, input_names=[*feeds])


def tensors_of(result: Any) -> list[Any]:
    """The tensors that a call returned, in their order."""
    if isinstance(result, torch.Tensor):
        return [result]
    items = result.values() if isinstance(result, Mapping) else result
    return [tensor for item in items or () for tensor in tensors_of(item)]
