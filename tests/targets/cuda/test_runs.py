"""Runs on a GPU: graphs that are updated, streams, threads, donated inputs, and what goes wrong."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Builder, Graph, ops
from dovetail.dtypes import f32, i64
from dovetail.errors import BindError, DeviceError, OutOfMemoryError, UnsupportedError
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import Kernel
from dovetail.runtime.program import Program
from dovetail.targets.cuda.driver.driver import Driver, KernelFunction, LoadedModule, driver
from dovetail.targets.cuda.runs.runner import MOST_FRAMES
from tests.targets.cuda.devices import on_device
from tests.targets.cuda.simulated import CompiledDriver, FakeLibrary, SimulatedDriver, target_of

RANDOM = np.random.default_rng(11)


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


DEVICES: dict[str, Callable[[], Driver]] = {"simulated": SimulatedDriver, "compiled": CompiledDriver, "cuda": driver}


@pytest.fixture(params=["simulated", "compiled", pytest.param("cuda", marks=on_device)])
def device(request: pytest.FixtureRequest) -> Driver:
    return DEVICES[request.param]()


def compiled(graph: Graph, device: Driver, **options: Any) -> Program:
    return dovetail.compile(graph, target=target_of(device), cache="off", **options)


def scaled() -> Graph:
    x, y = dovetail.input("x", f32["n", 24]), dovetail.input("y", f32["n", 24])
    h = ops.tanh(x * 2.0 + y)
    return Graph.of({"y": h, "sum": ops.reduce_sum(h, axes=(-1,))})


def expected(x: Array, y: Array) -> dict[str, Array]:
    h = np.tanh(x.astype(np.float64) * 2 + y)
    return {"y": h, "sum": h.sum(-1, keepdims=True)}


def check(found: Any, x: Array, y: Array) -> None:
    for name, value in expected(x, y).items():
        got = found[name] if isinstance(found[name], np.ndarray) else found[name].numpy()
        np.testing.assert_allclose(got.reshape(value.shape), value, rtol=1e-5, atol=1e-5)


def test_other_addresses_update_the_graph(device: Driver) -> None:
    """Each run has arrays of its own, and every result is held: one capture serves them all."""
    program = compiled(scaled(), device)
    held: list[tuple[Any, Array, Array]] = []
    for _ in range(6):
        x, y = numbers(3, 24), numbers(3, 24)
        there = program.to_device({"x": x, "y": y})
        held.append((program.run(there, outputs="device"), x, y))
    for found, x, y in held:
        check(found, x, y)
    assert len({found["y"].address for found, _, _ in held}) == 6
    if isinstance(device, SimulatedDriver):
        assert device.log.count("cuStreamBeginCapture_v2") == 1
        assert device.log.count("cuGraphExecKernelNodeSetParams_v2") > 0


@pytest.mark.slow
@pytest.mark.parametrize("held", [0, 1, 2, 5])
def test_runs_with_the_same_arrays_enqueue_one_graph(device: Driver, held: int) -> None:
    program = compiled(scaled(), device)
    x, y = numbers(3, 24), numbers(3, 24)
    there = program.to_device({"x": x, "y": y})
    results: list[Any] = []
    for _ in range(12):
        results = [*results, program.run(there, outputs="device")][-held:] if held else []
        if not held:
            check(program.run(there, outputs="device"), x, y)
        for found in results:
            check(found, x, y)
    if isinstance(device, SimulatedDriver) and held <= 2:
        del results
        found = [program.run(there, outputs="device") for _ in range(2)][-1:]
        device.log.clear()
        again = program.run(there, outputs="device")
        assert device.log == ["cuGraphLaunch"]
        check(again, x, y)
        check(found[0], x, y)


@pytest.mark.slow
def test_arrays_that_change_or_are_freed_are_seen(device: Driver) -> None:
    program = compiled(scaled(), device)
    x, y = numbers(3, 24), numbers(3, 24)
    there = program.to_device({"x": x, "y": y})
    for _ in range(4):
        check(program.run(there, outputs="device"), x, y)
    other = program.to_device({"x": y, "y": x})
    for _ in range(4):
        check(program.run(other, outputs="device"), y, x)
        check(program.run(there, outputs="device"), x, y)
        check(program.run({"x": there["x"], "y": other["x"]}, outputs="device"), x, y)
    if isinstance(device, SimulatedDriver):
        device.log.clear()
        for given in (there, there, other, other) * 3:
            program.run(given, outputs="device")
        assert device.log.count("cuGraphLaunch") == 12 and device.log.count("cuStreamBeginCapture_v2") <= 4
    there["x"].free()
    with pytest.raises(BindError, match="was freed"):
        program.run(there, outputs="device")


@pytest.mark.slow
def test_other_sizes_update_the_graph_that_was_used_longest_ago(device: Driver) -> None:
    program = compiled(scaled(), device)
    for n in [*range(1, MOST_FRAMES + 4), 1, 2]:
        for _ in range(2):
            x, y = numbers(n, 24), numbers(n, 24)
            check(program(x=x, y=y), x, y)
    if isinstance(device, SimulatedDriver):
        assert device.log.count("cuStreamBeginCapture_v2") == MOST_FRAMES


def test_the_oldest_driver_captures_too() -> None:
    device = SimulatedDriver(FakeLibrary(version=12_000))
    program = compiled(scaled(), device)
    for _ in range(3):
        x, y = numbers(2, 24), numbers(2, 24)
        check(program(x=x, y=y), x, y)
    assert "cuStreamGetCaptureInfo_v2" in device.log and "cuStreamGetCaptureInfo_v3" not in device.log


def test_kernels_that_start_early_are_launched_so(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LoadedModule.function

    def early(self: LoadedModule, name: str, shared_bytes: int = 0, **given: bool) -> KernelFunction:
        return original(self, name, shared_bytes, **{**given, "dependent": True})

    monkeypatch.setattr(LoadedModule, "function", early)
    device = SimulatedDriver()
    program = compiled(scaled(), device)
    for _ in range(3):
        x, y = numbers(2, 24), numbers(2, 24)
        check(program(x=x, y=y), x, y)
    assert "cuLaunchKernelEx" in device.log and "cuLaunchKernel" not in device.log


def test_a_grid_without_blocks_is_a_disabled_node(device: Driver) -> None:
    program = compiled(scaled(), device)
    for n in (0, 0, 0, 2, 2, 2):
        x, y = numbers(n, 24), numbers(n, 24)
        check(program(x=x, y=y), x, y)


def test_inputs_of_the_host_are_not_overwritten_before_they_are_read(device: Driver) -> None:
    """Results stay on the device, so that nothing waits for the copies of the inputs."""
    program = compiled(scaled(), device)
    held: list[tuple[Any, Array, Array]] = []
    for _ in range(5):
        x, y = numbers(3, 24), numbers(3, 24)
        held.append((program.run({"x": x, "y": y}, outputs="device"), x.copy(), y.copy()))
        x[:], y[:] = 0, 0
    for found, x, y in held:
        check(found, x, y)


@pytest.mark.slow
def test_programs_and_streams_keep_their_order(device: Driver) -> None:
    """Device arrays go from one program to the next, with runs on streams of their own between them."""
    first, second = compiled(scaled(), device), compiled(scaled(), device)
    x, y = numbers(4, 24), numbers(4, 24)
    there = first.to_device({"x": x, "y": y})
    for _ in range(4):
        a = first.run(there, outputs="device")
        check(second(x=y, y=x), y, x)
        b = second.run({"x": a["y"], "y": there["y"]}, outputs="device")
        check(b, expected(x, y)["y"].astype(np.float32), y)


@pytest.mark.slow
def test_threads_run_one_program_at_once(device: Driver) -> None:
    program = compiled(scaled(), device)
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for n in (2, 5, 2, 5):
                x, y = (rng.normal(size=(n, 24)).astype(np.float32) for _ in range(2))
                check(program(x=x, y=y), x, y)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def appended() -> Graph:
    b = Builder("append")
    cache, row, at = b.input("cache", f32["room", 8]), b.input("row", f32[1, 8]), b.input("at", i64[1, 1])
    new = ops.scatter_nd(cache, at, row)
    b.output("new", new, into="cache")
    b.output("sum", ops.reduce_sum(ops.tanh(new), axes=(-2, -1)))
    return b.graph()


def training() -> Graph:
    b = Builder("train")
    w, g = b.input("w", f32["n", 8]), b.input("g", f32["n", 8])
    new = w - ops.tanh(g) * 0.1
    b.output("new", new, into="w")
    b.output("size", ops.reduce_sum(new * new, axes=(-2, -1)))
    return b.graph()


@pytest.mark.exhaustive
@pytest.mark.parametrize("outputs", ["device", "host"])
def test_donated_inputs_run_as_graphs(device: Driver, outputs: Any) -> None:
    program = compiled(training(), device)
    w = numbers(5, 8)
    was = w.astype(np.float64)
    there = program.to_device({"w": w})["w"]
    for _ in range(5):
        g = numbers(5, 8)
        found: Any = program.run({"w": there, "g": program.to_device({"g": g})["g"]}, outputs=outputs)
        was -= np.tanh(g.astype(np.float64)) * 0.1
        assert found["new"] is there
        size = found["size"] if outputs == "host" else found["size"].numpy()
        np.testing.assert_allclose(size.item(), (was**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(there.numpy(), was, rtol=1e-5, atol=1e-6)
    if isinstance(device, SimulatedDriver):
        assert device.log.count("cuGraphLaunch") == 4 and device.log.count("cuStreamBeginCapture_v2") == 1


def looked_up() -> Graph:
    table, at = dovetail.input("table", f32[7, 8]), dovetail.input("at", i64["n"])
    return Graph.of({"y": ops.tanh(ops.gather(table, at, axis=-2))})


def test_an_index_out_of_range_on_the_device_is_an_error_when_it_is_read(device: Driver) -> None:
    program = compiled(looked_up(), device)
    table = numbers(7, 8)
    good = program.to_device({"table": table, "at": np.array([1, 2])})
    bad = program.to_device({"table": table, "at": np.array([1, 9])})
    for _ in range(3):
        found = program.run(bad, outputs="device")["y"]
        with pytest.raises(BindError, match="out of range in a run"):
            found.numpy()
        np.testing.assert_allclose(program.run(good, outputs="device")["y"].numpy(), np.tanh(table[[1, 2]]), rtol=1e-5)


def test_an_index_out_of_range_that_is_never_read_is_an_error_of_a_later_run(device: Driver) -> None:
    program = compiled(looked_up(), device)
    bad = program.to_device({"table": numbers(7, 8), "at": np.array([1, 9])})
    program.run(bad, outputs="device")
    device.synchronize()
    with pytest.raises(BindError, match="out of range in a run"):
        program.run(bad, outputs="device")


def test_a_refused_run_leaves_donated_arrays_of_the_host(device: Driver) -> None:
    b = Builder("look up")
    w, at = b.input("w", f32[7, 8]), b.input("at", i64[7])
    b.output("new", ops.gather(w, at, axis=-2) + 1.0, into="w")
    program = compiled(b.graph(), device)
    for _ in range(3):
        w0 = numbers(7, 8)
        w1 = w0.copy()
        with pytest.raises(dovetail.errors.DovetailError, match="9"):
            program(w=w1, at=np.array([0, 1, 2, 9, 4, 5, 6]))
        np.testing.assert_array_equal(w0, w1)


@pytest.mark.slow
def test_too_large_inputs_say_what_would_fit() -> None:
    device = SimulatedDriver(FakeLibrary(capacity=1 << 20))
    program = compiled(scaled(), device)
    x, y = numbers(100_000, 24), numbers(100_000, 24)
    with pytest.raises(OutOfMemoryError, match=r"n = 100000 takes .* bytes of cuda:0, and .* are free") as caught:
        program(x=x, y=y)
    most = int(caught.value.hint.rpartition("= ")[2])
    assert caught.value.needed > caught.value.free and 100 < most < 10_000
    check(program(x=x[:3], y=y[:3]), x[:3], y[:3])
    check(program(x=x[:most], y=y[:most]), x[:most], y[:most])


def test_parameters_that_do_not_fit_are_an_error() -> None:
    device = SimulatedDriver(FakeLibrary(capacity=1 << 16))
    graph = Graph.of({"y": dovetail.input("x", f32[2, 256]) + dovetail.param("w", f32[256])})
    big = Graph.of({"y": dovetail.input("x", f32[2, 1 << 15]) + dovetail.param("w", f32[1 << 15])})
    with pytest.raises(OutOfMemoryError, match=r"the parameters of .* take 131,072 bytes"):
        compiled(big, device).bind({"w": numbers(1 << 15)})
    w, x = numbers(256), numbers(2, 256)
    np.testing.assert_allclose(compiled(graph, device).bind({"w": w})(x=x)["y"], x + w, rtol=1e-6)


@pytest.mark.slow
def test_memory_of_idle_frames_is_given_up_first() -> None:
    device = SimulatedDriver(FakeLibrary(capacity=400_000))
    program = compiled(scaled(), device)
    for n in (200, 300, 400, 500, 600):
        x, y = numbers(n, 24), numbers(n, 24)
        check(program(x=x, y=y), x, y)


@pytest.mark.slow
def test_a_lost_device_is_an_error_and_the_process_goes_on() -> None:
    library = FakeLibrary()
    device = SimulatedDriver(library)
    program = compiled(scaled(), device)
    x, y = numbers(3, 24), numbers(3, 24)
    check(program(x=x, y=y), x, y)
    there = program.to_device({"x": x, "y": y})
    library.sticky = 719
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"the device was lost: .*719") as caught:
            program.run(there)
        assert caught.value.is_lost
    del there, program
    gc.collect()
    again = compiled(scaled(), SimulatedDriver(library, fresh=True))
    check(again(x=x, y=y), x, y)
    check(dovetail.compile(scaled())(x=x, y=y), x, y)


def test_an_address_that_is_not_allocated_is_a_lost_device() -> None:
    device = SimulatedDriver()
    program = compiled(scaled(), device)
    x, y = numbers(3, 24), numbers(3, 24)
    there = program.to_device({"x": x, "y": y})
    del device.library.memory[there["x"].address]
    with pytest.raises(DeviceError, match="the device was lost"):
        program.run(there)


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (FakeLibrary(version=11_080), r"too old: it runs CUDA 11\.8"),
        (FakeLibrary(devices=0), "no CUDA device"),
    ],
)
def test_what_is_missing_is_one_typed_error(library: FakeLibrary, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        SimulatedDriver(library)


@pytest.mark.slow
def test_everything_is_freed() -> None:
    device = SimulatedDriver()
    program = compiled(scaled(), device)
    for n in (1, 2, 3):
        for _ in range(3):
            x, y = numbers(n, 24), numbers(n, 24)
            check(program(x=x, y=y), x, y)
            check(program.run(program.to_device({"x": x, "y": y}), outputs="device"), x, y)
    del program
    gc.collect()
    assert not device.memory and not device.library.pinned
    left = [thing for thing in device.library.objects.values() if not isinstance(thing, Kernel)]
    assert left == [None] * len(left), "nodes have no owners"
