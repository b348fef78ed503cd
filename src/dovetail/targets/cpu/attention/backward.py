"""Attention backward in one kernel: a block of queries computes its scores again, and none of them is written.

A tile is a head of keys and values. For each block of queries it computes weights p and their gradients dp over all
keys, in the workspace. It adds pᵀ · g to the gradient of the values and dsᵀ · q to that of the keys, and writes ds · k
as the gradient of the queries. A query has its whole row there, so that q, k and v are all that was saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache

from dovetail.codegen.llvm.function import Parameter
from dovetail.codegen.llvm.handles import F32, I64, NULL, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH
from dovetail.codegen.llvm.scalar import literal
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import f32
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.attention import Attention
from dovetail.targets.cpu.attention.functions import (
    Shared,
    copy_function,
    finished,
    integer,
    key_rows,
    out_function,
    read,
    scores_function,
    values_function,
    weights_function,
    written,
)
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend, offsets_of, padded
from dovetail.targets.cpu.attention.tile import AttendBuilder, AttendCode, QueryBlock, finished_code


@lru_cache(64)
def normalise_function(device: CpuDevice, wide: int) -> Shared:
    """p = p · factor, 0 where the factor is 0, and lost[i] = Σ_j p[j, i] · dp[j, i]."""
    t = VectorBuilder(device)
    p, dp, lost, count = Ptr("%p"), Ptr("%dp"), Ptr("%lost"), I64("%count")
    factors = [t.load(t.ptr_add(Ptr("%factor"), i * t.bytes), t.bytes) for i in range(wide)]
    none = [t.fcmp("oeq", x, t.constant(0.0)) for x in factors]
    with t.carry(0, count, [ZERO] * wide) as state:
        at = t.mul(state.index, wide * t.bytes)
        for i in range(wide):
            here = t.ptr_add(t.ptr_add(p, at), i * t.bytes)
            x = t.select(none[i], t.constant(0.0), t.fmul(t.load(here, t.bytes), factors[i]))
            t.store(x, here, t.bytes)
            slope = t.load(t.ptr_add(t.ptr_add(dp, at), i * t.bytes), t.bytes)
            state.vectors[i] = t.fma(x, slope, state.vectors[i])
    for i in range(wide):
        t.store(state.vectors[i], t.ptr_add(lost, i * t.bytes), t.bytes)
    parameters = (written("p"), read("dp"), integer("count"), read("factor"), written("lost"))
    return finished(t, "attend_normalise", parameters)


@lru_cache(64)
def slopes_function(device: CpuDevice, wide: int) -> Shared:
    """dp = p · (dp - lost) · factor: the gradient of scores before their scale."""
    t = VectorBuilder(device)
    p, dp, count = Ptr("%p"), Ptr("%dp"), I64("%count")
    lost = [t.load(t.ptr_add(Ptr("%lost"), i * t.bytes), t.bytes) for i in range(wide)]
    factor = t.splat(F32("%factor"))
    with t.loop(0, count) as j:
        at = t.mul(j, wide * t.bytes)
        for i in range(wide):
            here = t.ptr_add(t.ptr_add(dp, at), i * t.bytes)
            own = t.fmul(t.load(t.ptr_add(t.ptr_add(p, at), i * t.bytes), t.bytes), factor)
            t.store(t.fmul(own, t.fsub(t.load(here, t.bytes), lost[i])), here, t.bytes)
    parameters = (read("p"), written("dp"), integer("count"), read("lost"), Parameter("float", "factor"))
    return finished(t, "attend_slopes", parameters)


@lru_cache(64)
def sums_function(device: CpuDevice, wide: int, vectors: int) -> Shared:
    """to[j, c] += Σ_i p[j, i] · x[i, c] for all keys and a few vectors of features; lanes run along features.

    Rows of `to` and of x are `pitch` bytes apart. The last keys are filled up to a register tile.
    """
    t = VectorBuilder(device)
    p, x, to, pitch, count = Ptr("%p"), Ptr("%x"), Ptr("%to"), I64("%pitch"), I64("%count")
    keys, row = ATTENTION.sum_keys, wide * t.bytes
    by_lane = device.has("fma_by_lane")
    with t.loop(0, t.ceil_div(count, keys)) as group:
        first = t.mul(group, keys)
        rows = [t.ptr_add(to, t.mul(t.add(first, j), pitch)) for j in range(keys)]
        weights = [t.ptr_add(p, t.mul(t.add(first, j), row)) for j in range(keys)]
        starts = [t.load(t.ptr_add(own, c * t.bytes), t.bytes) for own in rows for c in range(vectors)]
        with t.carry(0, wide, starts) as state:
            at = t.mul(state.index, t.bytes)
            own = [t.ptr_add(weight, at) for weight in weights]
            held = [t.load(weight, t.bytes) for weight in own] if by_lane else []
            queries = t.ptr_add(x, t.mul(t.mul(state.index, t.lanes), pitch))
            for r in range(t.lanes):
                here = t.ptr_add(queries, t.mul(r, pitch))
                xs = [t.load(t.ptr_add(here, c * t.bytes), t.bytes) for c in range(vectors)]
                for j in range(keys):
                    number = t.splat_lane(held[j], r) if by_lane else t.load_splat(t.ptr_add(own[j], 4 * r))
                    place = slice(j * vectors, (j + 1) * vectors)
                    accumulators = state.vectors[place]
                    state.vectors[place] = [t.fma(v, number, s) for v, s in zip(xs, accumulators, strict=True)]
        for i, total in enumerate(state.vectors):
            t.store(total, t.ptr_add(rows[i // vectors], i % vectors * t.bytes), t.bytes)
    parameters = (read("p"), read("x"), written("to"), integer("pitch"), integer("count"))
    return finished(t, "attend_sums", parameters)


@lru_cache(64)
def padded_function(device: CpuDevice, d: int) -> Shared:
    """to[r, c] = x[r, c] in rows of whole vectors; what is after the end of a row, and after the last row, is 0."""
    t = VectorBuilder(device)
    x, to, stride, step, rows = Ptr("%x"), Ptr("%to"), I64("%stride"), I64("%step"), I64("%rows")
    vectors = -(-d // t.lanes)
    with t.loop(0, I64("%total")) as r:
        onto = t.ptr_add(to, t.mul(r, vectors * t.bytes))
        with t.loop(0, vectors) as i:
            t.store(ZERO, t.ptr_add(onto, t.mul(i, t.bytes)), t.bytes)
    with t.loop(0, rows) as r:
        row, onto = t.ptr_add(x, t.mul(r, stride)), t.ptr_add(to, t.mul(r, vectors * t.bytes))
        whole = t.select_int(t.icmp("eq", step, 4), d // t.lanes, 0)
        with t.loop(0, whole) as i:
            at = t.mul(i, t.bytes)
            t.store(t.load(t.ptr_add(row, at)), t.ptr_add(onto, at), t.bytes)
        with t.loop(t.mul(whole, t.lanes), d) as c:
            t.store_f32(t.load_f32(t.ptr_add(row, t.mul(c, step))), t.ptr_add(onto, t.mul(c, 4)))
    parameters = (read("x"), integer("stride"), integer("step"), integer("rows"), integer("total"), written("to"))
    return finished(t, "attend_padded", parameters)


@lru_cache(64)
def unpadded_function(device: CpuDevice, d: int) -> Shared:
    """to[r, c] = x[r, c] of rows of whole vectors; rows are dense and may be any distance apart."""
    t = VectorBuilder(device)
    x, to, stride = Ptr("%x"), Ptr("%to"), I64("%stride")
    whole = d // t.lanes * t.lanes
    with t.loop(0, I64("%rows")) as r:
        row, onto = t.ptr_add(x, t.mul(r, -(-d // t.lanes) * t.bytes)), t.ptr_add(to, t.mul(r, stride))
        for c in range(0, whole, t.lanes):
            t.store(t.load(t.ptr_add(row, 4 * c), t.bytes), t.ptr_add(onto, 4 * c))
        with t.loop(whole, d) as c:
            at = t.mul(c, 4)
            t.store_f32(t.load_f32(t.ptr_add(row, at)), t.ptr_add(onto, at))
    return finished(t, "attend_unpadded", (read("x"), integer("rows"), written("to"), integer("stride")))


_SLACK = 16
"""Keys after the last one that groups of keys may read and write, at least, and a divisor of the room for keys."""


@dataclass(frozen=True, slots=True)
class AttendBack(Attend):
    """The backward pass of an attention on a device."""

    gradients: tuple[str, ...] = ()
    """The operands whose gradients are written, of q, k and v."""

    @staticmethod
    def of(device: CpuDevice, of: Attention, gradients: tuple[str, ...]) -> AttendBack:
        return AttendBack(**{f.name: getattr(of, f.name) for f in fields(of)}, device=device, gradients=gradients)

    @property
    def pointers(self) -> tuple[str, ...]:
        masks = (n for n in ("mask", "keep") if n in self.strides)
        return ("q", "k", "v", *masks, "g", *(f"d{n}" for n in self.gradients))

    @property
    def wide(self) -> int:
        """Vectors of queries in a block: scores and their gradients take more registers than scores alone."""
        return ATTENTION.wide

    @property
    def tiles(self) -> Size:
        return product(self.lead) * self.shared

    @property
    def work(self) -> Size:
        return self.groups * self.queries * self.keys * (3 * self.d + 2 * self.dv)

    @property
    def held_keys(self) -> Size:
        """Keys that there is room for."""
        return (self.keys + (2 * _SLACK - 1)) // _SLACK * _SLACK

    @property
    def hides_slopes(self) -> bool:
        """Whether a hidden key could have a weight, so that its gradient is set to 0: all keys of a query may be."""
        if self.fill is None or self.filled == "added":
            return False
        return "keep" in self.strides or self.window is not None or not math.isinf(self.fill)

    def regions(self, wide: int) -> dict[str, int]:
        """The workspace of a block with `wide` vectors of queries, in bytes, less what depends on the keys."""
        lanes = self.device.lanes
        row = 4 * lanes * wide
        regions = {"columns": self.d * row, "slopes": self.dv * row, "accumulators": self.d * row}
        regions |= {"q_rows": padded(self.d, lanes) * row, "g_rows": padded(self.dv, lanes) * row}
        return (
            regions
            | dict.fromkeys(("maxima", "sums", "factor", "lost", "rescale"), row)
            | {"buffer": 4 * lanes * lanes}
        )

    def key_regions(self) -> dict[str, int]:
        """Bytes of workspace for each key."""
        lanes = self.device.lanes
        row = 4 * lanes * ATTENTION.wide
        regions = {"k": 4 * self.d, "v": 4 * self.dv, "scores": row, "dp": row}
        regions |= {"dk": 4 * padded(self.d, lanes), "dv": 4 * padded(self.dv, lanes)}
        return regions | {name: row for name in self.masks_by_row()}


def backward_code(problem: AttendBack) -> AttendCode:
    """The kernel of an attention's backward pass."""
    driver = _Driver(problem)
    with driver.loop(BEGIN, END) as number:
        driver.tile(number)
    scratch = driver.fixed + problem.held_keys * sum(problem.key_regions().values())
    return finished_code("attend_back", driver, scratch)


class _Driver(AttendBuilder):
    """The function that goes through heads of keys."""

    def __init__(self, problem: AttendBack) -> None:
        super().__init__(problem)
        self.back = problem
        self.fixed = offsets_of(problem.regions(ATTENTION.wide))[1]

    def tile(self, number: I64) -> None:
        a = self.back
        *lead, shared = self.indices(number, (*a.lead, a.shared))
        held = self._held()
        at = self.locations(lead, self.mul(shared, a.groups), shared, 0)
        self._begin(at, held)
        with self.loop(0, a.groups) as group, self.loop(0, self.size(a.blocks)) as block:
            head = self.add(self.mul(shared, a.groups), group)
            first = self.mul(block, a.rows)
            rows = self.smin(a.rows, self.sub(self.size(a.queries), first))
            own = self.locations(lead, head, shared, first)
            for wide in range(1, ATTENTION.wide + 1):
                least = self.icmp("sgt", rows, (wide - 1) * self.lanes)
                most = self.icmp("sle", rows, wide * self.lanes)
                with self.when(self.and_(least, most)):
                    room = {**self.regions(a.regions(wide)), **held}
                    _Block(self, wide, own, first, rows, room).run()
        for name, width in (("k", a.d), ("v", a.dv)):
            if name in a.gradients:
                stride = self.size(a.strides[f"d{name}"][-2])
                unpadded = unpadded_function(a.device, width)
                self.call_shared(unpadded, held[f"d{name}"], self.size(a.keys), at[f"d{name}"], stride)

    def _held(self) -> dict[str, Ptr]:
        """The regions that have a row for each key."""
        room = self.round_up(self.add(self.size(self.back.keys), _SLACK), _SLACK)
        pointers: dict[str, Ptr] = {}
        before = 0
        for name, bytes in self.back.key_regions().items():
            pointers[name] = self.ptr_add(self.ptr_add(SCRATCH, self.fixed), self.mul(room, before))
            before += bytes
        return pointers

    def _begin(self, at: Mapping[str, Ptr], held: Mapping[str, Ptr]) -> None:
        """Pack keys and values, and clear the sums of their gradients."""
        a = self.back
        keys = self.size(a.keys)
        for name, width in (("k", a.d), ("v", a.dv)):
            row, step = (self.size(s) for s in a.strides[name][-2:])
            self.call_shared(copy_function(a.device, width, a.stored), at[name], row, step, keys, held[name])
            total = self.add(keys, ATTENTION.sum_keys)
            self.call_shared(padded_function(a.device, width), NULL, 0, 4, 0, total, held[f"d{name}"])
        # The last key again, up to as many as are scored at once: it changes no maximum.
        end = self.ptr_add(held["k"], self.mul(keys, 4 * a.d))
        last = self.select_ptr(self.icmp("sgt", keys, 0), self.ptr_add(end, -4 * a.d), end)
        self.call_shared(copy_function(a.device, a.d, "float"), last, 0, 4, _SLACK, end)


class _Block(QueryBlock):
    """One block of queries over all the keys that it sees."""

    def __init__(
        self, t: _Driver, wide: int, at: Mapping[str, Ptr], first: I64, rows: I64, room: Mapping[str, Ptr]
    ) -> None:
        super().__init__(t, wide, at, first, rows, room)
        self.back = t.back
        self.bends = self.back.bends or "mask" in self.back.strides

    def run(self) -> None:
        t, a = self.t, self.back
        self._pack()
        low: Int = 0
        end: Int = t.size(a.keys)
        if a.causal:
            low, end = t.visible_keys(self.first, t.add(self.first, self.rows))
        self._score(low, t.sub(end, low))
        if a.causal and a.lost_below is not None:
            lost = self.sees_nothing(a.lost_below)
            with t.when(lost):
                self._score(0, I64(str(t.size(a.keys))))
            low, end = t.select_int(lost, 0, low), t.select_int(lost, t.size(a.keys), end)
        self._differentiate(low, t.sub(end, low))

    def _pack(self) -> None:
        """Queries and gradients, as columns and as rows of whole vectors."""
        t, a = self.t, self.back
        self.pack_queries()
        stride, step = (t.size(s) for s in a.strides["g"][-2:])
        for i in range(self.wide):
            x = t.ptr_add(self.at["g"], t.mul(stride, i * t.lanes))
            self._as_columns(x, stride, step, i, a.dv, 1.0, t.ptr_add(self.room["slopes"], i * t.bytes), "float")
        for name, width in (("q", a.d), ("g", a.dv)):
            stride, step = (t.size(s) for s in a.strides[name][-2:])
            arguments = (self.at[name], stride, step, self.rows, self.wide * t.lanes, self.room[f"{name}_rows"])
            t.call_shared(padded_function(t.device, width), *arguments)

    def _score(self, low: Int, count: I64) -> None:
        """The scores of all keys, bent and masked, and their maxima."""
        self._fill("maxima", -math.inf)
        self._products("columns", "k", self.a.d, "scores", low, count, with_maximum=not self.bends)
        if self.bends:
            self._bend(low, count)

    def _products(
        self, columns: str, rows: str, width: int, to: str, low: Int, count: I64, *, with_maximum: bool = False
    ) -> None:
        """Columns times rows of keys or values, a few keys at a time."""
        t = self.t
        scores = scores_function(t.device, self.wide, width, width, with_maximum=with_maximum, prefetches=False)
        x = t.ptr_add(self.room[rows], t.mul(low, 4 * width))
        with t.loop(0, t.ceil_div(count, self.keys)) as group:
            done = t.mul(group, self.keys)
            own, onto = t.ptr_add(x, t.mul(done, 4 * width)), t.ptr_add(self.room[to], t.mul(done, self.row))
            t.call_shared(scores, self.room[columns], own, 4 * width, onto, NULL, 0, self.room["maxima"], NULL)

    def _differentiate(self, low: Int, count: I64) -> None:
        t, a = self.t, self.back
        p, dp = self.room["scores"], self.room["dp"]
        self._fill("sums", 0.0)
        weights = weights_function(t.device, self.wide, twos=self.twos)
        t.call_shared(weights, p, count, self.room["maxima"], self.room["sums"])
        for i in range(self.wide):
            total = t.load(t.ptr_add(self.room["sums"], i * t.bytes), t.bytes)
            # Rows after the last query may see no key at all: their weights would be NaN, and so would NaN times 0.
            own = t.is_below(t.lane_numbers_i32(i * t.lanes), self.rows)
            factor = t.select(own, t.inverse(total), t.constant(0.0))
            t.store(factor, t.ptr_add(self.room["factor"], i * t.bytes), t.bytes)
        self._products("slopes", "v", a.dv, "dp", low, count)
        arguments = (p, dp, count, self.room["factor"], self.room["lost"])
        t.call_shared(normalise_function(t.device, self.wide), *arguments)
        if "v" in a.gradients:
            self._add_sums(p, "g_rows", "dv", a.dv, low, count)
        scale = F32(literal(a.scale, f32))
        t.call_shared(slopes_function(t.device, self.wide), p, dp, count, self.room["lost"], scale)
        if a.hides_slopes:
            self._hide(low, count)
        if "k" in a.gradients:
            self._add_sums(dp, "q_rows", "dk", a.d, low, count)
        if "q" in a.gradients:
            self._write_queries(low, count)

    def _fill(self, name: str, number: float) -> None:
        t = self.t
        for i in range(self.wide):
            t.store(t.constant(number), t.ptr_add(self.room[name], i * t.bytes), t.bytes)

    def _hide(self, low: Int, count: I64) -> None:
        """The gradient of a score that the fill has replaced is 0."""
        t, a = self.t, self.back
        with t.loop(0, count) as j:
            key = t.add(low, j)
            masks = {n: self._masked(n, key, j) for n in ("mask", "keep") if n in a.strides}
            keys = t.splat_i32(key) if a.causal else None
            for i in range(self.wide):
                own = t.positions(self.first, i) if a.causal else None
                visible = t.visible({n: v[i] for n, v in masks.items()}, keys, own)
                here = t.ptr_add(t.ptr_add(self.room["dp"], t.mul(j, self.row)), i * t.bytes)
                if visible is not None:
                    t.store(t.select(visible, t.load(here, t.bytes), t.constant(0.0)), here, t.bytes)

    def _add_sums(self, p: Ptr, rows: str, to: str, width: int, low: Int, count: I64) -> None:
        """Add what the queries give to the gradient of each key."""
        t = self.t
        with t.loop(0, ATTENTION.sum_keys) as j:
            # A group of keys goes past the last one.
            past = t.ptr_add(p, t.mul(t.add(count, j), self.row))
            for i in range(self.wide):
                t.store(ZERO, t.ptr_add(past, i * t.bytes), t.bytes)
        vectors = padded(width, t.lanes) // t.lanes
        most = t.device.registers // 2 // ATTENTION.sum_keys
        pitch = vectors * t.bytes
        onto = t.ptr_add(self.room[to], t.mul(low, pitch))
        for c in range(0, vectors, most):
            function = sums_function(t.device, self.wide, min(most, vectors - c))
            at = c * t.bytes
            t.call_shared(function, p, t.ptr_add(self.room[rows], at), t.ptr_add(onto, at), pitch, count)

    def _write_queries(self, low: Int, count: I64) -> None:
        """The gradients of the queries: ds times the keys."""
        t, a = self.t, self.back
        self._fill("rescale", 0.0)
        with t.loop(0, a.d) as c:
            for i in range(self.wide):
                t.store(ZERO, t.ptr_add(self.room["accumulators"], t.add(t.mul(c, self.row), i * t.bytes)), t.bytes)
        x = t.ptr_add(self.room["k"], t.mul(low, 4 * a.d))
        features = key_rows(t.device, self.wide)
        for first in range(0, a.d, features):
            values = values_function(t.device, self.wide, min(features, a.d - first))
            onto = t.ptr_add(self.room["accumulators"], first * self.row)
            t.call_shared(values, self.room["dp"], t.ptr_add(x, 4 * first), 4 * a.d, count, onto, self.room["rescale"])
        self._fill("rescale", 1.0)
        stride = t.size(a.strides["dq"][-2])
        for i in range(self.wide):
            to = t.ptr_add(self.at["dq"], t.mul(stride, i * t.lanes))
            rows = t.smin(t.lanes, t.sub(self.rows, i * t.lanes))
            accumulators = t.ptr_add(self.room["accumulators"], i * t.bytes)
            out = out_function(t.device, a.d, "float")
            t.call_shared(out, accumulators, self.row, self.room["rescale"], to, stride, rows, self.room["buffer"])
