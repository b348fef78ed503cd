"""Which kernel serves a convolution whose sizes are known when a run is prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph
from dovetail.declare.machine import Machine
from dovetail.ir.dim import Size
from dovetail.ir.dim import evaluate as evaluate_size
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Job, Template, TensorLocations
from dovetail.plan.plan import Plan, Step, make_plan
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.conv.policy import tiles_of
from dovetail.targets.cpu.conv.select import ROWS
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.cpu.select import TABLE, make_job
from dovetail.targets.runtime.building import serial as record
from dovetail.targets.runtime.building.build import build
from dovetail.targets.target import Considered
from tests.kernels.convolving import WIDE, around, compared, normal
from tests.kernels.convolving import network as of_window

ASSUMED = Machine(1e11, 1e10, 1e-6)

MANY = "small_conv" if tiles_of(host_device()).most_pixels >= 40 * 41 else "conv"
AREAS = [("winograd_2x4", 1, (25, 26)), ("small_conv", 1, (5, 10)), ("small_conv", 1, (3, 7)), (MANY, 2, (80, 82))]
"""Kernels, and strides and areas that they are best at."""


def network(height: Size | str, width: Size | str, stride: int = 1) -> Graph:
    return around(("n", 32, height, width), 64, act="relu", strides=(stride, stride))


def params() -> dict[str, Array]:
    return {"w": normal(64, 32, 3, 3) / np.float32(17), "b": normal(64, 1, 1)}


def job_of(plan: Plan) -> Job:
    (job,) = build(plan, BACKEND).jobs
    assert isinstance(job, Job)
    return job


def sized(height: int, width: int, images: int = 1) -> dict[str, int]:
    return {"n": images, "height": height, "width": width}


def name_at(job: Job, sizes: dict[str, int]) -> str:
    """The stem of the kernel that runs where sizes are these."""
    _, found = job.chosen(lambda size: evaluate_size(size, sizes), ASSUMED)
    return found.kernel.name.rpartition("_")[0]


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "stride", "area"), AREAS)
def test_sizes_that_come_late_choose_as_those_that_are_known(kernel: str, stride: int, area: tuple[int, int]) -> None:
    late = job_of(make_plan(network("height", "width", stride), target=CPU))
    early = job_of(make_plan(network(*area, stride), target=CPU))
    assert early.variants == () and early.kernel.name.rpartition("_")[0] == kernel
    assert name_at(late, sized(*area)) == kernel


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2])
def test_one_program_runs_them_all(stride: int) -> None:
    graph = network("height", "width", stride)
    native = NativeGraph(make_plan(graph, target=CPU))
    runner = native.bind(params())
    assert native.on_host == () and not runner.packed.arrays, "nothing is packed before sizes ask for it"
    for images, area in (
        (2, (25, 26)),
        (0, (5, 10)),
        (3, (5, 10)),
        (1, (1, 1)),
        (1, (17, 31)),
        (1, (14, 14)),
        (1, (80, 82)),
    ):
        x = normal(images, 32, *area)
        got = compared(runner, params(), {"x": x})
        known = NativeGraph(make_plan(network(*area, stride), target=CPU))
        (alone,) = known.bind(params()).run({"x": x}).values()
        assert (got.view(np.uint32) == alone.view(np.uint32)).all(), "the kernel of the known size does the same"
    layouts = {str(key[0]) for key in runner.packed.arrays}
    assert len(layouts) > 1, "each kernel has its weights as it wants them"


@pytest.mark.slow
def test_forms_come_back_from_bytes() -> None:
    plan = make_plan(network("height", "width"), target=CPU)
    ready = build(plan, BACKEND)
    again = record.from_bytes(plan, record.to_bytes(plan, ready.jobs, BACKEND), BACKEND)
    assert again.entries == ready.entries and len(ready.entries[0]) == 1 + len(job_of(plan).variants)
    for _, _, area in AREAS:
        x = {"x": normal(1, 32, *area)}
        (one,), (other,) = (NativeGraph(plan, built=r).bind(params()).run(x).values() for r in (ready, again))
        assert (one.view(np.uint32) == other.view(np.uint32)).all()


def test_strict_programs_sum_in_the_plain_way() -> None:
    plan = make_plan(network("height", "width"), target=CPU, options={"strict": True})
    assert all(not form.kernel.name.startswith("winograd") for form in job_of(plan).variants)


PROBLEMS = [
    (around((1, 64, 56, 56), 64), "winograd 4×4"),
    (around((1, 3, 224, 224), 64, strides=(2, 2)), "direct"),
    (around((1, 96, 5, 7), 128, strides=(2, 2)), "few_pixels"),
]
"""Convolutions, and the kernel that AVX-512 has for them."""


def taken(rows: Sequence[Considered]) -> Considered:
    (found,) = [row for row in rows if row.taken]
    return found


@pytest.mark.parametrize(("graph", "name"), PROBLEMS)
@pytest.mark.parametrize("strict", [False, True])
def test_reports_know_what_was_considered(graph: Graph, name: str, strict: bool) -> None:
    step, locations = step_of(graph, strict)
    job, rows = make_job(step, locations, WIDE, ASSUMED), TABLE.considered(step, locations, WIDE, ASSUMED)
    assert job is not None and isinstance(job.kernel, Template)
    won = taken(rows)
    assert won.name == job.kernel.variant and (strict or won.name == name)
    assert won.seconds is not None and won.seconds > 0 and won.reason == ""
    assert all(row.reason for row in rows if not row.taken), "every other kernel has a reason"
    assert won.ratio == 1 and won.bound in ("compute", "L1", "L2", "L3", "memory", "launch")
    assert all(row.condition or row.seconds is not None for row in rows if row.name != "host")
    assert rows[-1].name == "host" and {row.name for row in ROWS} <= {row.name.split()[0] for row in rows}


def test_an_estimate_counts_empty_lanes() -> None:
    """The last vector of filters takes as long with a few as with all."""
    machine = replace(ASSUMED, bytes_per_second=1e15)
    full, partial = [
        next(
            row.seconds
            for row in TABLE.considered(*step_of(around((1, 96, 5, 7), n), False), WIDE, machine)
            if row.taken
        )
        for n in (128, 122)
    ]
    assert full is not None and partial == pytest.approx(full, rel=1e-3)


def test_nothing_is_taken_before_sizes_are_known() -> None:
    rows = TABLE.considered(*step_of(network("height", "width"), False), WIDE, ASSUMED)
    assert rows and not any(row.taken for row in rows)


def step_of(graph: Graph, strict: bool) -> tuple[Step, TensorLocations]:
    plan = make_plan(graph, target=CPU)
    return plan.phase("run")[-1], TensorLocations(plan.locate, set(), strict, target=loops_of(WIDE))


NEON, AVX512 = CpuDevice(128, 32, ("fma_by_lane",)), WIDE
BY_LANES = [
    (of_window((1, 64, 56, 56), (64, 64, 1, 1)), NEON, "pointwise"),
    (of_window((1, 64, 56, 56), (64, 64, 1, 1)), AVX512, "direct"),
    (of_window((1, 256, 14, 14), (256, 256, 1, 1)), NEON, "pointwise"),
    (around((1, 3, 64, 64), 32, strides=(2, 2)), NEON, "few_channels"),
    (around((1, 3, 64, 64), 32, strides=(2, 2)), AVX512, "direct"),
    (around((1, 64, 80, 80), 64, strides=(2, 2)), NEON, "few_pixels"),
    (around((1, 64, 80, 80), 64, strides=(2, 2)), AVX512, "direct"),
    (of_window((1, 256, 28, 28), (512, 256, 1, 1), strides=(2, 2)), NEON, "few_pixels_kxk"),
]
"""Convolutions for which wide vectors and narrow ones have different kernels."""


@pytest.mark.parametrize(("graph", "device", "name"), BY_LANES)
def test_thresholds_follow_the_lanes_of_the_device(graph: Graph, device: CpuDevice, name: str) -> None:
    assert taken(TABLE.considered(*step_of(graph, False), device, ASSUMED)).name == name
