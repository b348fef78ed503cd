"""Runs on device arrays that come again: which memory they write, what is told the driver, and what goes wrong."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.errors import BindError, DeviceError, OutOfMemoryError
from dovetail.ir.literal import Array
from dovetail.runtime.program import Program
from dovetail.targets.cuda.driver.driver import PreparedLaunch
from dovetail.targets.cuda.runs.graph import LaunchGraph
from dovetail.targets.cuda.runs.launch_code import launch_code
from dovetail.targets.cuda.runs.runner import MOST_REPEATED
from tests.targets.cuda.simulated import CompiledDriver, SimulatedDriver, target_of

RANDOM = np.random.default_rng(5)
UPDATE, LAUNCH, CAPTURE = "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch", "cuStreamBeginCapture_v2"


@pytest.fixture(params=[SimulatedDriver, CompiledDriver])
def device(request: pytest.FixtureRequest) -> SimulatedDriver:
    return request.param()


def compiled(device: SimulatedDriver) -> Program:
    x, y = dovetail.input("x", f32["n", 24]), dovetail.input("y", f32["n", 24])
    return dovetail.compile(Graph.of({"z": ops.tanh(x) - y}), target=target_of(device), cache="off")


def numbers(rows: int = 3) -> dict[str, Array]:
    return {name: RANDOM.normal(size=(rows, 24)).astype(np.float32) for name in "xy"}


def check(found: Any, feeds: dict[str, Array]) -> None:
    expected = np.tanh(feeds["x"].astype(np.float64)) - feeds["y"]
    np.testing.assert_allclose(found["z"].numpy(), expected, rtol=1e-5, atol=1e-6)


def warm(program: Program, given: Any) -> None:
    for _ in range(3):
        program.run(given, outputs="device")


@pytest.mark.slow
def test_compiled_code_enqueues_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the tests of this file would show Python's way twice. Before it is there, Python does the same."""
    entered: list[int] = []

    def update(self: LaunchGraph, index: int, launch: PreparedLaunch) -> None:
        entered.append(index)
        plain(self, index, launch)

    plain = LaunchGraph.update
    monkeypatch.setattr(LaunchGraph, "update", update)
    for device, in_python in ((SimulatedDriver(), True), (CompiledDriver(), False)):
        program = compiled(device)
        warm(program, program.to_device(numbers()))
        entered.clear()
        feeds = numbers()
        check(program.run(program.to_device(feeds), outputs="device"), feeds)
        assert bool(entered) == in_python and device.log.count(UPDATE) == 1
    program, code = compiled(device), launch_code.function
    launch_code.function = None
    try:
        warm(program, program.to_device(numbers()))
        check(program.run(program.to_device(feeds), outputs="device"), feeds)
        assert entered
    finally:
        launch_code.function = code
    entered.clear()
    for feeds in (numbers(), numbers()):
        check(program.run(program.to_device(feeds), outputs="device"), feeds)
    assert len(entered) == 0


def test_results_that_are_dropped_are_given_again(device: SimulatedDriver) -> None:
    program, feeds = compiled(device), numbers()
    there = program.to_device(feeds)
    warm(program, there)
    first = program.run(there, outputs="device")["z"]
    known = id(first)
    second = program.run(there, outputs="device")["z"]
    assert second is not first and second.address != first.address
    del first
    assert id(program.run(there, outputs="device")["z"]) == known
    device.log.clear()
    for _ in range(5):
        second = program.run(there, outputs="device")["z"]
    assert device.log == [LAUNCH] * 5
    check({"z": second}, feeds)


def test_the_callers_dictionary_is_its_own(device: SimulatedDriver) -> None:
    program, feeds = compiled(device), numbers()
    there = program.to_device(feeds)
    warm(program, there)
    program.run(there, outputs="device").clear()
    check(program.run(there, outputs="device"), feeds)


@pytest.mark.slow
def test_memory_that_another_library_holds_is_not_written(device: SimulatedDriver) -> None:
    program, feeds = compiled(device), numbers()
    there = program.to_device(feeds)
    warm(program, there)
    found = program.run(there, outputs="device")["z"]
    address, capsule = found.address, found.__dlpack__()
    del found
    for _ in range(5):
        assert program.run(there, outputs="device")["z"].address != address
    del capsule
    gc.collect()


def test_a_result_that_is_freed_is_another_one_next_time(device: SimulatedDriver) -> None:
    program, feeds = compiled(device), numbers()
    there = program.to_device(feeds)
    warm(program, there)
    for _ in range(5):
        found = program.run(there, outputs="device")["z"]
        found.free()
        check(program.run(there, outputs="device"), feeds)
        with pytest.raises(BindError, match="was freed"):
            found.numpy()


def test_arrays_that_change_places_are_other_inputs(device: SimulatedDriver) -> None:
    program, feeds = compiled(device), numbers()
    there = program.to_device(feeds)
    warm(program, there)
    for _ in range(3):
        check(program.run({"y": there["y"], "x": there["x"]}, outputs="device"), feeds)
        turned = {"x": there["y"], "y": there["x"]}
        check(program.run(turned, outputs="device"), {"x": feeds["y"], "y": feeds["x"]})
        twice = {"x": there["x"], "y": there["x"]}
        check(program.run(twice, outputs="device"), {"x": feeds["x"], "y": feeds["x"]})
    with pytest.raises(BindError, match="y"):
        program.run({"x": there["x"]}, outputs="device")
    with pytest.raises(BindError, match="extra"):
        program.run({**there, "extra": there["x"]}, outputs="device")


@pytest.mark.slow
def test_other_arrays_are_told_the_nodes_that_read_them(device: SimulatedDriver) -> None:
    """Their graph is that of the arrays before, and one more is made for arrays that come again."""
    program, feeds = compiled(device), numbers()
    warm(program, program.to_device(feeds))
    others = [numbers() for _ in range(8)]
    there = [program.to_device(feeds) for feeds in others]
    device.log.clear()
    for given, feeds in zip(there, others, strict=True):
        check(program.run(given, outputs="device"), feeds)
    assert device.log.count(LAUNCH) == device.log.count(UPDATE) == 8 and CAPTURE not in device.log
    for given in (there[0], there[1]) * 4:
        program.run(given, outputs="device")
    device.log.clear()
    for index in (0, 1) * 3:
        check(program.run(there[index], outputs="device"), others[index])
    assert UPDATE not in device.log and CAPTURE not in device.log and device.log.count(LAUNCH) == 6


@pytest.mark.slow
def test_a_chain_of_programs_settles(device: SimulatedDriver) -> None:
    """The results of one program are the inputs of the next, held until the next ones come."""
    first, second, feeds = compiled(device), compiled(device), numbers()
    there = first.to_device(feeds)
    middle, last = there["x"], dict[str, Any]()
    for index in range(12):
        if index == 9:
            device.log.clear()
        middle = first.run(there, outputs="device")["z"]
        last = second.run({"x": middle, "y": there["y"]}, outputs="device")
    assert device.log == [LAUNCH] * 6
    z = (np.tanh(feeds["x"].astype(np.float64)) - feeds["y"]).astype(np.float32)
    check(last, {"x": z, "y": feeds["y"]})


@pytest.mark.slow
def test_shapes_that_take_turns_keep_their_graphs(device: SimulatedDriver) -> None:
    program = compiled(device)
    given = [numbers(n) for n in range(1, MOST_REPEATED + 4)]
    there = [program.to_device(feeds) for feeds in given]
    for _ in range(3):
        for arrays, feeds in zip(there, given, strict=True):
            check(program.run(arrays, outputs="device"), feeds)
    device.log.clear()
    for arrays, feeds in zip(there, given, strict=True):
        check(program.run(arrays, outputs="device"), feeds)
    assert device.log.count(LAUNCH) == len(given) and CAPTURE not in device.log


def test_an_update_that_fails_is_repeated(device: SimulatedDriver) -> None:
    program, feeds, others = compiled(device), numbers(), numbers()
    there, elsewhere = program.to_device(feeds), program.to_device(others)
    warm(program, there)
    for name in (UPDATE, LAUNCH):
        device.library.fail = {name: 801}
        with pytest.raises(DeviceError, match="801"):
            program.run(elsewhere, outputs="device")
        device.library.fail = {}
        check(program.run(there, outputs="device"), feeds)
        check(program.run(elsewhere, outputs="device"), others)
        check(program.run(there, outputs="device"), feeds)
        there, elsewhere, feeds, others = elsewhere, there, others, feeds


def test_a_device_that_is_lost_is_an_error_of_every_run(device: SimulatedDriver) -> None:
    program = compiled(device)
    there = program.to_device(numbers())
    warm(program, there)
    device.library.fail = {LAUNCH: 700}
    for _ in range(3):
        with pytest.raises(DeviceError, match="lost"):
            program.run(there, outputs="device")
        device.library.fail = {}


def test_memory_of_ready_runs_is_given_up_where_it_is_short(device: SimulatedDriver) -> None:
    program, feeds = compiled(device), numbers()
    there = program.to_device(feeds)
    warm(program, there)
    runner: Any = program._binding.runner  # pyright: ignore[reportPrivateUsage]
    ready = runner._again[0]
    runner.bound.reclaim()
    assert ready.run(there) is None, "as by a thread that found it before"
    check(program.run(there, outputs="device"), feeds)
    warm(program, there)
    check(program.run(there, outputs="device"), feeds)


def test_memory_that_is_short_in_a_ready_run_is_found_elsewhere(device: SimulatedDriver) -> None:
    """A run that wants memory for its results gives up that of others, and goes on with its own."""
    program, feeds, others = compiled(device), numbers(), numbers(5)
    there, elsewhere = program.to_device(feeds), program.to_device(others)
    warm(program, elsewhere)
    warm(program, there)
    runner: Any = program._binding.runner  # pyright: ignore[reportPrivateUsage]
    pool = runner.bound.pool
    plain, short = pool.allocate, [OutOfMemoryError("short", needed=1, free=0)]

    def allocate(count: int) -> Any:
        if short:
            raise short.pop()
        return plain(count)

    pool.allocate = allocate
    found: list[Any] = []
    held = program.run(there, outputs="device")
    thread = threading.Thread(target=lambda: found.append(program.run(there, outputs="device")), daemon=True)
    thread.start()
    thread.join(20)
    assert found and not short, "nothing waits for itself"
    for got in (held, found[0], program.run(there, outputs="device")):
        check(got, feeds)
    for _ in range(3):
        check(program.run(elsewhere, outputs="device"), others)
