"""Waits of persistent kernels: arguments that are measured once, on memory of their own, and kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, f32
from dovetail.cli.doctor import card
from dovetail.cli.doctor_text import gpu_lines
from dovetail.errors import OutOfMemoryError
from dovetail.plan.plan import make_plan
from dovetail.settings import Settings
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code import stored
from dovetail.targets.cuda.persistent import tuning
from dovetail.targets.cuda.persistent.tuning import KIND, Trials, Tuned, parsed
from dovetail.targets.cuda.runs.frame import Frame
from dovetail.targets.cuda.runs.run import CudaGraph
from dovetail.targets.cuda.runs.runner import CudaRunner
from dovetail.targets.runtime.building.store import CodeStore
from tests.targets.cuda.simulated import SimulatedDriver, drawn_for
from tests.targets.cuda.test_copying_warp import PACED, layers_of

COUNTS = {"early_0": 100, "pause_1": 200, "pause_2": 300, "pause_3": 400, "pace": 3000}
TUNED = Tuned("layers", "2026-01-02 03:04", 4e-4, 3.9e-4, COUNTS)


@cache
def built_layers() -> tuple[Any, Any, Any, Mapping[str, Any]]:
    graph = layers_of(4)
    drawn = drawn_for(graph)
    plan, device = make_plan(graph, target=CLAIMS), SimulatedDriver()
    device.description = replace(PACED, pause=300)
    return plan, device, CudaGraph(plan, lambda: device).built(device), drawn


def _bound(mode: str, store: CodeStore | None) -> tuple[CudaRunner, Mapping[str, Any]]:
    plan, device, built, drawn = built_layers()
    params = {name: x for name, x in drawn.items() if name != "x"}
    runner = CudaGraph(plan, lambda: device, store, built, mode).bind(params)
    assert isinstance(runner, CudaRunner)
    return runner, {"x": drawn["x"]}


def _waits(mode: str, store: CodeStore | None) -> list[int]:
    """What the persistent kernel of a first frame waits."""
    runner, inputs = _bound(mode, store)
    frame = Frame(runner.bound, inputs, to_host=True)
    runner.tuner.settle(frame, inputs)
    ((index, one),) = [(i, x) for i, x in enumerate(runner.bound.loaded) if x.kernel.counters]
    first = len(one.kernel.kernel.pointers) + len(one.kernel.kernel.sizes)
    return list(frame.launches[index].words[first:])


def spelled(**changed: Any) -> bytes:
    return json.dumps({**asdict(TUNED), **changed}).encode()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kernels that are measured, by index."""
    found: list[int] = []

    def tuned(_: Trials, index: int) -> Tuned:
        found.append(index)
        return TUNED

    def nothing(*_: Any) -> None:
        pass

    monkeypatch.setattr(Trials, "__init__", nothing)
    monkeypatch.setattr(Trials, "tuned", tuned)
    monkeypatch.setattr(Trials, "close", nothing)
    monkeypatch.setattr(tuning, "LEAST_PASSES", 3)
    return found


ESTIMATES = [0, 180, 300, 180, 3495]


def test_what_is_measured_once_is_kept_for_later_processes(measured: list[int], tmp_path: Path) -> None:
    assert _waits("auto", CodeStore(tmp_path / "a", 1 << 20)) == [*COUNTS.values()]
    assert _waits("auto", CodeStore(tmp_path / "a", 1 << 20)) == [*COUNTS.values()]
    assert len(measured) == 1
    # Always is measured again, in each program.
    assert _waits("always", CodeStore(tmp_path / "a", 1 << 20)) == [*COUNTS.values()] and len(measured) == 2


def test_estimates_stay_where_nothing_is_kept_or_wanted(
    measured: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CodeStore(tmp_path / "a", 1 << 20)
    assert _waits("auto", None) == _waits("off", store) == ESTIMATES
    monkeypatch.setattr(tuning, "LEAST_PASSES", 4)
    assert _waits("auto", store) == ESTIMATES and not measured
    assert _waits("always", None) == [*COUNTS.values()]


def test_entries_that_do_not_fit_are_measured_again(measured: list[int], tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "a", 1 << 20)
    _waits("auto", store)
    (words,) = store.keys(KIND)
    key = tuning.StoreKey(KIND, {name: part for name, part in words.items() if name != "kind"})
    assert key.parts["card"] == "NVIDIA Fake"
    for content in (
        b"",
        b"[]",
        b'{"cycles": 3}',
        spelled(cycles={"pace": 1}),
        spelled(cycles={**COUNTS, "pace": -1}),
    ):
        store.put(key, content)
        assert _waits("auto", store) == [*COUNTS.values()]
    assert len(measured) == 6


def test_a_stored_program_has_the_estimates() -> None:
    plan, _, (steps, ptx), _ = built_layers()
    content = stored.to_bytes(plan, steps, ptx)
    assert content is not None
    again, _ = stored.from_bytes(plan, content)
    found = [[made.kernel.cycles for made in kernels or ()] for kernels in again]
    assert found == [[made.kernel.cycles for made in kernels or ()] for kernels in steps]
    assert [one.count for kernels in found for cycles in kernels for one in cycles] == ESTIMATES


def test_a_frame_of_the_same_sizes_is_not_measured_again(measured: list[int]) -> None:
    runner, inputs = _bound("always", None)
    for _ in range(2):
        runner.tuner.settle(Frame(runner.bound, inputs, to_host=True), inputs)
    assert len(measured) == 1


def _in_place() -> tuple[CudaRunner, dict[str, Any]]:
    """A run that adds to its input in place."""
    x, y = dovetail.input("x", f32[64]), dovetail.input("y", f32[64])
    graph = Graph.of({"z": x + y}).donate({"z": "x"})
    device = SimulatedDriver()
    runner = CudaGraph(make_plan(graph, target=CLAIMS), lambda: device, tune="always").bind({})
    assert isinstance(runner, CudaRunner)
    return runner, {str(v.attrs["name"]): runner.to_device(np.ones(64, np.float32), v) for v in graph.inputs}


def test_trials_change_no_array_of_the_caller() -> None:
    """They add to a copy."""
    runner, arrays = _in_place()
    trials = Trials(runner.bound, arrays)
    assert trials.tuned(0) is not None
    trials.close()
    assert (arrays["x"].numpy() == 1).all()
    assert (runner.run_on_device(arrays)["z"].numpy() == 2).all()


@pytest.mark.parametrize(("free", "count"), [(511, 0), (512, 1)])
def test_copies_leave_half_of_the_memory(
    free: int, count: int, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 bytes are overwritten."""

    def every(_: object) -> bool:
        return True

    def memory(_: object) -> tuple[int, int]:
        return free, 1 << 30

    monkeypatch.setattr(tuning, "is_tunable", every)
    monkeypatch.setattr(SimulatedDriver, "free_memory", memory)
    runner, arrays = _in_place()
    runner.tuner.settle(Frame(runner.bound, arrays, to_host=False), arrays)
    assert len(measured) == count


def test_estimates_stay_where_memory_is_short(measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: Any) -> None:
        raise OutOfMemoryError("no memory", needed=1, free=0)

    monkeypatch.setattr(Trials, "__init__", short)
    assert _waits("always", None) == ESTIMATES and not measured


def test_the_doctor_tells_what_was_tuned(measured: list[int], tmp_path: Path) -> None:
    _waits("auto", CodeStore(tmp_path, 1 << 20))
    found = asdict(card(Settings(cache=str(tmp_path)), device=SimulatedDriver))
    assert found["tuned"] == [asdict(TUNED)]
    said = str(gpu_lines(found))
    assert "tuned on 2026-01-02 03:04 (0.400 to 0.390 ms)" in said and "pause_3 400, pace 3,000" in said


def test_other_content_is_no_entry() -> None:
    assert parsed(spelled()) == TUNED and parsed(spelled(), [*COUNTS]) == TUNED
    assert parsed(spelled(), ["pace"]) is None and parsed(b"\xff") is None
