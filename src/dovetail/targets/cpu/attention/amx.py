"""Attention on tiles of AMX for `precision="fast"`, lanes along queries: products in bf16, sums in f32.

Scores are keys times queries, results are values times weights, both with a column for each query: [key][query] and
[feature][query]. Keys are packed as tiles [key / 16][feature / 32][16][32], values as [key / 32][feature][32], queries
and weights as pairs of rows [query / 16][row / 2][16][2].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from dovetail.codegen.llvm.amx import COLUMNS, ROW_BYTES, ROWS, STEPS, TILE_BYTES, PairBuilder, TileBuilder
from dovetail.codegen.llvm.function import Parameter, Signature
from dovetail.codegen.llvm.handles import I64, NULL, Int, Ptr, Vec
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.maths.vectors import LOG2_E
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.ir.dtype import bf16
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.attention.functions import Shared, finished, integer, read, weight, written
from dovetail.targets.cpu.attention.online import OnlineSoftmax, Products
from dovetail.targets.cpu.attention.pack_kv import KeyValuePacking
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend

WIDE = 2
"""Vectors of queries in a tile of attention, each a column of tiles of AMX."""
_ROW = 4 * COLUMNS * WIDE
"""Bytes of a row of f32, with a number of each query."""
_SHORTS = f"<{2 * COLUMNS} x i16>"
_LEFT, _RIGHT = (4, 5), (6, 7)
"""Tiles of factors; sums are in those before."""


class _Pairs(VectorBuilder, PairBuilder):
    """One function while it is written, with vectors of f32 that are rounded to bf16."""

    def __init__(self, device: CpuDevice) -> None:
        super().__init__(device)
        self.emulated = not device.emits("amx_bf16")

    def finished(self, stem: str, *parameters: Parameter) -> Shared:
        return shared_function(self.function(Signature(stem, parameters)))


@lru_cache(64)
def pair_queries_function(device: CpuDevice, d: int) -> Shared:
    """Queries as columns, [d][query] of f32, as tiles."""
    t = _Pairs(device)
    with t.loop(0, d // 2) as pair:
        x, to = t.ptr_add(Ptr("%x"), t.mul(pair, 2 * _ROW)), t.ptr_add(Ptr("%to"), t.mul(pair, ROW_BYTES))
        for i in range(WIDE):
            two = [t.load(t.ptr_add(x, row * _ROW + i * t.bytes)) for row in range(2)]
            t.store_row(t.paired(str(two[0]), str(two[1])), t.ptr_add(to, i * d // 2 * ROW_BYTES))
    return t.finished("amx.queries", read("x"), written("to"))


@lru_cache(64)
def tile_keys_function(device: CpuDevice, d: int) -> Shared:
    """Keys as tiles: rows of f32 that are strided; the first is the first of a tile."""
    t = _Pairs(device)
    with t.loop(0, I64("%rows")) as r:
        row = t.ptr_add(Ptr("%x"), t.mul(r, I64("%stride")))
        strip = t.mul(t.udiv(r, ROWS), d // STEPS * TILE_BYTES)
        to = t.ptr_add(Ptr("%to"), t.add(strip, t.mul(t.urem(r, ROWS), ROW_BYTES)))
        for step in range(d // STEPS):
            two = [t.load(t.ptr_add(row, 4 * STEPS * step + t.bytes * i)) for i in range(2)]
            t.store_row(t.rounded(str(two[0]), str(two[1])), t.ptr_add(to, step * TILE_BYTES))
    return t.finished("amx.keys", read("x"), integer("stride"), integer("rows"), written("to"))


@lru_cache(64)
def tile_values_function(device: CpuDevice, dv: int) -> Shared:
    """Values as tiles, features for rows; zeros fill up the last 32 keys."""
    t = _Pairs(device)
    with t.loop(0, t.ceil_div(I64("%rows"), STEPS)) as group:
        first = t.mul(group, STEPS)
        x, left = t.ptr_add(Ptr("%x"), t.mul(first, I64("%stride"))), t.sub(I64("%rows"), first)
        to = t.ptr_add(Ptr("%to"), t.mul(group, dv * ROW_BYTES))
        is_whole = t.icmp("sge", left, STEPS)
        with t.loop(0, dv // COLUMNS) as part:
            here, onto = t.ptr_add(x, t.mul(part, t.bytes)), t.ptr_add(to, t.mul(part, TILE_BYTES))
            with t.when(is_whole):
                _square(t, here, onto, None)
            with t.unless(is_whole):
                _square(t, here, onto, left)
    return t.finished("amx.values", read("x"), integer("stride"), integer("rows"), written("to"))


def _square(t: _Pairs, x: Ptr, to: Ptr, left: I64 | None) -> None:
    """16 features of 32 keys, or of those that are left."""

    def row(key: int) -> str:
        if left is None:
            return str(t.load(t.ptr_add(x, t.mul(key, I64("%stride")))))
        is_there = t.icmp("slt", key, left)
        loaded = t.load(t.ptr_add(x, t.mul(t.select_int(is_there, key, 0), I64("%stride"))))
        return str(t.select_vec(is_there, loaded, ZERO))

    pairs = [t.paired(row(key), row(key + 1)) for key in range(0, STEPS, 2)]
    turned = t.transpose([Vec(t.let(f"bitcast {_SHORTS} {pair} to {t.vec}")) for pair in pairs])
    for feature, x_turned in enumerate(turned):
        t.store(x_turned, t.ptr_add(to, feature * ROW_BYTES))


@lru_cache(64)
def pair_weights_function(device: CpuDevice, block: int, dv: int, *, twos: bool) -> Shared:
    """p = exp(s - top) as tiles, or with `twos` 2^(s - top), and their sum is added to l; zeros fill up 32 keys.

    A row whose top is -inf has seen no key: its weights are 0. Values are prefetched for the product that follows.
    """
    t = _Pairs(device)
    low = t.constant(float("-inf"))
    maxima = [t.load(t.ptr_add(Ptr("%top"), i * t.bytes)) for i in range(WIDE)]
    maxima = [t.select(t.fcmp("oeq", x, low), t.constant(0.0), x) for x in maxima]
    totals = [t.load(t.ptr_add(Ptr("%l"), i * t.bytes)) for i in range(WIDE)]

    def weights(key: I64) -> list[Vec]:
        at = t.ptr_add(Ptr("%s"), t.mul(key, _ROW))
        return [weight(t, t.fsub(t.load(t.ptr_add(at, i * t.bytes)), maxima[i]), twos=twos) for i in range(WIDE)]

    def put(pair: I64, two: tuple[list[Vec], list[Vec]]) -> None:
        at = t.ptr_add(Ptr("%p"), t.mul(pair, ROW_BYTES))
        for i in range(WIDE):
            t.store_row(t.paired(str(two[0][i]), str(two[1][i])), t.ptr_add(at, i * block // 2 * ROW_BYTES))

    pairs = t.sdiv(I64("%count"), 2)
    with t.carry(0, pairs, totals) as state:
        first, values = t.mul(state.index, 2), t.ptr_add(Ptr("%v"), t.mul(state.index, 2 * bf16.itemsize * dv))
        for line in range(0, 2 * bf16.itemsize * dv, ROW_BYTES):
            t.prefetch(t.ptr_add(values, line))
        two = weights(first), weights(t.add(first, 1))
        state.vectors[:] = [t.fadd(x, t.fadd(a, b)) for x, a, b in zip(state.vectors, *two, strict=True)]
        put(state.index, two)
    is_odd = t.icmp("ne", t.mul(pairs, 2), I64("%count"))
    with t.carry(pairs, t.add(pairs, t.zext(is_odd)), state.vectors) as last:
        one = weights(t.mul(last.index, 2))
        last.vectors[:] = [t.fadd(x, a) for x, a in zip(last.vectors, one, strict=True)]
        put(last.index, (one, [ZERO] * WIDE))
    for i, x in enumerate(last.vectors):
        t.store(x, t.ptr_add(Ptr("%l"), i * t.bytes))
    with t.loop(t.add(pairs, t.zext(is_odd)), t.mul(t.ceil_div(I64("%count"), STEPS), STEPS // 2)) as pair:
        for i in range(WIDE):
            t.store(ZERO, t.ptr_add(t.ptr_add(Ptr("%p"), t.mul(pair, ROW_BYTES)), i * block // 2 * ROW_BYTES))
    parameters = (read("s"), integer("count"), read("top"), written("l"), written("p"), read("v"))
    return t.finished("amx.weights", *parameters)


@lru_cache(64)
def highest_function(device: CpuDevice) -> Shared:
    """top[i] = max(top[i], s[j, i]) over some keys: several chains of comparisons, which are joined last."""
    t, chains = VectorBuilder(device), 4
    maxima = [t.load(t.ptr_add(Ptr("%top"), i * t.bytes)) for i in range(WIDE)]
    whole = t.sdiv(I64("%count"), chains)

    def larger(held: Sequence[Vec], key: I64) -> list[Vec]:
        at = t.ptr_add(Ptr("%s"), t.mul(key, _ROW))
        return [t.fmax(t.load(t.ptr_add(at, i * t.bytes)), x) for i, x in enumerate(held)]

    with t.carry(0, whole, maxima * chains) as state:
        for chain in range(chains):
            of = slice(WIDE * chain, WIDE * (chain + 1))
            state.vectors[of] = larger(state.vectors[of], t.add(t.mul(state.index, chains), chain))
    highest = state.vectors[:WIDE]
    for chain in range(1, chains):
        others = state.vectors[WIDE * chain : WIDE * (chain + 1)]
        highest = [t.fmax(x, y) for x, y in zip(others, highest, strict=True)]
    with t.carry(t.mul(whole, chains), I64("%count"), highest) as last:
        last.vectors[:] = larger(last.vectors, last.index)
    for i, x in enumerate(last.vectors):
        t.store(x, t.ptr_add(Ptr("%top"), i * t.bytes))
    return finished(t, "attend_highest", (read("s"), integer("count"), written("top")))


@lru_cache(64)
def configure_function(*, emulated: bool) -> Shared:
    """Configures tiles for the functions below, which takes longer than one of them."""
    t = TileBuilder(emulated=emulated)
    t.configure()
    return shared_function(t.function(Signature("amx.configure", ())))


@lru_cache(64)
def release_function(*, emulated: bool) -> Shared:
    """Gives tiles back."""
    t = TileBuilder(emulated=emulated)
    t.release()
    return shared_function(t.function(Signature("amx.release", ())))


def _configured(*, emulated: bool) -> TileBuilder:
    """A function whose tiles are configured before it is called; those that are emulated are its own."""
    t = TileBuilder(emulated=emulated)
    if emulated:
        t.configure()
    return t


@lru_cache(64)
def tile_scores_function(d: int, *, emulated: bool) -> Shared:
    """s[j, i] = Σ_c k[j, c] · q[c, i] for `groups` of 32 keys."""
    t, strip = _configured(emulated=emulated), d // STEPS * TILE_BYTES
    q = [Ptr("%q"), t.ptr_add(Ptr("%q"), strip)]
    with t.loop(0, I64("%groups")) as group:
        k = t.ptr_add(Ptr("%k"), t.mul(group, 2 * strip))
        for tile in range(2 * WIDE):
            t.zero(tile)
        _add_products(t, d // STEPS, [k, t.ptr_add(k, strip)], TILE_BYTES, q)
        _each_sum(t.store, t, t.ptr_add(Ptr("%s"), t.mul(group, 2 * ROWS * _ROW)))
    parameters = (read("k"), read("q"), written("s"), integer("groups"))
    return shared_function(t.function(Signature("amx.scores", parameters)))


@lru_cache(64)
def tile_results_function(d: int, dv: int, block: int, *, emulated: bool) -> Shared:
    """o[c, i] = o[c, i] + Σ_j v[j, c] · p[j, i] for `groups` of 32 keys; the keys of the next block are prefetched."""
    t, parts = _configured(emulated=emulated), dv // (2 * ROWS)
    # Columns for as many keys as a step has, part by part.
    lines = -(-d * STEPS * bf16.itemsize // parts // ROW_BYTES)
    p = [Ptr("%p"), t.ptr_add(Ptr("%p"), block // 2 * ROW_BYTES)]
    with t.loop(0, parts) as part:
        v, o = t.ptr_add(Ptr("%v"), t.mul(part, 2 * TILE_BYTES)), t.ptr_add(Ptr("%o"), t.mul(part, 2 * ROWS * _ROW))
        _each_sum(t.load, t, o)
        ahead = t.ptr_add(Ptr("%ahead"), t.mul(t.mul(part, I64("%groups")), ROW_BYTES * lines))
        _add_products(t, I64("%groups"), [v, t.ptr_add(v, TILE_BYTES)], dv * ROW_BYTES, p, (ahead, lines))
        _each_sum(t.store, t, o)
    parameters = (read("v"), read("p"), written("o"), integer("groups"), read("ahead"))
    return shared_function(t.function(Signature("amx.results", parameters)))


def _add_products(
    t: TileBuilder,
    steps: Int,
    left: Sequence[Ptr],
    pace: int,
    right: Sequence[Ptr],
    ahead: tuple[Ptr, int] = (NULL, 0),
) -> None:
    """Add the products of two tiles with two along some steps, which are `pace` bytes apart on the left.

    A step prefetches some lines `ahead`.
    """
    with t.loop(0, steps) as step:
        for line in range(ahead[1]):
            t.prefetch(t.ptr_add(ahead[0], t.add(t.mul(step, ROW_BYTES * ahead[1]), ROW_BYTES * line)))
        for j, tile in enumerate(_RIGHT):
            t.load(tile, t.ptr_add(right[j], t.mul(step, TILE_BYTES)), ROW_BYTES)
        for i, tile in enumerate(_LEFT):
            t.load(tile, t.ptr_add(left[i], t.mul(step, pace)), ROW_BYTES)
            for j, other in enumerate(_RIGHT):
                t.multiply(WIDE * i + j, tile, other)


def _each_sum(move: Callable[[int, Ptr, Int], None], t: TileBuilder, at: Ptr) -> None:
    """Load or store the sums of 32 rows."""
    for i in range(2):
        for j in range(WIDE):
            move(WIDE * i + j, t.ptr_add(at, i * ROWS * _ROW + j * ROW_BYTES), _ROW)


@lru_cache(64)
def shrink_function(device: CpuDevice, dv: int) -> Shared:
    """o[c, i] = o[c, i] · old[i]."""
    t = VectorBuilder(device)
    old = [t.load(t.ptr_add(Ptr("%rescale"), i * t.bytes)) for i in range(WIDE)]
    with t.loop(0, dv) as c:
        for i, x in enumerate(old):
            at = t.ptr_add(t.ptr_add(Ptr("%o"), t.mul(c, _ROW)), i * t.bytes)
            t.store(t.fmul(t.load(at), x), at)
    return finished(t, "attend_shrink", (written("o"), read("rescale")))


GROWTH = 8.0
"""Powers of two that a weight may have before sums are scaled: bf16 and f32 have as many bits there."""


def multiplies_on_tiles(a: Attend) -> bool:
    """Whether fast mode multiplies on tiles with many queries."""
    if not a.device.has("amx_bf16") or a.rows != COLUMNS * WIDE:
        return False
    if a.stored != "float" or a.rotated is not None or "mask" in a.strides or a.is_few or a.window is not None:
        return False
    is_dense = all(a.strides[name][-1] == 4 for name in ("k", "v"))
    return is_dense and a.d % STEPS == 0 and a.dv % STEPS == 0


class TileProducts(Products):
    """Products on tiles of AMX, in bf16."""

    keeps_maxima = False
    packing = KeyValuePacking(
        bf16.itemsize,
        STEPS,
        lambda a, name: (tile_keys_function if name == "k" else tile_values_function)(a.device, a.width(name)),
    )

    def __init__(self, of: OnlineSoftmax) -> None:
        super().__init__(of)
        self.blocks: dict[str, Ptr] = {}
        """The block of keys and that of values, as tiles."""

    @classmethod
    def takes_twos(cls, a: Attend) -> bool:
        # Any multiple of an infinite fill is the same.
        return a.softcap is None and (a.fill is None or math.isinf(a.fill))

    @property
    def emulated(self) -> bool:
        return not self.a.device.emits("amx_bf16")

    def begin(self) -> None:
        self.t.call_shared(configure_function(emulated=self.emulated))

    def end(self) -> None:
        self.t.call_shared(release_function(emulated=self.emulated))

    def pack_queries(self) -> None:
        self.t.call_shared(pair_queries_function(self.a.device, self.a.d), self.room["columns"], self.room["halves"])

    def score(self, first: I64, count: I64) -> None:
        t, a = self.t, self.a
        self.blocks = {name: self.narrowed(name, first, count) for name in ("k", "v")}
        k, groups = self.blocks["k"], t.ceil_div(count, STEPS)
        scores = tile_scores_function(a.d, emulated=self.emulated)
        t.call_shared(scores, k, self.room["halves"], self.room["scores"], groups)

    def take_highest(self, count: I64) -> None:
        self.t.call_shared(highest_function(self.t.device), self.room["scores"], count, self.room["maxima"])

    def shrink(self, before: Sequence[Vec]) -> None:
        """Scores may be a little above the highest that weights are taken from: sums are scaled less often."""
        t, places = self.t, [self.t.ptr_add(self.room["maxima"], i * self.t.bytes) for i in range(self.wide)]
        most = t.constant(GROWTH if self.of.twos else GROWTH / LOG2_E)
        rises = t.any_lane(
            [t.fcmp("ogt", t.load(at, t.bytes), t.fadd(x, most)) for at, x in zip(places, before, strict=True)]
        )
        with t.when(rises):
            super().shrink(before)
            t.call_shared(shrink_function(t.device, self.a.dv), self.room["accumulators"], self.room["rescale"])
        with t.unless(rises):
            for at, x in zip(places, before, strict=True):
                t.store(x, at, t.bytes)

    def weigh(self, count: I64) -> None:
        t, room = self.t, self.room
        weights = pair_weights_function(t.device, ATTENTION.block, self.a.dv, twos=self.of.twos)
        t.call_shared(weights, room["scores"], count, room["maxima"], room["sums"], room["pairs"], self.blocks["v"])

    def add_values(self, first: I64, count: I64) -> None:
        t, a, room = self.t, self.a, self.room
        results = tile_results_function(a.d, a.dv, ATTENTION.block, emulated=self.emulated)
        groups = t.ceil_div(count, STEPS)
        ahead = t.ptr_add(self.blocks["k"], t.mul(count, bf16.itemsize * a.d))
        t.call_shared(results, self.blocks["v"], room["pairs"], room["accumulators"], groups, ahead)
