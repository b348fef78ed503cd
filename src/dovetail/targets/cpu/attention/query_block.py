"""What a tile with lanes along queries does in both directions: packing queries, bending and masking scores."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.codegen.llvm.handles import F32, I1, I64, Int, Ptr, Vec, VecI32
from dovetail.codegen.llvm.maths.vectors import LOG2_E, fast_tanh
from dovetail.codegen.llvm.scalar import literal
from dovetail.codegen.llvm.vector import Stored
from dovetail.ir.dtype import f32
from dovetail.targets.cpu.attention.parts import columns_function, key_rows
from dovetail.targets.cpu.attention.rope import rotate_function
from dovetail.targets.cpu.attention.tile import AttendBuilder


def write_rotated(t: AttendBuilder, which: str, at: Mapping[str, Ptr], first: Int, rows: Int, to: Ptr) -> None:
    """Rows of queries or keys, rotated and contiguous."""
    a = t.problem
    assert a.rotated is not None
    given: list[Ptr | I64 | int] = []
    for name in (which, f"cos_{which}", f"sin_{which}"):
        stride = a.strides[name][-2]
        given += [t.ptr_add(at[name], t.scaled(first, stride)), t.size(stride)]
    t.call_shared(rotate_function(a.device, a.d, a.rotated, a.form, a.stored), *given, rows, to)


class QueryBlock:
    """A block of queries with `wide` vectors of them, and the regions of its workspace."""

    def __init__(
        self, t: AttendBuilder, wide: int, at: Mapping[str, Ptr], first: I64, rows: I64, room: Mapping[str, Ptr]
    ) -> None:
        self.t, self.wide, self.at, self.first, self.rows, self.room = t, wide, at, first, rows, room
        a = self.a = t.problem
        self.row = wide * t.bytes
        self.keys = key_rows(a.device, wide)
        # Nothing but the scale makes a score: powers of two serve as well, with the scale times log2(e).
        self.twos = not a.bends and "mask" not in a.strides

    def pack_queries(self) -> None:
        """The queries as columns, scaled."""
        t, a = self.t, self.a
        x, stride, step = self.at["q"], t.size(a.strides["q"][-2]), t.size(a.strides["q"][-1])
        stored: Stored = a.stored
        if a.rotated is not None:
            write_rotated(t, "q", self.at, 0, self.rows, self.room["query_rows"])
            x, stride, step, stored = self.room["query_rows"], 4 * a.d, 4, "float"
        factor = (a.scale if a.softcap is None else a.scale / a.softcap) * (LOG2_E if self.twos else 1.0)
        for i in range(self.wide):
            to = t.ptr_add(self.room["columns"], i * t.bytes)
            self._as_columns(t.ptr_add(x, t.mul(stride, i * t.lanes)), stride, step, i, a.d, factor, to, stored)

    def _as_columns(
        self, x: Ptr, stride: Int, step: Int, i: int, count: Int, factor: float, to: Ptr, stored: Stored
    ) -> None:
        t = self.t
        rows = t.sub(self.rows, i * t.lanes)
        scale = F32(literal(factor, f32))
        t.call_shared(columns_function(t.device, stored), x, stride, step, rows, count, scale, to, self.row)

    def _transpose_masks(self, first: Int, count: I64) -> None:
        """The masks of a block of keys as columns, where each query has a row of its own."""
        t, a = self.t, self.a
        for name in a.masks_by_row():
            row, step = a.strides[name][-2:]
            for i in range(self.wide):
                x = t.ptr_add(self.at[name], t.scaled(first, step))
                x = t.ptr_add(x, t.mul(t.size(row), i * t.lanes))
                at = t.ptr_add(self.room[name], i * t.bytes)
                self._as_columns(x, t.size(row), t.size(step), i, count, 1.0, at, t.stored(name))

    def _bend(self, first: Int, count: I64, *, transposed: bool = False) -> None:
        """Cap and mask the scores of a block, and keep the running maximum of each query."""
        t, a = self.t, self.a
        if not transposed:
            self._transpose_masks(first, count)
        tops = self.room["tops"]
        starts = [t.load(t.ptr_add(tops, i * t.bytes), t.bytes) for i in range(self.wide)]
        with t.carry(0, count, starts) as state:
            key = t.add(first, state.index)
            at = t.ptr_add(self.room["scores"], t.mul(state.index, self.row))
            given = {n: self._masked(n, key, state.index) for n in ("mask", "keep") if n in a.strides}
            for i in range(self.wide):
                here = t.ptr_add(at, i * t.bytes)
                x = self._bent(t.load(here, t.bytes), i, key, {n: v[i] for n, v in given.items()})
                t.store(x, here, t.bytes)
                state.vectors[i] = t.fmax(x, state.vectors[i])
        for i, x in enumerate(state.vectors):
            t.store(x, t.ptr_add(tops, i * t.bytes), t.bytes)

    def _masked(self, name: str, key: I64, j: I64) -> list[Vec]:
        """What a mask has for a key, for each vector of queries."""
        t = self.t
        if name in self.a.masks_by_row():
            at = t.ptr_add(self.room[name], t.mul(j, self.row))
            return [t.load(t.ptr_add(at, i * t.bytes), t.bytes) for i in range(self.wide)]
        at = t.ptr_add(self.at[name], t.scaled(key, self.a.strides[name][-1]))
        return [t.splat(t.load_scalar_as_f32(at, t.stored(name)))] * self.wide

    def _bent(self, x: Vec, i: int, key: I64, given: Mapping[str, Vec]) -> Vec:
        t, a = self.t, self.a
        if a.softcap is not None:
            x = t.fmul(fast_tanh(t, x), t.constant(a.softcap))
        keys: VecI32 | None = None
        own: VecI32 | None = None
        if a.causal:
            own, keys = t.positions(self.first, i), t.splat_i32(key)
        return t.shown(x, given, keys, own)

    def sees_nothing(self, highest: float) -> I1:
        """Whether some query has met no higher score than that of hidden keys: then those left out count as much."""
        t = self.t
        tops = (t.load(t.ptr_add(self.room["tops"], i * t.bytes), t.bytes) for i in range(self.wide))
        return t.any_lane(t.fcmp("ole", top, t.constant(highest)) for top in tops)


__all__ = ["QueryBlock", "write_rotated"]
