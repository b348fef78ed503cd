"""Scores and sums of values for few queries, lanes along features, without FMA by lane."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dovetail.codegen.llvm.handles import I64, Int, Ptr, Vec
from dovetail.codegen.llvm.vector import ZERO, Stored, VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.attention.parts import Shared, finished, integer, read, written
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import padded
from dovetail.targets.cpu.attention.streamed import as_stored


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

    def added(sums: Sequence[Vec], at: Int, features: int = lanes) -> list[Vec]:
        """Sums with the products of a vector of features."""
        here = [t.ptr_add(key, as_stored(t, at, stored)) for key in keys]
        k = [t.load_as_f32(x, stored) if features == lanes else t.load_first(x, features) for x in here]
        q = [t.load(t.ptr_add(query, at), size) for query in queries]
        return [t.fma(q[i // count], k[i % count], x) for i, x in enumerate(sums)]

    sums: list[Vec] = [ZERO] * (rows * count)
    if d // lanes <= ATTENTION.most_unrolled:
        for i in range(d // lanes):
            sums = added(sums, i * size)
    else:
        with t.carry(0, d // lanes, sums) as state:
            state.vectors[:] = added(state.vectors, t.mul(state.index, size))
        sums = state.vectors
    if d % lanes:
        sums = added(sums, d // lanes * size, d % lanes)
    for i in range(rows):
        found = t.transpose_add([*sums[i * count : (i + 1) * count], *[ZERO] * (lanes - count)])
        t.store(found, t.ptr_add(Ptr("%s"), 4 * ATTENTION.few_keys * i), 4 * count)
    return finished(t, "attend_few_scores", (read("q"), read("k"), integer("stride"), written("s")))


def keys_at_once(device: CpuDevice, dv: int) -> int:
    """Keys with accumulators of their own: enough to keep the FMA units busy; wide rows have them anyway."""
    return max(1, min(4, device.registers // 2 // (padded(dv, device.lanes) // device.lanes)))


@lru_cache(64)
def few_values_function(device: CpuDevice, dv: int, rows: int, ahead: int, stored: Stored) -> Shared:
    """o[i, c] = o[i, c] · old[i] + Σ_j p[i, j] · v[j, c] for rows of queries. It prefetches a later key for each:
    `left` of those in `ahead`, and then those in `others`.

    A sum goes to several accumulators that are added at the end; they do not depend on the number of rows. Features
    are done in parts, so that the accumulators of all rows stay in registers. `ahead` is the bytes of a row of keys.
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

    def added(sums: Sequence[Vec], key: I64, part: range, of: int = 0) -> list[Vec]:
        """Sums of all rows with the values of a key; they are accumulators `of` each feature."""
        here, weights = t.ptr_add(v, t.mul(key, stride)), t.ptr_add(p, t.mul(key, 4))
        places = [t.ptr_add(here, as_stored(t, i * size, stored)) for i in part]
        values = [
            t.load_as_f32(x, stored) if (i + 1) * lanes <= dv else t.load_first(x, dv % lanes)
            for i, x in zip(part, places, strict=True)
        ]
        found = list(sums)
        for row in range(rows):
            weight = t.load_splat(t.ptr_add(weights, 4 * ATTENTION.few_keys * row))
            for i, value in enumerate(values):
                at = (of * rows + row) * len(part) + i
                found[at] = t.fma(weight, value, found[at])
        return found

    for number in range(parts):
        part = range(number * count // parts, (number + 1) * count // parts)
        places = [t.ptr_add(o, 4 * padded(dv, lanes) * row + i * size) for row in range(rows) for i in part]
        old = [t.load_splat(t.ptr_add(Ptr("%old"), 4 * row)) for row in range(rows)]
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
        sums = state.vectors
        for of in range(1, at_once):
            sums[: len(starts)] = [t.fadd(x, sums[of * len(starts) + i]) for i, x in enumerate(sums[: len(starts)])]
        with t.carry(t.mul(t.sdiv(total, at_once), at_once), total, sums[: len(starts)]) as state:
            state.vectors[:] = added(state.vectors, state.index, part)
        for x, place in zip(state.vectors, places, strict=True):
            t.store(x, place, size)
    given = (read("p"), read("v"), integer("stride"), integer("count"), written("o"), read("old"))
    return finished(t, "attend_few_values", (*given, read("ahead"), read("others"), integer("left"), integer("apart")))


__all__ = ["few_scores_function", "few_values_function", "keys_at_once", "rows_at_once", "scored_rows", "summed_rows"]
