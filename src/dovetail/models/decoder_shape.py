"""What a decoder is: its sizes, the variations of its family, and the shapes of its parameters."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, get_args

from dovetail.dataclass import dataclass
from dovetail.library.activation import Gate
from dovetail.library.rope import Form

Norm = Literal["rms", "layer"]
Biased = Literal["qkv", "wo", "feed_forward"]
"""Matrices that may have biases: those of queries, keys and values, that of attention's result, those of the
feed-forward part."""
BIASED: tuple[Biased, ...] = get_args(Biased)


@dataclass(frozen=True, slots=True)
class DecoderStyle:
    """What one family of decoders has and others have not."""

    norm: Norm = "rms"
    norms_after: bool = False
    """Whether results of attention and of the feed-forward part are normalised before they are added."""
    normed_heads: bool = False
    """Whether queries and keys are normalised head by head."""
    act: Gate = "silu"
    is_gated: bool = True
    """Whether the feed-forward part multiplies by a gate."""
    joined_qkv: bool = False
    """Whether one matrix makes queries, keys and values."""
    joined_up: bool = False
    """Whether one matrix makes the gate and what it multiplies, the gate first."""
    biased: frozenset[Biased] = frozenset()
    """Matrices with biases."""
    learned_positions: bool = False
    """Whether positions are rows of a table that is added to the embedding; nothing is rotated then."""
    scaled_embedding: bool = False
    """Whether embeddings are multiplied by the root of their width."""
    has_experts: bool = False


@dataclass(frozen=True, slots=True)
class Rope:
    """How pairs of features are rotated."""

    theta: float = 10000.0
    slowed: tuple[float, ...] = ()
    """What the rate of each pair is divided by; empty where rates are as they come."""
    scale: float = 1.0
    """What cosine and sine are multiplied by."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes of a decoder, and its style."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    width: int
    """Of one head."""
    inner: int
    """Of the feed-forward part, or of one expert."""
    vocabulary: int
    context: int
    """Positions that the model is used for."""
    table: int = 0
    """Rows of the table of learned positions."""
    eps: float = 1e-5
    rope: Rope = field(default_factory=Rope)
    local_rope: Rope | None = None
    """Of layers with a window, where it differs; it stays theirs where the context is within the window."""
    rotated: int = 0
    """Features of a head that are rotated; 0 for all."""
    pairs: Form = "half"
    """Which features are rotated together."""
    window: int = 0
    """Positions that a layer with a window sees; 0 where no layer has one."""
    windowed: tuple[bool, ...] = ()
    """Whether each layer has the window; empty for all of them."""
    scale: float = 0.0
    """What scores are multiplied by; 0 for one over the root of a head's width."""
    softcap: float = 0.0
    """What scores are bent to stay below; 0 for no bound."""
    final_softcap: float = 0.0
    """The same for logits."""
    experts: int = 0
    chosen: int = 0
    """Experts that a token goes through."""
    normed_choice: bool = True
    """Whether the weights of the chosen experts sum to 1."""
    is_tied: bool = False
    """Whether the head is the embedding."""
    style: DecoderStyle = field(default_factory=DecoderStyle)

    def is_local(self, layer: int) -> bool:
        """Return whether a layer is one of those with the window, however short the context is."""
        return self.window > 0 and (not self.windowed or self.windowed[layer])

    def has_window(self, layer: int) -> bool:
        """Return whether a layer sees the last positions only."""
        return self.window < self.context and self.is_local(layer)


def parameter_shapes(of: DecoderShape) -> dict[str, tuple[int, ...]]:
    """Return the parameters of a decoder by name; matrices are [out, in], those of experts [experts, out, in]."""
    shapes: dict[str, tuple[int, ...]] = {"embedding": (of.vocabulary, of.hidden)}
    shapes |= _norm(of, "norm", of.hidden)
    if of.style.learned_positions:
        shapes["position_table"] = (of.table, of.hidden)
    if not of.is_tied:
        shapes["head"] = (of.vocabulary, of.hidden)
    layer = _attention(of) | _feed_forward(of)
    for index in range(of.layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _norm(of: DecoderShape, name: str, size: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}.gain": (size,)}
    return shapes | {f"{name}.bias": (size,)} if of.style.norm == "layer" else shapes


def _attention(of: DecoderShape) -> dict[str, tuple[int, ...]]:
    style, wide, narrow = of.style, of.heads * of.width, of.kv_heads * of.width
    rows = {"wqkv": wide + 2 * narrow} if style.joined_qkv else {"wq": wide, "wk": narrow, "wv": narrow}
    shapes = _norm(of, "norm1", of.hidden)
    shapes |= {name: (count, of.hidden) for name, count in rows.items()}
    if "qkv" in style.biased:
        shapes |= {f"{name}.bias": (count,) for name, count in rows.items()}
    if style.normed_heads:
        shapes |= {"q_norm.gain": (of.width,), "k_norm.gain": (of.width,)}
    shapes["wo"] = (of.hidden, wide)
    if "wo" in style.biased:
        shapes["wo.bias"] = (of.hidden,)
    return shapes | (_norm(of, "norm1_after", of.hidden) if style.norms_after else {})


def _feed_forward(of: DecoderShape) -> dict[str, tuple[int, ...]]:
    style, shapes = of.style, _norm(of, "norm2", of.hidden)
    lead = (of.experts,) if style.has_experts else ()
    if style.has_experts:
        shapes["router"] = (of.experts, of.hidden)
    shapes["up"] = (*lead, of.inner * (2 if style.joined_up else 1), of.hidden)
    if style.is_gated and not style.joined_up:
        shapes["gate"] = (*lead, of.inner, of.hidden)
    shapes["down"] = (*lead, of.hidden, of.inner)
    if "feed_forward" in style.biased and not style.has_experts:
        shapes |= {f"{name}.bias": shapes[name][:-1] for name in ("up", "gate", "down") if name in shapes}
    return shapes | (_norm(of, "norm2_after", of.hidden) if style.norms_after else {})


__all__ = ["BIASED", "Biased", "DecoderShape", "DecoderStyle", "Norm", "Rope", "parameter_shapes"]
