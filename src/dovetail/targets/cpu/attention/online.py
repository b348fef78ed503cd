"""Attention for many queries by online softmax, lanes along queries: the steps of one tile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from dovetail.codegen.llvm.handles import I1, I64, NULL, Int, Ptr, Vec
from dovetail.codegen.llvm.maths.vectors import LOG2_E
from dovetail.codegen.llvm.vector import STORED_BYTES, ZERO, Stored
from dovetail.targets.cpu.attention.pack_kv import PackedHead
from dovetail.targets.cpu.attention.parts import (
    NARROWED,
    copy_function,
    key_rows,
    out_function,
    scores_function,
    values_function,
    weight,
    weights_function,
)
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.query_block import QueryBlock
from dovetail.targets.cpu.attention.shape import many_regions, padded
from dovetail.targets.cpu.attention.tile import AttendBuilder
from dovetail.targets.cpu.row_epilogue import WORDS_REGION


class ManyQueries(QueryBlock):
    """One tile with `wide` vectors of queries."""

    def __init__(
        self, t: AttendBuilder, packed: PackedHead, wide: int, at: Mapping[str, Ptr], first: I64, rows: I64
    ) -> None:
        super().__init__(t, wide, at, first, rows, t.regions(many_regions(t.problem, wide)))
        a, self.packed = self.a, packed
        self.bends = a.bends or ("mask" in a.strides and not a.has_key_mask)
        self.key_stored: Stored = a.stored if a.rotated is None else "float"

    def prefetch_results(self) -> None:
        """Prefetch the lines that are written at the end: they are far apart, and each would be waited for."""
        t, a = self.t, self.a
        if a.epilogue is not None:
            return
        with t.loop(0, self.rows) as row:
            here = t.ptr_add(self.at["y"], t.scaled(row, a.strides["y"][-2]))
            for at in range(0, STORED_BYTES[a.stored] * a.dv, t.device.caches.line):
                t.prefetch(t.ptr_add(here, at), for_write=True)

    def attend(self, low: Int, end: Int) -> None:
        """Everything that the queries take from the keys between two."""
        t = self.t
        self._clear()
        with t.steps(low, end, ATTENTION.block) as first:
            count = t.smin(ATTENTION.block, t.sub(end, first))
            with t.when(self._sees_some(first, count)) if self.may_leave_out else nullcontext():
                before = [t.load(t.ptr_add(self.room["tops"], i * t.bytes), t.bytes) for i in range(self.wide)]
                self._score(first, count)
                if self.bends:
                    self._bend(first, count, transposed=self.may_leave_out)
                self._shrink(before)
                self._weigh(count)
                self._add_values(first, count)

    @property
    def may_leave_out(self) -> bool:
        """Whether keys that a mask hides from all queries weigh nothing."""
        return "keep" in self.a.masks_by_row() and "mask" not in self.a.strides and self.a.fill == -math.inf

    def _sees_some(self, first: I64, count: I64) -> I1:
        """Whether some query sees some key of a block, whose masks are columns afterwards."""
        t = self.t
        self._transpose_masks(first, count)
        with t.carry(0, count, [ZERO] * self.wide) as state:
            at = t.ptr_add(self.room["keep"], t.mul(state.index, self.row))
            for i, x in enumerate(state.vectors):
                state.vectors[i] = t.fadd(x, t.load(t.ptr_add(at, i * t.bytes), t.bytes))
        return t.any_lane([t.fcmp("une", x, t.constant(0.0)) for x in state.vectors])

    def _clear(self) -> None:
        """Nothing is accumulated yet; a sink is a score that was met before, without a value."""
        t, has_sinks = self.t, "sinks" in self.a.strides
        for i in range(self.wide):
            if has_sinks:
                self._take_sinks(i)
            else:
                t.store(t.constant(float("-inf")), t.ptr_add(self.room["tops"], i * t.bytes), t.bytes)
            total = t.constant(NARROWED if self.a.halves else 1.0) if has_sinks else ZERO
            t.store(total, t.ptr_add(self.room["sums"], i * t.bytes), t.bytes)
        with t.loop(0, self.a.dv) as c:
            to = t.ptr_add(self.room["taken"], t.mul(c, self.row))
            for i in range(self.wide):
                t.store(ZERO, t.ptr_add(to, i * t.bytes), t.bytes)

    def _take_sinks(self, i: int) -> None:
        """The sinks of a vector of queries are their highest scores so far."""
        t = self.t
        row = t.size(self.a.strides["sinks"][-2])
        x, to = t.ptr_add(self.at["sinks"], t.mul(row, i * t.lanes)), t.ptr_add(self.room["tops"], i * t.bytes)
        self._as_columns(x, row, 0, i, 1, LOG2_E if self.twos else 1.0, to, self.a.stored)

    def _score(self, first: I64, count: I64) -> None:
        """The scores of a block of keys, a few keys at a time; the last key stands in for those after it."""
        t, a = self.t, self.a
        key_row, key_step = a.key_steps
        x = t.ptr_add(self.at["k"], t.scaled(first, key_row))
        x, stride = self.packed.block("k", x, t.size(key_row), first, count)
        mask = t.ptr_add(self.at["mask"], t.mul(first, 4)) if a.has_key_mask else NULL
        if a.packs_keys:
            self._copy(x, stride, t.size(key_step), count, self.room["key_rows"], self.key_stored)
            self._repeat_last(count)
            x, stride = self.room["key_rows"], 4 * a.d
        # What follows the last mask is no number for the keys that are there only to fill a group.
        fills = a.packs_keys and not a.has_key_mask
        counted = t.add(count, self.keys - 1) if fills else count
        whole = t.sdiv(counted, self.keys)
        with t.loop(0, whole) as group:
            done = t.mul(group, self.keys)
            own = t.ptr_add(mask, t.mul(done, 4)) if a.has_key_mask else mask
            self._score_keys(t.ptr_add(x, t.mul(done, stride)), stride, first, done, own)
        if not fills:
            self._score_rest(x, stride, mask, first, count, t.mul(whole, self.keys))

    def _score_rest(self, x: Ptr, stride: Int, mask: Ptr, first: I64, count: I64, done: I64) -> None:
        """The keys that fill no group."""
        t, a = self.t, self.a
        left = t.sub(count, done)
        with t.when(t.icmp("sgt", left, 0)):
            last = t.ptr_add(x, t.mul(done, stride))
            if not a.packs_keys:
                self._copy(last, stride, 4, left, self.room["key_rows"])
                self._repeat_last(left)
                last = self.room["key_rows"]
            own = NULL
            if a.has_key_mask:
                own = self.room["mask_left"]
                self._copy_mask(t.ptr_add(mask, t.mul(done, 4)), left, own)
            self._score_keys(last, 4 * a.d, first, done, own)

    def _copy(self, x: Ptr, stride: Int, step: Int, rows: I64, to: Ptr, stored: Stored = "float") -> None:
        self.t.call_shared(copy_function(self.t.device, self.a.d, stored), x, stride, step, rows, to)

    def _repeat_last(self, count: I64) -> None:
        """The last key again, up to as many as are scored at once: it changes no maximum."""
        t, size = self.t, 4 * self.a.d
        missing = t.srem(t.sub(ATTENTION.block, count), self.keys)
        end = t.ptr_add(self.room["key_rows"], t.mul(count, size))
        self._copy(t.ptr_add(end, -size), 0, 4, missing, end)

    def _copy_mask(self, mask: Ptr, count: I64, to: Ptr) -> None:
        """The mask of the last keys, with that of the last one for those after it."""
        t = self.t
        with t.loop(0, self.keys) as j:
            own = t.smin(j, t.sub(count, 1))
            t.store_f32(t.load_f32(t.ptr_add(mask, t.mul(own, 4))), t.ptr_add(to, t.mul(j, 4)))

    def _score_keys(self, x: Ptr, stride: Int, first: I64, done: I64, mask: Ptr) -> None:
        t, a = self.t, self.a
        to = t.ptr_add(self.room["scores"], t.mul(done, self.row))
        row = a.strides["v"][-2]
        ahead = t.ptr_add(self.at["v"], t.scaled(t.add(first, done), row))
        scores = scores_function(
            a.device, self.wide, a.d, a.dv,
            with_top=not self.bends, with_mask=a.has_key_mask, prefetches=not self.packed.widths,
        )  # fmt: skip
        t.call_shared(scores, self.room["columns"], x, stride, to, ahead, t.size(row), self.room["tops"], mask)

    def _shrink(self, before: Sequence[Vec]) -> None:
        """How much older sums weigh now that higher scores were met."""
        t = self.t
        for i, x in enumerate(before):
            now = t.load(t.ptr_add(self.room["tops"], i * t.bytes), t.bytes)
            none = t.fcmp("oeq", now, t.constant(float("-inf")))
            shrunk = weight(t, t.fsub(x, t.select(none, t.constant(0.0), now)), twos=self.twos)
            t.store(shrunk, t.ptr_add(self.room["old"], i * t.bytes), t.bytes)
            total = t.ptr_add(self.room["sums"], i * t.bytes)
            t.store(t.fmul(t.load(total, t.bytes), shrunk), total, t.bytes)

    def _weigh(self, count: I64) -> None:
        """Make weights of scores."""
        t = self.t
        weights = weights_function(t.device, self.wide, twos=self.twos)
        t.call_shared(weights, self.room["scores"], count, self.room["tops"], self.room["sums"])

    def _add_values(self, first: I64, count: I64) -> None:
        t, a = self.t, self.a
        row, step = a.strides["v"][-2:]
        x, stride = self.packed.block("v", t.ptr_add(self.at["v"], t.scaled(first, row)), t.size(row), first, count)
        if a.packs_values:
            to = self.room["value_rows"]
            t.call_shared(copy_function(t.device, a.dv, a.stored), x, stride, t.size(step), count, to)
            x, stride = to, 4 * a.dv
        features = key_rows(a.device, self.wide)
        whole = a.dv // features
        if whole:
            with t.loop(0, whole) as i:
                self._values(features, t.mul(i, features), x, stride, count)
        if a.dv % features:
            self._values(a.dv % features, whole * features, x, stride, count)

    def _values(self, features: int, first: Int, x: Ptr, stride: Int, count: I64) -> None:
        t = self.t
        x = t.ptr_add(x, t.mul(first, 4))
        to = t.ptr_add(self.room["taken"], t.mul(first, self.row))
        values = values_function(t.device, self.wide, features)
        t.call_shared(values, self.room["scores"], x, stride, count, to, self.room["old"])

    def write(self) -> None:
        """Divide by the sums of weights and write the rows of the result."""
        t, a = self.t, self.a
        stride, y, stored = t.size(a.strides["y"][-2]), self.at["y"], a.stored
        if a.epilogue is not None:
            stride, y, stored = 4 * padded(a.dv, t.lanes), self.room["finished"], "float"
        if a.zero_unseen and a.has_key_mask:
            self._forget_unseen()
        for i in range(self.wide):
            old = t.ptr_add(self.room["old"], i * t.bytes)
            t.store(t.inverse(t.load(t.ptr_add(self.room["sums"], i * t.bytes), t.bytes)), old, t.bytes)
            to = t.ptr_add(y, t.mul(stride, i * t.lanes))
            rows = t.smin(t.lanes, t.sub(self.rows, i * t.lanes))
            taken = t.ptr_add(self.room["taken"], i * t.bytes)
            out = out_function(a.device, a.dv, stored)
            t.call_shared(out, taken, self.row, old, to, stride, rows, self.room["buffer"])
        if a.epilogue is not None:
            t.write_steps(self.room[WORDS_REGION], self.room["finished"], self.rows, self.at)

    def _forget_unseen(self) -> None:
        """The sums are 0 where the mask hides all keys; only those that are NaN are not 0 already."""
        t = self.t
        at = [t.ptr_add(self.room["sums"], i * t.bytes) for i in range(self.wide)]
        sums = [t.load(place, t.bytes) for place in at]
        with t.when(t.any_lane([t.fcmp("uno", x, x) for x in sums])):
            with t.carry(0, t.size(self.a.keys), [ZERO]) as state:
                mask = t.load_splat(t.ptr_add(self.at["mask"], t.mul(state.index, 4)))
                hides = t.fcmp("oeq", mask, t.constant(float("-inf")))
                state.vectors[0] = t.select(hides, state.vectors[0], t.constant(1.0))
            for place, x in zip(at, sums, strict=True):
                t.store(t.select(t.fcmp("oeq", state.vectors[0], ZERO), ZERO, x), place, t.bytes)
