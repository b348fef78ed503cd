"""Blocks of a resident kernel that send words to each other instead of waiting at barriers of the grid."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.codegen.llvm.nvptx.ptx import module
from dovetail.ir.dtype import bf16, u64
from dovetail.ir.graph import Graph
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    ZERO,
    Barrier,
    Call,
    Expr,
    Extent,
    GridBarrier,
    Load,
    LoadMatrices,
    Prefetch,
    Receive,
    Set,
    Statement,
    Store,
    SubGrid,
    Tensor,
    ThreadIndex,
    When,
)
from dovetail.kernels.loops.persistent.words import PartWords, Received, Words
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from tests.targets.cuda.simulated import SimulatedDriver, target_of
from tests.targets.cuda.test_copying_warp import layers_of
from tests.targets.cuda.test_decode import DECODE, SHAPES

LAUNCHED = replace(H200, multiprocessors=16, cluster=8, dependent_intensity=inf, bulk_copies=True, cooperative="off")
RESIDENT = replace(LAUNCHED, cooperative="on")
CACHED = 20


def _deep(name: str) -> Any:
    return replace(SHAPES[name], layers=4)


def _device(description: GpuDevice) -> SimulatedDriver:
    found = SimulatedDriver()
    found.description = description
    return found


@cache
def _resident() -> GpuKernel:
    graph: Graph = DECODE.step_graph(_deep("qwen3"))
    plan = dovetail.compile(graph, target=target_of(_device(RESIDENT))).plan
    every = [made for _, kernels in steps_of(plan, device=RESIDENT) for made in kernels or ()]
    (found,) = [made for made in every if made.kernel.counter]
    return found


def _outputs(name: str, description: GpuDevice, tokens: int = 2) -> dict[str, Any]:
    graph: Graph = DECODE.step_graph(_deep(name))
    weights, feeds = DECODE.weights_of(graph), DECODE.feeds_of(_deep(name), CACHED)
    program = dovetail.compile(graph, target=target_of(_device(description))).bind(weights)
    arrays = program.to_device(feeds)
    found: dict[str, Any] = {}
    for _ in range(tokens):
        found = {n: x.numpy().view(np.uint16) for n, x in program.run(arrays, outputs="device").items()}
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SHAPES)
def test_results_are_those_of_launches_to_the_bit(name: str) -> None:
    launched, resident = _outputs(name, LAUNCHED), _outputs(name, RESIDENT)
    assert launched.keys() == resident.keys()
    for output, wanted in launched.items():
        np.testing.assert_array_equal(resident[output], wanted, err_msg=output)


@pytest.mark.slow
def test_layers_of_a_decoder_wait_at_no_barrier_of_the_grid() -> None:
    kernel = _resident().kernel
    levels = [s for s in kernel.body if isinstance(s, GridBarrier)]
    assert len(levels) > 4 and all(level.number is None for level in levels)
    receives = [s for s in everything(kernel.body) if isinstance(s, Receive)]
    assert len(receives) >= len(levels) - 1
    stamped = [s for s in everything(kernel.body) if isinstance(s, Store) and s.tensor.space == "stamped"]
    assert stamped and all(s.tensor.pointer == kernel.counter for s in stamped)


@pytest.mark.slow
def test_keys_are_prefetched_two_levels_before_they_are_copied() -> None:
    kernel = _resident().kernel
    levels = [s for s in kernel.body if isinstance(s, GridBarrier)]
    (at,) = [i for i, level in enumerate(levels) if any(isinstance(s, Prefetch) for s in everything(level.meanwhile))]
    parts = [s for s in kernel.body if isinstance(s, (SubGrid, GridBarrier))]
    following = parts[parts.index(levels[at]) + 1 :]
    assert isinstance(following[0], SubGrid) and len([s for s in following if isinstance(s, GridBarrier)]) >= 2


@pytest.mark.slow
def test_each_block_computes_the_rows_of_its_own_head() -> None:
    """Without it every block would norm and rotate all heads."""
    kernel = _resident().kernel
    guards = [
        s
        for s in everything(kernel.body)
        if isinstance(s, When)
        and isinstance(s.condition, Call)
        and s.condition.op == "equal"
        and "kind='block'" in str(s.condition.operands[1])
    ]
    # Rows have a warp each, which goes on where it has one of the head; threads go through elements of the head alone.
    starts = [s for s in everything(kernel.body) if isinstance(s, Set) and s.name.startswith("start")]
    assert len(guards) == 2 and len(starts) == 6 and all("kind='block'" in str(s.value) for s in starts)


@pytest.mark.exhaustive
def test_a_word_of_an_earlier_launch_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second token finds the words of the first, with the number of another launch."""
    from tests.targets.cuda import lockstep

    kept = lockstep.Machine.store

    def stale(self: Any, tensor: Any, address: Any, value: Any, mask: Any) -> None:
        if tensor.space == "stamped" and self.stamp == 2:
            return
        kept(self, tensor, address, value, mask)

    monkeypatch.setattr(lockstep.Machine, "store", stale)
    with pytest.raises(AssertionError, match="sends"):
        _outputs("qwen3", RESIDENT)


@pytest.mark.exhaustive
def test_blocks_load_again_only_what_is_missing() -> None:
    """A vector that has all words of this launch is not loaded again while others of the warp are late."""
    ptx = to_ptx(_resident().text, "sm_90a")
    again = re.findall(
        r"setp.gt.u32 late, (%r\d+), (?:0|65535);\s+@late (ld.relaxed.gpu.global.\S+) {[^}]*}, (\[\S+\]);", ptx
    )
    first = re.findall(r"^\s*(ld.relaxed.gpu.global.v\S+) {[^}]*}, (\[\S+\]);", ptx, re.MULTILINE)
    assert again and sorted((kind, at) for _, kind, at in again) == sorted(first)
    assert len({missing for missing, _, _ in again}) == len(again), "each has a condition of its own"


@pytest.mark.slow
@pytest.mark.parametrize("evict", [True, False])
def test_l2_drops_words_last_where_it_drops_weights_first(evict: bool) -> None:
    """Words of a pass are used once in a launch, and all weights go through L2 until the next one."""
    kernel = replace(_resident().kernel, evict_last=evict)
    ptx = to_ptx(module(kernel, {}), "sm_90a")
    kept = re.findall(r"(?:ld|st)\.relaxed\.gpu\.global\.L2::cache_hint\.\S+ .*, policy;", ptx)
    plain = re.findall(r"(?:ld|st)\.relaxed\.gpu\.global\.(?:v\d\.)?b\d+ ", ptx)
    assert (kept and not plain) if evict else (plain and not kept)
    assert ptx.count("L2::evict_last") == len(kept)


@pytest.mark.slow
@pytest.mark.parametrize("evict", [True, False])
def test_a_device_that_has_policies_keeps_words(evict: bool) -> None:
    graph: Graph = layers_of(4)
    device = replace(RESIDENT, multiprocessors=4, evict_first=evict)
    every = steps_of(make_plan(graph, target=CLAIMS), device=device)
    (made,) = [made for _, kernels in every for made in kernels or () if made.kernel.counter]
    assert made.kernel.evict_last is evict


@pytest.mark.slow
def test_words_of_one_size_are_compared_at_once() -> None:
    """Words of two bytes have the number of the launch above the element: one comparison is for all of them."""
    ptx = to_ptx(_resident().text, "sm_90a")
    receives = [s for s in everything(_resident().kernel.body) if isinstance(s, Receive)]
    votes = re.findall(r"setp\.gt\.u32\s+%p\d+, %r\d+, 65535;", ptx)
    sizes = [{receipt.source.dtype.itemsize for receipt in s.receipts} for s in receives]
    assert len(votes) == sum(2 in size for size in sizes)


@pytest.mark.exhaustive
def test_blocks_pause_before_they_look_for_words_of_this_pass() -> None:
    device = replace(RESIDENT, pause=300)
    graph: Graph = DECODE.step_graph(_deep("qwen3"))
    plan = dovetail.compile(graph, target=target_of(_device(device))).plan
    every = [made for _, kernels in steps_of(plan, device=device) for made in kernels or ()]
    (made,) = [made for made in every if made.kernel.counter]
    receives = [s for s in everything(made.kernel.body) if isinstance(s, Receive)]
    # What the pass before has sent is there by the time that a pass has started.
    first, *later = receives
    assert first.pause == 0
    # Levels with few weights end at almost the same time in all blocks: their words come sooner.
    assert {s.pause for s in later} == {180, 300}
    ptx = to_ptx(made.text, "sm_90a")
    counts = [ptx.count(f"setp.lt.u32 early, gone, {cycles};") for cycles in (180, 300)]
    assert counts == [sum(s.pause == cycles for s in receives) for cycles in (180, 300)]
    assert "%clock;" not in to_ptx(_resident().text, "sm_90a")


THREAD = ThreadIndex("thread")
FACTOR = LoadMatrices(Tensor("factor", bf16, (2,), space="private"), (ZERO,), Tensor("x", bf16, (2,)), (THREAD,))


def _pair(index: Expr = THREAD, stride: int = 8, offset: int = 0) -> Set:
    """A load of 8 bytes of what a block received."""
    return Set("pair", Load(Tensor("x", u64, (stride,), offset), (index,)))


@pytest.mark.parametrize(
    ("count", "body", "waits"),
    [
        (1024, [_pair()], False),
        (2048, [_pair(), _pair(offset=2048)], False),
        (1024, [_pair(offset=8)], True),
        (1024, [_pair(stride=16)], True),
        (1024, [_pair(Extent(3))], True),
        (1020, [_pair()], True),
        (1024, [_pair(), FACTOR], True),
    ],
    ids=["own", "own_of_two", "of_the_next", "of_other_pairs", "of_one", "not_whole", "by_tensor_cores"],
)
def test_threads_wait_for_each_other_where_one_reads_what_another_received(
    count: int, body: list[Statement], waits: bool
) -> None:
    """A simulated block runs in lockstep, and would not miss a barrier."""
    part = PartWords(Words("counter", 4096), {}, {"x": Received(0, bf16, count)}, "", 0, threads=256)
    assert any(isinstance(s, Barrier) for s in part.body((*body,), {})) is waits
