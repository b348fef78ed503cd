"""Arrays of other libraries on a device, as device arrays without a copy: by DLPack, or by the CUDA array interface.

Runs are enqueued on the legacy default stream, after the work of the producer. A library that frees or overwrites an
array on a stream of its own does so after it has taken a result, for which that stream waits, or has waited itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import BindError
from dovetail.ir.dtype import ALL as EVERY
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays import dlpack
from dovetail.targets.runtime.arrays.device_array import IN_ORDER, DeviceArray, Lease

_DEFAULT_STREAM = 1
"""The legacy default stream of CUDA, on which our work with device arrays runs: producers order theirs before it."""
_MANAGED = 13
"""CUDA's managed memory in DLPack."""
_DTYPES = {d.numpy.str: d for d in reversed(EVERY) if d.numpy.kind in "biufc"}
"""By the type strings of the CUDA array interface."""


@dataclass(frozen=True, slots=True, eq=False)
class ForeignBuffer:
    """Memory of another library, which its owner frees."""

    owner: object
    address: int
    nbytes: int
    device: str
    stream: int | None = None
    """The stream of the work that writes it, where that has to be waited for: not with DLPack, as the producer of a
    capsule gets our stream."""
    is_read_only: bool = False

    @property
    def host_view(self) -> Array | None:
        return None

    def copy_from_host(self, source: Array) -> None:
        raise BindError("memory of another library is not written by the host", hint="copy it with that library")

    def copy_to_host(self, target: Array) -> None:
        raise BindError("memory of another library is not read by the host", hint="copy it with that library")

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        raise BindError("memory of another library", hint="pass that library's array")

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, int(self.device.partition(":")[2])


def is_foreign(array: object) -> bool:
    """Whether it is an array on a GPU that is not ours."""
    if isinstance(array, np.ndarray | DeviceArray):
        return False
    where = getattr(array, "__dlpack_device__", None)
    if where is not None:
        return int(where()[0]) in (dlpack.CUDA, _MANAGED)
    return hasattr(array, "__cuda_array_interface__")


def adopted(name: str, array: Any) -> DeviceArray:
    """An array on a GPU as a device array that holds it; what reads it waits for the stream of its buffer first."""
    return _by_dlpack(name, array) if hasattr(array, "__dlpack__") else _by_interface(name, array)


def _by_dlpack(name: str, array: Any) -> DeviceArray:
    _, index = array.__dlpack_device__()
    tensor = dlpack.taken(array.__dlpack__(stream=_DEFAULT_STREAM))
    dtype = _known(name, tensor.dtype)
    _refuse_gaps(name, tensor.shape, tensor.strides, 1)
    nbytes = math.prod(tensor.shape) * dtype.itemsize
    return DeviceArray(Lease(ForeignBuffer(tensor, tensor.address, nbytes, f"cuda:{index}")), tensor.shape, dtype)


def _by_interface(name: str, array: Any) -> DeviceArray:
    said: Mapping[str, Any] = array.__cuda_array_interface__
    dtype, shape, stream = _known(name, _DTYPES.get(said["typestr"])), tuple(said["shape"]), said.get("stream")
    _refuse_gaps(name, shape, said.get("strides"), dtype.itemsize)
    if said.get("mask") is not None:
        raise BindError(
            f"the input {name} has a mask, and a run would read what it hides",
            hint="fill what is masked, and pass an array without a mask",
        )
    if stream is not None and stream < 1:
        raise BindError(
            f"the input {name} names the stream {stream}, and the CUDA array interface begins to count at 1",
            hint="its library has to say 1 for the legacy default stream, 2 for that of the thread, or None",
        )
    address, is_read_only = said["data"]
    nbytes = math.prod(shape) * dtype.itemsize
    waited = None if stream in IN_ORDER else stream
    # It does not name a device: the driver knows whose memory the address is.
    buffer = ForeignBuffer(array, int(address or 0), nbytes, "cuda:0", waited, bool(is_read_only))
    return DeviceArray(Lease(buffer), shape, dtype)


def _known(name: str, dtype: DType | None) -> DType:
    if dtype is None:
        raise BindError(f"the input {name} has a dtype that we do not have", hint="cast it with its own library")
    return dtype


def _refuse_gaps(name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, unit: int) -> None:
    """Raise unless an array is dense; an element is `unit` of what strides count."""
    if strides is not None and not _are_dense(shape, strides, unit):
        raise BindError(
            f"the input {name} is not dense: shape {shape}, strides {strides}",
            hint="pass a dense one, such as x.contiguous()",
        )


def _are_dense(shape: tuple[int, ...], strides: tuple[int, ...], expected: int) -> bool:
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return 0 in shape
        expected *= size
    return True


__all__ = ["ForeignBuffer", "adopted", "is_foreign"]
