"""Attention in f16 for `precision="fast"`: products of many queries, lanes along queries, and of few.

With many queries a vector holds a feature of eight of them, and an instruction multiplies it with one number of a key
or value. Scores are sums of half of the features each, results sums of a block of keys; these are rounded to f16, about
1e-3 of them. Weights, their sums, and results of several blocks are f32.

With few queries memory is the limit. Widened to f32, sixteen numbers take a Neoverse N1 as long as it takes to read
them. A group of eight keys goes through their features in the order of memory, as in `few.py`. A lane of a score sums
an eighth of the features, and a result eight keys, before these sums are f32: short sums have few roundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dovetail.codegen.llvm.handles import F32, I64, Int, Ptr, Vec, VectorType
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.attention.few import FewQueries, Group, rows_at_once, summed_rows
from dovetail.targets.cpu.attention.functions import Shared, finished, integer, read, weights_function, written
from dovetail.targets.cpu.attention.online import Products
from dovetail.targets.cpu.attention.pack_kv import KeyValuePacking
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend, packs

KEYS = 2
"""Keys that are scored at once."""
LANES = 8
"""Numbers of a vector."""
WIDE = 2
"""Vectors of queries in a tile."""
CHAINS = 4
"""Sums of a score: a sum of few products has few roundings."""
FEATURES = 4
"""Features of values that are added up at once."""
TURNS = 2
"""Accumulators of a feature: keys go to them in turn."""
_ITEM = 2
_VECTOR = _ITEM * LANES
_ROW, _FLOATS = WIDE * _VECTOR, 4 * LANES * WIDE
"""Bytes of a row of f16 and of f32, with a number of each query."""


class Halves(VectorBuilder):
    """One function while it is written, with arithmetic on vectors of f16."""

    def __init__(self, device: CpuDevice) -> None:
        super().__init__(device)
        self.lanes, self.bytes = LANES, _VECTOR
        self.floats = self.float_lanes = VectorType(LANES, "half")
        self.vec = str(self.floats)
        self.four = f"<{LANES // 2} x float>"

    def fma(self, x: Vec, y: Vec, z: Vec) -> Vec:
        name = f"llvm.fma.v{LANES}f16"
        self.use(f"declare {self.vec} @{name}({self.vec}, {self.vec}, {self.vec})")
        return Vec(self.let(f"call {self.vec} @{name}({self.vec} {x}, {self.vec} {y}, {self.vec} {z})"))

    def wide(self, x: Vec) -> list[str]:
        """Both halves of a vector, as f32."""
        parts: list[str] = []
        for first in (0, LANES // 2):
            part = self.shuffle(x, x, range(first, first + LANES // 2))
            parts.append(self.let(f"fpext <{LANES // 2} x half> {part} to {self.four}"))
        return parts

    def load_four(self, at: Ptr) -> str:
        return self.let(f"load {self.four}, ptr {at}, align 4")

    def store_four(self, x: str, at: Ptr) -> None:
        self.emit(f"store {self.four} {x}, ptr {at}, align 4")

    def four_op(self, name: str, x: str, y: str) -> str:
        """An instruction on four numbers of f32."""
        return self.let(f"{name} {self.four} {x}, {y}")

    def fma_four(self, x: str, y: str, z: str) -> str:
        name = "llvm.fma.v4f32"
        self.use(f"declare {self.four} @{name}({self.four}, {self.four}, {self.four})")
        return self.let(f"call {self.four} @{name}({self.four} {x}, {self.four} {y}, {self.four} {z})")

    def splat_four(self, x: F32) -> str:
        one = self.let(f"insertelement {self.four} poison, float {x}, i64 0")
        return self.let(f"shufflevector {self.four} {one}, {self.four} poison, <4 x i32> zeroinitializer")

    def constant_four(self, x: float) -> str:
        return f"<{', '.join([f'float {x}'] * 4)}>"

    def row(self, at: Ptr) -> list[Vec]:
        """A number of each query."""
        return [self.load(self.ptr_add(at, _VECTOR * i), 2) for i in range(WIDE)]


@lru_cache(64)
def half_scores_function(device: CpuDevice, d: int) -> Shared:
    """s[j, i] = Σ_c q[c, i] · k[j, c] for a few keys, in f32."""
    t = Halves(device)
    rows = [t.ptr_add(Ptr("%k"), t.mul(j, I64("%stride"))) for j in range(KEYS)]
    with t.carry(0, d // (CHAINS * LANES), [ZERO] * (KEYS * WIDE * CHAINS)) as state:
        accumulators = state.vectors
        keys, queries = t.mul(state.index, CHAINS * _VECTOR), t.mul(state.index, CHAINS * LANES * _ROW)
        at = [t.ptr_add(row, keys) for row in rows]
        held = [[t.load(t.ptr_add(key, _VECTOR * chain), 2) for key in at] for chain in range(CHAINS)]
        for feature in range(LANES):
            for chain in range(CHAINS):
                q = t.row(t.ptr_add(t.ptr_add(Ptr("%q"), queries), (chain * LANES + feature) * _ROW))
                for j in range(KEYS):
                    one = t.splat_lane(held[chain][j], feature)
                    for i in range(WIDE):
                        place = (j * WIDE + i) * CHAINS + chain
                        accumulators[place] = t.fma(q[i], one, accumulators[place])
    for cell in range(KEYS * WIDE):
        chains = state.vectors[CHAINS * cell : CHAINS * (cell + 1)]
        while len(chains) > 1:
            chains = [t.fadd(x, y) for x, y in zip(chains[::2], chains[1::2], strict=True)]
        for part, four in enumerate(t.wide(chains[0])):
            t.store_four(four, t.ptr_add(Ptr("%s"), 4 * LANES * cell + 2 * LANES * part))
    return finished(t, "attend_half_scores", (read("q"), read("k"), integer("stride"), written("s")))


@lru_cache(64)
def half_values_function(device: CpuDevice) -> Shared:
    """o[c, i] = o[c, i] · old[i] + Σ_j p[j, i] · v[j, c] for a few features; o and old are f32."""
    t = Halves(device)
    count = FEATURES * WIDE
    whole = t.sdiv(I64("%count"), TURNS)
    with t.carry(0, whole, [ZERO] * (TURNS * count)) as state:
        for turn in range(TURNS):
            of = slice(turn * count, (turn + 1) * count)
            state.vectors[of] = _added(t, state.vectors[of], t.add(t.mul(state.index, TURNS), turn))
    accumulators = state.vectors[:count]
    with t.carry(t.mul(whole, TURNS), I64("%count"), accumulators) as left:
        left.vectors[:] = _added(t, left.vectors, left.index)
    totals = [t.fadd(x, y) for x, y in zip(left.vectors, state.vectors[count:], strict=True)]
    old = [t.load_four(t.ptr_add(Ptr("%rescale"), 16 * part)) for part in range(2 * WIDE)]
    for cell, total in enumerate(totals):
        for part, four in enumerate(t.wide(total)):
            number = 2 * cell + part
            place = t.ptr_add(Ptr("%o"), 16 * number)
            t.store_four(t.fma_four(t.load_four(place), old[number % len(old)], four), place)
    parameters = (read("p"), read("v"), integer("stride"), integer("count"), written("o"), read("rescale"))
    return finished(t, "attend_half_values", parameters)


def _added(t: Halves, accumulators: Sequence[Vec], key: I64) -> list[Vec]:
    """Sums of some features with the values of a key."""
    p = t.row(t.ptr_add(Ptr("%p"), t.mul(key, _ROW)))
    at = t.ptr_add(Ptr("%v"), t.mul(key, I64("%stride")))
    few = f"<{FEATURES} x half>"
    v = t.let(f"load {few}, ptr {at}, align 2")
    lanes = [", ".join([f"i32 {feature}"] * LANES) for feature in range(FEATURES)]
    splats = [Vec(t.let(f"shufflevector {few} {v}, {few} poison, <{LANES} x i32> <{some}>")) for some in lanes]
    return [t.fma(p[place % WIDE], splats[place // WIDE], x) for place, x in enumerate(accumulators)]


@lru_cache(64)
def narrow_function(device: CpuDevice, width: int) -> Shared:
    """to[r, c] = x[r, c] as f16, rows contiguous; those of x are f32 that are strided."""
    t = Halves(device)
    with t.loop(0, I64("%rows")) as r:
        row, onto = t.ptr_add(Ptr("%x"), t.mul(r, I64("%stride"))), t.ptr_add(Ptr("%to"), t.mul(r, _ITEM * width))
        for c in range(0, width, LANES):
            wide = t.let(f"load <{LANES} x float>, ptr {t.ptr_add(row, 4 * c)}, align 4")
            t.store(Vec(t.let(f"fptrunc <{LANES} x float> {wide} to {t.vec}")), t.ptr_add(onto, _ITEM * c), 2)
    return finished(t, "attend_narrow", (read("x"), integer("stride"), integer("rows"), written("to")))


def multiplies_halves(a: Attend) -> bool:
    """Whether fast mode multiplies in f16 with many queries."""
    if not a.device.emits("f16_arithmetic") or a.rows != LANES * WIDE:
        return False
    if a.stored != "float" or a.rotated is not None or "mask" in a.strides or a.is_few:
        return False
    is_dense = all(a.strides[name][-1] == 4 for name in ("k", "v"))
    return is_dense and a.d % (CHAINS * LANES) == 0 and a.dv % FEATURES == 0


class F16Products(Products):
    """Products in f16."""

    keeps_maxima = False
    packing = KeyValuePacking(_ITEM, 1, lambda a, name: narrow_function(a.device, a.width(name)))

    def pack_queries(self) -> None:
        t, a, row = self.t, self.a, LANES * WIDE
        t.call_shared(narrow_function(a.device, row), self.room["columns"], 4 * row, a.d, self.room["halves"])

    def score(self, first: I64, count: I64) -> None:
        t, a = self.t, self.a
        k, stride = self.narrowed("k", first, count), 2 * a.d
        with t.loop(0, t.sdiv(t.add(count, KEYS - 1), KEYS)) as group:
            done = t.mul(group, KEYS)
            x, to = t.ptr_add(k, t.mul(done, stride)), t.ptr_add(self.room["scores"], t.mul(done, self.of.row))
            t.call_shared(half_scores_function(a.device, a.d), self.room["halves"], x, stride, to)

    def weigh(self, count: I64) -> None:
        t = self.t
        weights = weights_function(t.device, self.wide, twos=self.of.twos, narrow=True)
        t.call_shared(weights, self.room["scores"], count, self.room["maxima"], self.room["sums"])

    def add_values(self, first: I64, count: I64) -> None:
        t, a = self.t, self.a
        v = self.narrowed("v", first, count)
        with t.loop(0, a.dv // FEATURES) as part:
            x, to = t.ptr_add(v, t.mul(part, 2 * FEATURES)), t.mul(part, FEATURES * self.of.row)
            o = t.ptr_add(self.room["accumulators"], to)
            values = half_values_function(t.device)
            t.call_shared(values, self.room["scores"], x, 2 * a.dv, count, o, self.room["rescale"])


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
        totals = [t.four_op("fadd", *t.wide(x)) for x in state.vectors[LANES * i : LANES * (i + 1)]]
        for _ in range(2):
            totals = [_neighbours(t, x, y) for x, y in zip(totals[::2], totals[1::2], strict=True)]
        for part, four in enumerate(totals):
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
        old = t.splat_four(t.load_f32(t.ptr_add(Ptr("%rescale"), 4 * i)))
        with t.loop(0, dv // 4) as number:
            place = t.ptr_add(result, t.mul(number, 16))
            t.store_four(t.four_op("fmul", t.load_four(place), old), place)
    whole = t.mul(t.sdiv(total, LANES), LANES)
    with t.loop(0, whole, step=LANES) as first:
        group = Group(t, t.ptr_add(v, t.mul(first, stride)), stride, dv, "half", prefetches=prefetches)
        weights = [_weights(t, t.ptr_add(p, t.add(t.mul(first, 4), 4 * ATTENTION.few_keys * i))) for i in range(rows)]
        with t.loop(0, group.parts) as part:
            places = list(group.vectors(part))
            for result, accumulators in zip(results, _weighted(t, group, places, weights), strict=True):
                for at, row_sums in zip(places, accumulators, strict=True):
                    _add(t, row_sums, t.constant_four(1 / _WEIGHT), t.ptr_add(result, t.mul(at, 2)))
    with t.loop(whole, total) as key:
        row, weight = t.ptr_add(v, t.mul(key, stride)), t.ptr_add(p, t.mul(key, 4))
        splats = [t.splat_four(t.load_f32(t.ptr_add(weight, 4 * ATTENTION.few_keys * i))) for i in range(rows)]
        with t.loop(0, dv // LANES) as number:
            value = t.load(t.ptr_add(row, t.mul(number, 2 * LANES)), 2)
            for result, splat in zip(results, splats, strict=True):
                _add(t, value, splat, t.ptr_add(result, t.mul(number, 4 * LANES)))
    parameters = (read("p"), read("v"), integer("stride"), integer("count"), written("o"), read("rescale"))
    return finished(t, "attend_few_half_values", parameters)


def _weighted(t: Halves, group: Group, places: Sequence[Int], weights: Sequence[Sequence[Vec]]) -> list[list[Vec]]:
    """Sums of a group's values at some vectors of features, for each row of weights.

    Neighbours add to different sums: queues hold few instructions that wait for the one before.
    """
    accumulators: list[list[Vec]] = []
    for j, row in enumerate(group.rows):
        values = [t.load(t.ptr_add(row, at), 2) for at in places]
        if j == 0:
            accumulators = [[t.fmul(value, some[0]) for value in values] for some in weights]
        else:
            pairs = zip(weights, accumulators, strict=True)
            accumulators = [[t.fma(v, some[j], x) for v, x in zip(values, held, strict=True)] for some, held in pairs]
    return accumulators


def _weights(t: Halves, at: Ptr) -> Sequence[Vec]:
    """The weights of eight keys, each in all lanes."""
    wide = f"<{LANES} x float>"
    factor = ", ".join([f"float {_WEIGHT}"] * LANES)
    scaled = t.let(f"fmul {wide} {t.let(f'load {wide}, ptr {at}, align 4')}, <{factor}>")
    narrow = Vec(t.let(f"fptrunc {wide} {scaled} to {t.vec}"))
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
        arguments = (self._of("queries", row, self.d), 4 * self.d, 1, self._half_query(row))
        self.t.call_shared(narrow_function(self.t.device, self.a.d), *arguments)

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
            p, o = self._of("scores", row, ATTENTION.few_keys), self._of("accumulators", row, self.dv)
            values = few_half_values_function(t.device, a.dv, rows, prefetches=is_first)
            t.call_shared(values, p, v, stride, count, o, self._of("rescale", row, 1))
