"""Attention for many queries by online softmax, as `online.py` does it, with products in f16 (`precision="fast"`)."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.codegen.llvm.handles import FALSE, I1, I64, TRUE, Int, Ptr, Vec
from dovetail.codegen.llvm.vector import ZERO
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
from dovetail.targets.cpu.attention.pack_kv import PackedHead, packing_function
from dovetail.targets.cpu.attention.parts import weights_function
from dovetail.targets.cpu.attention.shape import Attend
from dovetail.targets.cpu.attention.tile import AttendBuilder


def multiplies_halves(a: Attend) -> bool:
    """Whether fast mode multiplies in f16 with many queries."""
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
        self.sees_all = FALSE if self.a.bends else TRUE
        """Whether each query sees each key of the block, and nothing else bends scores."""

    def pack_queries(self) -> None:
        super().pack_queries()
        self._narrow_queries()

    def _narrow_queries(self) -> None:
        t, a, row = self.t, self.a, LANES * WIDE
        t.call_shared(narrow_function(a.device, row), self.room["columns"], 4 * row, a.d, self.room["halves"])

    @property
    def raw(self) -> str:
        """A vector of bytes of a mask."""
        return f"<{self.t.bytes} x i8>"

    def _sees_some(self, first: I64, count: I64) -> I1:
        t, a = self.t, self.a
        row, step = a.strides["keep"][-2:]
        if step != 1 or a.causal or a.softcap is not None:
            return super()._sees_some(first, count)
        start, vectors, ones = t.ptr_add(self.at["keep"], first), t.sdiv(count, t.bytes), "splat (i8 -1)"
        kept = Vec(t.let(f"bitcast {self.raw} {ones} to {t.vec}"))
        with t.carry(0, self.rows, [kept, ZERO]) as state:
            here = t.ptr_add(start, t.scaled(state.index, row))
            with t.carry(0, vectors, state.vectors) as inner:
                x = t.let(f"load {self.raw}, ptr {t.ptr_add(here, t.mul(inner.index, t.bytes))}, align 1")
                least, most = inner.vectors
                inner.vectors[:] = [self._joined("umin", least, x), self._joined("umax", most, x)]
            state.vectors[:] = inner.vectors
        lowest, highest = (self._reduced(how, x) for how, x in zip(("umin", "umax"), state.vectors, strict=True))
        # What fills no vector is taken as seen by some.
        is_whole = t.icmp("eq", t.mul(vectors, t.bytes), count)
        self.sees_all = t.and_(is_whole, I1(t.let(f"icmp ne i8 {lowest}, 0")))
        sees_some = t.or_(t.not_(is_whole), I1(t.let(f"icmp ne i8 {highest}, 0")))
        with t.when(t.and_(sees_some, t.not_(self.sees_all))):
            self._transpose_masks(first, count)
        return sees_some

    def _joined(self, how: str, x: Vec, y: str) -> Vec:
        """The smaller or larger of bytes, which are held as floats."""
        t, raw, name = self.t, self.raw, f"llvm.{how}.v{self.t.bytes}i8"
        t.use(f"declare {raw} @{name}({raw}, {raw})")
        found = t.let(f"call {raw} @{name}({raw} {t.let(f'bitcast {t.vec} {x} to {raw}')}, {raw} {y})")
        return Vec(t.let(f"bitcast {raw} {found} to {t.vec}"))

    def _reduced(self, how: str, x: Vec) -> str:
        t, raw, name = self.t, self.raw, f"llvm.vector.reduce.{how}.v{self.t.bytes}i8"
        t.use(f"declare i8 @{name}({raw})")
        return t.let(f"call i8 @{name}({raw} {t.let(f'bitcast {t.vec} {x} to {raw}')})")

    def _bend(self, first: Int, count: I64, *, transposed: bool = False) -> None:
        t = self.t
        if self.sees_all is not TRUE:
            with t.unless(self.sees_all):
                super()._bend(first, count, transposed=transposed)
        if self.sees_all is not FALSE:
            with t.when(self.sees_all):
                self._take_highest(count)

    def _take_highest(self, count: I64) -> None:
        """Keep the running maximum of each query."""
        t = self.t
        places = [t.ptr_add(self.room["tops"], i * t.bytes) for i in range(self.wide)]
        with t.carry(0, count, [t.load(place, t.bytes) for place in places]) as state:
            at = t.ptr_add(self.room["scores"], t.mul(state.index, self.row))
            scores = [t.load(t.ptr_add(at, i * t.bytes), t.bytes) for i in range(self.wide)]
            state.vectors[:] = [t.fmax(x, top) for x, top in zip(scores, state.vectors, strict=True)]
        for x, place in zip(state.vectors, places, strict=True):
            t.store(x, place, t.bytes)

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
        """A block of keys or values in 16 bits: packed with its head, or else now."""
        t, (row, _) = self.t, self.a.strides[name][-2:]
        x, stride = t.ptr_add(self.at[name], t.scaled(first, row)), t.size(row)
        here, is_here = self.packed.halves(name, first, count)
        room = self.room["key_rows" if name == "k" else "value_rows"]
        with t.unless(is_here):
            t.call_shared(packing_function(self.a, name), x, stride, count, room)
        return t.select_ptr(is_here, here, room)


__all__ = ["HalfQueries", "multiplies_halves"]
