"""Memory of an NVIDIA GPU: buffers and an allocator, as the shared runtime sees them."""

from __future__ import annotations

import ctypes
from ctypes import c_uint64, c_void_p
from typing import Any

import numpy as np

from dovetail.errors import OutOfMemoryError
from dovetail.ir.dtype import DType, u8
from dovetail.ir.literal import Array
from dovetail.targets.cuda.driver.api import OUT_OF_MEMORY
from dovetail.targets.cuda.driver.driver import DEFAULT_STREAM, Driver
from dovetail.targets.cuda.driver.streams import Lending

NAME = "cuda:0"
"""The device whose memory this is: the first one."""
_INDEX = 0
_RANGE_START, _RANGE_BYTES = 11, 12
"""Numbers of pointer attributes."""


class CudaBuffer:
    """Memory of the device; it is freed with this object."""

    def __init__(self, device: Driver, nbytes: int) -> None:
        self._driver, self._nbytes = device, nbytes
        self._address = _allocated(device, "cuMemAlloc_v2", nbytes) if nbytes else 0

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def device(self) -> str:
        return NAME

    @property
    def address(self) -> int:
        return self._address

    @property
    def host_view(self) -> Array | None:
        return None

    def copy_from_host(self, source: Array) -> None:
        """Copy a dense array to the start of this buffer; the array may change as soon as this returns."""
        self.upload(source, 0)

    def upload(self, source: Array, offset: int) -> None:
        """Copy a dense array to an offset of this buffer; the array may change as soon as this returns."""
        assert source.flags.c_contiguous and offset + source.nbytes <= self._nbytes, "the array is dense and fits"
        if source.nbytes:
            target = self._address + offset
            self._driver.call("cuMemcpyHtoDAsync_v2", target, source.ctypes.data, source.nbytes, DEFAULT_STREAM)

    def copy_to_host(self, target: Array) -> None:
        """Fill a dense array from the start of this buffer, after all work that was enqueued before."""
        self.download(target, 0)

    def download(self, target: Array, offset: int) -> None:
        """Fill a dense array from an offset of this buffer, after all work that was enqueued before."""
        assert target.flags.c_contiguous and offset + target.nbytes <= self._nbytes, "the array is dense and fits"
        if target.nbytes:
            source = self._address + offset
            self._driver.call("cuMemcpyDtoHAsync_v2", target.ctypes.data, source, target.nbytes, DEFAULT_STREAM)
            self._driver.wait_for(DEFAULT_STREAM)

    def copy_from_device(self, address: int, count: int) -> None:
        """Copy bytes at an address of the device to the start of this buffer, in the order of the stream."""
        assert count <= self._nbytes, "the bytes fit"
        if count and address != self._address:
            self._driver.call("cuMemcpyDtoDAsync_v2", self._address, address, count, DEFAULT_STREAM)

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        """A capsule of the bytes for a library whose work on `stream` waits for ours; they are in no pool."""
        from dovetail.targets.runtime.arrays import dlpack

        Lending(self._driver)(self, stream)
        return dlpack.capsule(self, self._address, (self._nbytes,), u8, self.__dlpack_device__())

    def __dlpack_device__(self) -> tuple[int, int]:
        from dovetail.targets.runtime.arrays import dlpack

        return dlpack.CUDA, _INDEX

    def __del__(self) -> None:
        if getattr(self, "_address", 0):
            self._driver.quietly("cuMemFree_v2", self._address)


class PinnedBuffer:
    """Memory of the host that the device reads and writes by itself, at the same address."""

    def __init__(self, device: Driver, nbytes: int) -> None:
        self._device = device
        self.address = _allocated(device, "cuMemAllocHost_v2", max(nbytes, 1))
        self.array: Array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.address))

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            self._device.quietly("cuMemFreeHost", self.address)


def _allocated(device: Driver, name: str, nbytes: int) -> int:
    """The address of new memory; where there is not enough, the error says how much there is."""
    address = c_void_p()
    if device.status_of(name, ctypes.byref(address), nbytes) == OUT_OF_MEMORY:
        free, total = device.free_memory()
        where = NAME if name == "cuMemAlloc_v2" else "the host for copies to and from the device"
        raise OutOfMemoryError(
            f"{nbytes:,} bytes of {where} are needed, and {free:,} of {total:,} bytes of {NAME} are free",
            needed=nbytes,
            free=free,
            hint="free device arrays and programs that are not needed, or run smaller inputs",
        )
    if not address.value:
        device.call(name, ctypes.byref(address), nbytes)
    return address.value or 0


def bytes_from(device: Driver, address: int) -> int | None:
    """The bytes from an address to the end of what was allocated or reserved there; None where the driver cannot say.

    Memory that grows in pieces, such as torch's expandable segments, is one reservation: `cuMemGetAddressRange` would
    tell the piece alone.
    """
    counts: list[int] = []
    for attribute in (_RANGE_START, _RANGE_BYTES):
        word = c_uint64()
        if device.status_of("cuPointerGetAttribute", ctypes.byref(word), attribute, address):
            return None
        counts.append(word.value)
    return sum(counts) - address


class CudaAllocator:
    """Allocates memory of one device."""

    def __init__(self, device: Driver) -> None:
        self._device = device

    def allocate(self, nbytes: int) -> CudaBuffer:
        return CudaBuffer(self._device, nbytes)

    def free(self, buffer: CudaBuffer) -> None:
        """The driver frees the memory with the buffer."""

    def uploaded(self, content: Array) -> CudaBuffer:
        """A new buffer with the elements of an array."""
        buffer = self.allocate(content.nbytes)
        buffer.copy_from_host(np.ascontiguousarray(content))
        return buffer


def stored_bytes(array: Array, dtype: DType, strides: tuple[int, ...]) -> Array:
    """The bytes of an array as a plan stores it: perhaps in another order of its axes, without gaps."""
    raw = np.empty(array.size * dtype.itemsize, np.uint8)
    np.ndarray(array.shape, dtype.numpy, raw, 0, strides)[...] = array
    return raw


__all__ = ["NAME", "CudaAllocator", "CudaBuffer", "PinnedBuffer", "bytes_from", "stored_bytes"]
