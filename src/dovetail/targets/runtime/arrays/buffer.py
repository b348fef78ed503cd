"""Memory on a device: buffers and allocators, with the implementation for host memory.

A target for another device supplies its own two. Host buffers are NumPy arrays, so that nothing is copied.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays.address import address
from dovetail.targets.runtime.arrays.memory_limit import check_fits

HOST = "cpu"
_DLPACK_CPU = (1, 0)
"""The type and the index of host memory in DLPack."""


class Buffer(Protocol):
    """Bytes on a device."""

    @property
    def nbytes(self) -> int: ...

    @property
    def device(self) -> str:
        """The device that holds the bytes, such as "cpu" or "cuda:0"."""
        ...

    @property
    def address(self) -> int:
        """The address of the first byte, as kernels on the device see it."""
        ...

    @property
    def host_view(self) -> Array | None:
        """The bytes as an array without a copy; None where the host cannot address them."""
        ...

    def copy_from_host(self, source: Array) -> None:
        """Copy the bytes of a contiguous array to the start of the buffer."""
        ...

    def copy_to_host(self, target: Array) -> None:
        """Copy bytes from the start of the buffer until a contiguous array is full."""
        ...

    def __dlpack__(self, *, stream: int | None = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


B = TypeVar("B", bound=Buffer)


class Allocator(Protocol[B]):
    """Allocates buffers on one device."""

    def allocate(self, nbytes: int) -> B:
        """A buffer of at least `nbytes`; its content is undefined."""
        ...

    def free(self, buffer: B) -> None:
        """Return a buffer, which the caller uses no longer. The allocator may hand it out again."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class HostBuffer:
    """Host memory as an array of bytes."""

    array: Array

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    @property
    def device(self) -> str:
        return HOST

    @property
    def address(self) -> int:
        return address(self.array)

    @property
    def host_view(self) -> Array:
        return self.array

    def copy_from_host(self, source: Array) -> None:
        self.array[: source.nbytes] = source.reshape(-1).view(np.uint8)

    def copy_to_host(self, target: Array) -> None:
        target.reshape(-1).view(np.uint8)[...] = self.array[: target.nbytes]

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CPU


@dataclass(frozen=True, slots=True)
class HostAllocator:
    """Allocates host memory with an alignment; refuses more than a limit in words."""

    alignment: int
    purpose: str
    """What the memory is for, in error messages."""
    limit: int = 0
    """The most bytes of a buffer; 0 is what the machine has left."""
    fill: int | None = None
    """A byte that new memory is filled with; None leaves it undefined."""

    def allocate(self, nbytes: int) -> HostBuffer:
        check_fits(nbytes, self.purpose, self.limit)
        size = nbytes + self.alignment
        raw = np.empty(size, np.uint8) if self.fill is None else np.full(size, self.fill, np.uint8)
        start = -raw.ctypes.data % self.alignment
        return HostBuffer(raw[start : start + nbytes])

    def free(self, buffer: HostBuffer) -> None:
        """NumPy frees the memory with the last view of it."""


MOST_FREE = 32
"""Free buffers that a pool holds: an arena and a workspace for each of a few concurrent runs."""


class BufferPool(Allocator[B]):
    """An allocator that reuses freed buffers: new memory costs a page fault for every page.

    Python's lists are safe to push and pop from several threads.
    """

    def __init__(self, allocator: Allocator[B]) -> None:
        self._allocator = allocator
        self._free: list[B] = []

    def allocate(self, nbytes: int) -> B:
        """A free buffer of at least `nbytes` and at most about four times as many, or a new one."""
        passed: list[B] = []
        free: B | None = None
        for _ in range(len(self._free)):
            try:
                buffer = self._free.pop()
            except IndexError:  # another thread took the last one
                break
            if nbytes <= buffer.nbytes <= 4 * nbytes + 4096:
                free = buffer
                break
            passed.append(buffer)
        self._free += passed[: MOST_FREE // 2]
        return self._allocator.allocate(nbytes) if free is None else free

    def free(self, buffer: B) -> None:
        if len(self._free) < MOST_FREE:
            self._free.append(buffer)
        else:
            self._allocator.free(buffer)

    def clear(self) -> None:
        """Let go of all free buffers."""
        self._free.clear()


__all__ = ["Allocator", "Buffer", "BufferPool", "HostAllocator", "HostBuffer"]
