"""Decoders from GGUF files beside the same models of transformers in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.frontends.gguf.decoder import DecoderFile, read_decoder
from dovetail.frontends.gguf.file import read_gguf
from dovetail.ir.literal import Array
from dovetail.models.decoder import cached_decoder
from tests.gguf_files import decoder, written

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.exhaustive]

IDS = [3, 14, 15, 9, 26, 5, 35]
_NAMES = {
    "norm1.gain": "input_layernorm.weight",
    "wq": "self_attn.q_proj.weight",
    "wk": "self_attn.k_proj.weight",
    "wv": "self_attn.v_proj.weight",
    "wq.bias": "self_attn.q_proj.bias",
    "wk.bias": "self_attn.k_proj.bias",
    "wv.bias": "self_attn.v_proj.bias",
    "q_norm.gain": "self_attn.q_norm.weight",
    "k_norm.gain": "self_attn.k_norm.weight",
    "wo": "self_attn.o_proj.weight",
    "norm2.gain": "post_attention_layernorm.weight",
    "up": "mlp.up_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "down": "mlp.down_proj.weight",
}
_OUTSIDE = {"embedding": "model.embed_tokens.weight", "norm.gain": "model.norm.weight", "head": "lm_head.weight"}
_MODELS = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def theirs(found: DecoderFile, name: str, scaling: dict[str, Any] | None) -> Array:
    """Logits after each token by transformers."""
    of = found.shape
    config = getattr(transformers, f"{_MODELS[name]}Config")(
        vocab_size=of.vocabulary,
        hidden_size=of.hidden,
        intermediate_size=of.inner,
        num_hidden_layers=of.layers,
        num_attention_heads=of.heads,
        num_key_value_heads=of.kv_heads,
        head_dim=of.width,
        rms_norm_eps=of.eps,
        max_position_embeddings=of.context,
        tie_word_embeddings=of.is_tied,
        rope_parameters={"rope_type": "default", "rope_theta": of.theta, **(scaling or {})},
    )
    model = getattr(transformers, f"{_MODELS[name]}ForCausalLM")(config).double().eval()
    state: dict[str, Any] = {}
    for ours, array in found.params.items():
        named = _OUTSIDE.get(ours)
        if named is None:
            _, index, part = ours.split(".", 2)
            named = f"model.layers.{index}.{_NAMES[part]}"
            if of.pairs == "interleaved" and part in ("wq", "wk"):
                heads = of.heads if part == "wq" else of.kv_heads
                array = array.reshape(heads, of.width // 2, 2, of.hidden).swapaxes(1, 2).reshape(array.shape)
        state[named] = torch.tensor(array.astype(np.float64))
    if of.is_tied:
        state[_OUTSIDE["head"]] = state[_OUTSIDE["embedding"]]
    model.load_state_dict(state)
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


def ours(found: DecoderFile) -> Array:
    of = found.shape
    graph = cached_decoder(of, found.kinds, seq="s", every_position=True)
    size = (1, of.kv_heads, len(IDS), of.width)
    state = {f"{s}_cache.{i}": np.zeros(size) for s in "kv" for i in range(of.layers)}
    given = {"input_ids": np.array([IDS]), "positions": np.arange(len(IDS)), "keys": np.arange(len(IDS)), **state}
    return dovetail.evaluate(graph, given, params=found.params, lift=True)["logits"][0]


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "llama": ("llama", {}, None),
    "llama with a head of its own": ("llama", {"is_tied": False}, None),
    "llama with slower rotation": (
        "llama",
        {"fields": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}},
        {"rope_type": "linear", "factor": 4.0},
    ),
    "qwen2": ("qwen2", {}, None),
    "qwen3 with wide heads": ("qwen3", {"width": 32}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    name, how, scaling = CASES[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(written(*decoder(name, "f32", **how)))
    found = read_decoder(read_gguf(path))
    wanted, got = theirs(found, name, scaling), ours(found)
    # Both rotate by angles in f32.
    assert np.abs(got - wanted).max() < 1e-6 * np.abs(wanted).max()
