"""Attention for many queries by online softmax, as `online.py` does it, with products in f16 (`precision="fast"`)."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.targets.cpu.attention.half_parts import (
    CHAINS,
    FEATURES,
    KEYS,
    LANES,
    WIDE,
    half_scores_function,
    half_values_function,
    narrow_function,
)
from dovetail.targets.cpu.attention.online import ManyQueries
from dovetail.targets.cpu.attention.pack_kv import PackedHead
from dovetail.targets.cpu.attention.parts import weights_function
from dovetail.targets.cpu.attention.shape import Attend
from dovetail.targets.cpu.attention.tile import AttendBuilder


def multiplies_halves(a: Attend) -> bool:
    """Whether an attention for many queries multiplies in f16 where that is asked for."""
    if not a.device.emits("f16_arithmetic") or a.rows != LANES * WIDE:
        return False
    if a.stored != "float" or a.rotated is not None or "mask" in a.strides or a.is_few:
        return False
    is_dense = all(a.strides[name][-1] == 4 for name in ("k", "v"))
    return is_dense and a.d % (CHAINS * LANES) == 0 and a.dv % FEATURES == 0


class HalfQueries(ManyQueries):
    """One tile of queries whose products are computed in f16."""

    def __init__(
        self, t: AttendBuilder, packed: PackedHead, wide: int, at: Mapping[str, Ptr], first: I64, rows: I64
    ) -> None:
        super().__init__(t, packed, wide, at, first, rows)
        # Scores of keys that fill a group must not count in the maximum, so that it is found apart.
        self.bends = True

    def pack_queries(self) -> None:
        super().pack_queries()
        t, a, row = self.t, self.a, LANES * WIDE
        t.call_shared(narrow_function(a.device, row), self.room["columns"], 4 * row, a.d, self.room["halves"])

    def _score(self, first: I64, count: I64) -> None:
        t, a = self.t, self.a
        k, stride = self._halves("k", first, count), 2 * a.d
        with t.loop(0, t.sdiv(t.add(count, KEYS - 1), KEYS)) as group:
            done = t.mul(group, KEYS)
            x, to = t.ptr_add(k, t.mul(done, stride)), t.ptr_add(self.room["scores"], t.mul(done, self.row))
            t.call_shared(half_scores_function(a.device, a.d), self.room["halves"], x, stride, to)

    def _weigh(self, count: I64) -> None:
        t = self.t
        weights = weights_function(t.device, self.wide, twos=self.twos, narrow=True)
        t.call_shared(weights, self.room["scores"], count, self.room["tops"], self.room["sums"])

    def _add_values(self, first: I64, count: I64) -> None:
        t, a = self.t, self.a
        v = self._halves("v", first, count)
        with t.loop(0, a.dv // FEATURES) as part:
            x, to = t.ptr_add(v, t.mul(part, 2 * FEATURES)), t.mul(part, FEATURES * self.row)
            o = t.ptr_add(self.room["taken"], to)
            values = half_values_function(t.device)
            t.call_shared(values, self.room["scores"], x, 2 * a.dv, count, o, self.room["old"])

    def _halves(self, name: str, first: I64, count: I64) -> Ptr:
        """A block of keys or values in f16: packed with its head, or else now."""
        t, (row, _) = self.t, self.a.strides[name][-2:]
        x, stride = t.ptr_add(self.at[name], t.scaled(first, row)), t.size(row)
        here, is_here = self.packed.halves(name, first, count)
        room = self.room["key_rows" if name == "k" else "value_rows"]
        with t.unless(is_here):
            self._narrow(name, x, stride, count, room)
        return t.select_ptr(is_here, here, room)

    def _narrow(self, name: str, x: Ptr, stride: Int, count: I64, to: Ptr) -> None:
        width = self.a.d if name == "k" else self.a.dv
        self.t.call_shared(narrow_function(self.t.device, width), x, stride, count, to)


__all__ = ["HalfQueries", "multiplies_halves"]
