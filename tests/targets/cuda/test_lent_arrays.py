"""Device arrays in the hands of other libraries: whose streams wait for ours, whose readers are waited for, and what
is refused as DLPack says."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, ops
from dovetail.dtypes import bf16, f32
from dovetail.errors import BindError
from dovetail.ir.literal import Array
from dovetail.runtime.program import Program
from dovetail.targets.cuda.driver.driver import driver
from dovetail.targets.cuda.driver.memory import CudaBuffer
from dovetail.targets.cuda.driver.streams import CAPTURES, MOST_RETURNED, Lending, OwnStream
from dovetail.targets.runtime.arrays.device_array import DeviceArray, host_array
from tests.targets.cuda.devices import on_device
from tests.targets.cuda.simulated import SimulatedDriver, target_of


def numbers(*shape: int) -> Array:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def compiled(device: SimulatedDriver) -> Program:
    x, y = dovetail.input("x", f32["n", 24]), dovetail.input("y", f32["n", 24])
    return dovetail.compile(Graph.of({"z": ops.tanh(x) + y}), target=target_of(device), cache="off")


class Consumer:
    """A library with a stream of its own, which waits for nothing unless it is told to."""

    def __init__(self, device: SimulatedDriver) -> None:
        self.device, self.stream = device, OwnStream(device)
        self.copies: list[tuple[CudaBuffer, Array]] = []

    def read(self, array: DeviceArray, stream: int | None, expected: Array) -> None:
        """Enqueue a reader, and give the memory back before that has run."""
        capsule = array.__dlpack__(stream=stream)
        copy = CudaBuffer(self.device, array.nbytes)
        self.device.call("cuMemcpyDtoDAsync_v2", copy.address, array.address, array.nbytes, self.stream.handle)
        self.copies.append((copy, expected))
        del capsule

    def check(self) -> None:
        """Wait for the own stream alone."""
        for copy, expected in self.copies:
            found = np.empty_like(expected)
            args = found.ctypes.data, copy.address, found.nbytes, self.stream.handle
            self.device.call("cuMemcpyDtoHAsync_v2", *args)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        self.copies.clear()


def test_a_stream_of_a_library_waits_for_the_run() -> None:
    device = SimulatedDriver()
    program, library = compiled(device), Consumer(device)
    for i in range(4):
        x, y = numbers(3, 24) + i, numbers(3, 24)
        there = program.to_device({"x": x, "y": y})
        found = program.run(there, outputs="device")["z"]
        library.read(found, library.stream.handle, np.tanh(x) + y)
        library.check()


@pytest.mark.parametrize("stream", [None, 1, 2, -1])
def test_streams_in_order_and_libraries_that_order_themselves_cost_nothing(stream: int | None) -> None:
    device = SimulatedDriver()
    program = compiled(device)
    found = program.run({"x": numbers(3, 24), "y": numbers(3, 24)}, outputs="device")["z"]
    device.log.clear()
    assert "dltensor" in repr(found.__dlpack__(stream=stream))
    assert not device.log


def test_the_interface_names_the_stream_that_runs_are_on() -> None:
    device = SimulatedDriver()
    program = compiled(device)
    streams: list[int] = []
    launch = device.library["cuGraphLaunch"]

    def launched(graph: int, stream: int) -> int:
        streams.append(stream)
        return launch(graph, stream)

    device.functions = {**device.library, "cuGraphLaunch": launched}
    for _ in range(4):
        there = program.to_device({"x": numbers(3, 24), "y": numbers(3, 24)})
        said = program.run(there, outputs="device")["z"].__cuda_array_interface__
        assert said["stream"] == 1 and said["version"] == 3
    assert streams and not any(streams), "0 is the legacy default stream, where functions are not those of a thread"


@pytest.mark.parametrize("theirs", ["own", "unordered"])
@pytest.mark.parametrize("from_host", [False, True], ids=["repeated", "pool"])
def test_memory_is_not_overwritten_while_a_library_may_read_it(theirs: str, from_host: bool) -> None:
    device = SimulatedDriver()
    program, library = compiled(device), Consumer(device)
    stream = library.stream.handle if theirs == "own" else -1
    x, y = numbers(3, 24), numbers(3, 24)
    first, second = {"x": x, "y": y}, {"x": x + 9, "y": y}
    if not from_host:
        first, second = program.to_device(first), program.to_device(second)
    for _ in range(3):
        program.run(first, outputs="device")
    for _ in range(3):
        made = program.run(first, outputs="device")["z"]
        if stream == -1:
            device.synchronize()  # it orders its work by itself
        library.read(made, stream, np.tanh(x) + y)
        del made
        for _ in range(4):
            program.run(second, outputs="device")
        device.wait_for(0)
        library.check()


@pytest.mark.slow
def test_memory_that_libraries_give_back_is_used_again() -> None:
    device = SimulatedDriver()
    program, library = compiled(device), Consumer(device)
    x = numbers(3, 24)
    there = [program.to_device({"x": x + i, "y": x}) for i in range(3)]
    most: list[int] = []
    for count in range(4 * MOST_RETURNED):
        found = program.run(there[count % 3], outputs="device")["z"]
        library.read(found, library.stream.handle, np.tanh(x + count % 3) + x)
        del found
        most.append(len(device.memory) - len(library.copies))
        if count % 24 == 0:
            device.wait_for(0)
            library.check()
    assert max(most) == max(most[: MOST_RETURNED + 8]), "the device is waited for now and then"
    del there
    library.check()
    del program
    gc.collect()
    assert not device.memory


def test_the_device_is_not_waited_for_while_a_stream_is_captured() -> None:
    """A capture in another thread would fail."""
    device = SimulatedDriver()
    lending, owners = Lending(device), [object() for _ in range(3)]
    for owner in owners:
        lending(owner, -1)
    device.log.clear()
    with CAPTURES:
        lending.settle(2)
    lending.settle(3)
    assert not device.log
    lending.settle(2)
    lending.settle()
    assert device.log == ["cuCtxSynchronize"]


def test_a_stream_that_is_destroyed_is_not_asked() -> None:
    device = SimulatedDriver()
    program, library = compiled(device), Consumer(device)
    there = program.to_device({"x": numbers(3, 24), "y": numbers(3, 24)})
    held = [program.run(there, outputs="device")["z"].__dlpack__(stream=library.stream.handle) for _ in range(3)]
    del library
    held.clear()
    for _ in range(2 * MOST_RETURNED):
        program.run(there, outputs="device")


def test_what_dlpack_cannot_have_is_a_buffer_error() -> None:
    device = SimulatedDriver()
    x, y = numbers(3, 24), numbers(3, 24)
    found = compiled(device).run({"x": x, "y": y}, outputs="device")["z"]
    expected = np.tanh(x) + y
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: found.__dlpack__(stream=0), "stream 0 stands for several"),
        (lambda: found.__dlpack__(copy=True), "copied to the host alone"),
        (lambda: found.__dlpack__(dl_device=(2, 1)), r"a copy is requested on the device \(2, 1\)"),
        (lambda: found.__dlpack__(dl_device=(1, 0), copy=False), "cannot be seen by the host without a copy"),
        (lambda: np.from_dlpack(found, device="cpu", copy=False), "cannot be seen by the host without a copy"),
    ]
    for act, message in cases:
        with pytest.raises(BufferError, match=message) as refused:
            act()
        assert isinstance(refused.value, BindError), "it is in our tree, too"
    for copied in (np.from_dlpack(found, device="cpu"), np.from_dlpack(found, device="cpu", copy=True)):
        np.testing.assert_allclose(copied, expected, rtol=1e-5, atol=1e-6)


def test_a_library_that_refuses_a_capsule_keeps_its_own_error() -> None:
    """It drops the capsule while its error is pending, where Python code cannot run."""
    device = SimulatedDriver()
    found = compiled(device).run({"x": numbers(3, 24), "y": numbers(3, 24)}, outputs="device")["z"]
    for array in (found, host_array(np.zeros(4, bf16.numpy), bf16)):
        with pytest.raises((BufferError, RuntimeError), match=r"[Uu]nsupported"):
            np.from_dlpack(array)
    del found, array
    gc.collect()
    assert not device.memory, "the capsule that was dropped holds nothing"


def test_copies_for_dlpack_on_the_host() -> None:
    x = numbers(4, 3)
    array = host_array(x, f32)
    shared, copied = np.from_dlpack(array), np.from_dlpack(array, copy=True)
    assert np.shares_memory(shared, x) and not np.shares_memory(copied, x)
    assert np.array_equal(copied, x) and np.shares_memory(np.from_dlpack(array, device="cpu", copy=False), x)


@on_device
def test_torch_reads_on_a_stream_of_its_own() -> None:
    torch: Any = pytest.importorskip("torch")
    x = dovetail.input("x", f32["n", 4096])
    program = dovetail.compile(Graph.of({"y": ops.tanh(x) * 2.0}), target=target_of(driver()), cache="off")
    given = torch.randn(4096, 4096, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    expected = torch.tanh(given) * 2
    for _ in range(20):
        with torch.cuda.stream(side):
            sums = [(torch.from_dlpack(program.run({"x": given}, outputs="device")["y"]) - expected).abs().max()]
            program.run({"x": given + 1}, outputs="device")
        assert float(sums[0]) < 1e-5
    part = torch.randn(65, 4096 * 2, device="cuda").view(-1)[1 : 1 + 64 * 4096].view(64, 4096)
    assert part.data_ptr() % 16
    assert torch.allclose(
        torch.from_dlpack(program.run({"x": part}, outputs="device")["y"]), torch.tanh(part) * 2, atol=1e-5
    )
