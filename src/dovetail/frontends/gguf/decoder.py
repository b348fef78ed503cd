"""A GGUF file as a decoder: its sizes from the fields, its parameters by the names of its architecture."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dovetail.errors import LoadError, OptionError, UnsupportedError
from dovetail.frontends import rotations
from dovetail.frontends.decoder_families import (
    FAMILIES,
    DecoderFile,
    check_tensors,
    names_in_gguf,
    refuse_more,
    used_context,
    with_biases,
)
from dovetail.frontends.gguf.file import GgufFile, shown
from dovetail.ir.literal import Array
from dovetail.models.decoder_shape import DecoderShape, Rope

MOST_LAYERS, LARGEST_SIZE = 1024, 1 << 24
_SLOWED, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"


def read_decoder(file: GgufFile, context: int | None = None) -> DecoderFile:
    """The decoder that a file holds, for a number of positions; what is missing or odd is one typed error."""
    try:
        shape = with_biases(_Reader(file).shape(context), names_in_gguf, file.tensors.keys())
        names = names_in_gguf(shape)
        check_tensors(shape, names, {name: (t.kind, t.shape) for name, t in file.tensors.items()})
        refuse_more(set(file.tensors.keys() - names.values() - {_SLOWED, _LONG, _SHORT}))
    except (LoadError, UnsupportedError, OptionError) as error:
        error.where = error.where or shown(str(file.path))
        raise
    kinds = {ours: file.tensors[theirs].kind for ours, theirs in names.items()}
    return DecoderFile(shape, kinds, {ours: file.array(theirs) for ours, theirs in names.items()})


class _Reader:
    """The fields of one architecture, each checked for its kind."""

    def __init__(self, file: GgufFile) -> None:
        self.file, self.fields = file, file.fields
        found = self.fields.get("general.architecture")
        if not isinstance(found, str):
            raise LoadError("no text general.architecture", hint="the file says nothing of its model")
        if found not in FAMILIES:
            raise UnsupportedError(
                f"the architecture {shown(found)!r}", hint=f"{', '.join(FAMILIES)} are built; others are not yet"
            )
        self.name, self.family = found, FAMILIES[found]

    def shape(self, context: int | None) -> DecoderShape:
        """All sizes; `context` are the positions that are asked for."""
        family = self.family
        heads, hidden = self.size("attention.head_count"), self.size("embedding_length")
        width = self.size("attention.key_length", max(1, hidden // heads))
        layers, trained = self.size("block_count", most=MOST_LAYERS), self.size("context_length")
        embedding = self.file.tensors.get("token_embd.weight")
        rotated = self.size("rope.dimension_count", width)
        window = self.optional("attention.sliding_window", family.default_window)
        if family.local_theta and window < 1:
            raise LoadError(f"no {self.name}.attention.sliding_window", hint="the file does not say what layers see")
        scaled = layers == family.scaled_by_hidden
        shape = DecoderShape(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=self.size("attention.head_count_kv", heads),
            width=width,
            inner=self.size("expert_feed_forward_length" if family.style.has_experts else "feed_forward_length"),
            vocabulary=embedding.shape[0] if embedding is not None and len(embedding.shape) == 2 else 1,
            context=used_context(context, self.original(trained), trained),
            table=trained,
            eps=self.number(f"attention.layer_norm_{'rms_' if family.style.norm == 'rms' else ''}epsilon", 1e-5),
            rotated=rotated if rotated != width else 0,
            pairs="interleaved" if family.interleaved else "half",
            window=window,
            windowed=self.windowed(layers) if window else (),
            scale=1.0 / math.sqrt(hidden / heads) if scaled else 0.0,
            softcap=self.number("attn_logit_softcapping", family.softcaps[0], may_be_0=True),
            final_softcap=self.number("final_logit_softcapping", family.softcaps[1], may_be_0=True),
            is_tied="output.weight" not in self.file.tensors,
            style=family.style,
        )
        shape = self.with_experts(shape)
        self.check_heads(shape)
        if family.style.learned_positions:
            return shape
        base = Rope(self.number("rope.freq_base", 10000.0))
        local = self.number("rope.freq_base_swa", family.local_theta)
        return replace(
            shape,
            rope=self.rope(base, (shape.rotated or width) // 2, shape.context),
            local_rope=Rope(local) if local else None,
        )

    def windowed(self, layers: int) -> tuple[bool, ...]:
        """Which layers have the window: a list of the file, or all but every nth."""
        said = self.fields.get(f"{self.name}.attention.sliding_window_pattern", self.family.window_every)
        if isinstance(said, list):
            if len(said) != layers:
                raise LoadError(f"windows of {len(said):,} layers, and there are {layers}", hint="fetch it again")
            return tuple(bool(each) for each in said)
        every = said if isinstance(said, int) and said > 0 else 0
        return tuple((index + 1) % every != 0 for index in range(layers)) if every else ()

    def with_experts(self, shape: DecoderShape) -> DecoderShape:
        """The shape with the experts that a file names."""
        count = self.optional("expert_count", 0)
        if bool(count) != shape.style.has_experts:
            what = f"{count} experts" if count else "no experts"
            raise UnsupportedError(f"{self.name} with {what}", hint="use a model of an architecture that is built so")
        if not count:
            return shape
        count, chosen = self.size("expert_count"), self.size("expert_used_count")
        if chosen > count:
            raise LoadError(f"{chosen} of {count} experts", hint="fetch the file again")
        return replace(shape, experts=count, chosen=chosen)

    def check_heads(self, shape: DecoderShape) -> None:
        values = self.size("attention.value_length", shape.width)
        rotated = shape.rotated or shape.width
        if shape.heads % shape.kv_heads or rotated % 2 or values != shape.width or rotated > shape.width:
            raise UnsupportedError(
                f"{shape.heads} heads of {shape.width} for {shape.kv_heads} of {values}, {rotated} rotated",
                hint="heads share keys evenly, and rotate an even number of features",
            )

    def original(self, trained: int) -> int | None:
        """Positions before rates change to those for long contexts, where a file has both."""
        if _LONG not in self.file.tensors and _SHORT not in self.file.tensors:
            return None
        return self.size("rope.scaling.original_context_length", trained)

    def rope(self, base: Rope, pairs: int, context: int) -> Rope:
        """How features are rotated: rates are divided by tensors of the file, or as a scaling says."""
        factors = [self.factors(name, pairs) for name in self.chosen_factors(context)]
        # Old files have a factor by another name; one without a kind is linear.
        old = self.number("rope.scale_linear", 1.0, may_be_0=True)
        factor, scale = (
            self.number("rope.scaling.factor", old, may_be_0=True),
            self.number("rope.scaling.attn_factor", 1.0),
        )
        factor = factor or 1.0
        kind = self.fields.get(f"{self.name}.rope.scaling.type", "linear")
        if kind == "yarn":
            if (
                self.number("rope.scaling.yarn_log_multiplier", 0.0, may_be_0=True)
                or self.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0
            ):
                raise UnsupportedError("yarn with factors of its own", hint="yarn as transformers has it is built")
            trained = self.size("context_length")
            return rotations.yarn(
                base,
                pairs,
                factor,
                self.size("rope.scaling.original_context_length", trained),
                fast=self.number("rope.scaling.yarn_beta_fast", 32.0),
                slow=self.number("rope.scaling.yarn_beta_slow", 1.0),
            )
        if kind not in ("none", "linear", "longrope"):
            raise UnsupportedError(
                f"rope scaling of the kind {shown(str(kind))!r}", hint="none, linear, longrope and yarn are built"
            )
        whole = np.full(pairs, factor if kind == "linear" else 1.0)
        for each in factors:
            whole = whole * each
        return rotations.divided(base, whole, scale)

    def chosen_factors(self, context: int) -> list[str]:
        """The tensors that divide the rates at a context."""
        tensors = self.file.tensors
        original = self.original(context)
        names = [_SLOWED] if original is None else [_SLOWED, _LONG if context > original else _SHORT]
        return [name for name in names if name in tensors]

    def factors(self, name: str, pairs: int) -> Array:
        tensor = self.file.tensors[name]
        if tensor.shape != (pairs,) or tensor.kind != "f32":
            raise LoadError(f"{name} is {tensor.kind}{list(tensor.shape)}", hint=f"f32[{pairs}] is expected")
        return self.file.array(name)

    def optional(self, name: str, default: int) -> int:
        found = self.fields.get(f"{self.name}.{name}", default)
        return found if isinstance(found, int) else default

    def size(self, name: str, default: int | None = None, *, most: int = LARGEST_SIZE) -> int:
        found = self.fields.get(f"{self.name}.{name}", default)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= most:
            raise LoadError(
                f"{self.name}.{name} is {shown(str(found)[:40])}", hint=f"a number from 1 to {most:,} is expected"
            )
        return found

    def number(self, name: str, default: float, *, may_be_0: bool = False) -> float:
        found = self.fields.get(f"{self.name}.{name}")
        if found is None or (may_be_0 and found == 0):
            return default if found is None else 0.0
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found) or found <= 0:
            raise LoadError(f"{self.name}.{name} is {shown(str(found)[:40])}", hint="a positive number is expected")
        return float(found)


__all__ = ["read_decoder"]
