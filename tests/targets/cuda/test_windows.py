"""Convolutions and pools on GPUs: in lockstep and as machine code here, results on a device there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given

import dovetail
from dovetail import Graph, ops
from dovetail.ir.dtype import bf16, f16, f32, f64, i32
from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm import tile
from dovetail.kernels.gpu.gemm.tile import split_of
from dovetail.kernels.matrix_instruction import MMA_F16
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import ARCHITECTURES, H200, matrix_instructions
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of, steps_of
from dovetail.targets.cuda.target import TARGET
from dovetail.targets.gpu.stored import from_bytes, to_bytes
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.devices import on_device
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.images import LAYERS, convolutions, image, networks, pools, weights
from tests.targets.cuda.judged import check, feeds_of, in_lockstep, run_in_lockstep
from tests.targets.cuda.simulated import SimulatedDriver

REGISTERS = 255
"""Of a thread, at most."""


def judge(case: Case, *, lowered: bool = False) -> None:
    graph = Graph.of(case.outputs)
    plan = dovetail.compile(graph, target="cuda").plan if lowered else None
    for sizes in case.sizes:
        feeds = feeds_of(graph, sizes)
        check(case, in_lockstep(case, feeds) if plan is None else run_in_lockstep(plan, feeds), feeds)


@pytest.mark.slow
@given(convolutions((f16, bf16)))
def test_tensor_cores_convolve(case: Case) -> None:
    judge(case)


@pytest.mark.exhaustive
@given(convolutions((f32, f64, i32)))
def test_threads_convolve_other_dtypes(case: Case) -> None:
    judge(case)


@pytest.mark.slow
@given(pools())
def test_pools(case: Case) -> None:
    judge(case)


@pytest.mark.exhaustive
@given(networks())
def test_layouts_of_images_change_nothing(case: Case) -> None:
    judge(case, lowered=True)


@pytest.mark.slow
def test_f32_is_convolved_by_threads() -> None:
    x, w = x_of(f32, 2, 6, 5, 4), x_of(f32, 4, 3, 3, 2, name="w")
    judge(Case({"y": ops.conv(x, w, strides=(2, 1), dilations=(1, 2), padding=(1, 0, 2, 1), groups=2)}, scale=4.0))


@pytest.mark.slow
def test_padding_after_the_image_alone_is_not_read() -> None:
    """The result has the size of the image, and its last taps are beyond it."""
    judge(Case({"y": ops.conv(x_of(f32, 1, 3, 4, 5), x_of(f32, 2, 3, 2, 3, name="w"), padding=(0, 0, 1, 2))}))


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 3])
def test_k_in_parts_is_added_up(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kernels: sums of each part in the workspace, then their sum in one order, with the epilogue."""
    small = tile.BlockTile(16, 16, 1, 1, 8, warps_deep=4)

    def chosen(*_: object) -> tuple[tile.BlockTile, int]:
        return small, parts

    monkeypatch.setattr("dovetail.kernels.gpu.conv.convolve.split_of", chosen)
    for last in (True, False):
        x = image(f16, 2, 64, 3, 5, channels_last=last)
        case = Case({"y": ops.relu(ops.conv(x, weights(f16, 12, 64, 3, 3), padding=1))}, scale=8.0)
        kernels = [made.kernel.name for _, made in kernels_of(make_plan(Graph.of(case.outputs), target="cuda"))]
        assert kernels[:2] == ["convolve_parts", "convolve_sum"]
        judge(case)


def test_few_pixels_fill_the_device() -> None:
    """7×7 pixels of 512 channels are 8 tiles of 64×64, and k of 4,608 makes blocks for all multiprocessors."""
    chosen, parts = split_of(1, 49, 512, 4608, H200, MMA_F16)
    blocks = parts * -(-49 // chosen.rows) * (512 // chosen.columns)
    assert parts > 1 and H200.multiprocessors // 2 <= blocks <= 2 * H200.multiprocessors
    assert split_of(1, 32 * 56 * 56, 64, 576, H200, MMA_F16)[1] == 1
    assert split_of(1, x_of(f16, "n").shape[0], 512, 4608, H200, MMA_F16)[1] == 1


def test_images_between_convolutions_have_channels_innermost() -> None:
    x = x_of(f16, 1, 16, 8, 8)
    first = ops.conv(x, weights(f16, 24, 16, 3, 3), padding=1)
    second = ops.conv(ops.max_pool(first, window=2), weights(f16, 16, 24, 3, 3), padding=1)
    plan = make_plan(Graph.of({"y": second, "flat": ops.merge(first, axis=-1, count=3)}), target=CLAIMS)
    assert plan.locate(first).strides == (3072, 128, 16, 2), "a view of its pixels is read"
    plan = make_plan(Graph.of({"y": second}), target=CLAIMS)
    assert plan.locate(first).strides == (3072, 2, 384, 48)
    assert plan.locate(second).strides == (1568, 98, 14, 2), "outputs are dense"
    copies = [made for _, made in kernels_of(plan) if made.kernel.name == "convolve"]
    assert [sorted(made.packed) for made in copies] == [[], ["w"]]


def _network() -> tuple[Graph, dict[str, Array]]:
    """Packed filters of both kinds, and a step in the middle that no kernel takes."""
    x, w = x_of(f16, 2, 8, 5, 6), weights(f16, 16, 8, 3, 3)
    first = ops.cast(ops.sin(ops.cast(ops.conv(x, w, padding=1), dtype=f64)), dtype=f16)
    second = ops.conv(first, weights(f16, 16, 1, 3, 3), groups=16)
    graph = Graph.of({"y": ops.conv(second, weights(f16, 8, 16, 3, 3), padding=1)})
    return graph, feeds_of(graph, {})


@pytest.mark.slow
def test_runs_pack_filters_and_keep_layouts() -> None:
    graph, feeds = _network()
    plan = make_plan(graph, target=CLAIMS)
    kernels = [made.kernel.name for _, made in kernels_of(plan)]
    assert [k for k in kernels if k != "map"] == ["convolve", "depthwise", "convolve"]
    assert any(not made for _, made in steps_of(plan)), "the sine of f64 runs on the host"
    found = CudaGraph(plan, SimulatedDriver).bind({}).run(feeds)
    check(Case(dict(graph.outputs), scale=16.0), found, feeds)


@pytest.mark.slow
def test_packed_filters_are_stored() -> None:
    graph, _ = _network()
    plan = make_plan(graph, target=CLAIMS)
    steps = tuple(kernels for _, kernels in steps_of(plan))
    content = to_bytes(plan, steps, {made.text: made.text for kernels in steps for made in kernels or ()})
    assert content is not None
    again, _ = from_bytes(plan, content)
    packed = [dict(made.packed) for kernels in again for made in kernels or ()]
    assert packed == [dict(made.packed) for kernels in steps for made in kernels or ()] and any(packed)


@pytest.mark.slow
def test_reports_say_which_kernel_convolves() -> None:
    for value, name in (
        (ops.conv(x_of(f16, 1, 8, 5, 5), weights(f16, 8, 1, 3, 3), groups=8), "depthwise"),
        (ops.conv(x_of(f16, 1, 8, 5, 5), weights(f16, 8, 8, 3, 3)), "convolve.gathered"),
        (ops.conv(image(f16, 1, 8, 5, 5, channels_last=True), weights(f16, 8, 8, 3, 3)), "convolve.copied"),
        (ops.conv(x_of(f32, 1, 8, 5, 5), weights(f32, 8, 8, 3, 3)), "convolve.fma"),
    ):
        plan = make_plan(Graph.of({"y": value}), target="cuda")
        assert TARGET.considered is not None
        rows = TARGET.considered(plan, plan.phase("run")[0])
        assert [row.name for row in rows if row.taken] == [name]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_90a", *(name for name in ARCHITECTURES if name != "sm_90a")])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_assemble_without_spills(name: str, architecture: str, tmp_path: Path) -> None:
    shared = {"sm_80": 163 << 10, "sm_89": 99 << 10, "sm_120": 99 << 10}.get(architecture, 227 << 10)
    device = GpuDevice(architecture, 108, shared, matrix_instructions=matrix_instructions(architecture))
    for _, made in kernels_of(make_plan(Graph.of({"y": LAYERS[name]}), target=CLAIMS), device=device):
        assert made.kernel.launch is not None and made.kernel.launch.shared_bytes <= shared
        told = assembled(made, architecture, tmp_path)
        assert not spilled_bytes(told), told
        used = [int(n) for n in re.findall(r"Used (\d+) registers", told)]
        assert all(n <= REGISTERS for n in used)


@on_device
@given(networks())
def test_networks_on_the_device_are_near_the_reference(case: Case) -> None:
    graph = Graph.of(case.outputs)
    runner = CudaGraph(dovetail.compile(graph, target="cuda").plan).bind({})
    for sizes in case.sizes:
        feeds = feeds_of(graph, sizes)
        check(case, runner.run(feeds), feeds)
