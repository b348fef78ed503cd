"""DLPack capsules: memory of any device from and for other libraries, without a copy.

A capsule keeps the Python object alive that owns the memory, until the consumer calls the deleter, or until the capsule
is dropped where no library has taken it.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

import numpy as np

from dovetail.errors import BindError, UnsupportedError
from dovetail.ir.dtype import ALL as EVERY
from dovetail.ir.dtype import DType, bf16, bool_

CPU, CUDA = 1, 2
"""Device types of DLPack."""
_CODES = {"int": 0, "uint": 1, "float": 2, "complex": 5}
_BF16_CODE, _BOOL_CODE = 4, 6
_NAME, _TAKEN = b"dltensor", b"used_dltensor"


class _Device(Structure):
    _fields_ = (("type", c_int32), ("index", c_int32))


class _Type(Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _Tensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("rank", c_int32),
        ("dtype", _Type),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(Structure):
    _fields_ = (("tensor", _Tensor), ("owner", c_void_p), ("deleter", c_void_p))


_python: Any = ctypes.PyDLL(None)
_is_valid: Any = _python.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (c_void_p, c_char_p), ctypes.c_int
_pointer: Any = _python.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (c_void_p, c_char_p), c_void_p
_rename: Any = _python.PyCapsule_SetName
_rename.argtypes, _rename.restype = (c_void_p, c_char_p), ctypes.c_int


class _Owned(np.ndarray[Any, np.dtype[Any]]):
    """An array for what DLPack has of it, with the owner of the memory that its capsule is about."""

    owner: object


def capsule(owner: object, address: int, shape: tuple[int, ...], dtype: DType, device: tuple[int, int]) -> Any:
    """A capsule of a dense tensor at an address; `owner` lives as long as a library uses the memory.

    It is a capsule of NumPy with other content: libraries drop capsules that they refuse while their error is pending,
    and call deleters from any thread. NumPy does both in C; a destructor in Python would replace the error.
    """
    kind = _type(dtype)
    array = _Owned((1,) * len(shape), np.uint8)
    array.owner = owner
    capsule = array.__dlpack__()
    tensor = _Managed.from_address(_pointer(id(capsule), _NAME)).tensor
    tensor.data, tensor.device, tensor.dtype = address, _Device(*device), kind
    for axis, size in enumerate(shape):
        tensor.shape[axis] = size
    tensor.strides, tensor.byte_offset = None, 0
    return capsule


class Taken:
    """A tensor of another library, which is kept alive as long as this is."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer
        managed = _Managed.from_address(pointer)
        tensor = managed.tensor
        rank = tensor.rank
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.shape = tuple(tensor.shape[:rank])
        self.strides: tuple[int, ...] | None = tuple(tensor.strides[:rank]) if tensor.strides else None
        """In elements; None where it is dense."""
        kind = tensor.dtype
        self.dtype = _DTYPES.get((kind.code, kind.bits, kind.lanes))
        """None where we have none like it."""

    def __del__(self) -> None:
        deleter = _Managed.from_address(self._pointer).deleter
        if deleter:
            CFUNCTYPE(None, c_void_p)(deleter)(self._pointer)


def taken(capsule: Any) -> Taken:
    """The tensor in a capsule, which no one else may take."""
    address = id(capsule)
    if not _is_valid(address, _NAME):
        raise BindError("a DLPack capsule that was taken before", hint="pass the array itself, not its capsule")
    owner = Taken(_pointer(address, _NAME))
    _rename(address, _TAKEN)
    return owner


def _type(dtype: DType) -> _Type:
    code = _code(dtype)
    if code is None:
        raise UnsupportedError(f"DLPack of {dtype.name}", hint="cast it to a dtype that other libraries have")
    return _Type(*code)


def _code(dtype: DType) -> tuple[int, int, int] | None:
    """The kind, the bits and the lanes of a dtype; None where DLPack has none like it."""
    code = _BF16_CODE if dtype is bf16 else _BOOL_CODE if dtype is bool_ else _CODES.get(dtype.kind)
    if code is None or dtype.bits in (2, 4) or (dtype.is_float and dtype.bits == 8):
        return None
    return code, 8 * dtype.itemsize, 1


_DTYPES = {code: dtype for dtype in reversed(EVERY) if (code := _code(dtype)) is not None}
"""The first dtype of a code."""

__all__ = ["CPU", "CUDA", "Taken", "capsule", "taken"]
