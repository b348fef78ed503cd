"""One online softmax for many queries, lanes along queries: one pass over the keys, a block of them at a time.

Its products have forms: f32 here, f16 in `f16.py`, and bf16 on tiles of AMX in `amx.py`. Maxima, sums of weights and
accumulated values are f32 in all of them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import ClassVar

from dovetail.codegen.llvm.handles import FALSE, I1, I64, NULL, TRUE, Int, Ptr, Vec
from dovetail.codegen.llvm.maths.vectors import LOG2_E
from dovetail.codegen.llvm.vector import STORED_BYTES, ZERO, Stored
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.attention.functions import (
    NARROWED,
    columns_function,
    copy_function,
    key_rows,
    out_function,
    rows_function,
    scores_function,
    values_function,
    weight,
    weights_function,
)
from dovetail.targets.cpu.attention.pack_kv import KeyValuePacking, PackedHead
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend, many_regions, padded
from dovetail.targets.cpu.attention.tile import AttendBuilder, QueryBlock
from dovetail.targets.cpu.row_epilogue import WORDS_REGION


class OnlineSoftmax(QueryBlock):
    """One tile with `wide` vectors of queries."""

    def __init__(
        self,
        t: AttendBuilder,
        products: type[Products],
        packed: PackedHead,
        wide: int,
        at: Mapping[str, Ptr],
        first: I64,
        rows: I64,
    ) -> None:
        super().__init__(t, wide, at, first, rows, t.regions(many_regions(t.problem, wide)))
        a, self.packed = self.a, packed
        self.bends = a.bends or ("mask" in a.strides and not a.has_key_mask)
        """Whether scores are capped or masked after the product."""
        self.twos = products.takes_twos(a)
        self.sees_all = FALSE if a.bends else TRUE
        """Whether each query sees each key of the block, and nothing else bends scores."""
        self.products = products(self)

    def prefetch_results(self) -> None:
        """Prefetch the lines that are written at the end: they are far apart, and each would be waited for."""
        t, a = self.t, self.a
        if a.epilogue is not None:
            return
        with t.loop(0, self.rows) as row:
            here = t.ptr_add(self.at["y"], t.scaled(row, a.strides["y"][-2]))
            for at in range(0, STORED_BYTES[a.stored] * a.dv, t.device.caches.line):
                t.prefetch(t.ptr_add(here, at), for_write=True)

    def pack_queries(self) -> None:
        super().pack_queries()
        self.products.pack_queries()

    def attend(self, low: Int, end: Int) -> None:
        """Accumulate everything that the queries take from the keys between two."""
        t = self.t
        self.products.begin()
        self._clear()
        with t.steps(low, end, ATTENTION.block) as first:
            count = t.smin(ATTENTION.block, t.sub(end, first))
            with t.when(self._sees_some(first, count)) if self.may_leave_out else nullcontext():
                before = [t.load(t.ptr_add(self.room["maxima"], i * t.bytes), t.bytes) for i in range(self.wide)]
                self.products.score(first, count)
                self._bend_scores(first, count)
                self.products.shrink(before)
                self.products.weigh(count)
                self.products.add_values(first, count)
        self.products.end()

    @property
    def may_leave_out(self) -> bool:
        """Whether keys that a mask hides from all queries weigh nothing."""
        return "keep" in self.a.masks_by_row() and "mask" not in self.a.strides and self.a.fill == -math.inf

    def _sees_some(self, first: I64, count: I64) -> I1:
        """Whether some query sees some key of a block; its masks are columns afterwards if they bend scores."""
        t, a = self.t, self.a
        step = a.strides["keep"][-1]
        if not self.products.keeps_maxima and step == 1 and not a.causal and a.softcap is None:
            return self._sees_some_bytes(first, count)
        self._transpose_masks(first, count)
        with t.carry(0, count, [ZERO] * self.wide) as state:
            at = t.ptr_add(self.room["keep"], t.mul(state.index, self.row))
            for i, x in enumerate(state.vectors):
                state.vectors[i] = t.fadd(x, t.load(t.ptr_add(at, i * t.bytes), t.bytes))
        return t.any_lane([t.fcmp("une", x, t.constant(0.0)) for x in state.vectors])

    def _sees_some_bytes(self, first: I64, count: I64) -> I1:
        """Whether some query sees some key, by masks whose bytes are contiguous; note whether all see all."""
        t, row = self.t, self.a.strides["keep"][-2]
        start, vectors, ones = t.ptr_add(self.at["keep"], first), t.sdiv(count, t.bytes), "splat (i8 -1)"
        least_of_none = Vec(t.let(f"bitcast {self._bytes} {ones} to {t.vec}"))
        with t.carry(0, self.rows, [least_of_none, ZERO]) as state:
            here = t.ptr_add(start, t.scaled(state.index, row))
            with t.carry(0, vectors, state.vectors) as inner:
                x = t.let(f"load {self._bytes}, ptr {t.ptr_add(here, t.mul(inner.index, t.bytes))}, align 1")
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

    @property
    def _bytes(self) -> str:
        """A vector of bytes of a mask."""
        return f"<{self.t.bytes} x i8>"

    def _joined(self, how: str, x: Vec, y: str) -> Vec:
        """The smaller or larger of bytes, which are held as floats."""
        t, kind, name = self.t, self._bytes, f"llvm.{how}.v{self.t.bytes}i8"
        t.use(f"declare {kind} @{name}({kind}, {kind})")
        joined = t.let(f"call {kind} @{name}({kind} {t.let(f'bitcast {t.vec} {x} to {kind}')}, {kind} {y})")
        return Vec(t.let(f"bitcast {kind} {joined} to {t.vec}"))

    def _reduced(self, how: str, x: Vec) -> str:
        t, kind, name = self.t, self._bytes, f"llvm.vector.reduce.{how}.v{self.t.bytes}i8"
        t.use(f"declare i8 @{name}({kind})")
        return t.let(f"call i8 @{name}({kind} {t.let(f'bitcast {t.vec} {x} to {kind}')})")

    def _bend_scores(self, first: I64, count: I64) -> None:
        """Cap and mask scores, and keep the running maximum of each query, unless the product has done so."""
        t = self.t
        if self.products.keeps_maxima:
            if self.bends:
                self._bend(first, count, transposed=self.may_leave_out)
            return
        if self.sees_all is not TRUE:
            with t.unless(self.sees_all):
                self._bend(first, count, transposed=self.may_leave_out)
        if self.sees_all is not FALSE:
            with t.when(self.sees_all):
                self.products.take_highest(count)

    def _clear(self) -> None:
        """Nothing is accumulated yet; a sink is a score that was met before, without a value."""
        t, has_sinks = self.t, "sinks" in self.a.strides
        for i in range(self.wide):
            if has_sinks:
                self._take_sinks(i)
            else:
                t.store(t.constant(float("-inf")), t.ptr_add(self.room["maxima"], i * t.bytes), t.bytes)
            total = t.constant(NARROWED if self.a.halves else 1.0) if has_sinks else ZERO
            t.store(total, t.ptr_add(self.room["sums"], i * t.bytes), t.bytes)
        with t.loop(0, self.a.dv) as c:
            to = t.ptr_add(self.room["accumulators"], t.mul(c, self.row))
            for i in range(self.wide):
                t.store(ZERO, t.ptr_add(to, i * t.bytes), t.bytes)

    def _take_sinks(self, i: int) -> None:
        """The sinks of a vector of queries are their highest scores so far."""
        t = self.t
        row = t.size(self.a.strides["sinks"][-2])
        x, to = t.ptr_add(self.at["sinks"], t.mul(row, i * t.lanes)), t.ptr_add(self.room["maxima"], i * t.bytes)
        self._as_columns(x, row, 0, i, 1, LOG2_E if self.twos else 1.0, to, self.a.stored)

    def write(self) -> None:
        """Divide by the sums of weights and write the rows of the result."""
        t, a = self.t, self.a
        stride, y, stored = t.size(a.strides["y"][-2]), self.at["y"], a.stored
        if a.epilogue is not None:
            stride, y, stored = 4 * padded(a.dv, t.lanes), self.room["finished"], "float"
        if a.zero_unseen and a.has_key_mask:
            self._forget_unseen()
        for i in range(self.wide):
            old = t.ptr_add(self.room["rescale"], i * t.bytes)
            t.store(t.inverse(t.load(t.ptr_add(self.room["sums"], i * t.bytes), t.bytes)), old, t.bytes)
            to = t.ptr_add(y, t.mul(stride, i * t.lanes))
            rows = t.smin(t.lanes, t.sub(self.rows, i * t.lanes))
            accumulators = t.ptr_add(self.room["accumulators"], i * t.bytes)
            out = out_function(a.device, a.dv, stored)
            t.call_shared(out, accumulators, self.row, old, to, stride, rows, self.room["buffer"])
        if a.epilogue is not None:
            t.write_steps(self.room[WORDS_REGION], self.room["finished"], self.rows, self.at)

    def _forget_unseen(self) -> None:
        """The sums are 0 where the mask hides all keys; only those that are NaN are not 0 already."""
        t = self.t
        at = [t.ptr_add(self.room["sums"], i * t.bytes) for i in range(self.wide)]
        accumulators = [t.load(place, t.bytes) for place in at]
        with t.when(t.any_lane([t.fcmp("uno", x, x) for x in accumulators])):
            with t.carry(0, t.size(self.a.keys), [ZERO]) as state:
                mask = t.load_splat(t.ptr_add(self.at["mask"], t.mul(state.index, 4)))
                hides = t.fcmp("oeq", mask, t.constant(float("-inf")))
                state.vectors[0] = t.select(hides, state.vectors[0], t.constant(1.0))
            for place, x in zip(at, accumulators, strict=True):
                t.store(t.select(t.fcmp("oeq", state.vectors[0], ZERO), ZERO, x), place, t.bytes)


class Products:
    """The products of a tile's queries with a block of keys, and of their weights with its values, in one form."""

    keeps_maxima: ClassVar[bool]
    """Whether scores keep the running maximum of each query, where nothing bends them."""
    packing: ClassVar[KeyValuePacking]
    """How rows of keys and values are packed."""

    def __init__(self, of: OnlineSoftmax) -> None:
        self.of, self.t, self.a, self.room, self.wide = of, of.t, of.a, of.room, of.wide

    @classmethod
    def takes_twos(cls, a: Attend) -> bool:
        """Whether weights are powers of two: nothing but the scale makes a score, which may be times log2(e)."""
        return not a.bends and "mask" not in a.strides

    def begin(self) -> None:
        """Emit the prologue, before the loop over keys."""

    def end(self) -> None:
        """Emit the epilogue, after the loop over keys."""

    def pack_queries(self) -> None:
        """Pack the queries, once they are columns of f32."""

    @abstractmethod
    def score(self, first: I64, count: I64) -> None:
        """The scores of a block of keys."""

    def take_highest(self, count: I64) -> None:
        """Keep the running maximum of each query."""
        t = self.t
        places = [t.ptr_add(self.room["maxima"], i * t.bytes) for i in range(self.wide)]
        with t.carry(0, count, [t.load(place, t.bytes) for place in places]) as state:
            at = t.ptr_add(self.room["scores"], t.mul(state.index, self.of.row))
            scores = [t.load(t.ptr_add(at, i * t.bytes), t.bytes) for i in range(self.wide)]
            state.vectors[:] = [t.fmax(x, top) for x, top in zip(scores, state.vectors, strict=True)]
        for x, place in zip(state.vectors, places, strict=True):
            t.store(x, place, t.bytes)

    def shrink(self, before: Sequence[Vec]) -> None:
        """How much older sums weigh now that higher scores were met."""
        t = self.t
        for i, x in enumerate(before):
            now = t.load(t.ptr_add(self.room["maxima"], i * t.bytes), t.bytes)
            none = t.fcmp("oeq", now, t.constant(float("-inf")))
            shrunk = weight(t, t.fsub(x, t.select(none, t.constant(0.0), now)), twos=self.of.twos)
            t.store(shrunk, t.ptr_add(self.room["rescale"], i * t.bytes), t.bytes)
            total = t.ptr_add(self.room["sums"], i * t.bytes)
            t.store(t.fmul(t.load(total, t.bytes), shrunk), total, t.bytes)

    @abstractmethod
    def weigh(self, count: I64) -> None:
        """Make weights of scores, and add them to their sums."""

    @abstractmethod
    def add_values(self, first: I64, count: I64) -> None:
        """Add the weighted values of a block to those before."""

    def narrowed(self, name: str, first: I64, count: I64) -> Ptr:
        """A block of keys or values in 16 bits: packed with its head, or else now."""
        t, (row, _) = self.t, self.a.strides[name][-2:]
        x, stride = t.ptr_add(self.of.at[name], t.scaled(first, row)), t.size(row)
        here, is_here = self.of.packed.halves(name, first, count)
        room = self.room["key_rows" if name == "k" else "value_rows"]
        with t.unless(is_here):
            t.call_shared(self.packing.function(self.a, name), x, stride, count, room)
        return t.select_ptr(is_here, here, room)


class F32Products(Products):
    """Products in f32, of keys and values that are read where they are if their rows are dense."""

    keeps_maxima = True
    packing = KeyValuePacking(4, 1, lambda a, name: rows_function(a.device, a.width(name)))

    def __init__(self, of: OnlineSoftmax) -> None:
        super().__init__(of)
        self.key_stored: Stored = self.a.stored if self.a.rotated is None else "float"

    def score(self, first: I64, count: I64) -> None:
        """The scores of a block of keys, a few keys at a time; the last key stands in for those after it."""
        t, a, at = self.t, self.a, self.of.at
        key_row, key_step = a.key_steps
        x = t.ptr_add(at["k"], t.scaled(first, key_row))
        x, stride = self.of.packed.block("k", x, t.size(key_row), first, count)
        mask = t.ptr_add(at["mask"], t.mul(first, 4)) if a.has_key_mask else NULL
        if a.packs_keys:
            self._copy(x, stride, t.size(key_step), count, self.room["key_rows"], self.key_stored)
            self._repeat_last(count)
            x, stride = self.room["key_rows"], 4 * a.d
        # What follows the last mask is no number for the keys that are there only to fill a group.
        fills = a.packs_keys and not a.has_key_mask
        counted = t.add(count, self.of.keys - 1) if fills else count
        whole = t.sdiv(counted, self.of.keys)
        with t.loop(0, whole) as group:
            done = t.mul(group, self.of.keys)
            own = t.ptr_add(mask, t.mul(done, 4)) if a.has_key_mask else mask
            self._score_keys(t.ptr_add(x, t.mul(done, stride)), stride, first, done, own)
        if not fills:
            self._score_rest(x, stride, mask, first, count, t.mul(whole, self.of.keys))

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
        missing = t.srem(t.sub(ATTENTION.block, count), self.of.keys)
        end = t.ptr_add(self.room["key_rows"], t.mul(count, size))
        self._copy(t.ptr_add(end, -size), 0, 4, missing, end)

    def _copy_mask(self, mask: Ptr, count: I64, to: Ptr) -> None:
        """The mask of the last keys, with that of the last one for those after it."""
        t = self.t
        with t.loop(0, self.of.keys) as j:
            own = t.smin(j, t.sub(count, 1))
            t.store_f32(t.load_f32(t.ptr_add(mask, t.mul(own, 4))), t.ptr_add(to, t.mul(j, 4)))

    def _score_keys(self, x: Ptr, stride: Int, first: I64, done: I64, mask: Ptr) -> None:
        t, a, room = self.t, self.a, self.room
        to = t.ptr_add(room["scores"], t.mul(done, self.of.row))
        row = a.strides["v"][-2]
        ahead = t.ptr_add(self.of.at["v"], t.scaled(t.add(first, done), row))
        scores = scores_function(
            a.device, self.wide, a.d, a.dv,
            with_maximum=not self.of.bends, with_mask=a.has_key_mask, prefetches=not self.of.packed.widths,
        )  # fmt: skip
        t.call_shared(scores, room["columns"], x, stride, to, ahead, t.size(row), room["maxima"], mask)

    def weigh(self, count: I64) -> None:
        t, room = self.t, self.room
        weights = weights_function(t.device, self.wide, twos=self.of.twos)
        t.call_shared(weights, room["scores"], count, room["maxima"], room["sums"])

    def add_values(self, first: I64, count: I64) -> None:
        t, a = self.t, self.a
        row, step = a.strides["v"][-2:]
        x = t.ptr_add(self.of.at["v"], t.scaled(first, row))
        x, stride = self.of.packed.block("v", x, t.size(row), first, count)
        if a.packs_values:
            to = self.room["value_rows"]
            t.call_shared(copy_function(t.device, a.dv, a.stored), x, stride, t.size(step), count, to)
            x, stride = to, 4 * a.dv
        features, whole, rest = _groups(a.device, self.wide, a.dv)
        if whole:
            with t.loop(0, whole) as i:
                self._values(features, t.mul(i, features), x, stride, count)
        if rest:
            self._values(rest, whole * features, x, stride, count)

    def _values(self, features: int, first: Int, x: Ptr, stride: Int, count: I64) -> None:
        t = self.t
        x = t.ptr_add(x, t.mul(first, 4))
        to = t.ptr_add(self.room["accumulators"], t.mul(first, self.of.row))
        values = values_function(t.device, self.wide, features)
        t.call_shared(values, self.room["scores"], x, stride, count, to, self.room["rescale"])


def _groups(device: CpuDevice, wide: int, dv: int) -> tuple[int, int, int]:
    """Features of values that are accumulated at once, how often, and the rest of them."""
    features = key_rows(device, wide)
    return features, *divmod(dv, features)


def functions_of_any_strides(device: CpuDevice, wide: int, dv: int, *, twos: bool) -> Iterator[SharedFunction]:
    """What a tile of f32 with `wide` vectors of queries calls, whatever the strides of its operands and masks."""
    features, whole, rest = _groups(device, wide, dv)
    yield from (values_function(device, wide, size)[0] for size in (features * (whole > 0), rest) if size)
    yield weights_function(device, wide, twos=twos)[0]
    yield columns_function(device, "float")[0]
    yield out_function(device, dv, "float")[0]
