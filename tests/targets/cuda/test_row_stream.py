"""Products of one row by threads: f32 sums without tensor cores, which would lower the clock of the whole device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.ir.dtype import DType, bf16, f16
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    AwaitPhase,
    Barrier,
    Load,
    LoadMatrices,
    MultiplyMatrices,
    Receive,
    Set,
    Statement,
    SubGrid,
    ThreadIndex,
    reads,
)
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.simulated import drawn_for, run_simulated

pytestmark = pytest.mark.slow
SLOWED = replace(
    H200, dependent_intensity=inf, bulk_copies=True, cluster=8, cooperative="off", hertz=2e9, tensor_hertz=1.8e9
)
"""Tensor cores lower its clock."""
RESIDENT = replace(SLOWED, multiprocessors=4, cooperative="on")
COPYING = replace(RESIDENT, copying_warp=True, bytes_per_cycle=18.8)


def _kernels(graph: Graph, device: GpuDevice) -> list[GpuKernel]:
    return [m for _, several in steps_of(make_plan(graph, target=CLAIMS), device=device) for m in several or ()]


def _has_tensor_cores(made: GpuKernel) -> bool:
    return any(isinstance(s, MultiplyMatrices) for s in everything(made.kernel.body))


@pytest.mark.parametrize(
    "depth, columns, blocks",
    [(512, 64, 4), (128, 64, 4), (768, 64, 4), (1024, 96, 4), (512, 104, 4), (1536, 32, 4), (512, 67, 4), (256, 1, 2)],
    ids=[
        "eight_warps",
        "two_deep",
        "four_deep",
        "odd_columns",
        "last_columns",
        "turns",
        "unaligned_rows",
        "one_column",
    ],
)
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
def test_every_column_has_its_own_sum(dtype: DType, depth: int, columns: int, blocks: int) -> None:
    graph = Graph.of({"y": input("x", dtype[1, depth]) @ param("w", dtype[depth, columns])})
    device = replace(SLOWED, multiprocessors=blocks)
    (made,) = _kernels(graph, device)
    assert not _has_tensor_cores(made)
    drawn = drawn_for(graph)
    exact = drawn["x"].astype(np.float64) @ drawn["w"].astype(np.float64)
    # What is left is the rounding of results.
    rounded = exact.astype(dtype.numpy).astype(np.float64)
    error = np.linalg.norm(run_simulated(graph, device, drawn).astype(np.float64) - exact)
    assert error <= 1.01 * np.linalg.norm(rounded - exact) + 1e-6 * np.linalg.norm(exact)


def test_norms_and_streams_are_as_near_as_with_tensor_cores() -> None:
    """Gains multiply in f32, where tensor cores take products that are rounded to 16 bits."""
    x, gain = input("x", bf16[1, 512]), param("gain", bf16[512])
    normed = library.rms_norm(x, gain, eps=1e-6)
    graph = Graph.of({"y": library.swiglu(normed, param("g", bf16[512, 96]), param("u", bf16[512, 96]))})
    device = replace(SLOWED, multiprocessors=4)
    (made,), (other,) = (_kernels(graph, replace(device, tensor_hertz=hz)) for hz in (1.8e9, 0.0))
    assert not _has_tensor_cores(made) and _has_tensor_cores(other)
    drawn = drawn_for(graph)
    params = {name: x for name, x in drawn.items() if name != "x"}
    exact = evaluate(graph, {"x": drawn["x"]}, params=params, lift=True)["y"]
    now, was = (
        np.linalg.norm(run_simulated(graph, replace(device, tensor_hertz=hz), drawn).astype(np.float64) - exact)
        for hz in (1.8e9, 0.0)
    )
    assert now <= 1.01 * was and now <= 2**-8 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "rows, device",
    [
        (2, SLOWED),
        (1, replace(SLOWED, tensor_hertz=0.0)),
        (1, replace(SLOWED, tensor_hertz=2e9)),
        (1, replace(SLOWED, bulk_copies=False)),
    ],
    ids=["two_rows", "no_other_clock", "same_clock", "small_copies"],
)
def test_tensor_cores_multiply_where_they_are_as_good(rows: int, device: GpuDevice) -> None:
    graph = Graph.of({"y": input("x", bf16[rows, 512]) @ param("w", bf16[512, 1056])})
    assert all(map(_has_tensor_cores, _kernels(graph, device)))


def test_each_byte_of_weights_is_loaded_once_and_no_tensor_core_is_used() -> None:
    graph = Graph.of({"y": input("x", bf16[1, 1024]) @ param("w", bf16[1024, 2048])})
    (made,) = _kernels(graph, replace(SLOWED, multiprocessors=128))
    ptx = to_ptx(made.text, "sm_90a")
    # 16 columns of 1,024: 32 KB are 8 loads of 16 bytes of each of 256 threads, the row 2 more, and sums of eight warps
    # another 2.
    assert "mma" not in ptx and "ldmatrix" not in ptx
    assert ptx.count("ld.shared.v4") == 8 + 2 + 2


def test_threads_of_few_columns_have_k_of_their_own() -> None:
    graph = Graph.of({"y": input("x", bf16[1, 1024]) @ param("w", bf16[1024, 1024])})
    (made,) = _kernels(graph, replace(SLOWED, multiprocessors=128))
    ptx = to_ptx(made.text, "sm_90a")
    # Eight columns of 1,024: 8 loads of 8 bytes of each of 256 threads, and one of the row.
    assert ptx.count("ld.shared.v2.b32") == 8 and ptx.count("ld.shared.b64") == 1
    assert ptx.count("ld.shared.v4") == 2


def _layers() -> Graph:
    x = input("x", bf16[1, 128])
    for layer in range(4):
        normed = library.rms_norm(x, param(f"gain{layer}", bf16[128]), eps=1e-6)
        inner = ops.relu(normed @ param(f"w{layer}", bf16[128, 32]))
        x = x + ops.concat(inner, ops.neg(inner), inner, inner, axis=-1) @ param(f"v{layer}", bf16[128, 128])
    return Graph.of({"y": x})


@pytest.mark.parametrize("device, is_ahead", [(COPYING, True), (RESIDENT, False)], ids=["copying_warp", "words_first"])
def test_weights_are_in_registers_before_a_block_receives_its_row(device: GpuDevice, is_ahead: bool) -> None:
    """Copies that start after words are not awaited before them: no block would ever come to start its own."""
    graph = _layers()
    (made,) = [made for made in _kernels(graph, device) if made.kernel.counter]
    assert not _has_tensor_cores(made)
    firsts: list[bool] = []
    for part in [s for s in everything(made.kernel.body) if isinstance(s, SubGrid)]:
        kinds = [type(s) for s in everything(part.body)]
        if Receive in kinds and AwaitPhase in kinds:
            ahead = part.body[: [type(s) for s in part.body].index(Receive)]
            loads = [s for s in ahead if isinstance(s, Set) and isinstance(s.value, Load)]
            assert all(t.space == "shared" for t, _ in reads(tuple(loads)))
            firsts.append(kinds.index(AwaitPhase) < kinds.index(Receive) and bool(loads))
    assert firsts and set(firsts) == {is_ahead}
    drawn = drawn_for(graph)
    np.testing.assert_array_equal(
        run_simulated(graph, device, drawn), run_simulated(graph, replace(device, cooperative="off"), drawn)
    )


def test_factors_of_tensor_cores_are_in_registers_before_a_block_receives_its_row() -> None:
    graph, device = _layers(), replace(COPYING, tensor_hertz=0.0)
    (made,) = [made for made in _kernels(graph, device) if made.kernel.counter]
    held, multiplied = 0, 0
    for part in [s for s in everything(made.kernel.body) if isinstance(s, SubGrid)]:
        kinds = [type(s) for s in part.body]
        products = [s for s in everything(part.body) if isinstance(s, MultiplyMatrices)]
        if not products:
            continue
        end = kinds.index(Receive)
        # Lanes read what others have received.
        assert AwaitPhase in kinds[:end] and kinds[end + 1] is Barrier
        ahead, later = ([s for s in everything(some) if isinstance(s, LoadMatrices)] for some in _halves(part, end))
        assert ahead and all(s.source.pointer.startswith(("weights", "gains")) for s in ahead)
        assert later and not any(s.source.pointer.startswith(("weights", "gains")) for s in later)
        held, multiplied = held + len(ahead), multiplied + len(products)
    assert held and multiplied
    drawn = drawn_for(graph)
    np.testing.assert_array_equal(
        run_simulated(graph, device, drawn), run_simulated(graph, replace(device, cooperative="off"), drawn)
    )


def _halves(part: SubGrid, end: int) -> tuple[Sequence[Statement], Sequence[Statement]]:
    return part.body[:end], part.body[end:]


def test_factors_that_registers_do_not_hold_are_loaded_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.kernels.loops.persistent.words.MOST_WORDS", 3)
    device = replace(COPYING, tensor_hertz=0.0)
    (made,) = [made for made in _kernels(_layers(), device) if made.kernel.counter]
    for part in [s for s in everything(made.kernel.body) if isinstance(s, SubGrid)]:
        kinds = [type(s) for s in part.body]
        if Receive in kinds:
            ahead, _ = _halves(part, kinds.index(Receive))
            assert not any(isinstance(s, LoadMatrices) for s in everything(ahead))


def _narrow_layers() -> Graph:
    x = input("x", bf16[1, 1024])
    for layer in range(4):
        normed = library.rms_norm(x, param(f"gain{layer}", bf16[1024]), eps=1e-6)
        inner = ops.relu(normed @ param(f"w{layer}", bf16[1024, 32]))
        x = x + ops.concat(inner, ops.neg(inner), inner, inner, axis=-1) @ param(f"v{layer}", bf16[128, 1024])
    return Graph.of({"y": x})


def test_a_thread_that_reads_what_it_received_waits_for_no_other() -> None:
    graph = _narrow_layers()
    (made,) = [made for made in _kernels(graph, COPYING) if made.kernel.counter]
    alone = 0
    for part in [s for s in everything(made.kernel.body) if isinstance(s, SubGrid)]:
        kinds = [type(s) for s in part.body]
        if Receive in kinds and Barrier not in kinds[kinds.index(Receive) :][:2]:
            alone += 1
            (receive,) = [s for s in part.body if isinstance(s, Receive)]
            rooms = {receipt.target.pointer for receipt in receive.receipts}
            found = [read for read in reads(part.body) if read[0].pointer in rooms]
            assert found and all(ThreadIndex("thread") in at for _, at in found)
    assert alone == 1
    drawn = drawn_for(graph)
    np.testing.assert_array_equal(
        run_simulated(graph, COPYING, drawn), run_simulated(graph, replace(COPYING, cooperative="off"), drawn)
    )


@pytest.mark.slow
def test_a_gate_of_16_bits_has_a_sigmoid_of_two_near_instructions() -> None:
    x = input("x", bf16[1, 512])
    graph = Graph.of({"y": library.swiglu(x, param("g", bf16[512, 96]), param("u", bf16[512, 96]))})
    (made,) = _kernels(graph, replace(SLOWED, multiprocessors=4))
    ptx = to_ptx(made.text, "sm_90a")
    assert ptx.count("ex2.approx.ftz.f32") == ptx.count("rcp.approx.ftz.f32") == 1 and "div." not in ptx
