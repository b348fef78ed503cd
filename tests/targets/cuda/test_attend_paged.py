"""Attention of one or a few queries to keys in pages: float64 judges it, whatever pages a sequence has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.codegen.llvm.nvptx.ptx import module
from dovetail.ir.dim import evaluate
from dovetail.ir.dtype import DType, bf16, f16, f32, i32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.attention.row import offer_paged
from dovetail.kernels.gpu.order.passes import Passes
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.problems.attention import Attention, paged_attention
from dovetail.kernels.spec import Job
from dovetail.plan.alias import Alias, dense_strides, find_aliases
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from tests.targets.cuda.graphs import x_of
from tests.targets.cuda.lockstep import Machine
from tests.tolerances import assert_close

SCALE = 0.25


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a cache and of what reads it."""

    page: int
    dtype: DType
    lengths: tuple[int, ...]
    heads: int = 1
    shared: int = 1
    queries: int = 1
    d: int = 32
    dv: int = 32
    cache: DType | None = None
    """Of keys and values, if not that of queries."""
    causal: bool = False

    @property
    def columns(self) -> int:
        return 256 // self.page

    @property
    def stored(self) -> DType:
        return self.cache or self.dtype


def _values(of: Shape, sequences: int | str) -> dict[str, Value]:
    def cache(name: str, width: int) -> Value:
        # Pages as a cache has them: its tokens, then its heads.
        whole = x_of(of.stored, "p", of.page, of.shared, width, name=name)
        return ops.permute(whole, order=(-4, -2, -3, -1))

    return {
        "q": x_of(of.dtype, sequences, of.heads, of.queries, of.d, name="q"),
        "k": cache("k", of.d),
        "v": cache("v", of.dv),
        "table": x_of(i32, sequences, of.columns, name="table"),
        "lengths": x_of(i32, sequences, name="lengths"),
        "y": x_of(of.dtype, sequences, of.heads, of.queries, of.dv, name="y"),
    }


def _problem(values: Mapping[str, Value], *, causal: bool) -> Attention | Refused:
    every = [v for x in values.values() for v in (*x.operands, x)]
    found = find_aliases(every)
    known = {v: found.get(v) or Alias(v, 0, dense_strides(v.tensor)) for v in every}
    call = {name: v for name, v in values.items() if name != "y"}
    return paged_attention(values["y"], call, known.__getitem__, scale=SCALE, causal=causal)


def _job(of: Shape, sequences: int | str, device: GpuDevice) -> Job:
    values = _values(of, sequences)
    found = _problem(values, causal=of.causal)
    assert isinstance(found, Attention)
    offer = offer_paged(found, device, values, ("k", "v"))
    assert isinstance(offer, Offer)
    job = offer.build()
    assert isinstance(job, Job)
    return job


def _run(job: Job, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Run it on the machine in NumPy, and compile it."""
    buffers = {name: (x.reshape(-1).view(np.uint8), 0) for name, x in arrays.items()}
    if isinstance(job, Passes):
        buffers |= {n: (np.zeros(evaluate(size, sizes), np.uint8), 0) for n, size in job.workspace.items()}
    assert isinstance(job.kernel, Kernel)
    assert ".entry attend_row(" in to_ptx(module(job.kernel, {}), "sm_90a")
    Machine(job.kernel, buffers, sizes).run()


def _drawn(of: Shape) -> dict[str, Any]:
    """Queries, and pages in no order. What no sequence has is not finite, and no page."""
    rng = np.random.default_rng(of.page)
    counts = [-(-n // of.page) for n in of.lengths]
    pages = sum(counts) + 2
    table = np.full((len(counts), of.columns), 1 << 30, np.int32)
    k = np.full((pages, of.page, of.shared, of.d), np.nan)
    v = np.full((pages, of.page, of.shared, of.dv), np.nan)
    taken = iter(rng.permutation(pages))
    for row, (length, count) in enumerate(zip(of.lengths, counts, strict=True)):
        for number in range(count):
            table[row, number] = own = next(taken)
            inside = min(of.page, length - number * of.page)
            k[own, :inside] = rng.normal(size=(inside, of.shared, of.d))
            v[own, :inside] = rng.normal(size=(inside, of.shared, of.dv))
    q = rng.normal(size=(len(counts), of.heads, of.queries, of.d))
    return {
        "q": q.astype(of.dtype.numpy),
        "k": k.astype(of.stored.numpy),
        "v": v.astype(of.stored.numpy),
        "table": table,
        "lengths": np.array(of.lengths, np.int32),
        "y": np.full((*q.shape[:3], of.dv), np.nan).astype(of.dtype.numpy),
    }


def _by_hand(of: Shape, arrays: Mapping[str, Any]) -> Any:
    q, k, v = (arrays[name].astype(np.float64) for name in "qkv")
    result = np.zeros(arrays["y"].shape)
    for row, length in enumerate(of.lengths):
        at = [(arrays["table"][row, n // of.page], n % of.page) for n in range(length)]
        for head, query in product(range(of.heads if at else 0), range(of.queries)):
            own = head * of.shared // of.heads
            keys, values = (np.stack([x[page, slot, own] for page, slot in at]) for x in (k, v))
            seen = length - (of.queries - 1 - query) if of.causal else length
            scores = keys[:seen] @ q[row, head, query] * SCALE
            weights = np.exp(scores - scores.max())
            result[row, head, query] = weights @ values[:seen] / weights.sum()
    return result


CASES: Mapping[str, Shape] = {
    "pages of 16": Shape(16, f16, (1, 16, 17, 203), 2, 2, d=64),
    "pages of 64": Shape(64, bf16, (64, 130, 5), 2, 2, dv=64),
    "f32": Shape(16, f32, (33, 100)),
    "heads that share keys": Shape(16, f16, (70, 3), 4, 2, d=64, dv=64),
    "heads that share keys, one by one": Shape(16, bf16, (18,), 8, 2, d=128, dv=128),
    "a few queries, the last of their sequence": Shape(64, f16, (129, 40), 2, queries=3, d=64, dv=64, causal=True),
    "a few queries": Shape(16, f32, (21,), 2, 2, queries=2),
    "a cache that is narrower": Shape(16, f32, (90,), 2, cache=f16),
    "a sequence without keys": Shape(16, f16, (0, 20)),
    "as many keys as there is room for": Shape(64, f16, (256, 256)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("blocks", [1, 4])
def test_keys_in_pages_are_near_float64(name: str, blocks: int) -> None:
    """Blocks of a cluster share the keys of a head; how many sequences there are is known late otherwise."""
    of = CASES[name]
    job = _job(of, "s" if blocks == 1 else len(of.lengths), replace(H200, cluster=blocks))
    assert isinstance(job.kernel, Kernel) and job.kernel.launch is not None
    assert (job.kernel.launch.cluster > 1) == (blocks > 1)
    arrays = _drawn(of)
    _run(job, arrays, {"s": len(of.lengths), "p": len(arrays["k"])})
    assert_close(arrays["y"], _by_hand(of, arrays), of.dtype)


@pytest.mark.slow
def test_a_length_beyond_the_table_reads_no_further() -> None:
    of = CASES["as many keys as there is room for"]
    arrays = _drawn(of)
    wanted = _by_hand(of, arrays)
    arrays["lengths"] += 100
    _run(_job(of, "s", H200), arrays, {"s": len(of.lengths), "p": len(arrays["k"])})
    assert_close(arrays["y"], wanted, of.dtype)


def test_named_conditions_refuse() -> None:
    def refused(of: Shape) -> str:
        found = _problem(_values(of, "s"), causal=False)
        found = offer_paged(found, H200, {}) if isinstance(found, Attention) else found
        assert isinstance(found, Refused)
        return found.condition

    assert refused(Shape(16, f16, (1,), d=48)) == "features_are_shared_by_lanes"
    assert refused(Shape(16, f16, (1,), queries=9)) == "queries_fit_registers"
    assert refused(Shape(16, f16, (1,), heads=3, shared=2)) == "heads_divide"
    assert refused(Shape(16, i32, (1,))) == "tensors_are_floats"
