"""A driver without a GPU: memory of the device is bytes of the host at addresses of its own, kernels run in lockstep.

It judges what programs do with memory: allocations and frees, copies, arguments of launches and their order. An address
outside of what is allocated is an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dovetail.ir.dim import Dim, Size
from dovetail.ir.literal import Array
from dovetail.kernels.gpu.tile import H200
from dovetail.kernels.loops.ir import Kernel
from tests.targets.cuda.lockstep import Machine

_FIRST, _APART = 1 << 40, 1 << 20
_CAPTURING = 7
"""The stream of a capture."""


class _SizedMachine(Machine):
    """A machine that is given sizes as a launch gives them: by argument."""

    def __init__(
        self, kernel: Kernel, buffers: dict[str, tuple[Array, int]], grid: int, numbers: dict[Dim, int]
    ) -> None:
        self.numbers = numbers
        self.launched = grid
        super().__init__(kernel, buffers, {})

    def size(self, size: Size) -> int:
        assert self.kernel.launch is not None
        if size is self.kernel.launch.grid:
            return self.launched
        return size if isinstance(size, int) else self.numbers[size]


class SimulatedFunction:
    """A kernel of the simulated device."""

    def __init__(self, device: SimulatedDriver, kernel: Kernel) -> None:
        self.device, self.kernel = device, kernel

    def launch(
        self, grid: int, block: int, arguments: Sequence[int], *, shared_bytes: int = 0, stream: int = 0
    ) -> None:
        device = self.device
        if stream and device.recording is not None:
            device.recording.append(lambda: self.launch(grid, block, arguments, shared_bytes=shared_bytes))
            return
        kernel = self.kernel
        assert kernel.launch is not None and block == kernel.launch.block
        assert len(arguments) == len(kernel.pointers) + len(kernel.sizes)
        device.log.append(f"launch {kernel.name}")
        buffers = {name: device.found(at) for name, at in zip(kernel.pointers, arguments, strict=False)}
        numbers = dict(zip(kernel.sizes, arguments[len(kernel.pointers) :], strict=True))
        _SizedMachine(kernel, buffers, grid, numbers).run()


class SimulatedGraph:
    """What was enqueued while it was captured."""

    def __init__(self, device: SimulatedDriver, work: Sequence[Callable[[], None]]) -> None:
        self.device, self.work = device, work

    def launch(self) -> None:
        self.device.log.append("graph")
        for one in self.work:
            one()

    def synchronize(self) -> None:
        self.device.log.append("synchronize graph")


class SimulatedDriver:
    """Has the functions of the driver that programs call."""

    name = "simulated"
    description = H200

    def __init__(self) -> None:
        self.memory: dict[int, Array] = {}
        self.log: list[str] = []
        self.next = _FIRST
        self.recording: list[Callable[[], None]] | None = None
        """What is enqueued while a graph is captured."""
        self.pinned: dict[int, Array] = {}

    def capture(self, enqueue: Callable[[int], None]) -> SimulatedGraph:
        assert self.recording is None
        self.recording = []
        try:
            enqueue(_CAPTURING)
            return SimulatedGraph(self, self.recording)
        finally:
            self.recording = None

    def found(self, address: int) -> tuple[Array, int]:
        """The bytes that hold an address, and its offset in them."""
        for start, content in self.memory.items():
            if start <= address < start + max(1, len(content)):
                return content, address - start
        raise AssertionError(f"{address:#x} is not allocated")

    def part(self, address: int, count: int) -> Array:
        content, at = self.found(address)
        assert at + count <= len(content), "a copy ends inside of an allocation"
        return content[at : at + count]

    def call(self, name: str, *arguments: Any) -> None:
        if self.recording is not None and name.startswith("cuMemcpy"):
            assert arguments[-1] == _CAPTURING, "copies of a captured run are on its stream"
            self.recording.append(lambda: self.call(name, *arguments))
            return
        self.log.append(name)
        match name, arguments:
            case "cuMemAlloc_v2", (pointer, count):
                self.memory[self.next] = np.full(count, 0xA5, np.uint8)
                ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = self.next
                self.next += -(-count // _APART) * _APART + _APART
            case "cuMemAllocHost_v2", (pointer, count):
                made = np.full(count, 0xA5, np.uint8)
                self.pinned[made.ctypes.data] = made
                ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = made.ctypes.data
            case "cuMemFreeHost", (address,):
                del self.pinned[address]
            case "cuMemFree_v2", (address,):
                del self.memory[address]
            case "cuMemcpyHtoDAsync_v2", (target, source, count, _):
                self.part(target, count)[:] = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(source))
            case "cuMemcpyDtoHAsync_v2", (target, source, count, _):
                np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(target))[:] = self.part(source, count)
            case "cuMemcpyDtoDAsync_v2", (target, source, count, _):
                self.part(target, count)[:] = self.part(source, count).copy()
            case _:
                raise AssertionError(f"{name} is not simulated")

    def quietly(self, name: str, *arguments: Any) -> None:
        self.call(name, *arguments)

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def load(self, kernel: Kernel, text: str) -> SimulatedFunction:
        assert f"@{kernel.name}(" in text
        return SimulatedFunction(self, kernel)


__all__ = ["SimulatedDriver"]
