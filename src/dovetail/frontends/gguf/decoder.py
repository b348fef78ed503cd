"""A GGUF file as a decoder: its sizes from the fields, its parameters by the names of its architecture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.gguf.file import Field, GgufFile, shown
from dovetail.ir.literal import Array
from dovetail.library.block_formats import FORMATS
from dovetail.library.rope import Form
from dovetail.models.decoder import DecoderShape, parameter_shapes

MOST_LAYERS, LARGEST_SIZE = 1024, 1 << 24


@dataclass(frozen=True, slots=True)
class Architecture:
    """What an architecture has that others of its family have not."""

    pairs: Form
    """Which features are rotated together, by how the file orders the rows of queries and keys."""
    has_biases: bool = False
    normed_heads: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("interleaved"),
    "qwen2": Architecture("half", has_biases=True),
    "qwen3": Architecture("half", normed_heads=True),
}
"""Architectures that are read, by their name in files. Mistral and SmolLM2 are called llama there."""

_NAMES = {
    "norm1.gain": "attn_norm.weight",
    "wq": "attn_q.weight",
    "wk": "attn_k.weight",
    "wv": "attn_v.weight",
    "wq.bias": "attn_q.bias",
    "wk.bias": "attn_k.bias",
    "wv.bias": "attn_v.bias",
    "q_norm.gain": "attn_q_norm.weight",
    "k_norm.gain": "attn_k_norm.weight",
    "wo": "attn_output.weight",
    "norm2.gain": "ffn_norm.weight",
    "up": "ffn_up.weight",
    "gate": "ffn_gate.weight",
    "down": "ffn_down.weight",
}
_OUTSIDE = {"embedding": "token_embd.weight", "norm.gain": "output_norm.weight", "head": "output.weight"}
_SLOWED = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class DecoderFile:
    """A decoder in a file: its shape, how each parameter is stored, and the arrays."""

    shape: DecoderShape
    kinds: Mapping[str, str]
    params: Mapping[str, Array]


def read_decoder(file: GgufFile) -> DecoderFile:
    """The decoder that a file holds; what is missing or odd is one typed error."""
    try:
        shape = _shape(file)
        names = {ours: _name(ours) for ours in parameter_shapes(shape)}
        _check(file, shape, names)
    except (LoadError, UnsupportedError) as error:
        error.where = error.where or shown(str(file.path))
        raise
    kinds = {ours: file.tensors[theirs].kind for ours, theirs in names.items()}
    return DecoderFile(shape, kinds, {ours: file.array(theirs) for ours, theirs in names.items()})


def _name(ours: str) -> str:
    if ours in _OUTSIDE:
        return _OUTSIDE[ours]
    _, index, part = ours.split(".", 2)
    return f"blk.{index}.{_NAMES[part]}"


def _check(file: GgufFile, shape: DecoderShape, names: Mapping[str, str]) -> None:
    """Every parameter is there, in its shape, and nothing else is that we would leave out."""
    wanted = {names[ours]: sizes for ours, sizes in parameter_shapes(shape).items()}
    missing = sorted(wanted.keys() - file.tensors.keys())
    if missing:
        raise LoadError(f"{len(missing)} tensors are missing, such as {missing[0]}", hint="fetch the file again")
    for name, sizes in wanted.items():
        found = file.tensors[name]
        if found.shape != sizes or (len(sizes) == 1 and found.kind in FORMATS):
            raise LoadError(f"{name} is {found.kind}{list(found.shape)}", hint=f"{list(sizes)} is expected")
    more = sorted(file.tensors.keys() - wanted.keys() - {_SLOWED})
    if more:
        raise UnsupportedError(
            f"{len(more)} tensors that this architecture does not have, such as {shown(more[0])}",
            hint="the model has a part that is not built; its results would be wrong without it",
        )


def _shape(file: GgufFile) -> DecoderShape:
    fields = _Fields(file.fields)
    name = fields.text("general.architecture")
    of = ARCHITECTURES.get(name)
    if of is None:
        raise UnsupportedError(
            f"the architecture {shown(name)!r}", hint=f"{', '.join(ARCHITECTURES)} are built; others are not yet"
        )
    experts = fields.optional(f"{name}.expert_count", 0)
    window = fields.optional(f"{name}.attention.sliding_window", 0)
    context = fields.size(f"{name}.context_length")
    if experts or (window and window < context):
        what = "experts" if experts else f"a window of {window} positions"
        raise UnsupportedError(f"{name} with {what}", hint="use a dense model that attends to all positions")
    heads, hidden = fields.size(f"{name}.attention.head_count"), fields.size(f"{name}.embedding_length")
    kv_heads = fields.size(f"{name}.attention.head_count_kv", heads)
    width = fields.size(f"{name}.attention.key_length", max(1, hidden // heads))
    embedding = file.tensors.get("token_embd.weight")
    shape = DecoderShape(
        layers=fields.size(f"{name}.block_count", most=MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        inner=fields.size(f"{name}.feed_forward_length"),
        vocabulary=embedding.shape[0] if embedding is not None and len(embedding.shape) == 2 else 1,
        context=context,
        eps=fields.number(f"{name}.attention.layer_norm_rms_epsilon", 1e-5),
        theta=fields.number(f"{name}.rope.freq_base", 10000.0),
        pairs=of.pairs,
        has_biases=of.has_biases or f"blk.0.{_NAMES['wq.bias']}" in file.tensors,
        normed_heads=of.normed_heads,
        is_tied=_OUTSIDE["head"] not in file.tensors,
    )
    _check_heads(fields, name, shape)
    return replace(shape, slowed=_slowed(file, fields, name, shape))


def _check_heads(fields: _Fields, name: str, shape: DecoderShape) -> None:
    values = fields.size(f"{name}.attention.value_length", shape.width)
    rotated = fields.size(f"{name}.rope.dimension_count", shape.width)
    if shape.heads % shape.kv_heads or shape.width % 2 or values != shape.width or rotated != shape.width:
        raise UnsupportedError(
            f"{shape.heads} heads of {shape.width} for {shape.kv_heads} of {values}, of which {rotated} are rotated",
            hint="heads share keys evenly, and all their features are rotated",
        )


def _slowed(file: GgufFile, fields: _Fields, name: str, shape: DecoderShape) -> tuple[float, ...]:
    """What rates of rotation are divided by: a tensor of the file, or one factor for all."""
    kind = fields.fields.get(f"{name}.rope.scaling.type", "none")
    factor = fields.number(f"{name}.rope.scaling.factor", 1.0)
    pairs = shape.width // 2
    if kind not in ("none", "linear"):
        raise UnsupportedError(f"rope scaling of the kind {shown(str(kind))!r}", hint="none and linear are built")
    factors = np.full(pairs, factor if kind == "linear" else 1.0)
    if _SLOWED in file.tensors:
        tensor = file.tensors[_SLOWED]
        if tensor.shape != (pairs,) or tensor.kind != "f32":
            raise LoadError(f"{_SLOWED} is {tensor.kind}{list(tensor.shape)}", hint=f"f32[{pairs}] is expected")
        factors = factors * file.array(_SLOWED)
    if not np.isfinite(factors).all() or (factors <= 0).any():
        raise LoadError("rates of rotation that are divided by 0, or by what is not finite", hint="fetch it again")
    return () if (factors == 1.0).all() else tuple(factors.tolist())


class _Fields:
    """Fields by name, each checked for its kind."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = fields

    def text(self, name: str) -> str:
        found = self.fields.get(name)
        if not isinstance(found, str):
            raise LoadError(f"no text {name}", hint="the file says nothing of its model")
        return found

    def optional(self, name: str, default: int) -> int:
        found = self.fields.get(name, default)
        return found if isinstance(found, int) else default

    def size(self, name: str, default: int | None = None, *, most: int = LARGEST_SIZE) -> int:
        found = self.fields.get(name, default)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= most:
            raise LoadError(f"{name} is {shown(str(found)[:40])}", hint=f"a number from 1 to {most:,} is expected")
        return found

    def number(self, name: str, default: float) -> float:
        found = self.fields.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found) or found <= 0:
            raise LoadError(f"{name} is {shown(str(found)[:40])}", hint="a positive number is expected")
        return float(found)


__all__ = ["ARCHITECTURES", "Architecture", "DecoderFile", "read_decoder"]
