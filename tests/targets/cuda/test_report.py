"""What programs on a GPU tell: times of kernels by events, traces, code, figures of the device, and what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.cli.doctor import card, missing
from dovetail.cli.doctor_text import gpu_lines
from dovetail.dtypes import f32
from dovetail.errors import UnsupportedError
from dovetail.ir.literal import Array
from dovetail.plan.plan import make_plan
from dovetail.report.trace import Span, trace_of
from dovetail.runtime.compile import compilation, make_request
from dovetail.runtime.program import Program
from dovetail.settings import MACHINE, Settings
from dovetail.targets.cuda.code import code_view
from dovetail.targets.cuda.driver import calibration
from dovetail.targets.cuda.driver.driver import Driver, driver
from tests.targets.cuda.devices import on_device
from tests.targets.cuda.simulated import FakeLibrary, SimulatedDriver, target_of

SMALL = calibration.Workload(copied=1024, sides={"bf16": 32, "f16": 32, "f32": 32, "f64": 16}, launches=4, rounds=2)


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=on_device)])
def device(request: pytest.FixtureRequest) -> Driver:
    return SimulatedDriver() if request.param == "simulated" else driver()


def graph() -> Graph:
    x = dovetail.input("x", f32["n", 40])
    h = library.softmax(ops.tanh(x))
    return Graph.of({"y": ops.permute(h, order=(-1, -2)) * 2.0, "sum": ops.reduce_sum(h, axes=(-2, -1))})


def feeds() -> dict[str, Array]:
    return {"x": np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)}


@pytest.mark.exhaustive
def test_every_kernel_is_timed_on_the_device(device: Driver) -> None:
    program = dovetail.compile(graph(), target=target_of(device), cache="off")
    found = program.profile(feeds(), runs=3)
    steps = list(program.plan.phase("run"))
    assert len(found.kernels) == len(steps)
    for kernel in found.kernels:
        assert kernel.seconds > 0 and kernel.predicted_seconds > 0 and kernel.bytes > 0 and kernel.nodes
        assert not kernel.on_host
    outputs, marks = program.run_marked(feeds())
    expected = dovetail.evaluate(graph(), feeds(), lift=True)
    for name, array in outputs.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)
    assert [mark.step for mark in marks] == steps
    assert all(a.end <= b.begin for a, b in pairwise(marks))


@pytest.mark.heavy
def test_a_trace_has_the_times_of_the_device(device: Driver) -> None:
    made = compilation(graph(), make_request(target=target_of(device)))
    program = Program(made.plan, made.target.compile(made.plan, Settings(cache="off")), any_size=True)
    _, marks = program.run_marked(feeds())
    whole = Span("run", marks[0].begin, marks[-1].end)
    events = json.loads(trace_of([], [(whole, marks)], made.plan, made.report(), 1))["traceEvents"]
    kernels = [e for e in events if e["ph"] == "X" and "predicted_us" in e["args"]]
    assert len(kernels) == len(made.plan.phase("run")) and all(e["dur"] > 0 and e["args"]["bytes"] > 0 for e in kernels)


@pytest.mark.heavy
def test_code_is_shown_as_llvm_and_ptx() -> None:
    plan = make_plan(graph(), target="cuda")
    view = target_of(SimulatedDriver()).code
    assert view is not None and [n.name for n in view.notations] == ["llvm", "ptx", "sass"]
    texts = list(view.texts(plan))
    assert len(texts) == len(plan.steps)
    for step, text in zip(plan.steps, texts, strict=True):
        assert text is not None and "define" in text
        assert view.listing(plan, step, view.notation("llvm")) == text
        ptx = view.listing(plan, step, view.notation("ptx"))
        assert ".target sm_90a" in ptx and ".visible .entry" in ptx


@pytest.mark.slow
def test_machine_code_is_shown_where_a_disassembler_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(graph(), target="cuda")
    view = target_of(SimulatedDriver()).code
    assert view is not None
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\nhead -c 4 $2 | tail -c 3\necho ' of machine code'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def to_ptx(*_: str) -> str:
        return "// x\n.target sm_90a\n.entry"

    monkeypatch.setattr(code_view, "to_ptx", to_ptx)
    found = view.listing(plan, plan.steps[0], view.notation("sass"))
    assert found == "ELF of machine code"
    tool.unlink()
    monkeypatch.setattr(code_view, "FOLDERS", ())
    with pytest.raises(UnsupportedError, match="neither nvdisasm nor cuobjdump is found"):
        view.listing(plan, plan.steps[0], view.notation("sass"))


@on_device
def test_the_machine_code_of_a_device_is_shown() -> None:
    plan = make_plan(graph(), target="cuda")
    view = target_of(driver()).code
    assert view is not None
    try:
        assert "EXIT" in view.listing(plan, plan.steps[0], view.notation("sass"))
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.mark.heavy
def test_a_device_is_calibrated_by_dtype(device: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MACHINE, raising=False)
    settings = Settings(cache=str(tmp_path))
    assert calibration.stored(device, settings) is None
    assert calibration.machine_of(device, settings).source == "built-in"
    work = SMALL if isinstance(device, SimulatedDriver) else None
    made = calibration.calibrate(device, settings, work)
    assert set(made.flops) == {"bf16", "f16", "f32", "f64"} and made.launch_seconds > 0
    if isinstance(device, SimulatedDriver):
        assert calibration.stored(device, settings) is None, "a fake clock is not believed"
    else:
        assert calibration.stored(device, settings) == made
        assert made.flops["bf16"] > made.flops["f32"]
        machine = calibration.machine_of(device, settings)
        assert machine.bytes_per_second == made.bytes_per_second and machine.source.startswith("measured on")


@pytest.mark.heavy
def test_a_stored_calibration_prices_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MACHINE, raising=False)
    device, settings = SimulatedDriver(), Settings(cache=str(tmp_path))
    calibration.calibrate(device, settings, SMALL)
    (file,) = tmp_path.glob("calibration-cuda-*.json")
    told: dict[str, Any] = json.loads(file.read_text())
    told |= {"bytes_per_second": 2e12, "launch_seconds": 2e-6, "flops": {**told["flops"], "bf16": 5e14, "f32": 1e13}}
    file.write_text(json.dumps(told))
    machine = calibration.machine_of(device, settings)
    assert (machine.bytes_per_second, machine.launch_seconds, machine.flops_per_second) == (2e12, 2e-6, 1e13)
    assert machine.peak(dovetail.dtypes.bf16, "contract") == 5e14
    made = compilation(graph(), make_request(target=target_of(device), cache=str(tmp_path)))
    assert made.report().calibration.startswith("measured on")
    whole = file.read_bytes()
    for damaged in (
        b"",
        b"{}",
        b'{"version": 1}',
        whole[:-20],
        whole.replace(b"2e-06", b"-1"),
        whole.replace(b"2e-06", b"9"),
    ):
        file.write_bytes(damaged)
        assert calibration.stored(device, settings) is None


def test_the_doctor_says_what_the_card_is_and_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(cache=str(tmp_path))
    found = card(settings, device=SimulatedDriver)
    assert found.card is not None and found.card["name"] == "NVIDIA Fake" and found.architecture == "sm_90a"
    assert found.card["driver"] == "12.8" and found.card["multiprocessors"] == 132
    old = card(settings, device=lambda: SimulatedDriver(FakeLibrary(version=11_080)))
    none = card(settings, device=lambda: SimulatedDriver(FakeLibrary(devices=0)))
    assert old.card is None and "too old: it runs CUDA 11.8" in old.reason and "12.0" in old.add
    assert none.card is None and "no CUDA device" in none.reason
    kept = {"on": True, "problem": ""}
    assert [lack.what for lack in missing([], measured=True, kept=kept, gpu=found)] == ["figures of the GPU"]
    monkeypatch.setattr("dovetail.cli.doctor._NVIDIA", "/")
    (lack,) = missing([], measured=True, kept=kept, gpu=old)
    assert "too old" in lack.what and "12.0" in lack.add
    monkeypatch.setattr("dovetail.cli.doctor._NVIDIA", str(tmp_path / "none"))
    assert missing([], measured=True, kept=kept, gpu=none) == [], "a machine without a GPU lacks nothing"


def test_the_doctor_writes_it(tmp_path: Path) -> None:
    said = str(gpu_lines(asdict(card(Settings(cache=str(tmp_path)), device=SimulatedDriver))))
    assert "NVIDIA Fake: compute capability 9.0 (sm_90a), 132 multiprocessors" in said and "CUDA 12.8" in said
