"""Layers of few rows as launches: norms and attentions within the products that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir.dtype import DType, f16, f32
from dovetail.ir.leaf import input, param
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import STATIC_BYTES, everything, shared_bytes
from dovetail.kernels.loops.ir import (
    Alloc,
    AllReduce,
    AwaitCopies,
    Call,
    CommitCopies,
    CopyAsync,
    Kernel,
    Loop,
    Set,
    Store,
    reads,
)
from dovetail.kernels.loops.persistent.bodies import has_rows
from dovetail.plan.plan import Plan, Step
from dovetail.settings import Settings
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.reference.interpreter import evaluate
from dovetail.targets.target import Considered, Target
from tests.targets.cuda.simulated import SimulatedDriver, kernels_on, target_of
from tests.targets.cuda.timed import with_timings

EARLY = replace(H200, cluster=8, dependent_intensity=inf, cooperative="off")
SIZE = 16
"""Features of a head."""


def _linear(name: str, x: Value, out: int, *, gelu: bool = False) -> Value:
    w, b = param(name, f16[x.shape[-1], out]), param(f"{name}.b", f16[out])
    return library.linear(x, w, b, act="gelu" if gelu else "none")


def layers_of_few_rows(rows: int, batch: int = 1, heads: int = 4, count: int = 2, *, masked: bool = True) -> Graph:
    """Post-norm layers, as BERT has them: the normed rows are a residual too."""
    width = heads * SIZE
    x, h = input("x", f16[batch, rows, width]), input("h", f16[batch, rows, width])
    mask = input("mask", f16[batch, 1, 1, rows]) if masked else None

    def norm(name: str, x: Value, r: Value) -> Value:
        gain, shift = (param(f"{name}.{part}", f16[width]) for part in ("gain", "shift"))
        return library.residual_layer_norm(x, r, gain, shift, eps=1e-5)

    y = norm("start", x, h)
    for layer in range(count):
        q, k, v = (
            ops.permute(ops.split(part, axis=-1, size=SIZE), order=(-4, -2, -3, -1))
            for part in (_linear(f"w{name}{layer}", y, width) for name in "qkv")
        )
        mixed = library.attention(q, k, v, mask, scale=SIZE**-0.5)
        joined = ops.merge(ops.permute(mixed, order=(-4, -2, -3, -1)), axis=-1)
        y = norm(f"first{layer}", y, _linear(f"wo{layer}", joined, width))
        inner = _linear(f"up{layer}", y, 2 * width, gelu=True)
        y = norm(f"second{layer}", y, _linear(f"down{layer}", inner, width))
    return Graph.of({"y": y})


@cache
def _kernels(graph: Graph, device: GpuDevice = EARLY) -> Sequence[Kernel]:
    return kernels_on(graph, device)


def _run(graph: Graph, device: GpuDevice = EARLY) -> tuple[Any, Any, list[str]]:
    """What comes out, what it should be, and the launches."""
    rng, driver = np.random.default_rng(0), SimulatedDriver()
    driver.description = device

    def drawn(value: Value) -> Any:
        return (rng.standard_normal([int(str(n)) for n in value.shape]) / 4).astype(np.float16)

    params = {str(v.attrs["name"]): drawn(v) for v in graph.parameters}
    feeds = {str(v.attrs["name"]): drawn(v) for v in graph.inputs}
    wanted = evaluate(graph, feeds, params=params, lift=True)["y"]
    program = dovetail.compile(graph, target=target_of(driver)).bind(params)
    found = program.run(feeds)["y"]
    return found, wanted, [line.removeprefix("launch ") for line in driver.log if line.startswith("launch ")]


@pytest.mark.parametrize(
    ("rows", "batch", "heads"),
    [(16, 1, 4), pytest.param(13, 1, 12, marks=pytest.mark.exhaustive), (16, 2, 4), (20, 1, 4)],
    ids=["tile", "fewer_rows_more_heads_than_warps", "batch", "two_tiles"],
)
def test_results_are_those_of_the_graph(rows: int, batch: int, heads: int) -> None:
    found, wanted, launches = _run(layers_of_few_rows(rows, batch, heads, count=1))
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 3e-3 * np.linalg.norm(wanted)
    assert "attend" not in launches and launches.count("rows") <= 1


def test_blocks_of_an_attention_do_not_share_a_multiprocessor() -> None:
    """16 blocks on 20 multiprocessors take more than half of the shared memory each; of 40 they may share some."""
    for most, is_lone in ((20, True), (40, False), (12, False)):
        device = replace(EARLY, multiprocessors=most)
        launches = [k.launch for k in _kernels(layers_of_few_rows(64, count=1), device) if k.name == "attend"]
        assert launches and all([launch is not None and launch.grid == 16 for launch in launches])
        assert all([launch and (2 * launch.shared_bytes > device.shared_bytes) == is_lone for launch in launches])


def test_a_layer_is_four_launches() -> None:
    """Product with a norm, product with the attention, and the same two of the feed-forward part."""
    short, long = (len(_kernels(layers_of_few_rows(16, count=count))) for count in (2, 3))
    assert long - short == 4


def test_rows_that_others_read_are_written_by_blocks_of_the_first_columns() -> None:
    normed = [k for k in _kernels(layers_of_few_rows(16)) if k.early and len(k.written) == 2]
    assert len(normed) == 4
    for kernel in normed:
        assert any([isinstance(s, AllReduce) for s in everything(kernel.body)])
        assert not {tensor.pointer for tensor, _ in reads(kernel.body)} & {*kernel.written}
        groups = [s for s in everything(kernel.body) if isinstance(s, Loop) and s.kind == "unrolled"]
        stores = [s.tensor for loop in groups for s in loop.body if isinstance(s, Store)]
        assert kernel.written[0] in {t.pointer for t in stores if t.space == "global"}


def test_weights_come_before_the_wait_and_gains_before_weights() -> None:
    """Loads of rows are on their way before a block waits for gains, and norms wait for no weights."""
    for kernel in [k for k in _kernels(layers_of_few_rows(16)) if has_rows(k)]:
        copied = {s.source.pointer for s in everything(kernel.body) if isinstance(s, CopyAsync)}
        assert not copied & {*kernel.constants}
        groups = [s for s in kernel.early if isinstance(s, CommitCopies)]
        assert len(groups) == len(kernel.written)
        if len(groups) == 2:
            assert not any([isinstance(s, AwaitCopies) for s in kernel.body])
            loop = kernel.body[-1]
            assert isinstance(loop, Loop)
            wait = next(i for i, s in enumerate(loop.body) if isinstance(s, AwaitCopies))
            assert loop.body[wait] == AwaitCopies(1)
            rows = {*kernel.pointers} - {*kernel.constants, *kernel.written}
            loaded = [{tensor.pointer for tensor, _ in reads(part)} for part in (loop.body[:wait], loop.body[wait:])]
            assert rows <= loaded[0] and not rows & loaded[1]


@pytest.mark.parametrize("heads", [4, 24])
def test_a_launch_has_the_shared_memory_of_all_rooms(heads: int) -> None:
    for kernel in _kernels(layers_of_few_rows(16, heads=heads, count=1)):
        launch, needed = kernel.launch, shared_bytes(kernel.body)
        assert launch is not None and max(needed, launch.shared_bytes) <= EARLY.shared_bytes
        assert needed <= (launch.shared_bytes or STATIC_BYTES)


def test_no_two_blocks_share_a_multiprocessor() -> None:
    for kernel in [k for k in _kernels(layers_of_few_rows(16)) if has_rows(k)]:
        assert kernel.launch is not None and 2 * kernel.launch.shared_bytes > EARLY.shared_bytes


def test_early_copies_find_their_memory_where_the_first_allocations_are() -> None:
    for kernel in _kernels(layers_of_few_rows(16)):
        early = [s for s in kernel.early if isinstance(s, Alloc)]
        body = [s for s in kernel.body if isinstance(s, Alloc) and s.space == "shared"]
        assert body[: len(early)] == early


def test_the_lower_estimate_decides() -> None:
    launches = with_timings(EARLY, "launches", dependent_launch=-2e-6)
    names = [kernel.name for kernel in _kernels(layers_of_few_rows(16), launches)]
    assert names.count("rows") == 5 and names.count("attend") == 2


def _told(plan: Plan, step: Step, target: Target) -> list[Considered]:
    """What is told of the launch of a step."""
    assert target.launches is not None
    rows = target.launches(plan, Settings())[list(plan.phase("run")).index(step)]
    return [row for row in rows if row.kind == "launches" and row.name in ("within_product", "launch")]


def test_both_ways_are_told() -> None:
    driver = SimulatedDriver()
    driver.description = EARLY
    target = target_of(driver)
    plan = dovetail.compile(layers_of_few_rows(16, count=1), target=target).plan
    for name in ("residual_layer_norm", "attention"):
        step = next(s for s in plan.phase("run") if s.value.op.name == name)
        taken = {row.name: row for row in _told(plan, step, target)}
        assert taken["within_product"].taken and not taken["launch"].taken and taken["launch"].reason
        assert (taken["within_product"].seconds or 0) < (taken["launch"].seconds or 0)


def _normed(*, donated: bool) -> Graph:
    x = input("x", f16[16, 64])
    normed = library.layer_norm(x, param("gain", f16[64]), param("shift", f16[64]), eps=1e-5)
    graph = Graph.of({"y": _linear("w", normed, 64)})
    return graph.donate({"y": "x"}) if donated else graph


def test_a_norm_after_the_product_reads_it_whole() -> None:
    """Without the norm before it, the product goes in parts of k, which the norm after it adds up."""
    x, residual = input("x", f16[16, 1024]), input("r", f16[16, 64])
    gains = [(param(f"gain{i}", f16[n]), param(f"shift{i}", f16[n])) for i, n in enumerate((1024, 64))]
    y = _linear("w", library.layer_norm(x, *gains[0], eps=1e-5), 64)
    graph = Graph.of({"y": library.residual_layer_norm(residual, y, *gains[1], eps=1e-5)})
    apart = with_timings(EARLY, "launches", dependent_launch=-2e-6)
    assert [kernel.name for kernel in _kernels(graph, apart)] == ["rows", "contract_parts", "rows"]
    found, wanted, launches = _run(graph)
    assert launches == ["contract", "rows"]
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 3e-3 * np.linalg.norm(wanted)


def test_nothing_joins_where_a_result_is_written_over_what_other_blocks_read() -> None:
    assert [kernel.name for kernel in _kernels(_normed(donated=False))] == ["contract"]
    assert [kernel.name for kernel in _kernels(_normed(donated=True))] == ["rows", "contract"]
    driver = SimulatedDriver()
    driver.description = EARLY
    target = target_of(driver)
    plan = dovetail.compile(_normed(donated=True), target=target).plan
    row, _ = _told(plan, plan.phase("run")[0], target)
    assert not row.taken and row.condition == "results_are_apart"
    found, wanted, _ = _run(_normed(donated=True))
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 3e-3 * np.linalg.norm(wanted)


def test_launches_that_wait_for_each_other_keep_their_norms() -> None:
    """Weights would come after the wait."""
    plain = replace(EARLY, dependent_intensity=0.0)
    assert [kernel.name for kernel in _kernels(layers_of_few_rows(16), plain)].count("rows") == 5


def test_queries_of_two_attentions_share_no_tile() -> None:
    names = [kernel.name for kernel in _kernels(layers_of_few_rows(12, batch=2))]
    assert names.count("attend") == 2


def test_an_attention_of_few_keys_copies_no_others() -> None:
    (kernel,) = [k for k in _kernels(layers_of_few_rows(12, batch=2, count=1)) if k.name == "attend"]
    tiles = {s.pointer: s.count for s in kernel.body if isinstance(s, Alloc) and s.space == "shared"}
    assert {name: count // SIZE for name, count in tiles.items()} == dict.fromkeys(["q_tile", "k_tile", "v_tile"], 16)


def test_a_lone_attention_has_what_is_added_to_scores_before_it_waits_for_keys() -> None:
    (kernel,) = [k for k in _kernels(layers_of_few_rows(12, batch=2, count=1)) if k.name == "attend"]
    loop = kernel.body[-1]
    assert isinstance(loop, Loop)
    wait = next(i for i, s in enumerate(loop.body) if isinstance(s, AwaitCopies))
    loaded = [{tensor.pointer for tensor, _ in reads(part)} for part in (loop.body[:wait], loop.body[wait:])]
    assert "mask" in loaded[0] and "mask" not in loaded[1]


@pytest.mark.parametrize(("dtype", "is_near"), [(f16, True), (f32, False)])
def test_norms_of_16_bits_need_no_mean_in_f64(dtype: DType, is_near: bool) -> None:
    """Where the graph has its scalars in f32, too."""
    x = input("x", dtype[16, 384])
    y = library.layer_norm(x, param("gain", dtype[384]), param("shift", dtype[384]), eps=1e-5, precision="f32")
    (kernel,) = _kernels(Graph.of({"y": y}))
    roots = [s.value.op for s in everything(kernel.body) if isinstance(s, Set) and isinstance(s.value, Call)]
    assert ("near_rsqrt" in roots) == is_near and ("rsqrt" in roots) != is_near


@pytest.mark.parametrize(("heads", "warps"), [(4, 4), (8, 8), (12, 12), (20, 10)])
def test_each_head_has_a_warp_or_warps_have_equally_many(heads: int, warps: int) -> None:
    kernels = [k for k in _kernels(layers_of_few_rows(16, heads=heads, count=1)) if "before_mask" in k.pointers]
    assert [k.launch and k.launch.block for k in kernels] == [warps * 32]


@pytest.mark.parametrize(("width", "is_even"), [(384, True), (320, False)])
def test_lanes_of_a_norm_have_equally_many_vectors_where_shorter_ones_give_that(width: int, is_even: bool) -> None:
    """48 vectors of 16 bytes would leave half of the lanes without a second one."""
    gain, shift = param("gain", f16[width]), param("shift", f16[width])
    y = library.layer_norm(input("x", f16[16, width]), gain, shift, eps=1e-5)
    (kernel,) = _kernels(Graph.of({"y": _linear("w", y, 64)}))
    names = [s.name for s in everything(kernel.body) if isinstance(s, Set)]
    assert any([name.startswith("inside_before") for name in names]) != is_even
