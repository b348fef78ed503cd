"""Attention for few queries, lanes along features: keys and values stream by once, for all the heads they serve.

A tile is one head of keys with all the queries that attend to it, those of several members of a batch if they have the
same keys. It is bound by bandwidth, so that a row of keys or values is read as it is, and all its queries are done
while it is in L1.

With FMA by lane a group of as many keys as a vector has lanes goes through their features in as many parts. During each
part one row is prefetched, the one that is half a group ahead: requests for lines are in order, as the hardware
prefetcher expects them. A Neoverse N1 reads 16 GB/s so, where it has 10 to 12 if the rows of a group take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from dovetail.codegen.llvm.handles import F32, I1, I64, Int, Mask, Ptr, Vec, VecI32
from dovetail.codegen.llvm.maths.vectors import exp_of_negative, fast_tanh
from dovetail.codegen.llvm.scalar import literal
from dovetail.codegen.llvm.vector import STORED_BYTES, ZERO, Stored, VectorBuilder
from dovetail.ir.dtype import f32
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.attention.functions import Shared, copy_function, finished, integer, read, written
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import few_regions, packs, padded
from dovetail.targets.cpu.attention.tile import AttendBuilder
from dovetail.targets.cpu.row_epilogue import WORDS_REGION


def as_stored(t: VectorBuilder, at: Int, stored: Stored) -> Int:
    """Where a row of stored elements has what a row of f32 has at some byte."""
    scale = 4 // STORED_BYTES[stored]
    return at // scale if isinstance(at, int) else t.sdiv(at, scale)


class Group:
    """The rows of one group of keys or values, and the row that each part of their features prefetches."""

    def __init__(
        self, t: VectorBuilder, first: Ptr, stride: I64, width: int, stored: Stored, *, prefetches: bool
    ) -> None:
        self.t, self.first, self.stride = t, first, stride
        self.stored: Stored = stored
        self.rows = [t.ptr_add(first, t.mul(j, stride)) for j in range(t.lanes)]
        whole = width // t.lanes
        self.parts = t.lanes if whole % t.lanes == 0 else 1
        """Rows have whole parts, or one that is all of them."""
        self.each = whole // self.parts
        """Vectors of a part."""
        self.left = width % t.lanes
        """Features after whole vectors."""
        self.left_at = whole * t.bytes
        self.lines = range(0, STORED_BYTES[stored] * width if prefetches else 0, t.device.caches.line)

    def loaded(self, at: Int) -> list[Vec]:
        """A vector of features of each row."""
        t, place = self.t, as_stored(self.t, at, self.stored)
        return [t.load_as_f32(t.ptr_add(row, place), self.stored) for row in self.rows]

    def vectors(self, part: I64) -> Iterator[Int]:
        """Where the vectors of a part are in a row of f32. Between them it prefetches its share of the rows ahead."""
        t = self.t
        start, row = t.mul(part, self.each * t.bytes), t.add(part, t.lanes // 2)
        ahead = [t.ptr_add(self.first, t.mul(t.add(row, j), self.stride)) for j in range(t.lanes // self.parts)]
        lines = [(pointer, line) for pointer in ahead for line in self.lines]
        for i in range(self.each):
            for pointer, line in lines[i * len(lines) // self.each : (i + 1) * len(lines) // self.each]:
                t.prefetch(t.ptr_add(pointer, line))
            yield t.add(start, i * t.bytes)


@lru_cache(64)
def streamed_scores_function(device: CpuDevice, d: int, rows: int, stored: Stored, *, prefetches: bool) -> Shared:
    """s[i, j] = Σ_c q[i, c] · k[j, c] for rows of queries and as many keys as a vector has lanes. q ends in zeros.

    Each sum has one order, however many rows there are.
    """
    t = VectorBuilder(device)
    lanes, size = t.lanes, t.bytes
    keys = Group(t, Ptr("%k"), I64("%stride"), d, stored, prefetches=prefetches)
    queries = [t.ptr_add(Ptr("%q"), 4 * padded(d, lanes) * i) for i in range(rows)]

    def added(accumulators: Sequence[Vec], at: Int, k: Sequence[Vec]) -> list[Vec]:
        """Sums with the products of a vector of features."""
        q = [t.load(t.ptr_add(query, at), size) for query in queries]
        return [t.fma(q[i // lanes], k[i % lanes], x) for i, x in enumerate(accumulators)]

    with t.carry(0, keys.parts if keys.each else 0, [ZERO] * (rows * lanes)) as state:
        for at in keys.vectors(state.index):
            state.vectors[:] = added(state.vectors, at, keys.loaded(at))
    accumulators = state.vectors
    if keys.left:
        last = [t.load_first(t.ptr_add(key, keys.left_at), keys.left) for key in keys.rows]
        accumulators = added(accumulators, keys.left_at, last)
    for i in range(rows):
        scores = t.transpose_add(accumulators[i * lanes : (i + 1) * lanes])
        t.store(scores, t.ptr_add(Ptr("%s"), 4 * ATTENTION.few_keys * i), size)
    return finished(t, "attend_streamed_scores", (read("q"), read("k"), integer("stride"), written("s")))


@lru_cache(64)
def streamed_values_function(device: CpuDevice, dv: int, rows: int, stored: Stored, *, prefetches: bool) -> Shared:
    """o[i, c] = o[i, c] · old[i] + Σ_j p[i, j] · v[j, c] for rows of queries, key by key.

    Results wait in L1: a group adds to each of them once, so that values need not be read in several passes.
    """
    t = VectorBuilder(device)
    p, v, o, stride, total = Ptr("%p"), Ptr("%v"), Ptr("%o"), I64("%stride"), I64("%count")
    lanes, size = t.lanes, t.bytes
    wide = padded(dv, lanes)
    results = [t.ptr_add(o, 4 * wide * i) for i in range(rows)]

    def weighted(at: Int, values: Sequence[Vec], weights: Sequence[Sequence[Vec]]) -> None:
        """Add the values of some keys at a vector of features to the results of all rows."""
        places = [t.ptr_add(result, at) for result in results]
        accumulators = [t.load(place, size) for place in places]
        for j, value in enumerate(values):
            accumulators = [t.fma(value, weights[i][j], x) for i, x in enumerate(accumulators)]
        for x, place in zip(accumulators, places, strict=True):
            t.store(x, place, size)

    for i, result in enumerate(results):
        old = t.load_splat(t.ptr_add(Ptr("%rescale"), 4 * i))
        with t.loop(0, wide // lanes) as number:
            place = t.ptr_add(result, t.mul(number, size))
            t.store(t.fmul(t.load(place, size), old), place, size)
    whole = t.sdiv(total, lanes)
    with t.loop(0, whole) as number:
        first = t.mul(number, lanes)
        group = Group(t, t.ptr_add(v, t.mul(first, stride)), stride, dv, stored, prefetches=prefetches)
        factors = [t.load(t.ptr_add(p, t.add(t.mul(first, 4), 4 * ATTENTION.few_keys * i)), size) for i in range(rows)]
        weights = [[t.splat_lane(x, lane) for lane in range(lanes)] for x in factors]
        with t.loop(0, group.parts if group.each else 0) as part:
            for at in group.vectors(part):
                weighted(at, group.loaded(at), weights)
        if group.left:
            last = [t.load_first(t.ptr_add(row, group.left_at), group.left) for row in group.rows]
            weighted(group.left_at, last, weights)
    with t.loop(t.mul(whole, lanes), total) as key:
        here, weight = t.ptr_add(v, t.mul(key, stride)), t.ptr_add(p, t.mul(key, 4))
        weights = [[t.load_splat(t.ptr_add(weight, 4 * ATTENTION.few_keys * i))] for i in range(rows)]
        with t.loop(0, dv // lanes) as number:
            at = t.mul(number, size)
            weighted(at, [t.load_as_f32(t.ptr_add(here, as_stored(t, at, stored)), stored)], weights)
        if dv % lanes:
            at = dv // lanes * size
            weighted(at, [t.load_first(t.ptr_add(here, at), dv % lanes)], weights)
    parameters = (read("p"), read("v"), integer("stride"), integer("count"), written("o"), read("rescale"))
    return finished(t, "attend_streamed_values", parameters)


def rows_at_once(rows: int, most: int) -> int:
    """Rows of queries that share what is loaded, without a remainder."""
    return max(count for count in range(1, max(1, most) + 1) if rows % count == 0)


def scored_rows(device: CpuDevice, rows: int) -> int:
    """Rows that are scored at once: a sum for each of them and each key of a vector stays in a register."""
    return rows_at_once(rows, (device.registers - 2) // device.lanes - 1)


def summed_rows(rows: int) -> int:
    """Rows whose values are added at once."""
    return rows_at_once(rows, ATTENTION.few)


@lru_cache(64)
def few_scores_function(device: CpuDevice, d: int, rows: int, stored: Stored, count: int) -> Shared:
    """s[i, j] = Σ_c q[i, c] · k[j, c] for rows of queries and some keys, at most as many as a vector has lanes.

    q ends in zeros. Each sum has one order, however many rows and keys there are. Keys that are not f32 have whole
    vectors. Scores are a whole vector, zeros after the last key.
    """
    t = VectorBuilder(device)
    lanes, size = t.lanes, t.bytes
    keys = [t.ptr_add(Ptr("%k"), t.mul(j, I64("%stride"))) for j in range(count)]
    queries = [t.ptr_add(Ptr("%q"), 4 * padded(d, lanes) * i) for i in range(rows)]

    def added(accumulators: Sequence[Vec], at: Int, features: int = lanes) -> list[Vec]:
        """Sums with the products of a vector of features."""
        here = [t.ptr_add(key, as_stored(t, at, stored)) for key in keys]
        k = [t.load_as_f32(x, stored) if features == lanes else t.load_first(x, features) for x in here]
        q = [t.load(t.ptr_add(query, at), size) for query in queries]
        return [t.fma(q[i // count], k[i % count], x) for i, x in enumerate(accumulators)]

    accumulators: list[Vec] = [ZERO] * (rows * count)
    if d // lanes <= ATTENTION.most_unrolled:
        for i in range(d // lanes):
            accumulators = added(accumulators, i * size)
    else:
        with t.carry(0, d // lanes, accumulators) as state:
            state.vectors[:] = added(state.vectors, t.mul(state.index, size))
        accumulators = state.vectors
    if d % lanes:
        accumulators = added(accumulators, d // lanes * size, d % lanes)
    for i in range(rows):
        scores = t.transpose_add([*accumulators[i * count : (i + 1) * count], *[ZERO] * (lanes - count)])
        t.store(scores, t.ptr_add(Ptr("%s"), 4 * ATTENTION.few_keys * i), 4 * count)
    return finished(t, "attend_few_scores", (read("q"), read("k"), integer("stride"), written("s")))


def keys_at_once(device: CpuDevice, dv: int) -> int:
    """Keys with accumulators of their own: enough to keep the FMA units busy; wide rows have them anyway."""
    return max(1, min(4, device.registers // 2 // (padded(dv, device.lanes) // device.lanes)))


@lru_cache(64)
def few_values_function(device: CpuDevice, dv: int, rows: int, ahead: int, stored: Stored) -> Shared:
    """o[i, c] = o[i, c] · old[i] + Σ_j p[i, j] · v[j, c] for rows of queries. It prefetches a later key for each:
    `left` of those in `ahead`, and then those in `others`.

    A sum goes to several accumulators that are added at the end; they do not depend on the number of rows. Features
    are cut into parts, so that the accumulators of all rows stay in registers. `ahead` is the bytes of a row of keys.
    """
    t = VectorBuilder(device)
    p, v, o, stride, total = Ptr("%p"), Ptr("%v"), Ptr("%o"), I64("%stride"), I64("%count")
    lanes, size = t.lanes, t.bytes
    count = padded(dv, lanes) // lanes
    at_once = keys_at_once(device, dv)
    # Rows share loaded values, which stay in registers next to the accumulators; one row takes each as it comes.
    left = device.registers - (3 if rows > 1 else 4)
    parts = -(-count // max(1, left // (rows * at_once + (1 if rows > 1 else 0))))
    lines = range(0, ahead, device.caches.line)

    def added(accumulators: Sequence[Vec], key: I64, part: range, of: int = 0) -> list[Vec]:
        """Sums of all rows with the values of a key; they are accumulators `of` each feature."""
        here, weights = t.ptr_add(v, t.mul(key, stride)), t.ptr_add(p, t.mul(key, 4))
        places = [t.ptr_add(here, as_stored(t, i * size, stored)) for i in part]
        values = [
            t.load_as_f32(x, stored) if (i + 1) * lanes <= dv else t.load_first(x, dv % lanes)
            for i, x in zip(part, places, strict=True)
        ]
        totals = list(accumulators)
        for row in range(rows):
            weight = t.load_splat(t.ptr_add(weights, 4 * ATTENTION.few_keys * row))
            for i, value in enumerate(values):
                at = (of * rows + row) * len(part) + i
                totals[at] = t.fma(weight, value, totals[at])
        return totals

    for number in range(parts):
        part = range(number * count // parts, (number + 1) * count // parts)
        places = [t.ptr_add(o, 4 * padded(dv, lanes) * row + i * size) for row in range(rows) for i in part]
        old = [t.load_splat(t.ptr_add(Ptr("%rescale"), 4 * row)) for row in range(rows)]
        starts = [t.fmul(t.load(x, size), old[i // len(part)]) for i, x in enumerate(places)]
        with t.carry(0, t.sdiv(total, at_once), [*starts, *[ZERO] * (len(starts) * (at_once - 1))]) as state:
            for of in range(at_once):
                key = t.add(t.mul(state.index, at_once), of)
                is_left = t.icmp("slt", key, I64("%left"))
                start = Ptr(t.let(f"select i1 {is_left}, ptr %ahead, ptr %others"))
                row = t.ptr_add(start, t.mul(key, I64("%apart")))
                for at in lines[number::parts]:
                    t.prefetch(t.ptr_add(row, at))
                state.vectors[:] = added(state.vectors, key, part, of)
        accumulators = state.vectors
        for of in range(1, at_once):
            accumulators[: len(starts)] = [
                t.fadd(x, accumulators[of * len(starts) + i]) for i, x in enumerate(accumulators[: len(starts)])
            ]
        with t.carry(t.mul(t.sdiv(total, at_once), at_once), total, accumulators[: len(starts)]) as state:
            state.vectors[:] = added(state.vectors, state.index, part)
        for x, place in zip(state.vectors, places, strict=True):
            t.store(x, place, size)
    parameters = (read("p"), read("v"), integer("stride"), integer("count"), written("o"), read("rescale"))
    return finished(
        t, "attend_few_values", (*parameters, read("ahead"), read("others"), integer("left"), integer("apart"))
    )


_LOWEST = F32(literal(float("-inf"), f32))
_NOTHING = F32(literal(0.0, f32))
_ONE = F32(literal(1.0, f32))


class FewQueries:
    """One tile: the rows of queries of one head of keys."""

    def __init__(
        self, t: AttendBuilder, at: Mapping[str, Ptr], rows: int, *, count: I64 | None = None, first: I64 | None = None
    ) -> None:
        """`count` says how many rows there are where that is not known before; with `first`, all are of one head."""
        self.t, self.at, self.first = t, at, first
        self.rows: Int = rows if count is None else count
        a = self.a = t.problem
        self.d, self.dv = padded(a.d, t.lanes), padded(a.dv, t.lanes)
        self.most = rows
        self.is_streamed = t.device.has("fma_by_lane")
        """Whether keys and values are prefetched in the order of memory, while their neighbours are multiplied."""
        self.room = t.regions(few_regions(a, rows))

    def run(self) -> None:
        t = self.t
        start, end = self._seen(t.size(self.a.keys))
        with t.loop(0, self.rows) as row:
            self._take_query(row)
        with t.steps(start, end, self.a.few_block) as first:
            count = t.smin(self.a.few_block, t.sub(end, first))
            k, stride = self._block("k", first, count)
            v, apart = self._block("v", first, count)
            self._score(k, stride, v, apart, count)
            with t.loop(0, self.rows) as row:
                t.store_f32(self._weigh(row, first, count), self._of("rescale", row, 1))
            self._add_values(v, apart, t.add(first, self.a.few_block), end, count)
        with t.loop(0, self.rows) as row:
            self._write(row)

    def _seen(self, end: Int) -> tuple[Int, Int]:
        """The keys between which all are that a query sees: the others weigh nothing, and are not read.

        Sequences of a batch are of different lengths, and their caches have rows for the longest; layers with a window
        see the last keys alone. What is seen first starts a block.
        """
        t, a = self.t, self.a
        hides = "keep" in a.strides and "mask" not in a.strides and a.fill_takes_all and a.fill == float("-inf")
        if not hides:
            return 0, end
        first, last = (t.alloca("i64") for _ in range(2))
        t.store_i64(0, first)
        t.store_i64(end, last)
        is_whole = t.and_(t.icmp("sgt", end, 0), t.icmp("eq", t.srem(end, t.lanes), 0))
        with t.when(is_whole):
            with t.repeat([end]) as state:
                here = t.sub(state.integers[0], t.lanes)
                is_hidden = self._is_hidden(here)
                state.integers[0] = t.select_int(is_hidden, here, state.integers[0])
                state.again = t.and_(is_hidden, t.icmp("sgt", here, 0))
                t.store_i64(state.integers[0], last)
            with t.repeat([0]) as state:
                here = state.integers[0]
                goes_on = t.and_(self._is_hidden(here), t.icmp("slt", t.add(here, t.lanes), t.load_i64(last)))
                state.integers[0] = t.select_int(goes_on, t.add(here, t.lanes), here)
                state.again = goes_on
                t.store_i64(t.mul(t.sdiv(state.integers[0], a.few_block), a.few_block), first)
            if self._last_group < t.lanes:
                with t.when(t.icmp("sgt", t.load_i64(last), 0)):
                    here = t.sub(t.load_i64(last), t.lanes)
                    count = t.round_up(t.bit_length(self._seen_lanes(here)), self._last_group)
                    t.store_i64(t.add(here, count), last)
        return t.load_i64(first), t.load_i64(last)

    @property
    def _last_group(self) -> int:
        """Keys that are read together at the end: results have the same bits as with a whole vector of them."""
        at_once = keys_at_once(self.t.device, self.a.dv)
        is_split = not self.is_streamed and ATTENTION.few_last % at_once == 0
        return min(ATTENTION.few_last, self.t.lanes) if is_split else self.t.lanes

    def _is_hidden(self, key: I64) -> I1:
        """Whether no query sees a vector of keys."""
        return self.t.icmp("eq", self._seen_lanes(key), 0)

    def _seen_lanes(self, key: I64) -> I64:
        """Which of a vector of keys some query sees, a bit for each."""
        t = self.t
        with t.carry(0, self.rows, [ZERO]) as state:
            keep = self._masked("keep", self._row("keep", state.index), key, None)
            state.vectors[0] = t.fmax(keep, state.vectors[0])
        return t.bits(t.fcmp("une", state.vectors[0], t.constant(0.0)))

    def _add_values(self, v: Ptr, stride: Int, following: I64, end: Int, count: I64) -> None:
        """Add the weighted values of a block. Meanwhile the keys of the next block are prefetched, and after the last
        ones those of the next head: memory is read evenly, values while scores are computed and keys while values are
        added."""
        t, a = self.t, self.a
        *_, head, apart, step = a.strides["k"]
        left = t.sub(end, following)
        keys = t.ptr_add(self.at["k"], t.scaled(following, apart))
        others = t.ptr_add(self.at["k"], t.sub(t.size(head), t.scaled(left, apart)))
        ahead = a.d * STORED_BYTES[a.cached["k"]] if step == STORED_BYTES[a.cached["k"]] else 0
        stored: Stored = "float" if packs(a, "v") else a.cached["v"]
        for rows, row, is_first in self._rows_at_once(summed_rows(self.most)):
            p, o = self._of("scores", row, ATTENTION.few_keys), self._of("accumulators", row, self.dv)
            arguments = (p, v, stride, count, o, self._of("rescale", row, 1))
            if self.is_streamed:
                prefetches = is_first and not packs(a, "v")
                t.call_shared(streamed_values_function(t.device, a.dv, rows, stored, prefetches=prefetches), *arguments)
            else:
                t.call_shared(
                    few_values_function(t.device, a.dv, rows, ahead, stored),
                    *arguments,
                    keys,
                    others,
                    left,
                    t.size(apart),
                )

    def _rows_at_once(self, most: int) -> Iterator[tuple[int, I64, bool]]:
        """Each number of rows at a time, the first of them, and whether they come before all others."""
        for rows, start, end in self._cut(most):
            middle: Int = end
            if self.is_streamed and (isinstance(end, I64) or end > rows):
                middle = self.t.smin(rows, end) if start == 0 else start
            with self.t.loop(start, middle, step=rows) as row:
                yield rows, row, True
            if middle is not end:
                with self.t.loop(middle, end, step=rows) as row:
                    yield rows, row, False

    def _cut(self, at_once: int) -> list[tuple[int, Int, Int]]:
        """Return the parts of the rows: how many at a time, from which row to which."""
        if isinstance(self.rows, int):
            return [(at_once, 0, self.rows)]
        whole = self.t.mul(self.t.sdiv(self.rows, at_once), at_once)
        return [(at_once, 0, whole), (1, whole, self.rows)] if at_once > 1 else [(1, 0, self.rows)]

    def _of(self, region: str, row: I64, size: int) -> Ptr:
        return self.t.ptr_add(self.room[region], self.t.mul(row, 4 * size))

    def _row(self, name: str, row: I64) -> Ptr:
        """A row of queries, of the result or of a mask: its member, its head of those with the keys, its position."""
        t, a = self.t, self.a
        *lead, head, position, _ = a.strides[name]
        if self.first is not None:
            return t.ptr_add(self.at[name], t.scaled(row, position))
        count, at = t.size(a.queries), self.at[name]
        group, own = t.sdiv(row, count), t.srem(row, count)
        if a.folded is not None:
            at = t.ptr_add(at, t.scaled(t.sdiv(group, a.groups), lead[a.folded]))
            group = t.srem(group, a.groups)
        return t.ptr_add(t.ptr_add(at, t.scaled(group, head)), t.scaled(own, position))

    def _take_query(self, row: I64) -> None:
        """A query scaled, zeros after it; nothing is accumulated yet."""
        t, a = self.t, self.a
        x, to = self._row("q", row), self._of("queries", row, self.d)
        for i in range(a.d // t.lanes * t.lanes, self.d, t.lanes):
            t.store(ZERO, t.ptr_add(to, 4 * i), 4)
        factor = literal(a.scale if a.softcap is None else a.scale / a.softcap, f32)
        with t.loop(0, a.d) as c:
            element = t.load_scalar_as_f32(t.ptr_add(x, t.scaled(c, a.strides["q"][-1])), a.stored)
            t.store_f32(F32(t.let(f"fmul float {element}, {factor}")), t.ptr_add(to, t.mul(c, 4)))
        accumulators = self._of("accumulators", row, self.dv)
        for i in range(0, self.dv, t.lanes):
            t.store(ZERO, t.ptr_add(accumulators, 4 * i))
        top, total = self._state(row)
        has_sink = "sinks" in a.strides
        t.store_f32(t.load_scalar_as_f32(self._row("sinks", row), a.stored) if has_sink else _LOWEST, top)
        t.store_f32(_ONE if has_sink else _NOTHING, total)

    def _state(self, row: I64) -> tuple[Ptr, Ptr]:
        """The running maximum of a row and the sum of its weights."""
        at = self._of("state", row, 2)
        return at, self.t.ptr_add(at, 4)

    def _block(self, name: str, first: I64, count: I64) -> tuple[Ptr, Int]:
        """A block of keys or values and the stride of its rows; packed where they are not contiguous."""
        t, a = self.t, self.a
        *_, row, step = a.strides[name]
        x, stride = t.ptr_add(self.at[name], t.scaled(first, row)), t.size(row)
        if not packs(a, name):
            return x, stride
        width = a.width(name)
        t.call_shared(copy_function(t.device, width, a.cached[name]), x, stride, t.size(step), count, self.room[name])
        return self.room[name], 4 * width

    def _prefetch(self, row: Ptr, bytes: int) -> None:
        for at in range(0, bytes, self.t.device.caches.line):
            self.t.prefetch(self.t.ptr_add(row, at))

    def _score(self, k: Ptr, stride: Int, v: Ptr, apart: Int, count: I64, start: Int = 0) -> None:
        """The scores of a block of keys from one on, after whole groups."""
        t, a = self.t, self.a

        read: Stored = "float" if packs(a, "k") else a.cached["k"]
        value_bytes = a.dv * (4 if packs(a, "v") else STORED_BYTES[a.cached["v"]])

        def score(x: Ptr, stride: Int, first: Int, stored: Stored, count: int = t.lanes) -> None:
            for rows, row, is_first in self._rows_at_once(scored_rows(t.device, self.most)):
                q, s = self._of("queries", row, self.d), self._of("scores", row, ATTENTION.few_keys)
                prefetches = is_first and not packs(a, "k")
                scores = (
                    streamed_scores_function(t.device, a.d, rows, stored, prefetches=prefetches)
                    if self.is_streamed
                    else few_scores_function(t.device, a.d, rows, stored, count)
                )
                t.call_shared(scores, q, x, stride, t.ptr_add(s, t.mul(first, 4)))

        done: Int = start
        for keys in dict.fromkeys((t.lanes, self._last_group)):
            end = t.mul(t.sdiv(count, keys), keys)
            with t.loop(done, end, step=keys) as first:
                x = t.ptr_add(k, t.mul(first, stride))
                if not self.is_streamed:
                    with t.loop(0, keys) as j:
                        self._prefetch(t.ptr_add(v, t.mul(t.add(first, j), apart)), value_bytes)
                score(x, stride, first, read, keys)
            done = end
        left = t.sub(count, done)
        with t.when(t.icmp("sgt", left, 0)):
            x = t.ptr_add(k, t.mul(done, stride))
            t.call_shared(copy_function(t.device, a.d, read), x, stride, STORED_BYTES[read], left, self.room["left"])
            score(self.room["left"], 4 * a.d, done, "float", self._last_group)

    def _weigh(self, row: I64, first: I64, count: I64) -> F32:
        """Bend and mask the scores of a row and make weights of them; gives how much older sums shrink."""
        t = self.t
        scores = self._of("scores", row, ATTENTION.few_keys)
        top, total = self._state(row)
        vectors = t.ceil_div(count, t.lanes)
        before, now = self._maximum(row, first, count, scores, top, vectors)
        none = t.let(f"fcmp oeq float {now}, {_LOWEST}")
        safe = t.splat(F32(t.let(f"select i1 {none}, float {_NOTHING}, float {now}")))
        old = exp_of_negative(t, t.fsub(t.splat(before), safe))
        with t.carry(0, vectors, [ZERO]) as state:
            here = t.ptr_add(scores, t.mul(t.mul(state.index, t.lanes), 4))
            p = exp_of_negative(t, t.fsub(t.load(here), safe))
            t.store(p, here)
            state.vectors[0] = t.fadd(state.vectors[0], p)
        shrunk = t.extract(old, 0)
        earlier = t.let(f"fmul float {t.load_f32(total)}, {shrunk}")
        t.store_f32(F32(t.let(f"fadd float {earlier}, {t.reduce_add(state.vectors[0])}")), total)
        return shrunk

    def _maximum(self, row: I64, first: I64, count: I64, scores: Ptr, top: Ptr, vectors: I64) -> tuple[F32, F32]:
        """Bend and mask the scores of a row; the running maximum before and after them."""
        t = self.t
        low = t.constant(float("-inf"))
        masks = {n: self._row(n, row) for n in ("mask", "keep") if n in self.a.strides}
        highest, whole = low, t.sdiv(count, t.lanes)
        # LLVM spells masked loads out lane by lane where a machine has none: only the last vector needs them.
        for start, end, is_whole in ((0, whole, True), (whole, vectors, False)):
            with t.carry(start, end, [highest]) as state:
                at = t.mul(state.index, t.lanes)
                inside = None if is_whole else t.lanes_below(t.sub(count, at))
                here = t.ptr_add(scores, t.mul(at, 4))
                x = self._bent(t.load(here), row, t.add(first, at), inside, masks)
                x = x if inside is None else t.select(inside, x, low)
                t.store(x, here)
                state.vectors[0] = t.fmax(x, state.vectors[0])
            highest = state.vectors[0]
        before = t.load_f32(top)
        highest_lane = t.reduce_lanes("fmax", highest)
        higher = I1(t.let(f"fcmp ogt float {highest_lane}, {before}"))
        now = F32(t.let(f"select i1 {higher}, float {highest_lane}, float {before}"))
        t.store_f32(now, top)
        return before, now

    def _bent(self, x: Vec, row: I64, key: I64, inside: Mask | None, masks: Mapping[str, Ptr]) -> Vec:
        t, a = self.t, self.a
        masked = {n: self._masked(n, at, key, inside) for n, at in masks.items()}
        if a.softcap is not None:
            x = t.fmul(fast_tanh(t, x), t.constant(a.softcap))
        keys: VecI32 | None = None
        own: VecI32 | None = None
        if a.causal:
            keys, own = t.positions(key, 0), t.splat_i32(self._position(row))
        return t.shown(x, masked, keys, own)

    def _position(self, row: I64) -> I64:
        t = self.t
        return t.srem(row, t.size(self.a.queries)) if self.first is None else t.add(self.first, row)

    def _masked(self, name: str, at: Ptr, key: I64, inside: Mask | None) -> Vec:
        """What a mask has for as many keys as a vector has lanes, or for those that are inside."""
        t = self.t
        step, stored = self.a.strides[name][-1], t.stored(name)
        here, item = t.ptr_add(at, t.scaled(key, step)), STORED_BYTES[stored]
        if step == 0:
            return t.splat(t.load_scalar_as_f32(here, stored))
        wide = t.stored_vec(stored)
        if step == item and inside is None:
            return t.widen(t.let(f"load {wide}, ptr {here}, align {item}"), stored)
        inside = t.lanes_below(I64(str(t.lanes))) if inside is None else inside
        if step == item:
            return t.widen(t.load_where(wide, inside, here, "zeroinitializer", item), stored)
        far = t.let(f"mul {t.long_vec} {t.lane_numbers()}, {t.splat_i64(t.size(step))}")
        addresses = t.let(f"getelementptr i8, ptr {here}, {t.long_vec} {far}")
        return t.widen(t.gather_where(wide, inside, addresses, "zeroinitializer", item), stored)

    def _write(self, row: I64) -> None:
        """Divide by the sum of weights and write the row of the result."""
        t, a = self.t, self.a
        factor = t.inverse(t.load_splat(self._state(row)[1]))
        none = t.fcmp("oeq", factor, t.constant(0.0))
        x = self._of("accumulators", row, self.dv)
        if a.epilogue is not None:
            finished = self.room["finished"]
            for i in range(0, self.dv, t.lanes):
                scaled = t.select(none, t.constant(0.0), t.fmul(t.load(t.ptr_add(x, 4 * i)), factor))
                t.store(scaled, t.ptr_add(finished, 4 * i))
            at = {name: self._row(name, row) for name in a.epilogue.pointers}
            t.write_steps(self.room[WORDS_REGION], finished, 1, at)
            return
        y, item = self._row("y", row), STORED_BYTES[a.stored]
        for i in range(0, self.dv, t.lanes):
            scaled = t.select(none, t.constant(0.0), t.fmul(t.load(t.ptr_add(x, 4 * i)), factor))
            if i + t.lanes <= a.dv:
                t.store_from_f32(scaled, t.ptr_add(y, item * i), a.stored)
                continue
            for c in range(i, a.dv):
                t.store_scalar_from_f32(t.extract(scaled, c - i), t.ptr_add(y, item * c), a.stored)
