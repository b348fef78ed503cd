"""The CUDA driver through ctypes: modules, launches, streams and events of the first device.

Nothing is loaded before the first use. Without a driver or a device there is a typed error, which names the reason.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from dovetail.errors import UnsupportedError
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cuda.ptx_compiler import architecture_of, tensor_core_shapes, to_ptx

_LIBRARY = "libcuda.so.1"
MOST_BLOCKS = 2**31 - 1
"""Blocks of a grid along its first axis."""
_DYNAMIC_SHARED_BYTES = 8
"""The number of the function attribute for dynamic shared memory."""
_RELAXED = 2
"""A capture that other threads of the process do not disturb."""
_MULTIPROCESSORS, _L2_BYTES, _MAJOR, _MINOR, _SHARED_BYTES = 16, 38, 75, 76, 97
"""Numbers of device attributes."""

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuModuleLoadData": (c_void_p, c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (c_void_p, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_void_p, c_void_p, c_size_t, c_void_p),
    "cuMemAllocHost_v2": (c_void_p, c_size_t),
    "cuMemFreeHost": (c_void_p,),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, c_void_p),
    "cuGraphInstantiateWithFlags": (c_void_p, c_void_p, ctypes.c_ulonglong),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphDestroy": (c_void_p,),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "cuGetErrorString": (c_int, c_void_p),
}


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel that is loaded."""

    driver: Driver
    handle: int
    module: Module
    """What it was loaded from, which stays loaded as long as this."""

    def launch(
        self, grid: int, block: int, arguments: Sequence[int], *, shared_bytes: int = 0, stream: int = 0
    ) -> None:
        """Launch it with 64-bit arguments: addresses and sizes."""
        if grid == 0:
            return
        values = (ctypes.c_int64 * max(1, len(arguments)))(*arguments)
        first = ctypes.addressof(values)
        pointers = (c_void_p * max(1, len(arguments)))(*[first + 8 * i for i in range(len(arguments))])
        if grid > MOST_BLOCKS:
            raise UnsupportedError(
                f"a grid of {grid:,} blocks", hint=f"a launch has at most {MOST_BLOCKS:,}; split the inputs"
            )
        shape = (grid, 1, 1, block, 1, 1)
        self.driver.call("cuLaunchKernel", self.handle, *shape, shared_bytes, stream, pointers, None)


class Module:
    """Loaded PTX; the driver has compiled it for the device."""

    def __init__(self, driver: Driver, ptx: str) -> None:
        self.driver = driver
        self.handle = 0
        found = c_void_p()
        driver.call("cuModuleLoadData", ctypes.byref(found), ptx.encode() + b"\0")
        self.handle = found.value or 0

    def function(self, name: str) -> Function:
        found = c_void_p()
        self.driver.call("cuModuleGetFunction", ctypes.byref(found), self.handle, name.encode())
        return Function(self.driver, found.value or 0, self)

    def __del__(self) -> None:
        if self.handle:
            self.driver.quietly("cuModuleUnload", self.handle)


class Event:
    """A point in a stream, with its time."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        found = c_void_p()
        driver.call("cuEventCreate", ctypes.byref(found), 0)
        self.handle = found.value or 0

    def record(self, stream: int = 0) -> None:
        self.driver.call("cuEventRecord", self.handle, stream)

    def seconds_since(self, start: Event) -> float:
        """The time between two events; waits for this one."""
        self.driver.call("cuEventSynchronize", self.handle)
        found = c_float()
        self.driver.call("cuEventElapsedTime", ctypes.byref(found), start.handle, self.handle)
        return found.value / 1e3

    def __del__(self) -> None:
        self.driver.quietly("cuEventDestroy_v2", self.handle)


class GraphExec:
    """Work that one call enqueues, on a stream of its own that keeps the order with the default stream."""

    def __init__(self, driver: Driver, enqueue: Callable[[int], None]) -> None:
        self.driver = driver
        self.handle = self.stream = 0
        stream, graph, found = c_void_p(), c_void_p(), c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(stream), 0)
        self.stream = stream.value or 0
        driver.call("cuStreamBeginCapture_v2", self.stream, _RELAXED)
        try:
            enqueue(self.stream)
        finally:
            driver.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        driver.call("cuGraphInstantiateWithFlags", ctypes.byref(found), graph, 0)
        driver.call("cuGraphDestroy", graph)
        self.handle = found.value or 0

    def launch(self) -> None:
        self.driver.call("cuGraphLaunch", self.handle, self.stream)

    def synchronize(self) -> None:
        """Wait for the last launch."""
        self.driver.call("cuStreamSynchronize", self.stream)

    def __del__(self) -> None:
        if self.handle:
            self.driver.quietly("cuGraphExecDestroy", self.handle)
        if self.stream:
            self.driver.quietly("cuStreamDestroy_v2", self.stream)


class Replayable(Protocol):
    """Captured work."""

    def launch(self) -> None: ...

    def synchronize(self) -> None:
        """Wait for the last launch."""
        ...


class Launchable(Protocol):
    """A kernel that is ready to run."""

    def launch(
        self, grid: int, block: int, arguments: Sequence[int], *, shared_bytes: int = 0, stream: int = 0
    ) -> None:
        """Launch it with 64-bit arguments: addresses and sizes."""
        ...


class Device(Protocol):
    """What programs use of a driver; tests have one without a GPU."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> GpuDevice:
        """What kernels are selected by."""
        ...

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the driver's interface, by its name."""
        ...

    def quietly(self, name: str, *arguments: Any) -> None:
        """The same without errors."""
        ...

    def synchronize(self) -> None:
        """Wait for all that was launched."""
        ...

    def load(self, kernel: Kernel, text: str) -> Launchable:
        """Compile and load a kernel from its LLVM text."""
        ...

    def capture(self, enqueue: Callable[[int], None]) -> Replayable:
        """What a function enqueues on the stream that it is given, as a graph."""
        ...


class Driver:
    """The driver with the primary context of the first device, which other libraries of the process share."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as missing:
            raise UnsupportedError(f"there is no CUDA driver: {missing}", hint="install NVIDIA's driver") from None
        for name, kinds in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = kinds, c_int
        self._context = c_void_p()
        self._call("cuInit", 0)
        device = c_int()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self.device = device.value
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self.device)
        self.capability = (self._attribute(_MAJOR), self._attribute(_MINOR))
        self.multiprocessors = self._attribute(_MULTIPROCESSORS)
        architecture = architecture_of(self.capability)
        self.description = GpuDevice(
            architecture,
            self.multiprocessors,
            shared_bytes=self._attribute(_SHARED_BYTES),
            l2_bytes=self._attribute(_L2_BYTES),
            tensor_core_shapes=tensor_core_shapes(architecture),
        )

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), self.device)
        return text.value.decode()

    def _attribute(self, number: int) -> int:
        found = c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(found), number, self.device)
        return found.value

    def _call(self, name: str, *arguments: Any) -> None:
        status = int(getattr(self._library, name)(*arguments))
        if status:
            raise UnsupportedError(f"{name}: {self._reason(status)}", hint="see what `nvidia-smi` says of the device")

    def _reason(self, status: int) -> str:
        text = c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        return f"{(text.value or b'unknown error').decode()} ({status})"

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the driver in the context of the device; an error is raised as what the driver says."""
        self._call("cuCtxSetCurrent", self._context)
        self._call(name, *arguments)

    def quietly(self, name: str, *arguments: Any) -> None:
        """The same where an error helps no one: memory that is freed while the process ends."""
        self._library.cuCtxSetCurrent(self._context)
        getattr(self._library, name)(*arguments)

    def load(self, kernel: Kernel, text: str) -> Function:
        """Compile and load a kernel from its LLVM text."""
        found = Module(self, to_ptx(text, architecture_of(self.capability))).function(kernel.name)
        if kernel.launch is not None and kernel.launch.shared_bytes:
            self.call("cuFuncSetAttribute", found.handle, _DYNAMIC_SHARED_BYTES, kernel.launch.shared_bytes)
        return found

    def capture(self, enqueue: Callable[[int], None]) -> GraphExec:
        """What a function enqueues on the stream that it is given, as a graph."""
        return GraphExec(self, enqueue)

    def synchronize(self) -> None:
        """Wait for all that was launched."""
        self.call("cuCtxSynchronize")


@cache
def driver() -> Driver:
    """The driver of this process."""
    return Driver()


__all__ = [
    "MOST_BLOCKS", "Device", "Driver", "Event", "Function", "GraphExec", "Launchable", "Module", "Replayable", "driver",
]  # fmt: skip
