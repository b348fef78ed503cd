"""LoRA adapters in GGUF files: updates of low rank for some matrices of a decoder, w + scale * b @ a."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dovetail.errors import LoadError, OptionError, UnsupportedError
from dovetail.frontends.decoder_families import DecoderFile, names_in_gguf, refuse_more
from dovetail.frontends.gguf.file import Field, GgufFile, shown
from dovetail.ir.literal import Array
from dovetail.models.decoder_shape import parameter_shapes

UPDATED = ("wq", "wk", "wv", "wqkv", "wo", "up", "gate", "down")
"""The matrices that an adapter may update, those of experts excepted."""
_PLAIN = ("f32", "f16")


def with_adapter(of: DecoderFile, fields: Mapping[str, Field], adapter: GgufFile, scale: float = 1.0) -> DecoderFile:
    """A decoder, of which the file had these fields, with the updates of an adapter `scale` times as large."""
    if isinstance(scale, bool) or not math.isfinite(scale):
        raise OptionError(f"an adapter taken {scale!r:.40} times", hint="pass a finite number")
    try:
        return _Adapter(of, fields, adapter).added(scale)
    except (LoadError, UnsupportedError) as error:
        error.where = error.where or shown(str(adapter.path))
        raise


class _Adapter:
    """An adapter, checked against the decoder that it is for."""

    def __init__(self, of: DecoderFile, fields: Mapping[str, Field], file: GgufFile) -> None:
        self.of, self.file = of, file
        self._check("general.type", "adapter")
        self._check("adapter.type", "lora")
        architecture = fields.get("general.architecture")
        if not isinstance(architecture, str):
            raise UnsupportedError(
                "an adapter for a folder", hint="adapters in GGUF files are for models in GGUF files"
            )
        self._check("general.architecture", architecture)
        alpha = file.fields.get("adapter.lora.alpha")
        if not isinstance(alpha, int | float) or not np.isfinite(alpha):
            raise LoadError("no number adapter.lora.alpha", hint="the file does not say how large its updates are")
        self.alpha = float(alpha)

    def _check(self, name: str, wanted: str) -> None:
        found = self.file.fields.get(name)
        if found != wanted:
            raise LoadError(f"{name} is {shown(str(found))!r}", hint=f"{wanted!r} is expected")

    def added(self, scale: float) -> DecoderFile:
        shapes, names = parameter_shapes(self.of.shape), names_in_gguf(self.of.shape)
        left = set(self.file.tensors)
        ranks: dict[str, int] = {}
        params: dict[str, Array] = {}
        for ours, theirs in names.items():
            both = [f"{theirs}.lora_{side}" for side in "ab"]
            if ours.rpartition(".")[2] not in UPDATED or len(shapes[ours]) != 2 or left.isdisjoint(both):
                continue
            ranks[ours] = rank = self._rank(both, shapes[ours])
            a, b = (self.file.array(name).astype(np.float32) for name in both)
            params |= {f"{ours}.lora_a": a, f"{ours}.lora_b": b * np.float32(scale * self.alpha / rank)}
            left.difference_update(both)
        refuse_more(left)
        return replace(self.of, ranks=ranks, params={**self.of.params, **params})

    def _rank(self, names: list[str], of: tuple[int, ...]) -> int:
        """The rank of an update, whose two matrices must fit the updated one."""
        missing = [name for name in names if name not in self.file.tensors]
        if missing:
            raise LoadError(f"{missing[0]} is missing", hint="an update has two matrices")
        a, b = (self.file.tensors[name] for name in names)
        rank = a.shape[0] if a.shape else 0
        for tensor, wanted in ((a, (rank, of[1])), (b, (of[0], rank))):
            if tensor.shape != wanted or rank < 1:
                raise LoadError(f"{tensor.name} is {list(tensor.shape)}", hint=f"{list(wanted)} is expected")
            if tensor.kind not in _PLAIN:
                raise UnsupportedError(f"{tensor.name} in {tensor.kind}", hint=f"convert it to {' or '.join(_PLAIN)}")
        return rank


__all__ = ["with_adapter"]
