"""A folder with safetensors files and a `config.json` as a decoder, by the families that GGUF files have too."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from dovetail.errors import LoadError, OptionError, UnsupportedError
from dovetail.frontends import rotations
from dovetail.frontends.decoder_families import (
    FAMILIES,
    MODEL_TYPES,
    DecoderFile,
    Family,
    check_tensors,
    names_in_checkpoint,
    refuse_more,
    used_context,
    with_biases,
)
from dovetail.frontends.safetensors import map_safetensors
from dovetail.frontends.shared.messages import printable
from dovetail.ir.dtype import bf16, f16, f32
from dovetail.ir.literal import Array
from dovetail.models.decoder_shape import DecoderShape, Rope
from dovetail.sanitize import sanitize

MOST_LAYERS, LARGEST_SIZE = 1024, 1 << 24
LONGEST_JSON = 1 << 24
MOST_FILES = 1024
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
_LAYER_TYPES = ("full_attention", "sliding_attention")
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Ends of names of arrays that checkpoints hold and that are no parameters."""


def read_checkpoint(folder: Path, context: int | None = None) -> DecoderFile:
    """The decoder that a folder holds, for a number of positions."""
    try:
        reader = _Reader(read_json(folder / CONFIG))
        shape = reader.shape(context)
        arrays = _arrays(folder)
        if not shape.is_tied and "lm_head.weight" not in arrays:
            shape = replace(shape, is_tied=True)
        shape = with_biases(shape, partial(names_in_checkpoint, reader.family), arrays.keys())
        return _loaded(reader.family, shape, arrays)
    except (LoadError, UnsupportedError, OptionError) as error:
        error.where = error.where or sanitize(printable(str(folder)))
        raise


def read_json(path: Path) -> dict[str, Any]:
    """A map from a JSON file."""
    try:
        if path.stat().st_size > LONGEST_JSON:
            raise LoadError(f"{path.name} is longer than {LONGEST_JSON:,} bytes", hint="check what the file is")
        found: object = json.loads(path.read_bytes())
    except LoadError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(
            f"{path.name} cannot be read: {printable(str(error))}", hint="fetch the folder again"
        ) from error
    if not isinstance(found, dict):
        raise LoadError(f"{path.name} is not a map", hint="fetch the folder again")
    return cast(dict[str, Any], found)


def _arrays(folder: Path) -> dict[str, Array]:
    """All arrays of a folder, as views of its files."""
    if not (folder / INDEX).is_file():
        return map_safetensors(folder / WEIGHTS)
    named = read_json(folder / INDEX).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(v, str) for v in cast(dict[str, object], named).values()):
        raise LoadError(f"{INDEX} without a weight_map", hint="fetch the folder again")
    files = sorted(set(cast(dict[str, str], named).values()))
    if len(files) > MOST_FILES or any(Path(file).name != file for file in files):
        raise LoadError(f"{INDEX} names files outside of the folder", hint="fetch the folder again")
    found: dict[str, Array] = {}
    for file in files:
        found |= map_safetensors(folder / file)
    return found


def _loaded(family: Family, of: DecoderShape, arrays: Mapping[str, Array]) -> DecoderFile:
    """The parameters under our names, as our decoders want them."""
    names = names_in_checkpoint(family, of)
    left = {name for name in arrays if not name.endswith(_BUFFERS)}
    if of.is_tied:
        left.discard("lm_head.weight")
    found: dict[str, Array] = {}
    for ours, theirs in names.items():
        each = [theirs.format(index) for index in range(of.experts)] if "{}" in theirs else [theirs]
        left -= set(each)
        if all(name in arrays for name in each):
            array = np.stack([arrays[name] for name in each]) if "{}" in theirs else arrays[theirs]
            found[ours] = _ours(family, ours, array)
    by_name = {ours: (_kind(array, names[ours]), array.shape) for ours, array in found.items()}
    check_tensors(of, names, {names[ours]: said for ours, said in by_name.items()})
    refuse_more(left)
    return DecoderFile(of, {ours: kind for ours, (kind, _) in by_name.items()}, found)


def _ours(family: Family, name: str, array: Array) -> Array:
    """An array as a parameter of ours: matrices [out, in], gains as they multiply."""
    if family.transposed and array.ndim == 2 and name not in ("embedding", "position_table", "head"):
        return array.T
    if family.gain_less_one and name.endswith(".gain"):
        return array.astype(np.float32) + np.float32(1)
    return array


def _kind(array: Array, name: str) -> str:
    for dtype in (f32, f16, bf16):
        if array.dtype == dtype.numpy:
            return dtype.name
    raise UnsupportedError(f"{name} holds {array.dtype}", hint="convert the weights to f32, f16 or bf16")


class _Reader:
    """A `config.json`, each entry checked for its kind."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        kind = config.get("model_type")
        if not isinstance(kind, str) or kind not in MODEL_TYPES:
            raise UnsupportedError(
                f"the model type {printable(repr(kind))}",
                hint=f"{', '.join(MODEL_TYPES)} are built; others are not yet",
            )
        self._refuse_quantised()
        self.family = FAMILIES[MODEL_TYPES[kind]]
        self.is_gpt2 = kind == "gpt2"

    def _refuse_quantised(self) -> None:
        """Refuse weights that are stored, or are to be rounded, in a way that only other programs know."""
        said = self.config.get("quantization_config")
        if said is None:
            return
        how = cast(dict[str, object], said).get("quant_method") if isinstance(said, dict) else said
        raise UnsupportedError(
            f"weights that are quantised by {printable(str(how or 'quantization_config'))}",
            hint="take the checkpoint in f32, f16 or bf16, or a GGUF file of the model",
        )

    def shape(self, context: int | None) -> DecoderShape:
        """All sizes; `context` are the positions that are asked for."""
        style = self.family.style
        old = self.is_gpt2
        hidden = self.size("n_embd" if old else "hidden_size")
        heads = self.size("n_head" if old else "num_attention_heads")
        layers = self.size("n_layer" if old else "num_hidden_layers", most=MOST_LAYERS)
        trained = self.size("n_positions" if old else "max_position_embeddings")
        width = self.size("head_dim", max(1, hidden // heads))
        act = self.config.get("activation_function" if old else "hidden_activation", self.config.get("hidden_act"))
        if _ACTIVATIONS.get(str(act or "silu")) != style.act and act is not None:
            raise UnsupportedError(f"the activation {printable(str(act))}", hint=f"{style.act} is built")
        inner = "moe_intermediate_size" if style.has_experts else "n_inner" if old else "intermediate_size"
        original = self.long_original(trained)
        part = self.number("partial_rotary_factor", 0.0) or float(self.scaling().get("partial_rotary_factor", 1.0))
        rotated = int(width * part)
        window, windowed = self.windows(layers)
        shape = DecoderShape(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=self.size("num_key_value_heads", heads),
            width=width,
            inner=self.size(inner, 4 * hidden if old else None),
            vocabulary=self.size("vocab_size"),
            context=used_context(context, original, trained),
            table=trained,
            eps=self.number("layer_norm_epsilon" if old else "rms_norm_eps", 1e-6),
            rotated=rotated if rotated != width else 0,
            window=window,
            windowed=windowed,
            scale=self.scale(),
            softcap=self.softcap("attn_logit_softcapping", 0),
            final_softcap=self.softcap("final_logit_softcapping", 1),
            normed_choice=self.config.get("norm_topk_prob") is not False,
            is_tied=self.config.get("tie_word_embeddings", old or style.scaled_embedding) is True,
            style=style,
        )
        if heads % shape.kv_heads or rotated % 2 or not 0 < rotated <= width:
            raise UnsupportedError(
                f"{heads} heads of {width} for {shape.kv_heads}, of which {rotated} are rotated",
                hint="heads share keys evenly, and rotate an even number of features",
            )
        return self.with_rope(self.with_experts(shape), trained)

    def scale(self) -> float:
        """What scores are multiplied by; 0 for one over the root of a head's width."""
        if self.config.get("scale_attn_by_inverse_layer_idx") is True:
            raise UnsupportedError("scores scaled by the layer", hint="scale_attn_by_inverse_layer_idx is not built")
        if self.config.get("use_bidirectional_attention"):
            raise UnsupportedError("tokens that see those after them", hint="decoders see what came before")
        if self.is_gpt2 and self.config.get("scale_attn_weights") is False:
            return 1.0
        scalar = self.number("query_pre_attn_scalar", 0.0)
        return 1.0 / math.sqrt(scalar) if scalar else 0.0

    def softcap(self, name: str, which: int) -> float:
        """A bound of scores or logits: the family's where the configuration does not name it, none where it is null."""
        return self.number(name, 0.0) if name in self.config else self.family.softcaps[which]

    def windows(self, layers: int) -> tuple[int, tuple[bool, ...]]:
        """The window, and which layers have it."""
        window = self.size("sliding_window", self.family.default_window or None, absent=0)
        is_used = self.config.get("use_sliding_window", not self.family.window_is_chosen)
        if not window or is_used is False:
            return 0, ()
        kinds = self.config.get("layer_types")
        if isinstance(kinds, list):
            listed = cast(list[object], kinds)
            if len(listed) != layers or any(kind not in _LAYER_TYPES for kind in listed):
                raise UnsupportedError(
                    f"layer_types are {printable(str(listed)[:60])}", hint=f"{layers} of {' and '.join(_LAYER_TYPES)}"
                )
            return window, tuple(kind == _LAYER_TYPES[1] for kind in listed)
        if self.family.window_is_chosen and not self.family.style.has_experts:
            first = self.size("max_window_layers", 28, most=MOST_LAYERS)
            return window, tuple(index >= first for index in range(layers))
        every = self.size("sliding_window_pattern", self.family.window_every or None, absent=0)
        return window, tuple((index + 1) % every != 0 for index in range(layers)) if every else ()

    def with_experts(self, shape: DecoderShape) -> DecoderShape:
        if not shape.style.has_experts:
            return shape
        if self.config.get("mlp_only_layers") or self.size("decoder_sparse_step", 1) != 1:
            raise UnsupportedError("layers with and without experts", hint="every layer has experts in what is built")
        count = self.size("num_local_experts" if "num_local_experts" in self.config else "num_experts")
        chosen = self.size("num_experts_per_tok")
        if chosen > count:
            raise LoadError(f"{chosen} of {count} experts", hint="fetch the folder again")
        return replace(shape, experts=count, chosen=chosen)

    def scaling(self, kind: str = "full_attention") -> dict[str, Any]:
        """What the configuration says of rotations, in the names of either version of transformers."""
        said: object = self.config.get("rope_parameters") or self.config.get("rope_scaling")
        found = cast(dict[str, Any], said) if isinstance(said, dict) else {}
        inner = found.get(kind, found)
        return cast(dict[str, Any], inner) if isinstance(inner, dict) else {}

    def long_original(self, trained: int) -> int | None:
        """Positions before rates change to those for long contexts, where there are both."""
        said = self.scaling()
        if not ("long_factor" in said or "short_factor" in said):
            return None
        return self.size("original_max_position_embeddings", said.get("original_max_position_embeddings", trained))

    def with_rope(self, shape: DecoderShape, trained: int) -> DecoderShape:
        """The shape with its rotations."""
        if shape.style.learned_positions:
            return shape
        said, local = self.scaling(), self.scaling("sliding_attention")
        base = Rope(_positive(said, "rope_theta", self.number("rope_theta", 10000.0)))
        pairs = (shape.rotated or shape.width) // 2
        nearby = _positive(local, "rope_theta", self.number("rope_local_base_freq", self.family.local_theta))
        has_local = self.family.local_theta > 0
        return replace(
            shape,
            rope=_scaled(base, pairs, said, shape.context, trained, self.long_original(trained)),
            local_rope=Rope(nearby) if has_local else None,
        )

    def size(
        self, name: str, default: int | None = None, *, most: int = LARGEST_SIZE, absent: int | None = None
    ) -> int:
        found = self.config.get(name)
        found = default if found is None else found
        if found is None and absent is not None:
            return absent
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= most:
            raise LoadError(f"{name} is {printable(str(found)[:40])}", hint=f"a number from 1 to {most:,} is expected")
        return found

    def number(self, name: str, default: float) -> float:
        return _positive(self.config, name, default)


def _positive(said: Mapping[str, Any], name: str, default: float) -> float:
    found = said.get(name)
    if found is None:
        return default
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found) or found <= 0:
        raise LoadError(f"{name} is {printable(str(found)[:40])}", hint="a positive number is expected")
    return float(found)


def _scaled(base: Rope, pairs: int, said: Mapping[str, Any], context: int, trained: int, original: int | None) -> Rope:
    """The rotation that a scaling makes of another."""
    kind = said.get("rope_type", said.get("type", "default"))
    factor = _positive(said, "factor", 1.0)
    if original is not None:
        factors = said.get("long_factor" if context > original else "short_factor")
        if kind not in ("longrope", "su", "yarn") or not isinstance(factors, list):
            raise UnsupportedError(f"factors of {printable(str(kind))}", hint="longrope has them")
        listed = [_positive({"factor": each}, "factor", 0.0) for each in cast(list[Any], factors)]
        if len(listed) != pairs:
            raise LoadError(f"{len(listed)} factors of {pairs} pairs", hint="fetch the folder again")
        scale = _positive(said, "attention_factor", rotations.long_scale(trained, original))
        return rotations.divided(base, listed, scale)
    before = int(_positive(said, "original_max_position_embeddings", trained))
    match kind:
        case "default":
            return base
        case "linear":
            return rotations.linear(base, pairs, factor)
        case "llama3":
            low, high = _positive(said, "low_freq_factor", 1.0), _positive(said, "high_freq_factor", 4.0)
            return rotations.llama3(base, pairs, factor, low, high, before)
        case "yarn":
            if said.get("mscale") or said.get("mscale_all_dim"):
                raise UnsupportedError("yarn with mscale", hint="yarn with one scale for all is built")
            return rotations.yarn(
                base,
                pairs,
                factor,
                before,
                fast=_positive(said, "beta_fast", 32.0),
                slow=_positive(said, "beta_slow", 1.0),
                scale=_positive(said, "attention_factor", 0.0) or None,
                truncate=said.get("truncate") is not False,
            )
        case _:
            raise UnsupportedError(
                f"rope scaling of the kind {printable(str(kind))!r}",
                hint="default, linear, llama3, longrope and yarn are built",
            )


__all__ = ["read_checkpoint", "read_json"]
