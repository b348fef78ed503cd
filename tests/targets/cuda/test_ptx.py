"""Kernels for NVIDIA GPUs: the schedule in lockstep and PTX for every architecture here, results on a device there."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.errors import GraphError, UnsupportedError
from dovetail.ir.dtype import bf16, f32, f64
from dovetail.ir.leaf import input
from dovetail.ir.value import Value
from dovetail.kernels.loops.gpu_schedule import GpuShape, schedule
from dovetail.kernels.loops.ir import Alloc, Barrier, Extent, Kernel, Load, Loop, Name, Set, Store, Tensor
from dovetail.kernels.loops.split_reduce import SplitLimits
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import ARCHITECTURES, architecture_of
from dovetail.targets.cuda.driver.driver import driver
from dovetail.targets.cuda.driver.memory import CudaBuffer
from dovetail.targets.cuda.driver.streams import Event
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of
from tests.targets.cuda.devices import on_device
from tests.targets.cuda.graphs import CASES, Case
from tests.targets.cuda.judged import check, feeds_of, in_lockstep
from tests.targets.cuda.simulated import SimulatedDriver

LONG = ("reductions_long", "reductions_tall", "reductions_few")
"""Too long for a machine in NumPy."""
ASSEMBLED = (
    "elementwise_bf16", "elementwise_f64", "chains_f16", "norms_f32_7x12", "norms_f32_6x768", "norms_f32_2x5003",
    "reductions_i32_3x40x70", "extremes_f32", "moves_f64_33x70", "map_any", "norm_any", "sum_any", "turn_any",
)  # fmt: skip
"""Of each kind of kernel some; a device compiles them all."""
EVERYWHERE = ("chains_bf16", "norms_f32_9x100", "moves_bf16_33x70", "sum_any")


def compiled(case: Case, architecture: str) -> list[str]:
    texts = {kernel.text for _, kernel in kernels_of(make_plan(Graph.of(case.outputs), target="cuda"))}
    return [to_ptx(text, architecture) for text in sorted(texts)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in LONG])
def test_schedules_do_what_the_graph_means(name: str) -> None:
    case = CASES[name]
    for sizes in case.sizes:
        feeds = feeds_of(Graph.of(case.outputs), sizes)
        check(case, in_lockstep(case, feeds), feeds)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ASSEMBLED)
def test_kernels_become_ptx(name: str) -> None:
    for ptx in compiled(CASES[name], "sm_90a"):
        assert ".entry" in ptx
        assert "__local_depot" not in ptx, "nothing is kept outside of registers"
        assert "call.uni" not in ptx, "there is no library to call"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_every_architecture_has_ptx(name: str, architecture: str) -> None:
    for ptx in compiled(CASES[name], architecture):
        assert f".target {architecture}" in ptx


@pytest.mark.slow
def test_a_norm_loads_each_row_once_in_vectors() -> None:
    x, gain = input("x", f32[512, 768]), input("gain", f32[768])
    (ptx,) = compiled(Case({"y": library.layer_norm(x, gain, eps=1e-5)}), "sm_90a")
    assert ptx.count("ld.global.nc.v4") == 12, "six vectors of the row, six of the gain"
    assert ptx.count("st.global.v4") == 6
    assert ptx.count("shfl.sync.bfly") == 10
    assert ptx.count("ld.global") == 12 and ptx.count("st.global") == 6


@pytest.mark.slow
def test_few_long_rows_are_reduced_in_two_stages() -> None:
    """Parts of a row go to places of their own, which a second kernel reads in one order: no atomics."""
    for axes, shape in (((-2, -1), (16384, 8192)), ((-2,), (1 << 20, 64)), ((-1,), (2, 1 << 22))):
        total = ops.reduce_sum(input("x", f32[shape]), axes=axes)
        plan = make_plan(Graph.of({"y": total}), target="cuda")
        first, second = [made for _, made in kernels_of(plan)]
        assert first.kernel.launch is not None and isinstance(first.kernel.launch.grid, int)
        assert 200 <= first.kernel.launch.grid <= 4 * 132
        assert first.kernel.written == ("partial0",) and "x0" not in second.kernel.pointers
        for made in (first, second):
            ptx = to_ptx(made.text, "sm_90a")
            assert "\tatom." not in ptx and "\tred." not in ptx
    full = make_plan(Graph.of({"y": ops.reduce_sum(input("x", f32[16384, 8192]), axes=(-2,))}), target="cuda")
    assert len(kernels_of(full)) == 1, "256 bundles of columns fill a device"
    short = make_plan(Graph.of({"y": ops.reduce_sum(input("x", f32[100, 8]), axes=(-2, -1))}), target="cuda")
    assert len(kernels_of(short)) == 1


@pytest.mark.slow
def test_long_rows_are_loaded_ahead() -> None:
    x = input("x", f32[1 << 14, 1 << 13])
    down, every = (ops.reduce_sum(x, axes=axes) for axes in ((-2,), (-2, -1)))
    (ptx,) = compiled(Case({"y": down}), "sm_90a")
    assert ptx.count("ld.global.nc.b32") >= 16
    ptx = next(p for p in compiled(Case({"y": every}), "sm_90a") if "rows_parts" in p)
    assert ptx.count("ld.global.nc.v4") >= 4


@pytest.mark.slow
def test_bf16_is_rounded_by_an_instruction_and_divided_without_branches() -> None:
    x, y = input("x", bf16[64, 1024]), input("y", bf16[64, 1024])
    for value in (library.gelu(x + y), x / y, library.rms_norm(x, input("g", bf16[1024]), eps=1e-5)):
        for ptx in compiled(Case({"y": value}), "sm_90a"):
            assert "cvt.rn.bf16" in ptx and "setp.nan" not in ptx and "div.rn.f32" not in ptx
            assert "ld.global.nc.v4" in ptx and "st.global.v4" in ptx
            # The instruction for one element takes as long as 16 others.
            assert "cvt.rn.bf16.f32" not in ptx


SMALL = SplitLimits(blocks=24, bundle_blocks=12, elements=8)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["reductions_f32_3x40x70", "reductions_i32_3x40x70", "sums_few", "logic_few"])
def test_two_stages_give_what_the_graph_means(name: str) -> None:
    case = CASES[name]
    graph = Graph.of(case.outputs)
    kernels = kernels_of(make_plan(graph, target="cuda"), SMALL)
    assert any(made.workspace for _, made in kernels)
    for sizes in case.sizes:
        feeds = feeds_of(graph, sizes)
        check(case, in_lockstep(case, feeds, SMALL), feeds)


def test_a_transpose_goes_through_shared_memory() -> None:
    turned = ops.permute(input("x", f32[100, 200]), order=(-1, -2))
    (ptx,) = compiled(Case({"y": ops.merge(turned, axis=-1, count=2)}), "sm_90a")
    assert "st.shared" in ptx and "ld.shared" in ptx and "bar.sync" in ptx


def test_one_kernel_serves_every_size() -> None:
    plan = make_plan(Graph.of({"y": library.softmax(input("x", f32["b", "n"]))}), target="cuda")
    ((_, made),) = kernels_of(plan)
    assert made.kernel.sizes
    assert made.kernel.launch is not None and made.kernel.launch.block == 256


@pytest.mark.parametrize("value", [ops.erf(input("x", f64[8])), ops.rem(input("x", f64[8]), input("y", f64[8]))])
def test_what_gpus_do_not_have_runs_on_the_host(value: Value) -> None:
    graph = Graph.of({"y": ops.neg(value)})
    plan = make_plan(graph, target="cuda")
    assert len(kernels_of(plan)) < len(plan.phase("run"))
    feeds = feeds_of(graph, {})
    found = CudaGraph(plan, SimulatedDriver).bind({}).run(feeds)
    check(Case({"y": ops.neg(value)}), found, feeds)


def test_old_devices_and_unknown_architectures_are_refused() -> None:
    assert architecture_of((9, 0)) == "sm_90a"
    assert architecture_of((8, 6)) == "sm_80"
    with pytest.raises(UnsupportedError, match=r"capability 7\.5"):
        architecture_of((7, 5))
    with pytest.raises(UnsupportedError, match="sm_42"):
        to_ptx("", "sm_42")


def test_cpus_refuse_what_threads_of_a_block_do() -> None:
    from dovetail.codegen.llvm.loops import function

    for statement in (Barrier(), Alloc("a", f32, 4, "shared")):
        with pytest.raises(GraphError, match="schedule the kernel for a GPU"):
            function(Kernel("k", (), (), "tile", (statement,)))


def test_an_unscheduled_kernel_has_no_ptx() -> None:
    from dovetail.codegen.llvm.nvptx.ptx import module

    with pytest.raises(GraphError, match="no launch shape"):
        module(Kernel("k", (), (), "tile", ()), {})


def test_tiles_without_parallel_loops_go_to_threads() -> None:
    y = Tensor("y", f32, (4, 4))
    total = Set("s", Load(y, (Name("tile"), Name("i"))))
    body = (Loop("i", Extent(3), (total,)), Store(y, (Name("tile"), Extent(0)), Name("s", f32)))
    made = schedule(Kernel("k", ("y",), ("y",), "tile", body), 1000, GpuShape())
    assert made.launch is not None and made.launch.grid == 8 and made.launch.block == 128


@on_device
@pytest.mark.parametrize("name", CASES)
def test_results_on_the_device_are_near_the_reference(name: str) -> None:
    case = CASES[name]
    runner = CudaGraph(make_plan(Graph.of(case.outputs), target="cuda")).bind({})
    for sizes in case.sizes:
        feeds = feeds_of(Graph.of(case.outputs), sizes)
        check(case, runner.run(feeds), feeds)


@on_device
def test_runs_of_the_device_repeat_to_the_bit() -> None:
    x = input("x", f32["b", "n"])
    runner = CudaGraph(
        make_plan(
            Graph.of(
                {
                    "y": library.softmax(x),
                    "s": ops.reduce_sum(x, axes=(-2,)),
                    "all": ops.reduce_sum(x, axes=(-2, -1)),
                }
            ),
            target="cuda",
        )
    )
    bound = runner.bind({})
    feeds = {"x": np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32)}
    first = bound.run(feeds)
    for _ in range(3):
        again = bound.run(feeds)
        assert all(again[name].tobytes() == first[name].tobytes() for name in first)


@on_device
def test_the_driver_copies_and_times() -> None:
    device = driver()
    array = np.arange(1000, dtype=np.int64)
    buffer = CudaBuffer(device, array.nbytes)
    start, end = Event(device), Event(device)
    start.record()
    buffer.copy_from_host(array)
    end.record()
    back = np.zeros_like(array)
    buffer.copy_to_host(back)
    assert (back == array).all() and end.seconds_since(start) >= 0
    assert device.description.multiprocessors > 0 and device.name
