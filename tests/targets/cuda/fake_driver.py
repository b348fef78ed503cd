"""The functions of the CUDA driver without a GPU. Kernels run on the machine in NumPy, as late as the driver allows.

Work waits in the queue of its stream until the host waits for it, so that a copy or an overwrite that comes too early
gives wrong results. An address that is not allocated is what it is on a device: an error that every later call repeats.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dovetail.kernels.loops.ir import Kernel, TensorMap, Traversal
from dovetail.targets.cuda.driver.api import LATER, NAMES, KernelNodeParams, LaunchConfig
from tests.targets.cuda.fake_graph import Graph, Node, SizedMachine
from tests.targets.cuda.fake_memory import INVALID_VALUE, FakeMemory, IllegalAddress, number_of

CAPACITY = 1 << 30
INVALID_IMAGE, ILLEGAL_ADDRESS = 200, 700
ATTRIBUTES = {
    13: 1_980_000, 16: 132, 36: 3_201_000, 37: 6144, 38: 50 << 20, 75: 9, 76: 0, 95: 1, 97: 227 << 10, 133: 0,
}  # fmt: skip
"""Those of an H200."""
MAP_WORDS = 16
"""Of a tensor map, as this library writes it: address, lines of a box, rank, three words of a traversal, up to five
sizes and four strides."""
_SECONDS = 1e-6
"""Of a launch."""


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def packed(corner: Sequence[int]) -> int:
    """A number for each spatial axis, as one word."""
    return sum([(n & 0xFFFF) << 16 * i for i, n in enumerate(corner)])


def unpacked(word: int, axes: int) -> tuple[int, ...]:
    return tuple([ctypes.c_int16(word >> 16 * i & 0xFFFF).value for i in range(axes)])


def decoded(pointer: str, words: Sequence[int]) -> tuple[int, TensorMap]:
    """The address of a tensor map, and the map, whose offset is not known."""
    address, lines, rank, *corners = words[:6]
    sizes, strides = tuple(words[6 : 6 + rank]), tuple(words[6 + rank : 5 + 2 * rank])
    by = Traversal(*(unpacked(word, rank - 2) for word in corners)) if corners[2] else None
    return address, TensorMap(pointer, 0, sizes, strides, lines, by)


class FakeLibrary(FakeMemory, Mapping[str, Callable[..., int]]):
    """The driver's functions by name; each gives an error code."""

    def __init__(self, capacity: int = CAPACITY, version: int = 12_080, devices: int = 1) -> None:
        super().__init__(capacity)
        self.version, self.devices = version, devices
        self.kernels: dict[str, Kernel] = {}
        """The kernels that PTX and machine code name by their digests."""
        self.log: list[str] = []
        self.fail: dict[str, int] = {}
        """Functions that fail, and with which error code."""
        self.attributes = dict(ATTRIBUTES)
        self.blocks_at_once = 1
        """Blocks of a kernel that one multiprocessor holds."""
        self.lock = threading.RLock()
        """Threads may call it, as they may a driver."""
        self.sticky = 0
        self.clock = 0.0
        self.seconds: dict[str, float] = {}
        """What launches of kernels take, by name, where it is not what others take."""
        self.next = 0
        self.objects: dict[int, Any] = {}
        """Modules, functions, graphs, events, streams and linkers by handle."""
        self.recorded: dict[int, tuple[int, list[bool]]] = {}
        """The stream of an event that was recorded, and whether the device has passed it."""
        self.kept: list[Any] = []

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __getitem__(self, name: str) -> Callable[..., int]:
        def called(*arguments: Any) -> int:
            with self.lock:
                return self._called(name, arguments)

        return called

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in NAMES if self.version >= 12_030 or name not in LATER])

    def __len__(self) -> int:
        return len(NAMES)

    def _called(self, name: str, arguments: tuple[Any, ...]) -> int:
        assert name in NAMES, f"{name} has no signature"
        if name == "cuGetErrorString":
            arguments[1]._obj.value = b"fake error %d" % arguments[0]
            return 0
        if name != "cuCtxSetCurrent":
            self.log.append(name)
        if name in self.fail:
            return self.fail[name]
        if self.sticky and not name.startswith(("cuInit", "cuDevice", "cuDriver")):
            return self.sticky
        try:
            return getattr(self, f"_{name}")(*arguments) or 0
        except IllegalAddress:
            self.sticky = ILLEGAL_ADDRESS
            return self.sticky

    def _handle(self, thing: Any) -> int:
        self.next += 8
        self.objects[self.next] = thing
        return self.next

    # Devices and contexts

    def _cuInit(self, _: int) -> None: ...

    def _cuDriverGetVersion(self, found: Any) -> None:
        found._obj.value = self.version

    def _cuDeviceGetCount(self, found: Any) -> None:
        found._obj.value = self.devices

    def _cuDeviceGet(self, found: Any, index: int) -> None:
        found._obj.value = index

    def _cuDeviceGetName(self, text: Any, _size: int, _device: int) -> None:
        text.value = b"NVIDIA Fake"

    def _cuDeviceGetAttribute(self, found: Any, number: int, _device: int) -> int:
        if number not in self.attributes:
            return INVALID_VALUE
        found._obj.value = self.attributes[number]
        return 0

    def _cuDeviceTotalMem_v2(self, found: Any, _device: int) -> None:
        found._obj.value = self.capacity

    def _cuDevicePrimaryCtxRetain(self, found: Any, _device: int) -> None:
        found._obj.value = 77

    def _cuDevicePrimaryCtxReset_v2(self, _device: int) -> None:
        self.sticky = 0
        self._reset()

    def _cuCtxSetCurrent(self, context: Any) -> None:
        assert number_of(context) == 77, "the context of the device"

    # Code

    def _cuLinkCreate_v2(self, _count: int, _options: Any, _values: Any, found: Any) -> None:
        found._obj.value = self._handle(b"")

    def _cuLinkAddData_v2(self, link: Any, kind: int, text: bytes, size: int, *_: Any) -> int:
        assert kind == 1 and size == len(text)
        if b".entry" not in text:
            return 218
        self.objects[number_of(link)] = b"\x7fELF" + text.partition(b"\n")[0].removeprefix(b"// ")
        return 0

    def _cuLinkComplete(self, link: Any, code: Any, size: Any) -> None:
        made = ctypes.create_string_buffer(self.objects[number_of(link)])
        self.kept.append(made)
        code._obj.value, size._obj.value = ctypes.addressof(made), len(made) - 1

    def _cuLinkDestroy(self, link: Any) -> None:
        del self.objects[number_of(link)]

    def _cuModuleLoadData(self, found: Any, code: bytes) -> int:
        name = (
            code.rstrip(b"\0")
            .partition(b"\n")[0]
            .removeprefix(b"\x7fELF")
            .removeprefix(b"// ")
            .decode(errors="replace")
        )
        if name not in self.kernels:
            return INVALID_IMAGE
        found._obj.value = self._handle(self.kernels[name])
        return 0

    def _cuModuleUnload(self, module: int) -> None:
        del self.objects[module]

    def _cuModuleGetFunction(self, found: Any, module: int, name: bytes) -> int:
        kernel = self.objects[module]
        found._obj.value = self._handle(kernel)
        return 0 if kernel.name == name.decode() else 500

    def _cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> None:
        assert attribute == 8 and 0 < value <= ATTRIBUTES[97] and isinstance(self.objects[function], Kernel)

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(self, found: Any, function: int, threads: int, _: int) -> None:
        assert threads > 0 and isinstance(self.objects[function], Kernel)
        found._obj.value = self.blocks_at_once

    # Launches, streams and graphs

    def _run(self, node: Node) -> None:
        self.clock += _SECONDS if node.kernel is None else self.seconds.get(node.kernel.name, _SECONDS)
        if node.work is not None:
            node.work()
            return
        if node.kernel is None:
            self.objects[node.event] = self.clock
            return
        kernel = node.kernel
        self.log.append(f"launch {kernel.name}")
        buffers = {name: self.found(at) for name, at in zip(kernel.pointers, node.arguments, strict=False)}
        numbers = dict(zip(kernel.sizes, node.arguments[len(kernel.pointers) :], strict=True))
        SizedMachine(kernel, buffers, node.grid, numbers, node.maps).run()

    def _node(self, function: Any, grid: int, block: int, shared: int, pointers: int) -> Node:
        kernel: Kernel = self.objects[number_of(function)]
        assert kernel.launch is not None and block == kernel.launch.block and shared == kernel.launch.shared_bytes
        assert grid > 0, "a grid has a block"
        table = len(kernel.table)
        count = len(kernel.pointers) + len(kernel.sizes) - max(0, table - 1)
        places = (ctypes.c_void_p * (count + len(kernel.maps))).from_address(pointers)
        lengths = [table if table and i == kernel.table.start else 1 for i in range(count)]
        words = [(ctypes.c_int64 * n).from_address(at or 0) for at, n in zip(places, lengths, strict=False)]
        arguments = tuple([word for several in words for word in several])
        maps: list[TensorMap] = []
        for one, at in zip(kernel.maps, places[count:], strict=True):
            base = arguments[kernel.pointers.index(one.pointer)]
            address, found = decoded(one.pointer, [*(ctypes.c_int64 * MAP_WORDS).from_address(at or 0)])
            assert self.found(address)[0] is self.found(base)[0], "a matrix moves with its pointer"
            maps.append(replace(found, offset=address - base))
        return Node(kernel, grid, arguments, tuple(maps))

    def _cuTensorMapEncodeTiled(self, target: int, *given: Any) -> int:
        dtype, rank, address, shape, strides, box, steps, *layout = given
        assert (dtype, rank, tuple(steps), layout) == (1, 2, (1, 1), [0, 3, 3, 0])
        assert box[0] == 64 and 1 <= box[1] <= 256
        return self._encoded(target, address, shape, strides, box[1])

    def _cuTensorMapEncodeIm2col(self, target: int, *given: Any) -> int:
        dtype, rank, address, shape, strides, lower, upper, channels, pixels, steps, *layout = given
        half = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}[rank]
        assert (dtype, channels, layout) == (1, 64, [0, 3, 3, 0]) and 1 <= pixels <= 1024
        assert steps[0] == steps[rank - 1] == 1 and all(1 <= step <= 8 for step in steps)
        assert all(-half <= corner < half for corner in (*lower, *upper))
        assert all(a <= n - 1 + b for a, n, b in zip(lower, [*shape][1:-1], upper, strict=True)), "a box has pixels"
        return self._encoded(target, address, shape, strides, pixels, (tuple(lower), tuple(upper), tuple(steps)[1:-1]))

    def _encoded(
        self,
        target: int,
        address: int,
        shape: Sequence[int],
        strides: Sequence[int],
        lines: int,
        traversal: tuple[Sequence[int], ...] = ((), (), ()),
    ) -> int:
        assert target % 64 == 0 and min(shape) > 0
        if address % 16 or any(stride % 16 or not 0 < stride < 1 << 40 for stride in strides):
            return INVALID_VALUE
        words = (address, lines, len(shape), *map(packed, traversal), *shape, *strides)
        (ctypes.c_int64 * MAP_WORDS).from_address(target)[: len(words)] = words
        return 0

    def add(self, stream: int, node: Node) -> None:
        """Enqueue what a node does, or add it to the graph that is captured."""
        graph = self.capturing.get(stream)
        if graph is None:
            self._enqueue(stream, lambda: self._run(node))
        else:
            graph.nodes[self._handle(None)] = node

    def _cuLaunchKernel(self, function: int, x: int, y: int, z: int, bx: int, by: int, bz: int, *rest: Any) -> None:
        shared, stream, pointers, extra = rest
        assert (y, z, by, bz, extra) == (1, 1, 1, 1, None)
        self.add(number_of(stream), self._node(function, x, bx, shared, ctypes.addressof(pointers)))

    def _cuStreamCreate(self, found: Any, flags: int) -> None:
        found._obj.value = self._handle("stream" if flags else "blocking stream")

    def _cuStreamDestroy_v2(self, stream: Any) -> None:
        self._drain(number_of(stream))
        assert self.objects.pop(number_of(stream)).endswith("stream")

    def _cuStreamBeginCapture_v2(self, stream: Any, _mode: int) -> None:
        assert number_of(stream), "the default stream is not captured"
        assert self.objects[number_of(stream)] == "stream", "a thread that uses the default stream would wait for it"
        self.capturing[number_of(stream)] = Graph()

    def _cuLaunchKernelEx(self, config: Any, function: int, pointers: Any, extra: Any) -> None:
        given: LaunchConfig = config._obj
        attributes = given.attributes[: given.attribute_count]
        assert all(one.value[0] == 1 for one in attributes)
        kernel: Kernel = self.objects[number_of(function)]
        assert kernel.launch is not None
        wanted = [2] * kernel.launch.cooperative + [6] * kernel.launch.dependent
        assert [one.id for one in attributes] in (wanted, [n for n in wanted if n == 2])
        shape = (given.grid_x, given.grid_y, given.grid_z, given.block_x, given.block_y, given.block_z)
        self._cuLaunchKernel(function, *shape, given.shared_bytes, given.stream or 0, pointers, extra)

    def _cuStreamGetCaptureInfo_v3(self, stream: int, status: Any, i: Any, g: Any, nodes: Any, _: Any, n: Any) -> None:
        self._cuStreamGetCaptureInfo_v2(stream, status, i, g, nodes, n)

    def _cuStreamGetCaptureInfo_v2(
        self, stream: int, status: Any, _id: Any, _graph: Any, nodes: Any, count: Any
    ) -> None:
        last = list(self.capturing[stream].nodes)[-1]
        array = (ctypes.c_void_p * 1)(last)
        self.kept.append(array)
        pointer = ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p))
        ctypes.memmove(nodes, ctypes.byref(pointer), 8)
        status._obj.value, count._obj.value = 1, 1

    def _cuStreamEndCapture(self, stream: Any, found: Any) -> None:
        found._obj.value = self._handle(self.capturing.pop(number_of(stream)))

    def _cuGraphInstantiateWithFlags(self, found: Any, graph: int, _flags: int) -> None:
        found._obj.value = self._handle(Graph(dict(self.objects[graph].nodes)))

    def _cuGraphExecKernelNodeSetParams_v2(self, graph: int, node: int, params: Any) -> int:
        given: KernelNodeParams = params._obj
        was = self.objects[graph].nodes[node]
        made = self._node(given.function, given.grid_x, given.block_x, given.shared_bytes, given.arguments or 0)
        assert made.kernel is was.kernel, "a node keeps its function"
        self.objects[graph].nodes[node] = made
        return 0

    def _cuGraphNodeSetEnabled(self, graph: int, node: int, enabled: int) -> None:
        disabled = self.objects[graph].disabled
        (disabled.discard if enabled else disabled.add)(node)

    def _cuGraphLaunch(self, graph: int, stream: int) -> None:
        found: Graph = self.objects[graph]
        for handle, node in found.nodes.items():
            if handle not in found.disabled:
                self._enqueue(stream, lambda node=node: self._run(node))

    def _cuGraphExecDestroy(self, graph: int) -> None:
        del self.objects[graph]

    def _cuGraphDestroy(self, graph: int) -> None:
        del self.objects[graph]

    def _cuEventCreate(self, found: Any, _flags: int) -> None:
        found._obj.value = self._handle(0.0)

    def _cuEventDestroy_v2(self, event: int) -> None:
        del self.objects[event]
        self.recorded.pop(event, None)

    def _cuEventRecord(self, event: int, stream: int) -> None:
        assert stream not in self.capturing, "it would not be a node"
        assert stream == 0 or self.objects[stream].endswith("stream"), "a stream that is there"
        reached = list[bool]()
        self.recorded[event] = stream, reached

        def pass_it() -> None:
            reached.append(True)
            if event in self.objects:
                self._run(Node(None, event=event))

        self._enqueue(stream, pass_it)

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        assert flags == 0 and (stream == 0 or self.objects[stream].endswith("stream")), "a stream that is there"
        # As a driver does, it waits for the last record before this call, whatever becomes of the event.
        if event in self.recorded:
            self._enqueue(stream, lambda at=self.recorded[event]: self._drain_until(*at))

    def _cuEventRecordWithFlags(self, event: int, stream: int, flags: int) -> None:
        assert flags == 1
        self.add(stream, Node(None, event=event))

    def _cuEventSynchronize(self, event: int) -> None:
        if event in self.recorded:
            self._drain(*self.recorded[event])
        else:  # a graph may record it
            self._cuCtxSynchronize()

    def _cuEventElapsedTime(self, found: Any, start: int, end: int) -> None:
        found._obj.value = 1e3 * (self.objects[end] - self.objects[start])


__all__ = ["FakeLibrary", "digest"]
