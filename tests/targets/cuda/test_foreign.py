"""Arrays of other libraries on a GPU are inputs without a copy, and what is wrong with them is a typed error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Builder, Graph, ops
from dovetail.dtypes import f32
from dovetail.errors import BindError
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.runtime.program import Program
from dovetail.targets.cuda.driver.driver import driver
from dovetail.targets.cuda.driver.streams import OwnStream
from dovetail.targets.runtime.arrays import dlpack
from tests.targets.cuda.devices import on_device
from tests.targets.cuda.simulated import SimulatedDriver, target_of


class Tensor:
    """A tensor of another library: memory of the fake device, with the protocols that libraries have."""

    def __init__(self, device: SimulatedDriver, array: Array, dtype: DType = f32) -> None:
        from dovetail.targets.cuda.driver.memory import CudaBuffer

        self.buffer = CudaBuffer(device, max(array.nbytes, 1))
        self.buffer.copy_from_host(np.ascontiguousarray(array))
        device.synchronize()
        self.shape, self.dtype, self.index = array.shape, dtype, 0
        self.address = self.buffer.address
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.index

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        return dlpack.capsule(self, self.address, self.shape, self.dtype, (2, self.index))


class Interface:
    """The same with the CUDA array interface alone."""

    def __init__(self, tensor: Tensor, **said: Any) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": tensor.shape,
            "typestr": "<f4",
            "data": (tensor.address, False),
            "strides": None,
            "stream": 1,
            **said,
        }


def numbers(*shape: int) -> Array:
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def compiled(device: SimulatedDriver) -> Program:
    x, y = dovetail.input("x", f32["n", 24]), dovetail.input("y", f32["n", 24])
    return dovetail.compile(Graph.of({"z": ops.tanh(x) + y}), target=target_of(device), cache="off")


def itself(tensor: Tensor) -> Tensor:
    return tensor


@pytest.mark.parametrize("wrap", [itself, Interface], ids=["dlpack", "interface"])
def test_arrays_of_other_libraries_are_inputs_without_a_copy(wrap: Callable[[Tensor], Any]) -> None:
    device = SimulatedDriver()
    program = compiled(device)
    for n in (3, 3, 3, 5):
        x, y = numbers(n, 24), numbers(n, 24)
        tensor = Tensor(device, x)
        device.log.clear()
        found = program.run({"x": wrap(tensor), "y": wrap(Tensor(device, y))}, outputs="device")["z"]
        copies = [name for name in device.log if "Memcpy" in name]
        assert len(copies) == 1, "that of the test itself"
        np.testing.assert_allclose(found.numpy(), np.tanh(x) + y, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(program.run({"x": wrap(tensor), "y": y})["z"], np.tanh(x) + y, rtol=1e-5, atol=1e-6)
        assert set(tensor.streams) <= {1}, "the producer is told the stream that reads it"


@pytest.mark.parametrize("wrap", [itself, Interface], ids=["dlpack", "interface"])
def test_arrays_that_were_checked_are_launched_at_once(wrap: Callable[[Tensor], Any]) -> None:
    device = SimulatedDriver()
    program = compiled(device)
    tensors = [Tensor(device, numbers(3, 24) + i) for i in range(3)]
    given = [{"x": wrap(a), "y": wrap(b)} for a, b in zip(tensors, tensors[1:] + tensors[:1], strict=True)]
    for _ in range(3):
        for arrays in given:
            program.run(arrays, outputs="device")
    for tensor in tensors:
        tensor.streams.clear()
    device.log.clear()
    for i, arrays in enumerate(given):
        x, y = numbers(3, 24) + i, numbers(3, 24) + (i + 1) % 3
        found = program.run(arrays, outputs="device")["z"]
        assert not {"cuPointerGetAttribute", "cuStreamBeginCapture_v2"} & {*device.log}
        np.testing.assert_allclose(found.numpy(), np.tanh(x) + y, rtol=1e-5, atol=1e-6)
    streams = [stream for tensor in tensors for stream in tensor.streams]
    assert streams == ([1] * 6 if wrap is itself else []), "each run tells the producer the stream that reads it"
    for name, value in {"index": 1, "dtype": dovetail.dtypes.f16, "shape": (24, 3), "address": 1 << 50}.items():
        wrong = Tensor(device, numbers(3, 24))
        setattr(wrong, name, value)
        if wrap is itself or name in ("shape", "address"):
            with pytest.raises(BindError):
                program.run({"x": wrap(wrong), "y": given[0]["y"]}, outputs="device")


def test_a_donated_array_of_another_library_is_updated_and_given_back() -> None:
    device = SimulatedDriver()
    b = Builder("train")
    w, g = b.input("w", f32[4, 8]), b.input("g", f32[4, 8])
    b.output("new", w - g * 0.5, into="w")
    program = dovetail.compile(b.graph(), target=target_of(device), cache="off")
    w0, g0 = numbers(4, 8), numbers(4, 8)[::-1].copy()
    tensor = Tensor(device, w0)
    other = Tensor(device, g0)
    for outputs, g in (("device", g0), ("host", g0), ("device", other), ("device", other), ("device", other)):
        found: Any = program.run({"w": tensor, "g": g}, outputs=outputs)  # pyright: ignore
        assert found["new"] is tensor
    now = np.empty_like(w0)
    tensor.buffer.copy_to_host(now)
    np.testing.assert_allclose(now, w0 - 2.5 * g0, rtol=1e-5, atol=1e-6)


def test_what_is_wrong_with_them_is_a_typed_error() -> None:
    device = SimulatedDriver()
    program = compiled(device)
    x, y = numbers(3, 24), numbers(3, 24)
    good = Tensor(device, y)

    def with_(**changes: Any) -> Tensor:
        found = Tensor(device, x)
        for name, value in changes.items():
            setattr(found, name, value)
        return found

    host = np.zeros(1 << 12, np.uint8)
    aligned = host.ctypes.data + -host.ctypes.data % 64
    device.library.others[1 << 50] = np.zeros(4096, np.uint8)
    cases: list[tuple[Any, str]] = [
        (with_(index=1), "on cuda:1, and the program runs on cuda:0"),
        (with_(address=1 << 50), "is on cuda:1"),
        (with_(address=aligned), "is no memory of a device"),
        (with_(address=good.address + 16), "takes 288 bytes from .* on, and 272 are allocated there"),
        (with_(shape=(4, 24)), "takes 384 bytes from .* on, and 288 are allocated there"),
        (with_(shape=(24, 3)), "x"),
        (with_(dtype=dovetail.dtypes.f16), "dtype float16"),
        (Interface(with_(), strides=(4, 12)), "not dense"),
        (Interface(with_(), strides=(98, 6)), "not dense"),
        (Interface(with_(), typestr="<V3"), "a dtype that we do not have"),
        (Interface(with_(), mask=object()), "has a mask"),
        (Interface(with_(), stream=0), "names the stream 0"),
        (Interface(with_(), stream=-1), "names the stream -1"),
    ]
    for wrong, message in cases:
        for outputs in ("host", "device"):
            with pytest.raises(BindError, match=message):
                program.run({"x": wrong, "y": good}, outputs=outputs)  # pyright: ignore
    with pytest.raises(BindError, match="on cuda:0, and the program runs on cpu"):
        dovetail.compile(program.graph).run({"x": with_(), "y": y})  # pyright: ignore
    fine = program.run({"x": with_(), "y": good})  # pyright: ignore
    np.testing.assert_allclose(fine["z"], np.tanh(x) + y, rtol=1e-5, atol=1e-6)


def test_the_stream_of_an_array_interface_is_waited_for() -> None:
    device = SimulatedDriver()
    program = compiled(device)
    theirs = OwnStream(device)
    late, y = Tensor(device, numbers(3, 24)), numbers(3, 24)
    given = {"x": Interface(late, stream=theirs.handle), "y": Tensor(device, y)}
    for i in range(4):
        x = numbers(3, 24) + i
        source = Tensor(device, x)
        device.call("cuMemcpyDtoDAsync_v2", late.address, source.address, x.nbytes, theirs.handle)
        arrays: Any = given
        found = program.run(arrays, outputs="device")["z"]
        np.testing.assert_allclose(found.numpy(), np.tanh(x) + y, rtol=1e-5, atol=1e-6)
    for stream in (None, 1, 2):
        device.log.clear()
        program.run({**given, "x": Interface(late, stream=stream)}, outputs="device")  # pyright: ignore
        assert "cuStreamWaitEvent" not in device.log, "its work is in order with ours"


def in_place(device: SimulatedDriver) -> Program:
    b = Builder("train")
    b.output("new", b.input("w", f32["n", 3]) - b.input("g", f32["n", 3]) * 0.5, into="w")
    return dovetail.compile(b.graph(), target=target_of(device), cache="off")


def test_what_a_run_overwrites_is_writable_and_aligned() -> None:
    device = SimulatedDriver()
    program = in_place(device)
    w, g = numbers(5, 3), numbers(5, 3)[::-1].copy()
    tensor, other = Tensor(device, w), Tensor(device, g)
    fixed = {"data": (tensor.address, True)}
    for outputs in ("host", "device"):
        with pytest.raises(BindError, match="w is donated and read-only, and a run overwrites it"):
            program.run({"w": Interface(tensor, **fixed), "g": other}, outputs=outputs)  # pyright: ignore
    moved = Tensor(device, w)
    moved.address, moved.shape = moved.address + 12, (4, 3)
    with pytest.raises(BindError, match=r"w is donated and starts at 0x.*c, which is no multiple of 16"):
        program.run({"w": moved, "g": Tensor(device, g[1:])}, outputs="device")  # pyright: ignore
    # What is read alone may be both.
    part = Tensor(device, g)
    part.address, part.shape = part.address + 12, (4, 3)
    state = Tensor(device, w[1:])
    for count in range(1, 4):
        given = Interface(part, data=(part.address, True))
        device.log.clear()
        program.run({"w": state, "g": given}, outputs="device")  # pyright: ignore
        assert device.log.count("cuMemcpyDtoDAsync_v2") == 1
        now = np.empty_like(w[1:])
        state.buffer.copy_to_host(now)
        np.testing.assert_allclose(now, w[1:] - 0.5 * count * g[1:], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [itself, Interface], ids=["dlpack", "interface"])
def test_an_array_that_is_not_aligned_is_copied_on_the_device(wrap: Callable[[Tensor], Any]) -> None:
    """Rows of 12 bytes without the first: a view that other libraries make without a thought."""
    device = SimulatedDriver()
    x, y = dovetail.input("x", f32["n", 3]), dovetail.input("y", f32["n", 3])
    program = dovetail.compile(Graph.of({"z": ops.tanh(x) + y}), target=target_of(device), cache="off")
    other = numbers(5, 3)
    for i in range(5):
        content = numbers(6, 3) + i
        part = Tensor(device, content)
        part.address, part.shape = part.address + 12, (5, 3)
        for outputs in ("device", "host"):
            device.log.clear()
            there = Tensor(device, other)
            given: Any = {"x": wrap(part), "y": there}
            made = program.run(given)["z"] if outputs == "host" else program.run(given, outputs="device")["z"].numpy()
            assert device.log.count("cuMemcpyDtoDAsync_v2") == 1
            np.testing.assert_allclose(made, np.tanh(content[1:]) + other, rtol=1e-5, atol=1e-6)
    before = len(device.memory)
    for _ in range(20):
        program.run({"x": wrap(part), "y": there}, outputs="device")  # pyright: ignore
    assert len(device.memory) <= before + 1, "copies go back to the pool"


def test_more_bytes_at_an_address_are_checked_again() -> None:
    device = SimulatedDriver()
    program = compiled(device)
    x, y = Tensor(device, numbers(3, 24)), Tensor(device, numbers(5, 24))
    part = Tensor(device, numbers(5, 24))
    part.shape = (3, 24)
    for _ in range(3):
        program.run({"x": x, "y": part}, outputs="device")  # pyright: ignore
        program.run({"x": Tensor(device, numbers(5, 24)), "y": y}, outputs="device")  # pyright: ignore
    x.shape = (5, 24)
    with pytest.raises(BindError, match=r"takes 480 bytes from .* on, and 288 are allocated there"):
        program.run({"x": x, "y": y}, outputs="device")  # pyright: ignore


@pytest.mark.slow
def test_tensors_are_released_with_their_last_reader() -> None:
    import gc
    import weakref

    device = SimulatedDriver()
    program = compiled(device)
    tensor = Tensor(device, numbers(3, 24))
    gone = weakref.ref(tensor)
    program.run({"x": tensor, "y": numbers(3, 24)})  # pyright: ignore
    del tensor
    gc.collect()
    assert gone() is None


@on_device
def test_torch_tensors_are_inputs_without_a_copy() -> None:
    torch: Any = pytest.importorskip("torch")
    x = dovetail.input("x", f32["n", 24])
    program = dovetail.compile(Graph.of({"z": ops.tanh(x)}), target=target_of(driver()), cache="off")
    given = torch.randn(5, 24, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late = given * 2
    found = program.run({"x": late}, outputs="device")["z"]
    assert torch.allclose(torch.from_dlpack(found), torch.tanh(given * 2), atol=1e-5)
    with pytest.raises(BindError, match="not dense"):
        program.run({"x": torch.randn(24, 5, device="cuda").t()})
