"""Attention with lanes along queries: the functions that one block of keys goes through, shared by all kernels.

Queries are packed as columns, so that a vector holds one feature of as many queries as it has lanes. Keys and values
are read where they are, one scalar at a time for all lanes. Nothing is ever reduced across lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from dovetail.codegen.llvm.function import Parameter, Signature
from dovetail.codegen.llvm.handles import F32, I64, Int, Ptr, Vec
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.maths.interleaved import exp2_addends, exp2_of_negatives
from dovetail.codegen.llvm.maths.vectors import LOG2_E, exp2_of_negative
from dovetail.codegen.llvm.vector import STORED_BYTES, ZERO, Stored, VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import SharedFunction
from dovetail.library.rope import Form
from dovetail.targets.cpu.attention.policy import ATTENTION

NARROWED = 2.0**-6
"""What weights in f16 are multiplied by: sums of a block of values stay below the largest of them."""

Shared: TypeAlias = tuple[SharedFunction, Signature]
"""A function that kernels share, and how to call it."""


def key_rows(device: CpuDevice, wide: int) -> int:
    """Keys or features that are accumulated at once, for `wide` vectors of queries: half of the registers accumulate.

    With FMA by lane, each key is held in a register of its own.
    """
    rows = device.registers // 2 // wide
    return min(device.registers // 4, rows) if device.has("fma_by_lane") else rows


def finished(t: VectorBuilder, stem: str, parameters: Sequence[Parameter]) -> Shared:
    """The function as a module of its own."""
    return shared_function(t.function(Signature(stem, tuple(parameters)), attributes="nounwind"))


def read(name: str) -> Parameter:
    """A pointer that is read."""
    return Parameter("ptr", name, "noalias readonly")


def written(name: str) -> Parameter:
    """A pointer that is written."""
    return Parameter("ptr", name, "noalias")


def integer(name: str) -> Parameter:
    return Parameter("i64", name)


@lru_cache(256)
def scores_function(
    device: CpuDevice,
    wide: int,
    d: int,
    dv: int,
    *,
    with_maximum: bool,
    with_mask: bool = False,
    prefetches: bool = True,
) -> Shared:
    """s[j, i] = Σ_c q[c, i] · k[j, c] for a few keys and `wide` vectors of queries.

    A key's own `mask` is added. If it `prefetches`, the next keys and the values of these are prefetched meanwhile.
    With `top`, the running maximum is kept there.
    """
    t = VectorBuilder(device)
    q, k, s, v, top, mask = (Ptr(f"%{name}") for name in ("q", "k", "s", "v", "top", "mask"))
    stride, value_stride = I64("%stride"), I64("%value_stride")
    keys = key_rows(device, wide)
    rows = [t.ptr_add(k, t.mul(j, stride)) for j in range(keys)]
    for j in range(keys if prefetches else 0):
        following, value = t.ptr_add(k, t.mul(j + keys, stride)), t.ptr_add(v, t.mul(j, value_stride))
        for start, width in ((following, d), (value, dv)):
            for at in range(0, 4 * width, device.caches.line):
                t.prefetch(t.ptr_add(start, at))
    accumulators = _scored(t, device, wide, d, q, rows)
    for j in range(keys if with_mask else 0):
        own = t.load_splat(t.ptr_add(mask, 4 * j))
        accumulators[j * wide : (j + 1) * wide] = [t.fadd(x, own) for x in accumulators[j * wide : (j + 1) * wide]]
    for i, x in enumerate(accumulators):
        t.store(x, t.ptr_add(s, i * t.bytes), t.bytes)
    for i in range(wide if with_maximum else 0):
        place = t.ptr_add(top, i * t.bytes)
        # Compared last, it would be stored lane by lane where it is higher, and the next load would have to wait.
        highest = [_larger(t, accumulators[i], t.load(place, t.bytes)), *accumulators[i + wide :: wide]]
        while len(highest) > 1:
            highest = [_larger(t, x, y) for x, y in zip(highest[::2], highest[1::2], strict=True)]
        t.store(highest[0], place, t.bytes)
    parameters = (
        read("q"), read("k"), integer("stride"), written("s"), read("v"), integer("value_stride"), written("top"),
        read("mask"),
    )  # fmt: skip
    return finished(t, "attend_scores", parameters)


def _larger(t: VectorBuilder, x: Vec, y: Vec) -> Vec:
    """The larger of two scores. A NaN among them need not win: its weight is NaN."""
    return t.intrinsic("maxnum", x, y) if t.device.has("fma_by_lane") else t.fmax(x, y)


def _scored(t: VectorBuilder, device: CpuDevice, wide: int, d: int, q: Ptr, rows: Sequence[Ptr]) -> list[Vec]:
    """The products of queries and keys, accumulated along features."""
    keys = len(rows)

    def accumulate(
        accumulators: list[Vec], queries: Ptr, at: Sequence[Ptr], feature: int, held: Sequence[Vec] = ()
    ) -> None:
        vs = [t.load(t.ptr_add(queries, (feature * wide + i) * t.bytes), t.bytes) for i in range(wide)]
        splats = [t.splat_lane(x, feature) for x in held]
        _add_products(t, accumulators, vs, [t.ptr_add(row, 4 * feature) for row in at], splats)

    # Where there is a register for each, pointers move: an index would cost an instruction more.
    moving = list(rows) if device.has("embedded_broadcast") and keys <= ATTENTION.most_pointers else []
    depth = ATTENTION.depth_broadcast if moving else ATTENTION.depth
    iterations = d // depth
    with t.carry(0, iterations, [ZERO] * (keys * wide), moving) as state:
        queries = t.ptr_add(q, t.mul(state.index, depth * wide * t.bytes))
        features = t.mul(state.index, 4 * depth)
        at = list(state.pointers) or [t.ptr_add(row, features) for row in rows]
        lanes = [t.load(row) for row in at] if device.has("fma_by_lane") else []
        for i in range(depth):
            accumulate(state.vectors, queries, at, i, lanes)
        state.pointers[:] = [t.opaque(t.ptr_add(row, 4 * depth)) for row in at[: len(moving)]]
    accumulators = state.vectors
    for c in range(iterations * depth, d):
        accumulate(accumulators, q, rows, c)
    return accumulators


@lru_cache(256)
def values_function(device: CpuDevice, wide: int, features: int) -> Shared:
    """o[c, i] = o[c, i] · old[i] + Σ_j p[j, i] · v[j, c] for a few features."""
    t = VectorBuilder(device)
    p, v, o, old, stride, count = Ptr("%p"), Ptr("%v"), Ptr("%o"), Ptr("%rescale"), I64("%stride"), I64("%count")

    def accumulate(accumulators: list[Vec], weights: Ptr, row: Ptr) -> None:
        ps = [t.load(t.ptr_add(weights, i * t.bytes), t.bytes) for i in range(wide)]
        whole = features // t.lanes * t.lanes if device.has("fma_by_lane") else 0
        held = [t.load(t.ptr_add(row, 4 * c)) for c in range(0, whole, t.lanes)]
        splats = [t.splat_lane(held[c // t.lanes], c % t.lanes) for c in range(whole)]
        _add_products(t, accumulators, ps, [t.ptr_add(row, 4 * c) for c in range(features)], splats)

    kept = [t.load(t.ptr_add(old, i * t.bytes), t.bytes) for i in range(wide)]
    accumulators = [t.fmul(t.load(t.ptr_add(o, i * t.bytes), t.bytes), kept[i % wide]) for i in range(features * wide)]
    done: Int = 0
    if device.has("embedded_broadcast"):
        groups = t.sdiv(count, ATTENTION.keys)
        done = t.mul(groups, ATTENTION.keys)
        with t.carry(0, groups, accumulators) as state:
            first = t.mul(state.index, ATTENTION.keys)
            weights = t.opaque(t.ptr_add(p, t.mul(first, wide * t.bytes)))
            row = t.ptr_add(v, t.mul(first, stride))
            for j in range(ATTENTION.keys):
                row = t.opaque(t.ptr_add(row, stride if j else 0))
                accumulate(state.vectors, t.ptr_add(weights, j * wide * t.bytes), row)
        accumulators = state.vectors
    with t.carry(done, count, accumulators) as state:
        j = state.index
        accumulate(state.vectors, t.ptr_add(p, t.mul(j, wide * t.bytes)), t.ptr_add(v, t.mul(j, stride)))
    for i, x in enumerate(state.vectors):
        t.store(x, t.ptr_add(o, i * t.bytes), t.bytes)
    parameters = (read("p"), read("v"), integer("stride"), integer("count"), written("o"), read("rescale"))
    return finished(t, "attend_values", parameters)


def _add_products(
    t: VectorBuilder, accumulators: list[Vec], xs: Sequence[Vec], scalars: Sequence[Ptr], held: Sequence[Vec]
) -> None:
    """Add the products of vectors with the scalar at each pointer; the first are `held` in all lanes already.

    Every second scalar is an embedded broadcast: more of them would exceed the load ports of L1.
    """
    wide = len(xs)
    for j, scalar in enumerate(scalars):
        here = slice(j * wide, (j + 1) * wide)
        if t.device.has("embedded_broadcast") and j % 2:
            accumulators[here] = [
                t.fma_broadcast(x, scalar, total) for x, total in zip(xs, accumulators[here], strict=True)
            ]
            continue
        number = held[j] if j < len(held) else t.load_splat(scalar)
        accumulators[here] = [t.fma(x, number, total) for x, total in zip(xs, accumulators[here], strict=True)]


@lru_cache(64)
def weights_function(device: CpuDevice, wide: int, *, twos: bool, narrow: bool = False) -> Shared:
    """s = exp(s - top), or with `twos` 2^(s - top), and their sum is added to l.

    A row whose top is -inf has seen no key: its weights are 0. If they are `narrow`, all are multiplied by `NARROWED`,
    and s are f16 afterwards, row after row.
    """
    t = VectorBuilder(device)
    s, top, total, count = Ptr("%s"), Ptr("%top"), Ptr("%l"), I64("%count")
    low = t.constant(float("-inf"))
    maxima = [t.load(t.ptr_add(top, i * t.bytes), t.bytes) for i in range(wide)]
    maxima = [t.select(t.fcmp("oeq", x, low), t.constant(0.0), x) for x in maxima]
    if narrow:
        maxima = [t.fsub(x, t.constant(math.log2(NARROWED) * (1.0 if twos else math.log(2.0)))) for x in maxima]
    interleaves = device.emits("fma_by_lane")
    addends = exp2_addends(t) if interleaves else {}
    with t.carry(0, count, [t.load(t.ptr_add(total, i * t.bytes), t.bytes) for i in range(wide)]) as state:
        row = t.ptr_add(s, t.mul(state.index, wide * t.bytes))
        if interleaves:
            xs = [t.fsub(t.load(t.ptr_add(row, i * t.bytes), t.bytes), maxima[i]) for i in range(wide)]
            ps = exp2_of_negatives(t, xs if twos else [t.fmul(x, t.constant(LOG2_E)) for x in xs], addends)
            state.vectors[:] = [t.fadd(x, p) for x, p in zip(state.vectors, ps, strict=True)]
            onto = t.ptr_add(s, t.mul(state.index, wide * t.bytes // 2)) if narrow else row
            for i, p in enumerate(ps):
                if narrow:
                    t.store_from_f32(p, t.ptr_add(onto, i * t.bytes // 2), "half")
                else:
                    t.store(p, t.ptr_add(row, i * t.bytes), t.bytes)
        for i in range(0 if interleaves else wide):
            at = t.ptr_add(row, i * t.bytes)
            p = weight(t, t.fsub(t.load(at, t.bytes), maxima[i]), twos=twos)
            state.vectors[i] = t.fadd(state.vectors[i], p)
            t.store(p, at, t.bytes)
    for i in range(wide):
        t.store(state.vectors[i], t.ptr_add(total, i * t.bytes), t.bytes)
    return finished(t, "attend_weights", (written("s"), integer("count"), read("top"), written("l")))


def weight(t: VectorBuilder, x: Vec, *, twos: bool) -> Vec:
    """The weight of a score that is x above the highest, which is not positive; with `twos` powers of two."""
    return exp2_of_negative(t, x if twos else t.fmul(x, t.constant(LOG2_E)))


@lru_cache(64)
def columns_function(device: CpuDevice, stored: Stored) -> Shared:
    """to[c, r] = factor · x[r, c] for as many rows as a vector has lanes; rows beyond the last repeat it."""
    t = VectorBuilder(device)
    x, to, factor = Ptr("%x"), Ptr("%to"), F32("%factor")
    stride, step, count, apart = I64("%stride"), I64("%step"), I64("%count"), I64("%apart")
    lanes, item = t.lanes, STORED_BYTES[stored]
    last = t.sub(I64("%rows"), 1)
    rows: list[Ptr] = []
    for r in range(lanes):
        row = t.select_int(t.icmp("slt", r, last), r, last)
        rows.append(t.ptr_add(x, t.mul(row, stride)))
    factors = t.splat(factor)
    dense = t.icmp("eq", step, item)
    squares = t.select_int(dense, t.udiv(count, lanes), 0)
    with t.loop(0, squares) as i:
        first = t.mul(i, lanes)
        at = t.mul(first, item)
        vectors = [t.load_as_f32(t.ptr_add(row, at), stored) for row in rows]
        onto = t.ptr_add(to, t.mul(first, apart))
        for c, column in enumerate(t.transpose(vectors)):
            t.store(t.fmul(column, factors), t.ptr_add(onto, t.mul(c, apart)))
    with t.loop(t.mul(squares, lanes), count) as c:
        at = t.mul(c, step)
        onto = t.ptr_add(to, t.mul(c, apart))
        for r, row in enumerate(rows):
            one = t.load_scalar_as_f32(t.ptr_add(row, at), stored)
            t.store_f32(F32(t.let(f"fmul float {one}, {factor}")), t.ptr_add(onto, 4 * r))
    parameters = (
        read("x"), integer("stride"), integer("step"), integer("rows"), integer("count"), Parameter("float", "factor"),
        written("to"), integer("apart"),
    )  # fmt: skip
    return finished(t, "attend_columns", parameters)


@lru_cache(64)
def out_function(device: CpuDevice, dv: int, stored: Stored) -> Shared:
    """y[r, c] = o[c, r] · factor[r] for the first rows of one vector; 0 where the factor is 0."""
    t = VectorBuilder(device)
    o, y, buffer = Ptr("%o"), Ptr("%y"), Ptr("%buffer")
    apart, stride, rows = I64("%apart"), I64("%stride"), I64("%rows")
    lanes, item = t.lanes, STORED_BYTES[stored]
    factor = t.load(Ptr("%factor"), t.bytes)
    none = t.fcmp("oeq", factor, t.constant(0.0))

    def scaled(c: I64) -> Vec:
        x = t.fmul(t.load(t.ptr_add(o, t.mul(c, apart)), t.bytes), factor)
        return t.select(none, t.constant(0.0), x)

    def square(first: Int) -> None:
        columns = t.transpose([scaled(t.add(first, i)) for i in range(lanes)])
        to = t.ptr_add(y, t.mul(first, item))
        whole = t.icmp("eq", rows, lanes)
        with t.when(whole):
            for r, x in enumerate(columns):
                t.store_from_f32(x, t.ptr_add(to, t.mul(r, stride)), stored)
        with t.unless(whole):
            for r, x in enumerate(columns):
                t.store(x, t.ptr_add(buffer, r * t.bytes), t.bytes)
            with t.loop(0, rows) as r:
                x = t.load(t.ptr_add(buffer, t.mul(r, t.bytes)), t.bytes)
                t.store_from_f32(x, t.ptr_add(to, t.mul(r, stride)), stored)

    if dv >= lanes:
        with t.loop(0, dv // lanes) as i:
            square(t.mul(i, lanes))
        if dv % lanes:
            square(dv - lanes)
    else:
        with t.loop(0, dv) as c:
            t.store(scaled(c), buffer, t.bytes)
            with t.loop(0, rows) as r:
                one = t.load_f32(t.ptr_add(buffer, t.mul(r, 4)))
                row = t.ptr_add(y, t.mul(r, stride))
                t.store_scalar_from_f32(one, t.ptr_add(row, t.mul(c, item)), stored)
    results = (written("y"), integer("stride"), integer("rows"), written("buffer"))
    return finished(t, "attend_out", (read("o"), integer("apart"), read("factor"), *results))


@lru_cache(64)
def copy_function(device: CpuDevice, d: int, stored: Stored) -> Shared:
    """to[r, c] = x[r, c] as f32, rows contiguous."""
    t = VectorBuilder(device)
    x, to, stride, step, rows = Ptr("%x"), Ptr("%to"), I64("%stride"), I64("%step"), I64("%rows")
    item = STORED_BYTES[stored]
    with t.loop(0, rows) as r:
        row = t.ptr_add(x, t.mul(r, stride))
        onto = t.ptr_add(to, t.mul(r, 4 * d))
        whole = t.select_int(t.icmp("eq", step, item), d // t.lanes, 0)
        with t.loop(0, whole) as i:
            first = t.mul(i, t.lanes)
            loaded = t.load_as_f32(t.ptr_add(row, t.mul(first, item)), stored)
            t.store(loaded, t.ptr_add(onto, t.mul(first, 4)))
        with t.loop(t.mul(whole, t.lanes), d) as c:
            one = t.load_scalar_as_f32(t.ptr_add(row, t.mul(c, step)), stored)
            t.store_f32(one, t.ptr_add(onto, t.mul(c, 4)))
    parameters = (read("x"), integer("stride"), integer("step"), integer("rows"), written("to"))
    return finished(t, "attend_copy", parameters)


@lru_cache(64)
def rows_function(device: CpuDevice, d: int) -> Shared:
    """to[r, c] = x[r, c], contiguous rows of f32 that are strided in x."""
    t = VectorBuilder(device)
    x, to = Ptr("%x"), Ptr("%to")
    whole = d // t.lanes * t.lanes
    with t.loop(0, I64("%rows")) as r:
        row = t.ptr_add(x, t.mul(r, I64("%stride")))
        onto = t.ptr_add(to, t.mul(r, 4 * d))
        for c in range(0, whole, t.lanes):
            t.store(t.load(t.ptr_add(row, 4 * c)), t.ptr_add(onto, 4 * c))
        with t.loop(whole, d) as c:
            at = t.mul(c, 4)
            t.store_f32(t.load_f32(t.ptr_add(row, at)), t.ptr_add(onto, at))
    return finished(t, "attend_rows", (read("x"), integer("stride"), integer("rows"), written("to")))


class _Rotation(VectorBuilder):
    """One row that is rotated. Positions are counted in bytes of f32, whatever the elements are stored as."""

    def __init__(self, device: CpuDevice, stored: Stored) -> None:
        super().__init__(device)
        self.stored: Stored = stored
        self.x, self.cos, self.sin, self.to = Ptr("%x"), Ptr("%cos"), Ptr("%sin"), Ptr("%to")

    def at(self, pointer: Ptr, position: Int) -> Ptr:
        """Where a stored row has a position."""
        scale = 4 // STORED_BYTES[self.stored]
        return self.ptr_add(pointer, self.sdiv(position, scale))

    def row(self, pointer: Ptr, position: Int) -> Vec:
        return self.load_as_f32(self.at(pointer, position), self.stored)

    def scalar(self, pointer: Ptr, position: Int) -> F32:
        return self.load_scalar_as_f32(self.at(pointer, position), self.stored)

    def rotate(self, position: Int, own: Vec, partner: Vec) -> None:
        """own · cos + partner · sin."""
        kept = self.fmul(own, self.row(self.cos, position))
        self.store(self.fma(partner, self.row(self.sin, position), kept), self.ptr_add(self.to, position))

    def rotate_scalar(self, position: Int, own: F32, partner: F32) -> None:
        kept = self.let(f"fmul float {own}, {self.scalar(self.cos, position)}")
        moved = self.let(f"fmul float {partner}, {self.scalar(self.sin, position)}")
        self.store_f32(F32(self.let(f"fadd float {kept}, {moved}")), self.ptr_add(self.to, position))

    def negated(self, x: F32) -> F32:
        return F32(self.let(f"fneg float {x}"))

    def each(self, first: int, end: int, whole: Callable[[I64], None], one: Callable[[I64], None]) -> None:
        """Iterate over vectors from a feature on, then over single features, each with its position."""
        vectors = (end - first) // self.lanes
        if vectors:
            with self.loop(0, vectors) as i:
                whole(self.add(self.mul(i, self.bytes), 4 * first))
        if first + vectors * self.lanes < end:
            with self.loop(first + vectors * self.lanes, end) as c:
                one(self.mul(c, 4))

    def halves(self, half: int) -> None:
        """Feature i is paired with feature i + half."""

        def whole(position: I64) -> None:
            other = self.add(position, 4 * half)
            low, high = self.row(self.x, position), self.row(self.x, other)
            self.rotate(position, low, self.fneg(high))
            self.rotate(other, high, low)

        def one(position: I64) -> None:
            other = self.add(position, 4 * half)
            low, high = self.scalar(self.x, position), self.scalar(self.x, other)
            self.rotate_scalar(position, low, self.negated(high))
            self.rotate_scalar(other, high, low)

        self.each(0, half, whole, one)

    def neighbours(self, rotated: int) -> None:
        """Feature 2i is paired with feature 2i + 1."""
        lanes = self.lanes
        vectors = rotated // lanes
        if vectors:
            with self.loop(0, vectors) as i:
                position = self.mul(i, self.bytes)
                own = self.row(self.x, position)
                swapped = self.shuffle(own, Vec("poison"), [i ^ 1 for i in range(lanes)])
                even = self.fneg(swapped)
                partner = self.shuffle(even, swapped, [i + lanes if i % 2 else i for i in range(lanes)])
                self.rotate(position, own, partner)
        with self.loop(vectors * lanes // 2, rotated // 2) as pair:
            position = self.mul(pair, 8)
            after = self.add(position, 4)
            even, odd = self.scalar(self.x, position), self.scalar(self.x, after)
            self.rotate_scalar(position, even, self.negated(odd))
            self.rotate_scalar(after, odd, even)


@lru_cache(64)
def rotate_function(device: CpuDevice, d: int, rotated: int, form: Form, stored: Stored) -> Shared:
    """to[r] = x[r] · cos[r] + partner(x[r]) · sin[r] in the first `rotated` features, x[r] in the others."""
    t = _Rotation(device, stored)
    x, cos, sin, to = t.x, t.cos, t.sin, t.to
    with t.loop(0, I64("%rows")) as r:
        t.x, t.cos, t.sin = (t.ptr_add(p, t.mul(r, I64(f"{p}_stride"))) for p in (x, cos, sin))
        t.to = t.ptr_add(to, t.mul(r, 4 * d))
        if form == "half":
            t.halves(rotated // 2)
        else:
            t.neighbours(rotated)
        t.each(
            rotated,
            d,
            lambda at: t.store(t.row(t.x, at), t.ptr_add(t.to, at)),
            lambda at: t.store_f32(t.scalar(t.x, at), t.ptr_add(t.to, at)),
        )
    angles = (Parameter("ptr", "cos", "readonly"), integer("cos_stride"), Parameter("ptr", "sin", "readonly"))
    parameters = (read("x"), integer("x_stride"), *angles, integer("sin_stride"), integer("rows"), written("to"))
    return finished(t, "attend_rotate", parameters)
