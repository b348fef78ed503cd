"""Few queries with keys and values of f16, multiplied in f16 (`precision="fast"`): memory stays the limit.

Widened to f32, sixteen numbers take a Neoverse N1 as long as it takes to read them. A group of eight keys goes through
their features in the order of memory, as in `streamed.py`. A lane of a score sums up an eighth of the features, and a
result eight keys, before these sums are f32: short sums have few roundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dovetail.codegen.llvm.handles import I64, Int, Ptr, Vec
from dovetail.codegen.llvm.vector import ZERO
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.attention.decode import FewQueries
from dovetail.targets.cpu.attention.few_parts import rows_at_once, summed_rows
from dovetail.targets.cpu.attention.half_parts import LANES, Halves, narrow_function
from dovetail.targets.cpu.attention.parts import Shared, finished, integer, read, written
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend, packs
from dovetail.targets.cpu.attention.streamed import Group

_MOST_ROWS = 2
"""Rows that are scored at once: each has a sum for each key of a group."""
_WEIGHT = 1.0 / LANES
"""Weights are at most this in f16, so that no sum of a group is larger than the largest value."""


def few_in_halves(a: Attend) -> bool:
    """Whether fast mode multiplies few queries in f16."""
    if not a.device.emits("f16_arithmetic") or not a.device.has("fma_by_lane") or a.stored != "float" or not a.is_few:
        return False
    return all(a.cached[name] == "half" and not packs(a, name) for name in ("k", "v"))


@lru_cache(64)
def few_half_scores_function(device: CpuDevice, d: int, rows: int, *, prefetches: bool) -> Shared:
    """s[i, j] = Σ_c q[i, c] · k[j, c] for rows of queries and eight keys, all in f16; scores are f32."""
    t = Halves(device)
    keys = Group(t, Ptr("%k"), I64("%stride"), d, "half", prefetches=prefetches)
    with t.carry(0, keys.parts, [ZERO] * (rows * LANES)) as state:
        for at in keys.vectors(state.index):
            k = [t.load(t.ptr_add(row, at), 2) for row in keys.rows]
            q = [t.load(t.ptr_add(Ptr("%q"), t.add(at, 2 * d * i)), 2) for i in range(rows)]
            state.vectors[:] = [t.fma(q[i // LANES], k[i % LANES], x) for i, x in enumerate(state.vectors)]
    for i in range(rows):
        # Both halves of each sum, then neighbours, in f32.
        found = [t.four_op("fadd", *t.wide(x)) for x in state.vectors[LANES * i : LANES * (i + 1)]]
        for _ in range(2):
            found = [_neighbours(t, x, y) for x, y in zip(found[::2], found[1::2], strict=True)]
        for part, four in enumerate(found):
            t.store_four(four, t.ptr_add(Ptr("%s"), 4 * ATTENTION.few_keys * i + 16 * part))
    return finished(t, "attend_few_half_scores", (read("q"), read("k"), integer("stride"), written("s")))


def _neighbours(t: Halves, x: str, y: str) -> str:
    """Sums of neighbours in two vectors."""
    even, odd = (
        t.let(f"shufflevector {t.four} {x}, {t.four} {y}, <4 x i32> <{', '.join([f'i32 {i}' for i in lanes])}>")
        for lanes in ((0, 2, 4, 6), (1, 3, 5, 7))
    )
    return t.four_op("fadd", even, odd)


@lru_cache(64)
def few_half_values_function(device: CpuDevice, dv: int, rows: int, *, prefetches: bool) -> Shared:
    """o[i, c] = o[i, c] · old[i] + Σ_j p[i, j] · v[j, c] for rows of queries; v is f16, and p is rounded to it."""
    t = Halves(device)
    p, v, stride, total = Ptr("%p"), Ptr("%v"), I64("%stride"), I64("%count")
    results = [t.ptr_add(Ptr("%o"), 4 * dv * i) for i in range(rows)]
    for i, result in enumerate(results):
        old = t.splat_four(t.load_f32(t.ptr_add(Ptr("%old"), 4 * i)))
        with t.loop(0, dv // 4) as number:
            place = t.ptr_add(result, t.mul(number, 16))
            t.store_four(t.four_op("fmul", t.load_four(place), old), place)
    whole = t.mul(t.sdiv(total, LANES), LANES)
    with t.loop(0, whole, step=LANES) as first:
        group = Group(t, t.ptr_add(v, t.mul(first, stride)), stride, dv, "half", prefetches=prefetches)
        given = [t.ptr_add(p, t.add(t.mul(first, 4), 4 * ATTENTION.few_keys * i)) for i in range(rows)]
        weights = [_weights(t, at) for at in given]
        with t.loop(0, group.parts) as part:
            places = list(group.vectors(part))
            for result, sums in zip(results, _weighted(t, group, places, weights), strict=True):
                for at, found in zip(places, sums, strict=True):
                    _add(t, found, t.constant_four(1 / _WEIGHT), t.ptr_add(result, t.mul(at, 2)))
    with t.loop(whole, total) as key:
        row, weight = t.ptr_add(v, t.mul(key, stride)), t.ptr_add(p, t.mul(key, 4))
        splats = [t.splat_four(t.load_f32(t.ptr_add(weight, 4 * ATTENTION.few_keys * i))) for i in range(rows)]
        with t.loop(0, dv // LANES) as number:
            value = t.load(t.ptr_add(row, t.mul(number, 2 * LANES)), 2)
            for result, splat in zip(results, splats, strict=True):
                _add(t, value, splat, t.ptr_add(result, t.mul(number, 4 * LANES)))
    given = (read("p"), read("v"), integer("stride"), integer("count"), written("o"), read("old"))
    return finished(t, "attend_few_half_values", given)


def _weighted(t: Halves, group: Group, places: Sequence[Int], weights: Sequence[Sequence[Vec]]) -> list[list[Vec]]:
    """Sums of a group's values at some vectors of features, for each row of weights.

    Neighbours add to different sums: queues hold few instructions that wait for the one before.
    """
    sums: list[list[Vec]] = []
    for j, row in enumerate(group.rows):
        values = [t.load(t.ptr_add(row, at), 2) for at in places]
        if j == 0:
            sums = [[t.fmul(value, some[0]) for value in values] for some in weights]
        else:
            pairs = zip(weights, sums, strict=True)
            sums = [[t.fma(v, some[j], x) for v, x in zip(values, held, strict=True)] for some, held in pairs]
    return sums


def _weights(t: Halves, at: Ptr) -> Sequence[Vec]:
    """The weights of eight keys, each in all lanes."""
    wide = f"<{LANES} x float>"
    factor = ", ".join([f"float {_WEIGHT}"] * LANES)
    found = t.let(f"fmul {wide} {t.let(f'load {wide}, ptr {at}, align 4')}, <{factor}>")
    narrow = Vec(t.let(f"fptrunc {wide} {found} to {t.vec}"))
    return [t.splat_lane(narrow, lane) for lane in range(LANES)]


def _add(t: Halves, x: Vec, factor: str, place: Ptr) -> None:
    """Add eight numbers of f16 times a factor to those of f32 in memory."""
    for part, four in enumerate(t.wide(x)):
        there = t.ptr_add(place, 16 * part)
        t.store_four(t.fma_four(four, factor, t.load_four(there)), there)


class HalfFewQueries(FewQueries):
    """One tile of few queries whose products are computed in f16."""

    def _take_query(self, row: I64) -> None:
        super()._take_query(row)
        given = (self._of("queries", row, self.d), 4 * self.d, 1, self._half_query(row))
        self.t.call_shared(narrow_function(self.t.device, self.a.d), *given)

    def _half_query(self, row: I64) -> Ptr:
        return self.t.ptr_add(self.room["halves"], self.t.mul(row, 2 * self.a.d))

    def _score(self, k: Ptr, stride: Int, v: Ptr, apart: Int, count: I64, start: Int = 0) -> None:
        t, a = self.t, self.a
        whole = t.mul(t.sdiv(count, LANES), LANES)
        with t.loop(start, whole, step=LANES) as first:
            x = t.ptr_add(k, t.mul(first, stride))
            for rows, row, is_first in self._rows_at_once(rows_at_once(self.most, _MOST_ROWS)):
                s = t.ptr_add(self._of("scores", row, ATTENTION.few_keys), t.mul(first, 4))
                scores = few_half_scores_function(t.device, a.d, rows, prefetches=is_first)
                t.call_shared(scores, self._half_query(row), x, stride, s)
        super()._score(k, stride, v, apart, count, whole)

    def _add_values(self, v: Ptr, stride: Int, following: I64, end: Int, count: I64) -> None:
        t, a = self.t, self.a
        for rows, row, is_first in self._rows_at_once(summed_rows(self.most)):
            p, o = self._of("scores", row, ATTENTION.few_keys), self._of("taken", row, self.dv)
            values = few_half_values_function(t.device, a.dv, rows, prefetches=is_first)
            t.call_shared(values, p, v, stride, count, o, self._of("old", row, 1))


__all__ = ["HalfFewQueries", "few_half_scores_function", "few_half_values_function", "few_in_halves"]
