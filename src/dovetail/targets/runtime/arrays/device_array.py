"""Device arrays: tensors that stay in the memory of a device between runs.

A program gives them for its outputs and takes them for its inputs without a copy. Other libraries read them through
DLPack, NumPy's array protocol on hosts, and the CUDA array interface on GPUs. The memory is freed with the last owner:
the array itself, a NumPy view of it, or a library that took it through DLPack.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from dovetail.errors import BindError
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays.address import address
from dovetail.targets.runtime.arrays.buffer import HOST, Buffer, HostBuffer

_LEGACY_STREAM = 1
"""The legacy default stream of CUDA, on which all work with arrays that stay on the device is."""
IN_ORDER = (None, _LEGACY_STREAM, 2)
"""Streams as other libraries number them whose work is in order with ours: the legacy default stream, which None stands
for too, and the default stream of a thread, which waits for that one and is waited for."""
_HOST_DEVICE = (1, 0)
"""Memory of the host in DLPack."""

Lend: TypeAlias = Callable[[object, int | None], object]
"""Orders the work of another library's stream, by its number in DLPack, after ours; gives what that library holds of
the owner of the memory."""


class ExportError(BindError, BufferError):
    """A device array that another library cannot have as requested: DLPack expects a BufferError."""


class Lease:
    """The owner of a buffer: gives it back when it is dropped."""

    __slots__ = ("_free", "buffer", "check", "lend")

    def __init__(
        self,
        buffer: Buffer,
        free: Callable[[], None] | None = None,
        check: Callable[[], None] | None = None,
        lend: Lend | None = None,
    ) -> None:
        self.buffer = buffer
        self._free = free
        self.check = check
        """Raises, after the content was waited for, what a kernel that wrote it has refused."""
        self.lend = lend
        """None where the memory has no streams."""

    def __del__(self) -> None:
        if self._free is not None:
            self._free()


class DeviceArray:
    """A dense tensor in the memory of a device: shape, dtype, device, and its bytes for other libraries."""

    __slots__ = ("__weakref__", "device", "dtype", "element", "held", "identity", "shape")

    def __init__(self, lease: Lease, shape: tuple[int, ...], element: DType) -> None:
        self.held: Lease | None = lease
        """The owner of the memory; None once the array is freed."""
        self.identity: object = object()
        """The identity of this array, also after it is gone; None once the array is freed."""
        self.shape = shape
        self.element = element
        """The dtype as graphs name it."""
        self.dtype: np.dtype[Any] = element.numpy
        self.device = lease.buffer.device
        """The device that holds it, such as "cpu" or "cuda:0"."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_freed(self) -> bool:
        return self.held is None

    @property
    def lease(self) -> Lease:
        """The owner of the memory; an array that is freed is refused."""
        if self.held is None:
            raise BindError(
                f"{self} was freed, and its memory may hold another tensor by now",
                hint="use it before `free`, or keep what `run` gives",
            )
        return self.held

    @property
    def address(self) -> int:
        """The address of the first element, as the device sees it."""
        return self.lease.buffer.address

    def free(self) -> None:
        """Give up the memory. Libraries that took it through DLPack, and NumPy views, keep it alive."""
        self.held = self.identity = None

    def numpy(self) -> Array:
        """The elements on the host: a view of host memory, a copy of other memory."""
        buffer = self.lease.buffer
        if buffer.host_view is not None:
            return buffer.host_view[: self.nbytes].view(self.dtype).reshape(self.shape)
        array = np.empty(self.shape, self.dtype)
        buffer.copy_to_host(array)
        if self.lease.check is not None:
            self.lease.check()
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self.lease.buffer.host_view is None:
            raise BindError(f"{self} cannot be seen by the host", hint="copy it: array.numpy()")
        array = self.numpy()
        if copy is False and dtype is not None and np.dtype(dtype) != self.dtype:
            raise ValueError("another dtype needs a copy")
        return np.array(array, dtype) if copy else np.asarray(array, dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory, and the stream that is to be waited for. A library that reads on another one keeps this array
        until that is done: unlike DLPack, this protocol does not notify us."""
        if not self.device.startswith("cuda"):
            raise AttributeError("__cuda_array_interface__")
        kind = self.dtype.str if self.dtype.kind in "biufc" else f"<V{self.dtype.itemsize}"
        pointer = (self.address if self.size else 0, False)
        return {"version": 3, "shape": self.shape, "typestr": kind, "data": pointer, "stream": _LEGACY_STREAM}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.lease.buffer.__dlpack_device__()

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule without a copy, for a library whose work on `stream` waits for ours; or with a copy on the host.

        It has no version, as consumers of any `max_version` take it.
        """
        from dovetail.targets.runtime.arrays import dlpack

        here, lease = self.__dlpack_device__(), self.lease
        if copy or (dl_device is not None and tuple(dl_device) != here):
            array = self._host_copy(tuple(dl_device or here), copy)
            return dlpack.capsule(array, address(array), self.shape, self.element, _HOST_DEVICE)
        owner = lease if lease.lend is None else lease.lend(lease, stream)
        return dlpack.capsule(owner, lease.buffer.address, self.shape, self.element, here)

    def _host_copy(self, device: tuple[int, ...], copy: bool | None) -> Array:
        """A copy of the elements on the host, for a library that requests them on a device of DLPack."""
        if device != _HOST_DEVICE:
            raise ExportError(
                f"{self} is copied to the host alone, and a copy is requested on the device {device} of DLPack",
                hint="take it without a copy, and copy it with that library",
            )
        if copy is False:
            raise ExportError(f"{self} cannot be seen by the host without a copy", hint="allow a copy: copy=None")
        array = self.numpy()
        return array if self.lease.buffer.host_view is None else array.copy()

    def __repr__(self) -> str:
        freed = ", freed" if self.is_freed else ""
        sizes = ", ".join(map(str, self.shape))
        return f"<{self.element.name}[{sizes}] on {self.device}{freed}>"


def host_array(array: Array, element: DType) -> DeviceArray:
    """An array of the host as a device array of the device "cpu", without a copy."""
    return DeviceArray(Lease(HostBuffer(array.reshape(-1).view(np.uint8))), array.shape, element)


def refuse_other_device(name: str, array: DeviceArray, device: str) -> None:
    """Raise unless a program of a device can read an array."""
    if array.device != device:
        raise BindError(
            f"the input {name} is on {array.device}, and the program runs on {device}",
            hint=f"copy it through the host: {name}.numpy()",
        )


__all__ = ["HOST", "IN_ORDER", "DeviceArray", "ExportError", "Lease", "Lend", "host_array", "refuse_other_device"]
