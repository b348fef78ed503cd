"""Products of few queries with keys and values that are read once, in the order of memory, with FMA by lane.

A group of as many keys as a vector has lanes goes through their features in as many parts. During each part one row
is prefetched, the one that is half a group ahead: requests for lines are in order, as the hardware
prefetcher expects them. A Neoverse N1 reads 16 GB/s so, where it has 10 to 12 if the rows of a group take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from dovetail.codegen.llvm.handles import I64, Int, Ptr, Vec
from dovetail.codegen.llvm.vector import STORED_BYTES, ZERO, Stored, VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.attention.parts import Shared, finished, integer, read, written
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import padded


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

    def added(sums: Sequence[Vec], at: Int, k: Sequence[Vec]) -> list[Vec]:
        """Sums with the products of a vector of features."""
        q = [t.load(t.ptr_add(query, at), size) for query in queries]
        return [t.fma(q[i // lanes], k[i % lanes], x) for i, x in enumerate(sums)]

    with t.carry(0, keys.parts if keys.each else 0, [ZERO] * (rows * lanes)) as state:
        for at in keys.vectors(state.index):
            state.vectors[:] = added(state.vectors, at, keys.loaded(at))
    sums = state.vectors
    if keys.left:
        last = [t.load_first(t.ptr_add(key, keys.left_at), keys.left) for key in keys.rows]
        sums = added(sums, keys.left_at, last)
    for i in range(rows):
        found = t.transpose_add(sums[i * lanes : (i + 1) * lanes])
        t.store(found, t.ptr_add(Ptr("%s"), 4 * ATTENTION.few_keys * i), size)
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
        sums = [t.load(place, size) for place in places]
        for j, value in enumerate(values):
            sums = [t.fma(value, weights[i][j], x) for i, x in enumerate(sums)]
        for x, place in zip(sums, places, strict=True):
            t.store(x, place, size)

    for i, result in enumerate(results):
        old = t.load_splat(t.ptr_add(Ptr("%old"), 4 * i))
        with t.loop(0, wide // lanes) as number:
            place = t.ptr_add(result, t.mul(number, size))
            t.store(t.fmul(t.load(place, size), old), place, size)
    whole = t.sdiv(total, lanes)
    with t.loop(0, whole) as number:
        first = t.mul(number, lanes)
        group = Group(t, t.ptr_add(v, t.mul(first, stride)), stride, dv, stored, prefetches=prefetches)
        given = [t.load(t.ptr_add(p, t.add(t.mul(first, 4), 4 * ATTENTION.few_keys * i)), size) for i in range(rows)]
        weights = [[t.splat_lane(x, lane) for lane in range(lanes)] for x in given]
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
    given = (read("p"), read("v"), integer("stride"), integer("count"), written("o"), read("old"))
    return finished(t, "attend_streamed_values", given)


__all__ = ["Group", "as_stored", "streamed_scores_function", "streamed_values_function"]
