"""Decoders of every family beside transformers in float64: from a folder of a checkpoint, and from a GGUF file."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.frontends.checkpoint import read_checkpoint
from dovetail.frontends.decoder_families import DecoderFile
from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import read_gguf
from dovetail.ir.literal import Array
from dovetail.models.decoder import cached_decoder
from tests.gguf_files import written

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.exhaustive]

IDS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_GEMMA = {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16}
_FACTORS = {"long_factor": [1.5, 2.0, 3.0, 4.0], "short_factor": [1.0, 1.1, 1.25, 1.5]}


def _rope(kind: str, **said: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **said}}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, its head tied, with linear scaling": (
        "Llama",
        {"tie_word_embeddings": True, **_rope("linear", factor=4.0)},
    ),
    "llama 3": (
        "Llama",
        _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
    ),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3 with biases": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    "mistral with a window": ("Mistral", {"sliding_window": 4}),
    "qwen2 with yarn": ("Qwen2", _rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "qwen3 with wide heads": ("Qwen3", {"head_dim": 16}),
    "qwen3 with experts": (
        "Qwen3Moe",
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "gemma 2": ("Gemma2", {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma 3": ("Gemma3", {**_GEMMA, "layer_types": ["sliding_attention", "full_attention"]}),
    "phi 3": ("Phi3", {}),
    "phi 3 with longrope": (
        "Phi3",
        {"original_max_position_embeddings": 32, **_rope("longrope", **_FACTORS)},
    ),
    "gpt 2": ("GPT2", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}),
}


def made(case: str) -> Any:
    """A random model of transformers in float64, whose weights are numbers of f32."""
    name, more = CASES[case]
    torch.manual_seed(3)
    kind = f"{name}TextConfig" if name == "Gemma3" else f"{name}Config"
    config = getattr(transformers, kind)(**({} if name == "GPT2" else _SIZES) | {"vocab_size": 64} | more)
    config.initializer_range = 0.2
    found = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return found.eval()


def theirs(model: Any) -> Array:
    """Logits after each token in float64; the norms of transformers would round to f32 within."""
    model.config._experts_implementation = "eager"
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = functools.partial(_normed, module)
    with torch.no_grad():
        return model.double()(torch.tensor([IDS])).logits[0].numpy()


def _normed(module: Any, x: Any) -> Any:
    gain = 1 + module.weight if type(module).__name__.startswith("Gemma") else module.weight
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gain


def ours(found: DecoderFile, *, compiled: bool) -> Array:
    of = found.shape
    graph = cached_decoder(of, found.kinds, seq="s", every_position=True)
    size, dtype = (1, of.kv_heads, len(IDS), of.width), np.float32 if compiled else np.float64
    state = {f"{s}_cache.{i}": np.zeros(size, dtype) for s in "kv" for i in range(of.layers)}
    given = {"input_ids": np.array([IDS]), "positions": np.arange(len(IDS)), "keys": np.arange(len(IDS)), **state}
    if compiled:
        return dovetail.compile(graph, cache="off").bind(found.params).run(given)["logits"][0]
    return dovetail.evaluate(graph, given, params=found.params, lift=True)["logits"][0]


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    model = made(case)
    model.save_pretrained(tmp_path)
    (tmp_path / "m.gguf").write_bytes(written(*as_gguf(model)))
    from_folder, from_gguf = read_checkpoint(tmp_path), read_decoder(read_gguf(tmp_path / "m.gguf"))
    wanted = theirs(model)
    # Both rotate by angles in f32.
    for found in (from_folder, from_gguf):
        assert np.abs(ours(found, compiled=False) - wanted).max() < 1e-6 * np.abs(wanted).max()
    assert np.abs(ours(from_gguf, compiled=True) - wanted).max() < 1e-6 * np.abs(wanted).max()


_NAMES = [
    (r"^model\.embed_tokens|^transformer\.wte", "token_embd"),
    (r"^transformer\.wpe", "position_embd"),
    (r"^model\.norm|^transformer\.ln_f", "output_norm"),
    (r"^lm_head", "output"),
    (r"^(?:model\.layers|transformer\.h)\.", "blk."),
    (r"input_layernorm|ln_1", "attn_norm"),
    (r"ln_2|pre_feedforward_layernorm", "ffn_norm"),
    (r"post_feedforward_layernorm", "post_ffw_norm"),
    (r"self_attn\.([qkv])_proj", r"attn_\1"),
    (r"self_attn\.qkv_proj|attn\.c_attn", "attn_qkv"),
    (r"self_attn\.([qk])_norm", r"attn_\1_norm"),
    (r"self_attn\.o_proj|attn\.c_proj", "attn_output"),
    (r"mlp\.gate_up_proj|mlp\.c_fc", "ffn_up"),
    (r"mlp\.gate\.", "ffn_gate_inp."),
    (r"mlp\.(gate|up|down)_proj", r"ffn_\1"),
    (r"mlp\.c_proj", "ffn_down"),
]


def as_gguf(model: Any) -> Any:
    """The fields and tensors of a GGUF file with the weights of a model, as llama.cpp converts them."""
    config = model.config
    kind: str = config.model_type.replace("_text", "").replace("_moe", "moe")
    kind = "llama" if kind == "mistral" else kind
    tensors: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        array: Array = tensor.float().numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for found, said in _NAMES:
            name = re.sub(found, said, name)
        after = "post_attention_norm" if kind.startswith("gemma") else "ffn_norm"
        name = name.replace("post_attention_layernorm", after)
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            array = array + 1
        if kind == "gpt2" and array.ndim == 2 and name.startswith("blk."):
            array = array.T
        if kind == "llama" and re.search(r"attn_[qk]\.(?:weight|bias)", name):
            heads = config.num_attention_heads if "attn_q" in name else config.num_key_value_heads
            array = array.reshape(heads, 2, array.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)
        if "experts.gate_up_proj" in name:
            gate, up = np.split(array, 2, axis=1)
            at = name.split("mlp")[0]
            each = {f"{at}ffn_gate_exps.weight": gate, f"{at}ffn_up_exps.weight": up}
        elif "experts.down_proj" in name:
            each = {name.split("mlp")[0] + "ffn_down_exps.weight": array}
        else:
            each = {name: array}
        tensors |= {n: ("f32", a.shape, np.ascontiguousarray(a)) for n, a in each.items()}
    said = _fields(config)
    tensors |= {n: ("f32", (len(f),), np.array(f, np.float32)) for n, f in _factors(config).items()}
    return {"general.architecture": kind} | {f"{kind}.{name}": value for name, value in said.items()}, tensors


def _fields(config: Any) -> dict[str, Any]:
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    rope, local = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    found: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", config.num_attention_heads),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "attention.layer_norm_epsilon": getattr(config, "layer_norm_epsilon", None),
        "attention.key_length": getattr(config, "head_dim", None),
        "rope.freq_base": rope.get("rope_theta"),
        "rope.freq_base_swa": local.get("rope_theta"),
        "attention.sliding_window": getattr(config, "sliding_window", None),
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
        "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        "expert_count": getattr(config, "num_experts", None),
        "expert_used_count": getattr(config, "num_experts_per_tok", None),
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
    }
    if rope.get("rope_type") in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope.get("rope_type") == "longrope":
        ratio = config.max_position_embeddings / config.original_max_position_embeddings
        scale = float(np.sqrt(1 + np.log(ratio) / np.log(config.original_max_position_embeddings)))
        found |= {"rope.scaling.attn_factor": scale}
    if "original_max_position_embeddings" in rope:
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if config.model_type == "gemma3_text":
        found["attention.sliding_window_pattern"] = [kind != "full_attention" for kind in config.layer_types]
    return {name: value for name, value in found.items() if value is not None}


def _factors(config: Any) -> dict[str, list[float]]:
    """Tensors of factors that converters write."""
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{which}.weight": rope[f"{which}_factor"] for which in ("long", "short")}
    if rope.get("rope_type") != "llama3":
        return {}
    width = config.hidden_size // config.num_attention_heads
    found: list[float] = []
    for index in range(0, width, 2):
        length = 2 * np.pi * rope["rope_theta"] ** (index / width)
        low, high = (rope["original_max_position_embeddings"] / rope[f"{e}_freq_factor"] for e in ("low", "high"))
        smooth = (rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        middle = 1 / ((1 - smooth) / rope["factor"] + smooth)
        found.append(1.0 if length < high else rope["factor"] if length > low else middle)
    return {"rope_freqs.weight": found}
