"""Attention in f16 for `precision="fast"`, lanes along queries: the functions that one block of keys goes through.

A vector holds a feature of eight queries, and an instruction multiplies it with one number of a key or value. Scores
are sums of half of the features each, results sums of a block of keys; these are rounded to f16, about 1e-3 of them.
Weights, their sums, and results of several blocks are f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dovetail.codegen.llvm.handles import F32, I64, Ptr, Vec
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.attention.parts import Shared, finished, integer, read, written

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
"""Sums of a feature: keys take turns."""
_ITEM = 2
_VECTOR = _ITEM * LANES
_ROW, _FLOATS = WIDE * _VECTOR, 4 * LANES * WIDE
"""Bytes of a row of f16 and of f32, with a number of each query."""


class Halves(VectorBuilder):
    """One function while it is written, with arithmetic on vectors of f16."""

    def __init__(self, device: CpuDevice) -> None:
        super().__init__(device)
        self.lanes, self.bytes, self.vec = LANES, _VECTOR, f"<{LANES} x half>"
        self.four = f"<{LANES // 2} x float>"

    def fma(self, x: Vec, y: Vec, z: Vec) -> Vec:
        name = f"llvm.fma.v{LANES}f16"
        self.use(f"declare {self.vec} @{name}({self.vec}, {self.vec}, {self.vec})")
        return Vec(self.let(f"call {self.vec} @{name}({self.vec} {x}, {self.vec} {y}, {self.vec} {z})"))

    def wide(self, x: Vec) -> list[str]:
        """Both halves of a vector, as f32."""
        found: list[str] = []
        for first in (0, LANES // 2):
            part = self.shuffle(x, x, range(first, first + LANES // 2))
            found.append(self.let(f"fpext <{LANES // 2} x half> {part} to {self.four}"))
        return found

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
        sums = state.vectors
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
                        sums[place] = t.fma(q[i], one, sums[place])
    for cell in range(KEYS * WIDE):
        found = state.vectors[CHAINS * cell : CHAINS * (cell + 1)]
        while len(found) > 1:
            found = [t.fadd(x, y) for x, y in zip(found[::2], found[1::2], strict=True)]
        for part, four in enumerate(t.wide(found[0])):
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
    sums = state.vectors[:count]
    with t.carry(t.mul(whole, TURNS), I64("%count"), sums) as left:
        left.vectors[:] = _added(t, left.vectors, left.index)
    totals = [t.fadd(x, y) for x, y in zip(left.vectors, state.vectors[count:], strict=True)]
    old = [t.load_four(t.ptr_add(Ptr("%old"), 16 * part)) for part in range(2 * WIDE)]
    for cell, total in enumerate(totals):
        for part, four in enumerate(t.wide(total)):
            number = 2 * cell + part
            place = t.ptr_add(Ptr("%o"), 16 * number)
            t.store_four(t.fma_four(t.load_four(place), old[number % len(old)], four), place)
    given = (read("p"), read("v"), integer("stride"), integer("count"), written("o"), read("old"))
    return finished(t, "attend_half_values", given)


def _added(t: Halves, sums: Sequence[Vec], key: I64) -> list[Vec]:
    """Sums of some features with the values of a key."""
    p = t.row(t.ptr_add(Ptr("%p"), t.mul(key, _ROW)))
    at = t.ptr_add(Ptr("%v"), t.mul(key, I64("%stride")))
    few = f"<{FEATURES} x half>"
    v = t.let(f"load {few}, ptr {at}, align 2")
    lanes = [", ".join([f"i32 {feature}"] * LANES) for feature in range(FEATURES)]
    splats = [Vec(t.let(f"shufflevector {few} {v}, {few} poison, <{LANES} x i32> <{some}>")) for some in lanes]
    return [t.fma(p[place % WIDE], splats[place // WIDE], x) for place, x in enumerate(sums)]


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


__all__ = [
    "CHAINS", "FEATURES", "KEYS", "LANES", "WIDE", "Halves", "half_scores_function", "half_values_function",
    "narrow_function",
]  # fmt: skip
