"""Attention for many queries by online softmax, as `online.py` does it, with products on tiles of AMX in bf16."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dovetail.codegen.llvm.amx import COLUMNS, STEPS
from dovetail.codegen.llvm.handles import I64, Int, Ptr, Vec
from dovetail.codegen.llvm.maths.vectors import LOG2_E
from dovetail.ir.dtype import bf16
from dovetail.targets.cpu.attention.amx_parts import (
    WIDE,
    configure_function,
    highest_function,
    pair_queries_function,
    pair_weights_function,
    release_function,
    shrink_function,
    tile_results_function,
    tile_scores_function,
)
from dovetail.targets.cpu.attention.half_online import HalfQueries
from dovetail.targets.cpu.attention.pack_kv import PackedHead
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend
from dovetail.targets.cpu.attention.tile import AttendBuilder

GROWTH = 8.0
"""Powers of two that a weight may have before sums are scaled: bf16 and f32 have as many bits there."""


def multiplies_on_tiles(a: Attend) -> bool:
    """Whether fast mode multiplies on tiles with many queries."""
    if not a.device.has("amx_bf16") or a.rows != COLUMNS * WIDE:
        return False
    if a.stored != "float" or a.rotated is not None or "mask" in a.strides or a.is_few or a.window is not None:
        return False
    is_dense = all(a.strides[name][-1] == 4 for name in ("k", "v"))
    return is_dense and a.d % STEPS == 0 and a.dv % STEPS == 0


class TileQueries(HalfQueries):
    """One tile of queries whose products are computed on tiles of AMX."""

    def __init__(
        self, t: AttendBuilder, packed: PackedHead, wide: int, at: Mapping[str, Ptr], first: I64, rows: I64
    ) -> None:
        super().__init__(t, packed, wide, at, first, rows)
        # Any multiple of an infinite fill is the same.
        self.blocks: dict[str, Ptr] = {}
        """The block of keys and that of values, as tiles."""
        self.twos = self.a.softcap is None and (self.a.fill is None or math.isinf(self.a.fill))

    def _narrow_queries(self) -> None:
        self.t.call_shared(pair_queries_function(self.a.device, self.a.d), self.room["columns"], self.room["halves"])

    def attend(self, low: Int, end: Int) -> None:
        t = self.t
        t.call_shared(configure_function(emulated=self.emulated))
        super().attend(low, end)
        t.call_shared(release_function(emulated=self.emulated))

    def _take_highest(self, count: I64) -> None:
        self.t.call_shared(highest_function(self.t.device), self.room["scores"], count, self.room["tops"])

    @property
    def emulated(self) -> bool:
        return not self.a.device.emits("amx_bf16")

    def _score(self, first: I64, count: I64) -> None:
        t, a = self.t, self.a
        self.blocks = {name: self._halves(name, first, count) for name in ("k", "v")}
        k, groups = self.blocks["k"], t.ceil_div(count, STEPS)
        scores = tile_scores_function(a.d, emulated=self.emulated)
        t.call_shared(scores, k, self.room["halves"], self.room["scores"], groups)

    def _shrink(self, before: Sequence[Vec]) -> None:
        """Scores may be a little above the highest that weights are taken from: sums are scaled less often."""
        t, places = self.t, [self.t.ptr_add(self.room["tops"], i * self.t.bytes) for i in range(self.wide)]
        most = t.constant(GROWTH if self.twos else GROWTH / LOG2_E)
        rises = t.any_lane(
            [t.fcmp("ogt", t.load(at, t.bytes), t.fadd(x, most)) for at, x in zip(places, before, strict=True)]
        )
        with t.when(rises):
            super()._shrink(before)
            t.call_shared(shrink_function(t.device, self.a.dv), self.room["taken"], self.room["old"])
        with t.unless(rises):
            for at, x in zip(places, before, strict=True):
                t.store(x, at, t.bytes)

    def _weigh(self, count: I64) -> None:
        t, room = self.t, self.room
        weights = pair_weights_function(t.device, ATTENTION.block, self.a.dv, twos=self.twos)
        t.call_shared(weights, room["scores"], count, room["tops"], room["sums"], room["pairs"], self.blocks["v"])

    def _add_values(self, first: I64, count: I64) -> None:
        t, a, room = self.t, self.a, self.room
        results, groups = (
            tile_results_function(a.d, a.dv, ATTENTION.block, emulated=self.emulated),
            t.ceil_div(count, STEPS),
        )
        ahead = t.ptr_add(self.blocks["k"], t.mul(count, bf16.itemsize * a.d))
        t.call_shared(results, self.blocks["v"], room["pairs"], room["taken"], groups, ahead)


__all__ = ["TileQueries", "multiplies_on_tiles"]
