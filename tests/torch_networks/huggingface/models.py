"""Models of transformers from a config, at tiny sizes with random weights, and the calls that they are exported for."""

# transformers is optional, and its classes have no types here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from tests.torch_networks.network import Case, Network

torch: Any = pytest.importorskip("torch")

SMALL: Mapping[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TOKENS = {0: "batch", 1: "length"}


def model_of(config: str, kind: str, options: Mapping[str, Any]) -> Any:
    """A model with random weights."""
    import transformers

    made = getattr(transformers, config)(**options)
    return getattr(transformers, kind)(made)


def ids(*shape: int) -> Any:
    return torch.randint(3, 100, shape)


def padded(rows: int, length: int) -> Any:
    """A mask of tokens whose last row ends two tokens early."""
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[-1, length - 2 :] = 0
    return mask


def encoder(name: str, config: str, kind: str, **options: Any) -> Case:
    """A model that reads tokens and a mask."""

    def build() -> Network:
        call = {"input_ids": ids(2, 8), "attention_mask": padded(2, 8)}
        dynamic = {"input_ids": TOKENS, "attention_mask": TOKENS}
        return Network(model_of(config, kind, {**SMALL, **options}), (), dynamic, kwargs=call)

    return Case(name, "encoder", "transformers", build)


def decoder(name: str, config: str, kind: str, family: str = "decoder", **options: Any) -> Case:
    """A model of language that reads a prompt, and keeps nothing."""

    def build() -> Network:
        call = {"input_ids": ids(2, 8), "attention_mask": padded(2, 8), "use_cache": False}
        dynamic = {"input_ids": TOKENS, "attention_mask": TOKENS}
        model = model_of(config, kind, {**SMALL, **options})
        return Network(model, (), dynamic, kwargs=call, exact=_exact(model))

    return Case(name, family, "transformers", build, "the prompt, without a cache")


def _exact(model: Any) -> Any:
    """The model in float64; the product of groups that experts use is for narrower floats alone."""
    wide = copy.deepcopy(model).double()
    if hasattr(wide, "set_experts_implementation"):
        wide.set_experts_implementation("eager")
    return wide


def translator(name: str, config: str, kind: str, **options: Any) -> Case:
    """An encoder and a decoder that reads what the encoder gives."""

    def build() -> Network:
        call = {
            "input_ids": ids(2, 9),
            "attention_mask": padded(2, 9),
            "decoder_input_ids": ids(2, 5),
            "use_cache": False,
        }
        target = {0: "batch", 1: "target"}
        dynamic = {"input_ids": TOKENS, "attention_mask": TOKENS, "decoder_input_ids": target}
        return Network(model_of(config, kind, options), (), dynamic, kwargs=call)

    return Case(name, "encoder-decoder", "transformers", build)


def image_model(
    name: str,
    config: str,
    kind: str,
    *,
    size: int = 32,
    moving: bool = False,
    sizes: Mapping[str, int] | None = None,
    family: str = "vision",
    **options: Any,
) -> Case:
    """A model that reads images; `moving` lets height and width change, to `sizes` where torch bounds them."""

    def build() -> Network:
        axes = {0: "batch", 2: "height", 3: "width"} if moving else {0: "batch"}
        call = {"pixel_values": torch.randn(2, 3, size, size)}
        made = model_of(config, kind, options)
        return Network(made, (), {"pixel_values": axes}, kwargs=call, sizes=sizes or {})

    return Case(name, family, "transformers", build)


def sound_model(name: str, config: str, kind: str, **options: Any) -> Case:
    """A model that reads the samples of a sound."""

    def build() -> Network:
        dynamic = {"input_values": {0: "batch", 1: "samples"}}
        return Network(model_of(config, kind, options), (), dynamic, kwargs={"input_values": torch.randn(2, 400)})

    return Case(name, "speech", "transformers", build)
