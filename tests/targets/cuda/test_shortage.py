"""Memory that a driver lacks for what it makes itself: one typed error, and runs go on once there is some."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library
from dovetail.dtypes import f32
from dovetail.errors import DeviceError, OutOfMemoryError
from dovetail.targets.cuda.driver.memory import CudaBuffer
from dovetail.targets.cuda.driver.streams import Event, OwnStream
from tests.targets.cuda.fake_driver import FakeLibrary
from tests.targets.cuda.simulated import SimulatedDriver, target_of

OUT_OF_MEMORY = 2
GRAPH = Graph.of({"y": library.softmax(dovetail.input("x", f32["n", 24]))})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cuModuleLoadData", "found no memory for the code of a kernel: "),
        ("cuGraphInstantiateWithFlags", "found no memory for a graph of launches: "),
        ("cuStreamCreate", "found no memory for a stream: "),
    ],
)
def test_a_run_for_which_the_driver_has_no_memory_is_an_error_and_runs_go_on(name: str, says: str) -> None:
    device = SimulatedDriver()
    program = dovetail.compile(GRAPH, target=target_of(device), cache="off")
    x = np.ones((3, 24), np.float32)
    device.library.fail[name] = OUT_OF_MEMORY
    with pytest.raises(OutOfMemoryError, match=says) as caught:
        for _ in range(2):  # the second one makes a graph
            program(x=x)
    assert 0 < caught.value.free <= 1 << 30 and "free device arrays" in caught.value.hint
    device.library.fail.clear()
    np.testing.assert_allclose(program(x=x)["y"], 1 / 24, rtol=1e-6)


def test_streams_and_events_and_code_that_do_not_fit_say_what_is_free() -> None:
    device = SimulatedDriver(FakeLibrary(capacity=1 << 20))
    held = CudaBuffer(device, 1 << 18)
    made = {
        "cuStreamCreate": lambda: OwnStream(device),
        "cuEventCreate": lambda: Event(device),
        "cuLinkCreate_v2": lambda: device.assembled("// .entry"),
        "cuLinkComplete": lambda: device.assembled("// .entry"),
        "cuCtxSynchronize": lambda: device.synchronize(),
    }
    for name, make in made.items():
        device.library.fail = {name: OUT_OF_MEMORY}
        with pytest.raises(OutOfMemoryError, match=rf"{name} found no memory .*: 786,432 of 1,048,576 bytes are free"):
            make()
    assert held.nbytes == 1 << 18 and device.lost is None


def test_a_context_that_does_not_fit_is_the_same_error() -> None:
    """Without a context the driver does not say what is free."""
    library = FakeLibrary()
    library.fail |= {"cuDevicePrimaryCtxRetain": OUT_OF_MEMORY, "cuMemGetInfo_v2": 201}
    with pytest.raises(OutOfMemoryError, match=r"cuDevicePrimaryCtxRetain found no memory for a context\n") as caught:
        SimulatedDriver(library)
    assert (caught.value.needed, caught.value.free) == (0, 0) and "other programs" in caught.value.hint


def test_memory_in_pieces_is_not_said_to_be_too_little() -> None:
    """What is free would be enough, and no smaller size is a remedy that is known to help."""
    device = SimulatedDriver()
    program = dovetail.compile(GRAPH, target=target_of(device), cache="off")
    program(x=np.ones((3, 24), np.float32))
    device.library.fail["cuMemAlloc_v2"] = OUT_OF_MEMORY
    with pytest.raises(OutOfMemoryError, match="are free, but not in one piece") as caught:
        program(x=np.ones((4096, 24), np.float32))
    assert 0 < caught.value.needed <= caught.value.free and "would fit" not in caught.value.hint


def test_other_errors_of_a_device_stay_what_they_are() -> None:
    device = SimulatedDriver()
    device.library.fail["cuStreamCreate"] = 801
    with pytest.raises(DeviceError, match="cuStreamCreate"):
        OwnStream(device)
