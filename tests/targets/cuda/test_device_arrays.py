"""Programs for GPUs whose inputs and outputs stay on the device, on a simulated driver and on a device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Builder, Graph, library, ops
from dovetail.dtypes import bf16, f32
from dovetail.errors import BindError
from dovetail.ir.literal import Array
from dovetail.plan.plan import make_plan
from dovetail.runtime.program import Program
from dovetail.targets.cuda.driver.driver import Driver, driver
from dovetail.targets.cuda.driver.memory import NAME, CudaAllocator, CudaBuffer
from dovetail.targets.cuda.runs.run import CudaGraph
from dovetail.targets.runtime.arrays.buffer import Allocator, Buffer
from dovetail.targets.runtime.arrays.device_array import DeviceArray
from tests.targets.cuda.devices import on_device
from tests.targets.cuda.simulated import SimulatedDriver

DEVICES = [
    "simulated",
    pytest.param("cuda", marks=on_device),
]
RANDOM = np.random.default_rng(7)


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Driver:
    return SimulatedDriver() if request.param == "simulated" else driver()


def compiled(graph: Graph, device: Driver, params: Mapping[str, Array] | None = None) -> Program:
    plan = make_plan(graph, target="cuda")
    return Program(plan, CudaGraph(plan, lambda: device), params=params, any_size=True)


def activated() -> Graph:
    x, y = dovetail.input("x", f32["n", 40]), dovetail.input("y", f32["n", 40])
    h = ops.tanh(x + y)
    return Graph.of(
        {
            "h": h,
            "total": ops.reduce_sum(h, axes=(-1,)),
            "turned": ops.permute(h * 2.0, order=(-1, -2)),
            "part": ops.slice_(h, axis=-1, start=8, stop=16),
            "x": x,
        }
    )


def check(found: Mapping[str, Any], graph: Graph, feeds: Mapping[str, Array]) -> None:
    expected = dovetail.evaluate(graph, feeds, lift=True)
    assert list(found) == list(expected)
    for name, array in found.items():
        here = array.numpy() if isinstance(array, DeviceArray) else array
        assert array.shape == expected[name].shape
        np.testing.assert_allclose(here, expected[name], rtol=2e-5, atol=1e-6)


def test_outputs_stay_and_are_inputs_again(device: Driver) -> None:
    graph = activated()
    program = compiled(graph, device)
    feeds = {"x": numbers(3, 40), "y": numbers(3, 40)}
    found = program.run(feeds, outputs="device")
    check(found, graph, feeds)
    assert all(a.device == NAME and a.dtype == np.float32 and a.nbytes == 4 * a.size for a in found.values())
    again = program.run({"x": found["h"], "y": found["x"]}, outputs="device")
    check(again, graph, {"x": found["h"].numpy(), "y": feeds["x"]})
    check(program.run({"x": found["h"], "y": feeds["y"]}), graph, {"x": found["h"].numpy(), "y": feeds["y"]})


def test_nothing_is_copied_between_programs() -> None:
    device = SimulatedDriver()
    graph = Graph.of({"h": ops.tanh(dovetail.input("x", f32["n", 40]))})
    program = compiled(graph, device)
    found = program.run({"x": numbers(3, 40)}, outputs="device")
    device.synchronize()
    device.log.clear()
    for _ in range(3):
        found = program.run({"x": found["h"]}, outputs="device")
    assert not [name for name in device.log if "Memcpy" in name or "Synchronize" in name]
    assert [device.log.count(n) for n in ("cuLaunchKernelEx", "cuGraphLaunch")] == [2, 2], "the second one captures"
    device.synchronize()
    assert device.log.count("launch map") == 3


@pytest.mark.slow
def test_memory_is_freed_with_arrays_and_programs() -> None:
    device = SimulatedDriver()
    program = compiled(activated(), device)
    held = [program.run({"x": numbers(3, 40), "y": numbers(3, 40)}, outputs="device") for _ in range(4)]
    most = len(device.memory)
    for _ in range(20):
        held.pop(0)
        held.append(program.run({"x": numbers(3, 40), "y": numbers(3, 40)}, outputs="device"))
    assert len(device.memory) <= most + 8, "buffers of dropped arrays are used again"
    kept = held[-1]["h"]
    held.clear()
    del program
    gc.collect()
    assert kept.numpy().shape == (3, 40)
    kept.free()
    gc.collect()
    assert not device.memory


def training() -> Graph:
    b = Builder("train")
    w, m, g = (b.input(n, f32["n", 8]) for n in ("w", "m", "g"))
    new_m = m * 0.9 + g
    b.output("new_w", w - new_m * 0.1, into="w")
    b.output("new_m", new_m, into="m")
    b.output("size", ops.reduce_sum(new_m * new_m, axes=(-2, -1)))
    return b.graph()


@pytest.mark.heavy
@pytest.mark.parametrize("outputs", ["device", "host"])
def test_donated_arrays_are_updated_where_they_are(device: Driver, outputs: Any) -> None:
    program = compiled(training(), device)
    state = {"w": numbers(5, 8), "m": numbers(5, 8)}
    was = {name: array.astype(np.float64) for name, array in state.items()}
    there = program.to_device(state)
    addresses = {name: array.address for name, array in there.items()}
    for _ in range(4):
        g = numbers(5, 8)
        found = program.run({**there, "g": g}, outputs=outputs)
        assert found["new_w"] is there["w"] and found["new_m"] is there["m"]
        assert isinstance(found["size"], DeviceArray if outputs == "device" else np.ndarray)
        was["m"] = was["m"] * 0.9 + g
        was["w"] = was["w"] - was["m"] * 0.1
    for name, array in there.items():
        assert array.address == addresses[name]
        np.testing.assert_allclose(array.numpy(), was[name], rtol=1e-5, atol=1e-5)
        assert not np.allclose(state[name], was[name]), "the arrays that were copied stay as they are"


@pytest.mark.slow
def test_donated_arrays_of_the_host_are_overwritten(device: Driver) -> None:
    program = compiled(training(), device)
    state = {"w": numbers(5, 8), "m": numbers(5, 8)}
    was, g = {name: array.astype(np.float64) for name, array in state.items()}, numbers(5, 8)
    found = program.run({**state, "g": g})
    assert found["new_m"] is state["m"]
    np.testing.assert_allclose(state["m"], was["m"] * 0.9 + g, rtol=1e-5, atol=1e-5)


def test_what_is_not_computed_in_place_is_copied(device: Driver) -> None:
    """Two states that change places: neither can be written before the other is read."""
    b = Builder("swap")
    x, y = b.input("x", f32[6, 8]), b.input("y", f32[6, 8])
    b.output("new_x", y * 2.0, into="x")
    b.output("new_y", x + 1.0, into="y")
    program = compiled(b.graph(), device)
    assert any(d.reason for d in program.plan.donations)
    state = {"x": numbers(6, 8), "y": numbers(6, 8)}
    there = program.to_device(state)
    found = program.run(there, outputs="device")
    assert found["new_x"] is there["x"] and found["new_y"] is there["y"]
    np.testing.assert_array_equal(there["x"].numpy(), state["y"] * np.float32(2))
    np.testing.assert_array_equal(there["y"].numpy(), state["x"] + np.float32(1))


@pytest.mark.slow
def test_what_does_not_fit_is_one_typed_error(device: Driver) -> None:
    program = compiled(training(), device)
    there = program.to_device({"w": numbers(5, 8), "m": numbers(5, 8), "g": numbers(5, 8)})
    other = dovetail.compile(training())
    freed = program.to_device({"g": numbers(5, 8)})["g"]
    freed.free()
    on_host = other.to_device({"g": numbers(5, 8)})["g"]
    narrow = Graph.of({"y": dovetail.input("x", bf16[5, 8]) * 2.0})
    wrong_dtype = compiled(narrow, device).run({"x": numbers(5, 8).astype(bf16.numpy)}, outputs="device")["y"]
    wrong_shape = program.to_device({"g": numbers(4, 8)})["g"]
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: program.run({**there, "g": freed}), "was freed"),
        (lambda: program.run({**there, "g": on_host}), "on cpu, and the program runs on cuda:0"),
        (lambda: program.run({**there, "g": wrong_dtype}), "dtype bfloat16"),
        (lambda: program.run({**there, "g": wrong_shape}), "g"),
        (lambda: program.run({**there, "g": there["w"]}), "w shares memory with the input g"),
        (lambda: program.run({**there, "w": numbers(5, 8)}, outputs="device"), "w is donated and on the host"),
        (lambda: other.run(there), "on cuda:0, and the program runs on cpu"),
        (lambda: program.run({"w": there["w"]}, outputs="device"), "no array for the inputs m"),
        (lambda: np.asarray(there["w"]), "cannot be seen by the host"),
    ]
    for act, message in cases:
        with pytest.raises(BindError, match=message):
            act()


def test_other_libraries_are_given_the_address(device: Driver) -> None:
    program = compiled(Graph.of({"y": library.softmax(dovetail.input("x", bf16[4, 16]))}), device)
    y = program.run({"x": numbers(4, 16).astype(bf16.numpy)}, outputs="device")["y"]
    said = y.__cuda_array_interface__
    assert said["data"] == (y.address, False) and said["shape"] == (4, 16) and said["typestr"] == "<V2"
    assert y.__dlpack_device__() == (2, 0) and "dltensor" in repr(y.__dlpack__())


def test_memory_of_a_gpu_has_the_protocols_of_a_device(device: Driver) -> None:
    allocator: Allocator[CudaBuffer] = CudaAllocator(device)
    buffer: Buffer = allocator.allocate(48)
    x = np.arange(12, dtype=np.float32)
    buffer.copy_from_host(x)
    back = np.zeros_like(x)
    buffer.copy_to_host(back)
    assert (back == x).all() and buffer.host_view is None and buffer.device == "cuda:0" and buffer.nbytes == 48
    assert "dltensor" in repr(buffer.__dlpack__())


@on_device
def test_torch_reads_and_writes_device_arrays() -> None:
    torch: Any = pytest.importorskip("torch")
    program = compiled(Graph.of({"y": dovetail.input("x", bf16["n", 16]) * 2.0}), driver())
    x = numbers(4, 16).astype(bf16.numpy)
    y = program.run({"x": x}, outputs="device")["y"]
    seen = torch.from_dlpack(y)
    assert seen.dtype == torch.bfloat16 and seen.data_ptr() == y.address
    np.testing.assert_array_equal(seen.float().cpu().numpy(), x.astype(np.float32) * 2)
    seen += 1
    torch.cuda.synchronize()
    np.testing.assert_array_equal(y.numpy().astype(np.float32), seen.float().cpu().numpy())
    y.free()
    again = program.run({"x": x}, outputs="device")["y"]
    assert again.address != seen.data_ptr(), "torch still owns the memory"


@pytest.mark.slow
def test_runs_that_come_again_are_one_graph(device: Driver) -> None:
    graph = activated()
    program = compiled(graph, device)
    for _ in range(4):
        feeds = {"x": numbers(3, 40), "y": numbers(3, 40)}
        check(program.run(feeds), graph, feeds)
    if isinstance(device, SimulatedDriver):
        assert device.log.count("cuGraphLaunch") == 3, "all but the first run"


def looked_up() -> Graph:
    table, at = dovetail.input("table", f32[7, 40]), dovetail.input("at", dovetail.dtypes.i64["n"])
    return Graph.of({"y": ops.tanh(ops.gather(table, at, axis=-2))})


def test_graphs_are_replayed_with_new_content(device: Driver) -> None:
    graph = looked_up()
    program = compiled(graph, device)
    for number in range(5):
        feeds = {"table": numbers(7, 40), "at": np.array([number % 7, 3, -1])}
        check(program.run(feeds), graph, feeds)
        check(program.run(program.to_device(feeds), outputs="device"), graph, feeds)
    if isinstance(device, SimulatedDriver):
        assert device.log.count("cuStreamBeginCapture_v2") == 2, "one graph to the host and one on the device"
        assert device.log.count("cuGraphLaunch") == 8, "all but the first runs"


def test_results_that_are_held_are_not_overwritten(device: Driver) -> None:
    graph = looked_up()
    program = compiled(graph, device)
    there = program.to_device({"table": numbers(7, 40), "at": np.array([1, 2])})
    held = [program.run(there, outputs="device")["y"] for _ in range(5)]
    assert len({array.address for array in held}) == 5
    first = held[0].numpy()
    assert all((array.numpy() == first).all() for array in held)


def test_an_index_out_of_range_is_an_error(device: Driver) -> None:
    program = compiled(looked_up(), device)
    table = numbers(7, 40)
    for _ in range(4):
        with pytest.raises(dovetail.errors.DovetailError, match="9"):
            program.run({"table": table, "at": np.array([1, 9])})
    good = program.run({"table": table, "at": np.array([1, 2])})
    np.testing.assert_allclose(good["y"], np.tanh(table[[1, 2]]), rtol=1e-5)
    there = program.to_device({"table": table, "at": np.array([1, 2])})
    for _ in range(3):
        program.run(there, outputs="device")
    bad = program.to_device({"table": table, "at": np.array([1, 9])})
    with pytest.raises(dovetail.errors.DovetailError, match=r"out of range|9"):
        for _ in range(4):
            program.run(bad, outputs="device")["y"].numpy()
