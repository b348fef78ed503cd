"""The KV cache of a decoder as donated inputs: floats of 32 or 16 bits, or bytes with a scale for each group.

A cache has rows [batch, heads, room, width]. A run writes the rows of its tokens at their positions, in place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, f16, f32, i8, i64
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.literal import Array
from dovetail.ir.type import SizeLike
from dovetail.ir.value import Value
from dovetail.models.llama_cache import with_rows

CacheKind = Literal["f32", "f16", "q8"]
CACHE_KINDS: tuple[CacheKind, ...] = get_args(CacheKind)
GROUP = 32
"""Features that share a scale in a cache of bytes, where they divide a head."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Keys or values of a layer: the cache as it is stored, and the name of its input."""

    name: str
    stored: Value
    scales: Value | None = None

    def written(self, rows: Value, positions: Value) -> Rows:
        """Return the cache with rows at positions, which are [tokens] or [batch, 1, tokens]."""
        at = positions if positions.rank == 1 else ops.squeeze(positions, axes=(-2,))
        if self.scales is None:
            narrow = rows if self.stored.dtype is f32 else ops.cast(rows, dtype=self.stored.dtype)
            return replace(self, stored=with_rows(self.stored, narrow, at))
        parts = ops.split(rows, axis=-1, size=_group(rows))
        most = ops.reduce_max(ops.abs_(parts), axes=(-1,))
        scales = most * (1.0 / 127.0)
        codes = ops.round_(parts / ops.where(ops.equal(scales, 0.0), 1.0, scales))
        codes = ops.cast(ops.merge(codes, axis=-1), dtype=i8)
        kept = ops.squeeze(scales, axes=(-1,))
        return replace(self, stored=with_rows(self.stored, codes, at), scales=with_rows(self.scales, kept, at))

    def first(self, count: SizeLike) -> Value:
        """Return the first rows as f32."""
        rows = ops.slice_(self.stored, axis=-2, start=0, stop=count)
        if self.scales is None:
            return rows if rows.dtype is f32 else ops.cast(rows, dtype=f32)
        scales = ops.slice_(self.scales, axis=-2, start=0, stop=count)
        parts = ops.cast(ops.split(rows, axis=-1, size=_group(rows)), dtype=f32)
        return ops.merge(parts * ops.unsqueeze(scales, axes=(-1,)), axis=-1)

    def outputs(self, builder: Builder) -> None:
        """Make the cache outputs that take the memory of its inputs."""
        builder.output(f"new_{self.name}", self.stored, into=self.name)
        if self.scales is not None:
            builder.output(f"new_{self.name}.scales", self.scales, into=f"{self.name}.scales")


def inputs(builder: Builder, name: str, kind: CacheKind, size: tuple[SizeLike, SizeLike, SizeLike], width: int) -> Rows:
    """Return the inputs of keys or values of a layer: [batch, heads, room] rows of a width."""
    parts = {part: builder.input(name + part, dtype[(*size, last)]) for part, (dtype, last) in _parts(kind, width)}
    return Rows(name, parts[""], parts.get(".scales"))


def zeros(kind: CacheKind, layer: int, size: tuple[int, int, int], width: int) -> dict[str, Array]:
    """Empty caches of a layer by the names of their inputs."""
    return {
        f"{side}_cache.{layer}{part}": np.zeros((*size, last), dtype.numpy)
        for side in "kv"
        for part, (dtype, last) in _parts(kind, width)
    }


def copied_rows(kind: CacheKind, layers: int, heads: int, width: int) -> Graph:
    """Copy the first rows of the caches of one sequence, `source.…`, in place to those of another.

    The input `positions` counts the rows.
    """
    builder = Builder("copied_rows", lines=False)
    with builder.recording():
        positions = builder.input("positions", i64["t"])
        for name in [f"{side}_cache.{index}" for index in range(layers) for side in "kv"]:
            for part, (dtype, last) in _parts(kind, width):
                source, target = (
                    builder.input(f"{of}{name}{part}", dtype[1, heads, "room", last]) for of in ("source.", "")
                )
                rows = ops.slice_(source, axis=-2, start=0, stop=positions.shape[-1])
                builder.output(f"new_{name}{part}", with_rows(target, rows, positions), into=f"{name}{part}")
    return builder.graph()


def _parts(kind: CacheKind, width: int) -> list[tuple[str, tuple[DType, int]]]:
    """Return the arrays of a cache: the suffix of its name, the dtype and the last size of each."""
    if kind != "q8":
        return [("", (f32 if kind == "f32" else f16, width))]
    return [("", (i8, width)), (".scales", (f32, width // _group_of(width)))]


def _group(rows: Value) -> int:
    width = rows.shape[-1]
    assert isinstance(width, int), "the width of a head is known"
    return _group_of(width)


def _group_of(width: int) -> int:
    return GROUP if width % GROUP == 0 else width


__all__ = ["CACHE_KINDS", "CacheKind", "Rows", "copied_rows", "inputs", "zeros"]
