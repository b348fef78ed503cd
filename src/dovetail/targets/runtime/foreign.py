"""Arrays of other libraries on a device, as device arrays without a copy: by DLPack, or by the CUDA array interface."""

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
from dovetail.kernels.spec import ALIGNMENT
from dovetail.targets.runtime import dlpack
from dovetail.targets.runtime.device_array import DeviceArray, Lease

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
    """An array on a GPU as a device array that holds it."""
    found = _by_dlpack(name, array) if hasattr(array, "__dlpack__") else _by_interface(name, array)
    if found.address % ALIGNMENT:
        raise BindError(
            f"the input {name} starts at {found.address:#x}, which is no multiple of {ALIGNMENT}",
            hint="pass an array of its own, such as x.clone()",
        )
    return found


def _by_dlpack(name: str, array: Any) -> DeviceArray:
    _, index = array.__dlpack_device__()
    tensor = dlpack.taken(array.__dlpack__(stream=_DEFAULT_STREAM))
    return _array(name, tensor, tensor.address, tensor.shape, tensor.strides, tensor.dtype, f"cuda:{index}")


def _by_interface(name: str, array: Any) -> DeviceArray:
    said: Mapping[str, Any] = array.__cuda_array_interface__
    dtype = _DTYPES.get(said["typestr"])
    shape = tuple(said["shape"])
    strides = said.get("strides")
    if strides is not None and dtype is not None:
        strides = tuple(s // dtype.itemsize for s in strides)
    return _array(name, array, int(said["data"][0]), shape, strides, dtype, "cuda:0")


def _array(
    name: str,
    owner: object,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: DType | None,
    device: str,
) -> DeviceArray:
    if dtype is None:
        raise BindError(f"the input {name} has a dtype that we do not have", hint="cast it with its own library")
    if strides is not None and not _are_dense(shape, strides):
        raise BindError(
            f"the input {name} is not dense: shape {shape}, strides {strides}",
            hint="pass a dense one, such as x.contiguous()",
        )
    buffer = ForeignBuffer(owner, address, math.prod(shape) * dtype.itemsize, device)
    return DeviceArray(Lease(buffer), shape, dtype)


def _are_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


__all__ = ["ForeignBuffer", "adopted", "is_foreign"]
