"""Attention backward with lanes along queries: the functions that one block of queries goes through."""

from __future__ import annotations

from functools import lru_cache

from dovetail.codegen.llvm.function import Parameter
from dovetail.codegen.llvm.handles import F32, I64, Ptr
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.attention.parts import Shared, finished, integer, read, written
from dovetail.targets.cpu.attention.policy import ATTENTION


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
    given = (written("p"), read("dp"), integer("count"), read("factor"), written("lost"))
    return finished(t, "attend_normalise", given)


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
    given = (read("p"), written("dp"), integer("count"), read("lost"), Parameter("float", "factor"))
    return finished(t, "attend_slopes", given)


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
                    sums = state.vectors[place]
                    state.vectors[place] = [t.fma(v, number, s) for v, s in zip(xs, sums, strict=True)]
        for i, total in enumerate(state.vectors):
            t.store(total, t.ptr_add(rows[i // vectors], i % vectors * t.bytes), t.bytes)
    given = (read("p"), read("x"), written("to"), integer("pitch"), integer("count"))
    return finished(t, "attend_sums", given)


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
    given = (read("x"), integer("stride"), integer("step"), integer("rows"), integer("total"), written("to"))
    return finished(t, "attend_padded", given)


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


__all__ = ["normalise_function", "padded_function", "slopes_function", "sums_function", "unpadded_function"]
