"""Memory, streams and copies of the fake driver: work waits in the queue of its stream until the host waits for it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dovetail.ir.literal import Array
from tests.targets.cuda.fake_graph import Graph

FIRST, APART = 1 << 40, 1 << 20
INVALID_VALUE, OUT_OF_MEMORY = 1, 2


class IllegalAddress(Exception):
    """A kernel or a copy leaves what is allocated."""


class FakeMemory:
    """What is allocated, and what each stream has still to do."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.end = FIRST
        self.draining = False
        self.late: list[Callable[[], object]] = []
        """Memory to be freed after the work that runs."""
        self.capturing: dict[int, Graph] = {}
        self.others: dict[int, Array] = {}
        """Memory of another card."""
        self._reset()

    def _reset(self) -> None:
        self.memory: dict[int, Array] = {}
        self.pinned: dict[int, Array] = {}
        self.queues: dict[int, list[Callable[[], None]]] = {}

    def _drain(self, stream: int, reached: Sequence[bool] = ()) -> None:
        """Run what is in a queue, or what comes before a point. The collector may free memory meanwhile, which then
        waits for the kernel at work."""
        if self.draining:
            return
        self.draining = True
        try:
            self._drain_until(stream, reached)
        finally:
            self.draining = False
            while self.late:
                self.late.pop()()

    def _cuCtxSynchronize(self) -> None:
        for stream in list(self.queues):
            self._drain(stream)

    def _cuStreamSynchronize(self, stream: Any) -> None:
        self._drain(number_of(stream))

    def _drain_until(self, stream: int, reached: Sequence[bool]) -> None:
        """Run what is in a queue up to a point of it, which another stream may wait for."""
        queue = self.queues.get(stream, [])
        while queue and not reached:
            queue.pop(0)()

    def _enqueue(self, stream: int, work: Callable[[], None]) -> None:
        self.queues.setdefault(stream, []).append(work)

    def found(self, address: int) -> tuple[Array, int]:
        """The bytes that hold an address, and its offset in them."""
        for start, content in (*self.memory.items(), *self.pinned.items()):
            if start <= address < start + max(1, len(content)):
                return content, address - start
        raise IllegalAddress

    def part(self, address: int, count: int) -> Array:
        content, at = self.found(address)
        if at + count > len(content):
            raise IllegalAddress
        return content[at : at + count]

    def _cuMemAlloc_v2(self, pointer: Any, count: int) -> int:
        if count + sum(map(len, self.memory.values())) > self.capacity:
            return OUT_OF_MEMORY
        address = self.end
        self.end += -(-count // APART) * APART + APART
        self.memory[address] = np.full(count, 0xA5, np.uint8)
        pointer._obj.value = address
        return 0

    def _cuMemFree_v2(self, address: Any) -> int:
        if self.draining:
            self.late.append(lambda: self._cuMemFree_v2(address))
            return 0
        self._cuCtxSynchronize()
        return 0 if self.memory.pop(number_of(address), None) is not None else INVALID_VALUE

    def _cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        free._obj.value = self.capacity - sum(map(len, self.memory.values()))
        total._obj.value = self.capacity

    def _cuMemAllocHost_v2(self, pointer: Any, count: int) -> None:
        made = np.full(count, 0xA5, np.uint8)
        self.pinned[made.ctypes.data] = made
        pointer._obj.value = made.ctypes.data

    def _cuMemFreeHost(self, address: int) -> None:
        if self.draining:
            self.late.append(lambda: self._cuMemFreeHost(address))
            return
        self._cuCtxSynchronize()
        del self.pinned[address]

    def _cuMemcpyHtoDAsync_v2(self, target: int, source: int, count: int, stream: int) -> None:
        assert stream not in self.capturing
        if self._is_pinned(source):
            self._enqueue(stream, lambda: self._write(target, self.part(source, count)))
        else:
            content = _host(source, count).copy()
            self._enqueue(stream, lambda: self._write(target, content))

    def _write(self, target: int, content: Array) -> None:
        self.part(target, len(content))[:] = content

    def _cuMemcpyDtoHAsync_v2(self, target: int, source: int, count: int, stream: int) -> None:
        if self._is_pinned(target):
            self._enqueue(stream, lambda: self._write(target, self.part(source, count)))
        else:
            self._drain(stream)
            _host(target, count)[:] = self.part(source, count)

    def _cuMemcpyDtoDAsync_v2(self, target: int, source: int, count: int, stream: int) -> None:
        self._enqueue(stream, lambda: self._write(target, self.part(source, count).copy()))

    def _is_pinned(self, address: int) -> bool:
        return any(start <= address < start + len(content) for start, content in self.pinned.items())

    def _cuPointerGetAttribute(self, found: Any, attribute: int, address: int) -> int:
        for kind, device, contents in ((2, 0, self.memory), (2, 1, self.others), (1, 0, self.pinned)):
            for start, content in contents.items():
                if start <= address < start + len(content):
                    found._obj.value = {2: kind, 9: device, 11: start, 12: len(content)}[attribute]
                    return 0
        return INVALID_VALUE


def number_of(handle: Any) -> int:
    return int((handle.value if isinstance(handle, ctypes.c_void_p) else handle) or 0)


def _host(address: int, count: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


__all__ = ["INVALID_VALUE", "FakeMemory", "IllegalAddress", "number_of"]
