"""Folders of checkpoints: what is there is read as it is, what is missing or odd is one typed error."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dovetail import compile, load
from dovetail.errors import DovetailError, LoadError, OptionError, UnsupportedError
from dovetail.frontends.checkpoint import _Reader, read_checkpoint  # pyright: ignore[reportPrivateUsage]
from dovetail.frontends.decoder_families import FAMILIES, names_in_checkpoint
from dovetail.language import LanguageModel
from dovetail.models.decoder_shape import DecoderShape, parameter_shapes
from dovetail.train import Trainer

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 20,
    "max_position_embeddings": 32,
    "hidden_act": "silu",
    "eos_token_id": [2, 3],
    "tie_word_embeddings": True,
}
SHAPE = DecoderShape(1, 16, 2, 1, 8, 24, 20, 32, is_tied=True)


def written(folder: Path, config: dict[str, Any], *, without: str = "", more: tuple[str, ...] = ()) -> Path:
    names = names_in_checkpoint(FAMILIES["llama"], SHAPE)
    shapes = {names[ours]: shape for ours, shape in parameter_shapes(SHAPE).items() if names[ours] != without}
    shapes |= {name: (1,) for name in more}
    rng, header, raw = np.random.default_rng(2), dict[str, Any](), b""
    for name, shape in shapes.items():
        array = rng.normal(size=shape).astype(np.float16)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [len(raw), len(raw) + array.nbytes]}
        raw += array.tobytes()
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + raw)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.heavy
def test_a_folder_is_a_language_model(tmp_path: Path) -> None:
    model = LanguageModel(written(tmp_path, CONFIG), cache="off")
    assert model.shape.style == FAMILIES["llama"].style and model.ends == {2, 3}
    assert set(model.source.decoder.kinds.values()) == {"f16"} and model.shape.pairs == "half"
    assert len(list(model.tokens([1, 2, 3], max_tokens=2))) <= 2
    with pytest.raises(OptionError, match="positions"):
        list(model.tokens([1] * 33))
    with pytest.raises(OptionError):
        LanguageModel(tmp_path, context=33)
    assert read_checkpoint(tmp_path, 8).shape.context == 8


REFUSED: dict[str, tuple[type[DovetailError], dict[str, Any], dict[str, Any]]] = {
    "another model": (UnsupportedError, {"model_type": "mamba"}, {}),
    "no model": (UnsupportedError, {"model_type": None}, {}),
    "no layers": (LoadError, {"num_hidden_layers": 0}, {}),
    "a size as text": (LoadError, {"hidden_size": "16"}, {}),
    "another activation": (UnsupportedError, {"hidden_act": "relu"}, {}),
    "heads that do not divide": (UnsupportedError, {"num_key_value_heads": 3}, {}),
    "an unknown scaling": (UnsupportedError, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, {}),
    "a factor that is not positive": (LoadError, {"rope_scaling": {"rope_type": "linear", "factor": -1.0}}, {}),
    "yarn to the base 1": (LoadError, {"rope_theta": 1.0, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, {}),
    "tokens that see those after them": (UnsupportedError, {"use_bidirectional_attention": True}, {}),
    "another kind of layer": (UnsupportedError, {"sliding_window": 8, "layer_types": ["chunked_attention"]}, {}),
    "kinds of more layers": (UnsupportedError, {"sliding_window": 8, "layer_types": ["full_attention"] * 2}, {}),
    "a tensor too few": (LoadError, {}, {"without": "model.layers.0.mlp.up_proj.weight"}),
    "a tensor too many": (UnsupportedError, {}, {"more": ("model.layers.0.extra.weight",)}),
    "a bias that nothing adds": (UnsupportedError, {}, {"more": ("model.layers.0.input_layernorm.bias",)}),
    "a bias of another shape": (LoadError, {}, {"more": ("model.layers.0.mlp.up_proj.bias",)}),
    "another shape": (LoadError, {"intermediate_size": 32}, {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_built_is_one_typed_error(case: str, tmp_path: Path) -> None:
    kind, config, how = REFUSED[case]
    with pytest.raises(kind) as caught:
        read_checkpoint(written(tmp_path, {**CONFIG, **config}, **how))
    assert type(caught.value) is kind and caught.value.hint and caught.value.where


WINDOWS: dict[str, tuple[str, dict[str, Any], tuple[bool, ...]]] = {
    "mistral": ("mistral", {}, (True, True, True)),
    "qwen2, not said": ("qwen2", {}, (False, False, False)),
    "qwen2, not used": ("qwen2", {"use_sliding_window": False}, (False, False, False)),
    "qwen2, from a layer on": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, (False, True, True)),
    "qwen3, beyond all layers": ("qwen3", {"use_sliding_window": True}, (False, False, False)),
    "layers by kind": (
        "qwen2",
        {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
        (True, False, False),
    ),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_are_those_of_transformers(case: str) -> None:
    kind, more, wanted = WINDOWS[case]
    config = {**CONFIG, "model_type": kind, "num_hidden_layers": 3, "sliding_window": 8, **more}
    shape = _Reader(config).shape(None)
    assert tuple(shape.has_window(layer) for layer in range(3)) == wanted


def test_scores_are_scaled_and_bent_as_configurations_say() -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 32, "vocab_size": 20}
    assert _Reader(gpt2).shape(None).scale == 0.0
    assert _Reader({**gpt2, "scale_attn_weights": False}).shape(None).scale == 1.0
    gemma = {**CONFIG, "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh", "attn_logit_softcapping": None}
    shape = _Reader(gemma).shape(None)
    assert (shape.softcap, shape.final_softcap) == (0.0, 30.0)
    with pytest.raises(UnsupportedError, match="scaled by the layer"):
        _Reader({**gpt2, "scale_attn_by_inverse_layer_idx": True}).shape(None)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError):
        read_checkpoint(tmp_path)
    (written(tmp_path, CONFIG) / "config.json").write_text("[", encoding="utf-8")
    with pytest.raises(LoadError):
        read_checkpoint(tmp_path)
    written(tmp_path, CONFIG)
    index = {"weight_map": {"a": "../outside.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(LoadError, match="outside"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "bitsandbytes"])
def test_weights_of_other_quantisers_are_refused_by_their_name(method: str, tmp_path: Path) -> None:
    folder = written(tmp_path, {**CONFIG, "quantization_config": {"quant_method": method, "bits": 4}})
    with pytest.raises(UnsupportedError, match=f"quantised by {method}") as raised:
        LanguageModel(folder, cache="off")
    assert "GGUF" in str(raised.value)


def test_adapters_of_peft_are_refused_with_what_reads_them(tmp_path: Path) -> None:
    folder = written(tmp_path, CONFIG)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    with pytest.raises(LoadError, match="a folder without an adapter"):
        LanguageModel(folder, cache="off", adapter=adapter)
    (adapter / "adapter_config.json").write_text("{}", encoding="utf-8")
    for given in (adapter, adapter / "adapter_model.safetensors"):
        with pytest.raises(UnsupportedError, match="an adapter in PEFT's format") as raised:
            LanguageModel(folder, cache="off", adapter=given)
        assert "convert_lora_to_gguf.py" in str(raised.value)


def test_options_of_language_models_are_all_named(tmp_path: Path) -> None:
    folder, model = written(tmp_path, CONFIG), cast(Any, LanguageModel)
    with pytest.raises(OptionError, match="no option 'n_ctx'") as raised:
        model(folder, n_ctx=64)
    assert all(name in str(raised.value) for name in ("kv_cache", "adapter", "context", "threads"))
    with pytest.raises(OptionError, match="did you mean context"):
        model(folder, contxt=64)


def test_language_models_where_graphs_are_read_are_told_as_such(tmp_path: Path) -> None:
    folder = written(tmp_path, CONFIG)
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    (tmp_path / "empty").mkdir()
    said = {
        folder: "folder of a checkpoint",
        tmp_path / "model.gguf": "is a GGUF file",
        tmp_path / "empty": "but a folder",
    }
    for path, message in said.items():
        readers: tuple[Callable[[Path], object], ...] = (load, compile, partial(Trainer, loss="cross_entropy"))
        for read in readers:
            with pytest.raises(LoadError, match=message) as raised:
                read(path)
            assert message == "but a folder" or "dovetail.language.LanguageModel reads it" in str(raised.value)
