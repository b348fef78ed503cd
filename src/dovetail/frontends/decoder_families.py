"""The families of decoders that files hold: what each one has, and what its parameters are called in files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, OptionError, UnsupportedError
from dovetail.frontends.shared.messages import printable
from dovetail.ir.literal import Array
from dovetail.library.block_formats import FORMATS
from dovetail.models.decoder_shape import BIASED, DecoderShape, DecoderStyle, parameter_shapes
from dovetail.sanitize import sanitize


@dataclass(frozen=True, slots=True)
class Family:
    """A family of decoders, and how its files differ from those of others."""

    style: DecoderStyle = field(default_factory=DecoderStyle)
    window_every: int = 0
    """Of this many layers the last one sees all positions, and the others a window; 0 where all have the window."""
    default_window: int = 0
    """The window where a file names none."""
    local_theta: float = 0.0
    """The base of rotations in layers with a window; 0 where it is the others' base."""
    scaled_by_hidden: int = 0
    """The number of layers of the one model whose scores are scaled by hidden / heads, not by the width of a head."""
    softcaps: tuple[float, float] = (0.0, 0.0)
    """The bounds of scores and of logits where a file says nothing of them."""
    window_is_chosen: bool = False
    """Whether configurations name a window that counts only where they say so."""
    interleaved: bool = False
    """Whether GGUF files order rows of queries and keys so that neighbours are rotated together."""
    checkpoint: Mapping[str, str] = field(default_factory=dict[str, str])
    """Names in checkpoints of transformers, where they differ from `CHECKPOINT`."""
    gain_less_one: bool = False
    """Whether checkpoints store the gains of norms less 1."""
    transposed: bool = False
    """Whether checkpoints store matrices [in, out]."""


GGUF: Mapping[str, str] = {
    "embedding": "token_embd",
    "position_table": "position_embd",
    "norm": "output_norm",
    "head": "output",
    "norm1": "attn_norm",
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "wqkv": "attn_qkv",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "wo": "attn_output",
    "norm1_after": "post_attention_norm",
    "norm2": "ffn_norm",
    "router": "ffn_gate_inp",
    "up": "ffn_up",
    "gate": "ffn_gate",
    "down": "ffn_down",
    "norm2_after": "post_ffw_norm",
}
"""Our names of parameters, and those in GGUF files."""

CHECKPOINT: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "layers": "model.layers",
    "norm1": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wqkv": "self_attn.qkv_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "wo": "self_attn.o_proj",
    "norm2": "post_attention_layernorm",
    "router": "mlp.gate",
    "up": "mlp.up_proj",
    "gate": "mlp.gate_proj",
    "down": "mlp.down_proj",
}
"""Our names of parameters, and those in checkpoints of transformers."""

_GEMMA_NAMES = {
    "norm1_after": "post_attention_layernorm",
    "norm2": "pre_feedforward_layernorm",
    "norm2_after": "post_feedforward_layernorm",
}
_GPT2_NAMES = {
    "embedding": "transformer.wte",
    "position_table": "transformer.wpe",
    "norm": "transformer.ln_f",
    "layers": "transformer.h",
    "norm1": "ln_1",
    "wqkv": "attn.c_attn",
    "wo": "attn.c_proj",
    "norm2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
_GEMMA = DecoderStyle(norms_after=True, act="gelu_tanh", scaled_embedding=True)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(interleaved=True),
    "qwen2": Family(DecoderStyle(biased=frozenset({"qkv"})), window_is_chosen=True),
    "qwen3": Family(DecoderStyle(normed_heads=True), window_is_chosen=True),
    "qwen3moe": Family(DecoderStyle(normed_heads=True, has_experts=True), window_is_chosen=True),
    "gemma2": Family(
        _GEMMA,
        window_every=2,
        default_window=4096,
        scaled_by_hidden=46,
        softcaps=(50.0, 30.0),
        checkpoint=_GEMMA_NAMES,
        gain_less_one=True,
    ),
    "gemma3": Family(
        DecoderStyle(norms_after=True, act="gelu_tanh", scaled_embedding=True, normed_heads=True),
        window_every=6,
        local_theta=10000.0,
        scaled_by_hidden=62,
        checkpoint=_GEMMA_NAMES,
        gain_less_one=True,
    ),
    "phi3": Family(DecoderStyle(joined_qkv=True, joined_up=True), checkpoint={"up": "mlp.gate_up_proj"}),
    "gpt2": Family(
        DecoderStyle(
            norm="layer",
            act="gelu_tanh",
            is_gated=False,
            joined_qkv=True,
            biased=frozenset(BIASED),
            learned_positions=True,
        ),
        checkpoint=_GPT2_NAMES,
        transposed=True,
    ),
}
"""Families by their name in GGUF files. Mistral and SmolLM2 are called llama there."""

MODEL_TYPES: Mapping[str, str] = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "gpt2": "gpt2",
}
"""Families by the `model_type` of a `config.json`."""


@dataclass(frozen=True, slots=True)
class DecoderFile:
    """A decoder in a file: its shape, how each parameter is stored, and the arrays."""

    shape: DecoderShape
    kinds: Mapping[str, str]
    params: Mapping[str, Array]
    ranks: Mapping[str, int] = field(default_factory=dict[str, int])
    """The matrices that an adapter updates, and the rank of each update."""


def names_in_gguf(of: DecoderShape) -> dict[str, str]:
    """What each parameter is called in GGUF files."""
    found: dict[str, str] = {}
    for ours in parameter_shapes(of):
        index, part, last = _parts(ours)
        stem = GGUF[part] + ("_exps" if of.style.has_experts and part in ("up", "gate", "down") else "")
        found[ours] = f"{stem}.{last}" if index is None else f"blk.{index}.{stem}.{last}"
    return found


def names_in_checkpoint(family: Family, of: DecoderShape) -> dict[str, str]:
    """What each parameter is called in checkpoints; experts have a place for their number."""
    names, found = {**CHECKPOINT, **family.checkpoint}, dict[str, str]()
    for ours in parameter_shapes(of):
        index, part, last = _parts(ours)
        stem = names[part]
        if of.style.has_experts and part in ("up", "gate", "down"):
            stem = stem.replace("mlp.", "mlp.experts.{}.")
        found[ours] = f"{stem}.{last}" if index is None else f"{names['layers']}.{index}.{stem}.{last}"
    return found


def with_biases(
    of: DecoderShape, names: Callable[[DecoderShape], Mapping[str, str]], present: Collection[str]
) -> DecoderShape:
    """The shape with the biases that a file has: some files have them where others of the family have none.

    `names` are those of a shape's parameters in such files.
    """
    for part in BIASED:
        more = replace(of, style=replace(of.style, biased=of.style.biased | {part}))
        if any(name in present for name in set(names(more).values()) - set(names(of).values())):
            of = more
    return of


def _parts(ours: str) -> tuple[str | None, str, str]:
    """The layer, the part and the kind of one of our names."""
    index, rest = ours.split(".", 2)[1:] if ours.startswith("layers.") else (None, ours)
    part, _, last = rest.partition(".")
    return index, part, "bias" if last == "bias" else "weight"


def used_context(asked: int | None, original: int | None, trained: int) -> int:
    """Positions that a model is used for; `original` are those before rates change to those for long contexts."""
    if asked is None:
        return trained if original is None else min(original, trained)
    if not _is_count(asked) or not 1 <= asked <= trained:
        raise OptionError(f"a context of {asked!r:.40}", hint=f"the model has {trained:,} positions")
    return asked


def _is_count(said: object) -> bool:
    return isinstance(said, int) and not isinstance(said, bool)


def check_tensors(
    of: DecoderShape, names: Mapping[str, str], tensors: Mapping[str, tuple[str, tuple[int, ...]]]
) -> None:
    """Raise unless a file has every parameter in its shape; `tensors` are kinds and shapes."""
    wanted = {names[ours]: sizes for ours, sizes in parameter_shapes(of).items()}
    missing = sorted(wanted.keys() - tensors.keys())
    if missing:
        raise LoadError(f"{len(missing)} tensors are missing, such as {missing[0]}", hint="fetch the file again")
    for name, sizes in wanted.items():
        kind, shape = tensors[name]
        if shape != sizes or (len(sizes) == 1 and kind in FORMATS):
            raise LoadError(f"{name} is {kind}{list(shape)}", hint=f"{list(sizes)} is expected")


def refuse_more(more: set[str]) -> None:
    """Raise if a file has tensors that would be left out."""
    if more:
        raise UnsupportedError(
            f"{len(more)} tensors that this architecture does not have, such as {sanitize(printable(min(more)))}",
            hint="the model has a part that is not built; its results would be wrong without it",
        )


__all__ = [
    "FAMILIES",
    "MODEL_TYPES",
    "DecoderFile",
    "Family",
    "check_tensors",
    "names_in_checkpoint",
    "names_in_gguf",
    "refuse_more",
    "used_context",
    "with_biases",
]
