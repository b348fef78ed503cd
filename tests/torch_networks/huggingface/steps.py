"""One token of a decoder of transformers, with a cache of fixed size in buffers or one that grows."""

# transformers is optional, and its classes have no types here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.torch_networks.huggingface.models import SMALL, ids, model_of
from tests.torch_networks.network import Case, Network

torch: Any = pytest.importorskip("torch")
LENGTH = 16


class StaticStep(torch.nn.Module):
    """One token, with keys and values in buffers that the call changes."""

    def __init__(self, model: Any, batch: int) -> None:
        super().__init__()
        from transformers import StaticCache
        from transformers.cache_utils import StaticLayer

        self.model = model
        config = model.config.get_text_config()
        self.cache: Any = StaticCache(config=config, max_cache_len=LENGTH)
        self.cache.layers[:] = [
            layer if type(layer) is StaticLayer else StaticLayer(LENGTH) for layer in self.cache.layers
        ]
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.cache.early_initialization(batch, heads, size, model.dtype, model.device)
        for i, layer in enumerate(self.cache.layers):
            for field, buffer in _FIELDS.items():
                self.register_buffer(f"{buffer}_{i}", getattr(layer, field), persistent=False)

    def forward(self, input_ids: Any, position: Any) -> Any:
        # torch.export lifts tensors that the cache holds as constants: it gets the buffers for the call alone.
        held = [{field: getattr(layer, field) for field in _FIELDS} for layer in self.cache.layers]
        try:
            for i, layer in enumerate(self.cache.layers):
                for field, buffer in _FIELDS.items():
                    setattr(layer, field, getattr(self, f"{buffer}_{i}"))
                layer.cumulative_length.copy_(position[0])
            return self.model(input_ids=input_ids, past_key_values=self.cache, use_cache=True).logits
        finally:
            for layer, fields in zip(self.cache.layers, held, strict=True):
                for field, tensor in fields.items():
                    setattr(layer, field, tensor)


_FIELDS = {"keys": "key", "values": "value", "cumulative_length": "length"}


class GrowingStep(torch.nn.Module):
    """One token, with keys and values that go in and come out one token longer."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, past: Any) -> Any:
        from transformers import DynamicCache

        cache = DynamicCache()
        for i, (keys, values) in enumerate(past):
            cache.update(keys, values, i)
        out = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        return out.logits, [(layer.keys, layer.values) for layer in out.past_key_values.layers]


def static(name: str, config: str, kind: str, **options: Any) -> Case:
    def build() -> Network:
        module = StaticStep(model_of(config, kind, {**SMALL, **options}).eval(), 1)
        second = (torch.tensor([[7]]), torch.tensor([4]))
        return Network(module, (torch.tensor([[5]]), torch.tensor([3])), again=second)

    return Case(name, "step, static cache", "transformers", build, "buffers are changed")


def growing(name: str, config: str, kind: str, heads: int, size: int, **options: Any) -> Case:
    def build() -> Network:
        module = GrowingStep(model_of(config, kind, {**SMALL, **options}))
        past = [(torch.randn(2, heads, 5, size), torch.randn(2, heads, 5, size)) for _ in range(2)]
        axes = {0: "batch", 2: "past"}
        return Network(module, (ids(2, 1), past), {"input_ids": {0: "batch"}, "past": [(axes, axes)] * 2})

    return Case(name, "step, growing cache", "transformers", build)


def static_by_transformers(name: str, config: str, kind: str, **options: Any) -> Case:
    """The recipe of transformers itself, in which each cache has two names."""

    def build() -> Network:
        from transformers import GenerationConfig
        from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

        model = model_of(config, kind, {**SMALL, **options}).eval()
        model.generation_config = GenerationConfig(use_cache=True, cache_implementation="static")
        module, exact = (
            TorchExportableModuleWithStaticCache(m, batch_size=1, max_cache_len=LENGTH)
            for m in (model, copy.deepcopy(model).double())
        )
        call = {"input_ids": torch.tensor([[5]]), "cache_position": torch.tensor([3])}
        return Network(module, (), kwargs=call, exact=exact)

    return Case(name, "step, static cache", "transformers", build, "by transformers' own recipe")


_GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
_GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
CASES = (
    static("llama_static", "LlamaConfig", "LlamaForCausalLM", **_GROUPED),
    static("gemma2_static", "Gemma2Config", "Gemma2ForCausalLM", head_dim=16, sliding_window=4, **_GROUPED),
    static("qwen3_static", "Qwen3Config", "Qwen3ForCausalLM", head_dim=16, **_GROUPED),
    static("gpt2_static", "GPT2Config", "GPT2LMHeadModel", **_GPT),
    static("opt_static", "OPTConfig", "OPTForCausalLM", ffn_dim=64, word_embed_proj_dim=32),
    static_by_transformers("llama_static_recipe", "LlamaConfig", "LlamaForCausalLM", **_GROUPED),
    growing("llama_growing", "LlamaConfig", "LlamaForCausalLM", 2, 8, **_GROUPED),
    growing("gpt2_growing", "GPT2Config", "GPT2LMHeadModel", 4, 8, **_GPT),
    growing("qwen2_growing", "Qwen2Config", "Qwen2ForCausalLM", 2, 8, **_GROUPED),
)
