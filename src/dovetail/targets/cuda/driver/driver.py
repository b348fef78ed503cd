"""The CUDA driver and its first device: code and launches.

Nothing is loaded before the first use. Without a driver or a device there is a typed error, which names the reason.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_size_t, c_uint64, c_void_p
from math import inf
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.errors import DeviceError, DovetailError, UnsupportedError
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.timings.record import timings_of
from dovetail.targets.cuda.code.linker import linked
from dovetail.targets.cuda.driver.api import (
    OLDEST,
    OUT_OF_MEMORY,
    Functions,
    LaunchAttribute,
    LaunchConfig,
    error_of,
    library,
    too_old,
)
from dovetail.targets.cuda.driver.architectures import architecture_of, matrix_instructions, moves_registers
from dovetail.targets.cuda.driver.shortage import short_of
from dovetail.targets.cuda.driver.tensor_map import EncodedMap, MappedMatrix
from dovetail.targets.gpu.kernel import GpuKernel

__all__ = [
    "DEFAULT_STREAM",
    "MOST_BLOCKS",
    "Card",
    "Driver",
    "KernelFunction",
    "LoadedModule",
    "PreparedLaunch",
    "driver",
]


@dataclass(frozen=True, slots=True)
class Card:
    """The description of a GPU by its driver."""

    name: str
    capability: tuple[int, int]
    driver: str
    """The newest CUDA that the driver runs, such as 12.8."""
    multiprocessors: int
    memory_bytes: int
    clock_hertz: float
    memory_bytes_per_second: float
    """By the memory's clock and the width of its bus: what no program reaches."""
    l2_bytes: int
    shared_bytes: int


MOST_BLOCKS = 2**31 - 1
"""Blocks of a grid along its first axis."""
CLUSTER = 8
"""Blocks of a cluster that every device since Hopper can place."""
DEFAULT_STREAM = 0
"""All work with arrays that stay on the device is on it, in order."""
_DYNAMIC_SHARED_BYTES = 8
"""The number of the function attribute for dynamic shared memory."""
_COOPERATIVE, _PROGRAMMATIC_SERIALIZATION = 2, 6
"""Launch attributes: all blocks run at the same time; a kernel starts before the one before it has ended."""
_CLOCK_KHZ, _MULTIPROCESSORS, _MEMORY_CLOCK_KHZ, _BUS_BITS, _L2_BYTES = 13, 16, 36, 37, 38
_MAJOR, _MINOR, _SHARED_BYTES = 75, 76, 97
"""Numbers of device attributes."""
_HAS_COOPERATIVE, _SHARED_BY_PROCESSES = 95, 133
"""The same: cooperative launches, and whether MPS runs the kernels of several processes at a time."""
_MPS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
"""What the environment of a process has where MPS serves it."""
_MEMORY_TYPE, _ORDINAL = 2, 9
"""Numbers of pointer attributes."""
_DEVICE_MEMORY = 2


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """A kernel that is loaded."""

    driver: Driver
    handle: int
    module: LoadedModule
    """What it was loaded from, which stays loaded as long as this."""
    dependent: bool = False
    """Whether it may start while the kernel before it still runs: it waits for that one itself."""
    cooperative: bool = False
    """Whether its blocks wait for each other."""

    def blocks_at_once(self, block: int, shared_bytes: int) -> int:
        """Return the occupancy of the device: how many such blocks it holds at a time, if it runs nothing else."""
        count = c_int()
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self.driver.call(name, ctypes.byref(count), self.handle, block, shared_bytes)
        return count.value * self.driver.description.multiprocessors

    def launch(
        self, grid: int, block: int, arguments: Sequence[int], *, shared_bytes: int = 0, stream: int = DEFAULT_STREAM
    ) -> None:
        """Launch it with 64-bit arguments: addresses and sizes."""
        PreparedLaunch(self, grid, block, shared_bytes, arguments).enqueue(stream)


class PreparedLaunch:
    """A launch with its arguments in memory that the driver reads; they may change between launches."""

    __slots__ = ("block", "function", "grid", "maps", "pointers", "shared_bytes", "table", "words")

    is_fixed = False  # Whether the nodes of a graph keep what this had when it was captured.

    def __init__(
        self,
        function: KernelFunction,
        grid: int,
        block: int,
        shared_bytes: int,
        arguments: Sequence[int],
        matrices: Sequence[MappedMatrix] = (),
        table: range = range(0),
    ) -> None:
        """The arguments in `table` are one array for the kernel."""
        if grid > MOST_BLOCKS:
            raise UnsupportedError(
                f"a grid of {grid:,} blocks", hint=f"a launch has at most {MOST_BLOCKS:,}; split the inputs"
            )
        self.function, self.grid, self.block, self.shared_bytes = function, grid, block, shared_bytes
        self.table = table
        self.words = (ctypes.c_int64 * max(1, len(arguments)))(*arguments)
        self.maps = [EncodedMap(function.driver, matrix) for matrix in matrices]
        first = ctypes.addressof(self.words)
        own = [i for i in range(len(self.words)) if i not in table[1:]]
        places = [first + 8 * i for i in own] + [one.address for one in self.maps]
        self.pointers = (c_void_p * len(places))(*places)
        for argument in dict.fromkeys([one.matrix.argument for one in self.maps]):
            self.set(argument, self.words[argument])

    def set(self, argument: int, address: int) -> None:
        """Point to another address, and so the matrices that are there; 0 is none yet."""
        self.words[argument] = address
        for one in self.maps:
            if one.matrix.argument == argument and address and self.grid:
                one.encode(address)

    def copy(self) -> PreparedLaunch:
        """The same launch, with arguments of its own."""
        matrices = [one.matrix for one in self.maps]
        return PreparedLaunch(
            self.function, self.grid, self.block, self.shared_bytes, [*self.words], matrices, self.table
        )

    def enqueue(self, stream: int, *, in_order: bool = False) -> None:
        """Launch it; a grid without blocks is no launch."""
        if self.grid:
            self.enqueue_blocks(self.grid, stream, in_order=in_order)

    def enqueue_blocks(self, grid: int, stream: int, *, in_order: bool) -> None:
        """Launch it with a number of blocks; `in_order` it starts after all before it, as between two events."""
        shape, function = (grid, 1, 1, self.block, 1, 1, self.shared_bytes), self.function
        kinds = [_COOPERATIVE] if function.cooperative else []
        kinds += [_PROGRAMMATIC_SERIALIZATION] if function.dependent and not in_order else []
        if kinds:
            attributes = (LaunchAttribute * len(kinds))(*[LaunchAttribute(kind, 0, (c_int * 16)(1)) for kind in kinds])
            config = LaunchConfig(*shape, stream, attributes, len(kinds))
            function.driver.call("cuLaunchKernelEx", ctypes.byref(config), function.handle, self.pointers, None)
        else:
            function.driver.call("cuLaunchKernel", function.handle, *shape, stream, self.pointers, None)


class LoadedModule:
    """Loaded code: machine code, or PTX that the driver assembles for the device."""

    def __init__(self, driver: Driver, code: bytes) -> None:
        self.driver = driver
        self.handle = 0
        handle = c_void_p()
        driver.call("cuModuleLoadData", ctypes.byref(handle), code + b"\0")
        self.handle = handle.value or 0

    def function(
        self, name: str, shared_bytes: int = 0, *, dependent: bool = False, cooperative: bool = False
    ) -> KernelFunction:
        """A kernel by name, with leave to take dynamic shared memory, and to start early if it is `dependent`."""
        handle = c_void_p()
        self.driver.call("cuModuleGetFunction", ctypes.byref(handle), self.handle, name.encode())
        if shared_bytes:
            self.driver.call("cuFuncSetAttribute", handle.value or 0, _DYNAMIC_SHARED_BYTES, shared_bytes)
        return KernelFunction(self.driver, handle.value or 0, self, dependent, cooperative)

    def __del__(self) -> None:
        if self.handle:
            self.driver.quietly("cuModuleUnload", self.handle)


class Driver:
    """The driver with the primary context of the first device, which other libraries of the process share."""

    def __init__(self, functions: Functions | None = None, *, fresh: bool = False) -> None:
        """`fresh` gives up the context that the process has, after a device was lost."""
        self.functions = library() if functions is None else functions
        self.process = os.getpid()
        self.lost: DeviceError | None = None
        """Why the context cannot be used any more."""
        self.stopped: c_uint64 | None = None
        """A word of pinned memory, once kernels have blocks that wait for each other: where one waited in vain."""
        self.context = c_void_p()
        """The primary context of the device."""
        self._call("cuInit", 0)
        self.version = self._number("cuDriverGetVersion")
        if self.version < OLDEST:
            raise too_old(f"it runs CUDA {self._dotted()}")
        if not self._number("cuDeviceGetCount"):
            raise error_of("cuDeviceGetCount", 100, "no device")
        self.device = self._number("cuDeviceGet", 0)
        if fresh:
            self._call("cuDevicePrimaryCtxReset_v2", self.device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.capability = (self._attribute(_MAJOR), self._attribute(_MINOR))
        self.architecture = architecture_of(self.capability)
        self.traced = False
        """Whether persistent kernels keep when their blocks come to each of their parts: for benchmarks."""
        timings = timings_of(self.architecture)
        tensor_clock = timings.card.tensor_hertz / timings.card.hertz
        self.description = GpuDevice(
            self.architecture,
            self._attribute(_MULTIPROCESSORS),
            shared_bytes=self._attribute(_SHARED_BYTES),
            l2_bytes=self._attribute(_L2_BYTES),
            hertz=1e3 * self._attribute(_CLOCK_KHZ),
            tensor_hertz=1e3 * self._attribute(_CLOCK_KHZ) * tensor_clock if self.capability == (9, 0) else 0.0,
            matrix_instructions=matrix_instructions(self.architecture),
            dependent_intensity=timings.launches.dependent_intensity if self._has_dependent_launches else 0.0,
            # sm_89 has them from PTX 8.1 on, which is newer than the oldest driver.
            converts_fp8=self.capability >= (9, 0),
            cluster=CLUSTER if self.capability >= (9, 0) else 0,
            # With clusters, what adds up parts is chosen with all kernels of a program (`SplitProducts`).
            sum_cycles=inf if self.capability >= (9, 0) else timings.gemm.sum_launch,
            bulk_copies=self.capability >= (9, 0),
            copying_warp=moves_registers(self.architecture),
            bytes_per_cycle=self._memory_rate / (1e3 * self._attribute(_CLOCK_KHZ)) / self._attribute(_MULTIPROCESSORS),
            evict_first=self.capability >= (9, 0),
            pause=timings.launches.pause if self.capability >= (9, 0) else 0,
            cooperative="auto" if self._runs_whole_grids else "off",
        )

    @property
    def _memory_rate(self) -> float:
        """Bytes a second by the clock of the memory, which transfers at both of its edges, and the width of its bus."""
        return 2e3 * self._attribute(_MEMORY_CLOCK_KHZ) * self._attribute(_BUS_BITS) / 8

    @property
    def _runs_whole_grids(self) -> bool:
        """Whether blocks of a grid may wait for each other: not where other processes have blocks at the same time."""
        shared = c_int()
        # Drivers before 12.3 do not know the attribute.
        status = self.functions["cuDeviceGetAttribute"](ctypes.byref(shared), _SHARED_BY_PROCESSES, self.device)
        is_shared = bool(shared.value) if status == 0 else any(name in os.environ for name in _MPS)
        return bool(self._attribute(_HAS_COOPERATIVE)) and not is_shared

    @property
    def _has_dependent_launches(self) -> bool:
        """Whether the device has them since Hopper, and the driver captures them in graphs."""
        return self.capability >= (9, 0) and "cuStreamGetCaptureInfo_v3" in self.functions

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), self.device)
        return text.value.decode()

    @property
    def card(self) -> Card:
        """Return the driver's description of the device."""
        memory = c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), self.device)
        return Card(
            self.name,
            self.capability,
            self._dotted(),
            self.description.multiprocessors,
            memory.value,
            self.description.hertz,
            self._memory_rate,
            self.description.l2_bytes,
            self.description.shared_bytes,
        )

    def _dotted(self) -> str:
        return f"{self.version // 1000}.{self.version % 1000 // 10}"

    def _number(self, name: str, *arguments: int) -> int:
        number = c_int()
        self._call(name, ctypes.byref(number), *arguments)
        return number.value

    def _attribute(self, number: int) -> int:
        return self._number("cuDeviceGetAttribute", number, self.device)

    def _call(self, name: str, *arguments: Any) -> None:
        status = self.functions[name](*arguments)
        if status:
            raise self.error(name, status)

    def error(self, name: str, status: int) -> DovetailError:
        """The error of a function that gave an error code, in the driver's words."""
        text = c_char_p()
        self.functions["cuGetErrorString"](status, ctypes.byref(text))
        if status == OUT_OF_MEMORY:
            return short_of(name, self.functions)
        stopped = 0 if self.stopped is None else self.stopped.value
        error = error_of(name, status, (text.value or b"unknown error").decode(), stopped)
        if isinstance(error, DeviceError) and error.is_lost:
            self.lost = error
        return error

    def status_of(self, name: str, *arguments: Any) -> int:
        """The error code of a function of the driver in the context of the device; 0 where it succeeds."""
        if self.lost is not None:
            raise self.lost
        self.functions["cuCtxSetCurrent"](self.context)
        return self.functions[name](*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the driver in the context of the device; an error is raised as what the driver says."""
        status = self.status_of(name, *arguments)
        if status:
            raise self.error(name, status)

    def quietly(self, name: str, *arguments: Any) -> None:
        """The same where an error helps no one: memory that is freed while the process ends, or with its device."""
        if self.lost is None and self.process == os.getpid():
            self.functions["cuCtxSetCurrent"](self.context)
            self.functions[name](*arguments)

    def free_memory(self) -> tuple[int, int]:
        """The bytes of the device that are free, and all of them."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def stop_word(self) -> int:
        """The address of the word in which a kernel says where it stopped; it stays as long as the context."""
        if self.stopped is None:
            memory = c_void_p()
            self.call("cuMemAllocHost_v2", ctypes.byref(memory), ctypes.sizeof(c_uint64))
            self.stopped = c_uint64.from_address(memory.value or 0)
            self.stopped.value = 0
        return ctypes.addressof(self.stopped)

    def device_of(self, address: int) -> int | None:
        """The index of the device whose memory an address is in; None where it is no memory of a device."""
        answer = c_int()
        if self.status_of("cuPointerGetAttribute", ctypes.byref(answer), _MEMORY_TYPE, address):
            return None
        if answer.value != _DEVICE_MEMORY:
            return None
        self.call("cuPointerGetAttribute", ctypes.byref(answer), _ORDINAL, address)
        return answer.value

    def ptx(self, kernel: GpuKernel) -> str:
        """A kernel as PTX for the device: LLVM compiles it, and is loaded for that."""
        from dovetail.targets.cuda.code.ptx_compiler import to_ptx

        return to_ptx(kernel.text, self.architecture)

    def assembled(self, ptx: str) -> bytes:
        """PTX as machine code of the device, by the driver's linker."""
        return linked(self, ptx)

    def synchronize(self) -> None:
        """Wait for all that was launched."""
        self.call("cuCtxSynchronize")

    def wait_for(self, stream: int) -> None:
        """Wait for all that was enqueued on a stream."""
        self.call("cuStreamSynchronize", stream)


class _Current:
    """The driver of this process: another one after its device was lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._driver: Driver | None = None

    def __call__(self) -> Driver:
        with self._lock:
            driver = self._driver
            if driver is not None and driver.process != os.getpid():
                raise UnsupportedError(
                    "CUDA does not work in a process that was forked from one that uses it",
                    hint='start processes with multiprocessing.get_context("spawn")',
                )
            if driver is None:
                self._driver = driver = Driver()
            elif driver.lost is not None:
                self._driver = driver = self._renewed()
            return driver

    @staticmethod
    def _renewed() -> Driver:
        """A driver with a new context after a device was lost; not every driver gives one to the same process."""
        try:
            return Driver(fresh=True)
        except DeviceError as error:
            raise DeviceError(
                f"the device was lost, and this process gets no new context: {error.message}",
                is_lost=True,
                hint="start a new process; other targets go on in this one",
            ) from None


driver = _Current()
"""Gives the driver of this process."""
