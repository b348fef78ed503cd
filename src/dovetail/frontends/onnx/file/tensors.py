"""Tensors of a model as arrays. What a tensor says of its size is checked before anything is read or allocated."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx.file.external import External
from dovetail.frontends.onnx.file.proto import TensorProto, messages
from dovetail.frontends.onnx.file.types import LARGEST, element
from dovetail.ir.attribute import HIGHEST_RANK
from dovetail.ir.dtype import DType, whole_range
from dovetail.ir.literal import Array

UNFOLDED = 64 << 20
"""Bytes of zeros that the sparse tensors of any model may stand for, and this many more for each byte they have."""
UNFOLDED_BY_BYTE = 100

_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_TYPED: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.COMPLEX64: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT64: "uint64_data",
    TensorProto.UINT32: "uint64_data",
}
"""The field that holds the elements of a type one by one; all others are in `int32_data`."""
_AGAIN = "the file is damaged; export the model again"


class Tensors:
    """Reads the tensors of one model; `folder` is where its external data lies.

    `apart` are tensors by name whose elements were taken out of the model, and are perhaps still being read.
    """

    def __init__(self, folder: Path | None, apart: Mapping[str, Array] | None = None) -> None:
        self._external = External(folder)
        self._apart = apart or {}
        self._sparse_bytes = 0
        self._dense_bytes = 0

    def array(self, tensor: TensorProto, where: str) -> Array:
        """The array that a tensor is, read-only where it lies in a file."""
        dtype = element(tensor.data_type, where)
        shape = checked_shape(tensor.dims, dtype, where)
        count = math.prod(shape)
        if tensor.HasField("segment"):
            raise UnsupportedError("a tensor in segments", hint="export it in one piece", where=where)
        used = [name for name in _FIELDS if len(getattr(tensor, name))]
        if tensor.HasField("raw_data") and (count or tensor.raw_data):
            used.append("raw_data")
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            used.append("external_data")
        if len(used) > 1:
            raise LoadError(f"a tensor with {' and '.join(used)}", hint="elements are kept in one place", where=where)
        known = self._apart.get(tensor.name)
        if not used and known is not None and (known.dtype, known.shape) == (dtype.numpy, shape):
            return known
        if used == ["external_data"]:
            found = self._external.content(tensor.external_data, _bytes(dtype, count), where)
            return _from_bytes(found, dtype, count).reshape(shape)
        if used == ["raw_data"]:
            raw = tensor.raw_data
            if len(raw) != _bytes(dtype, count):
                raise LoadError(
                    f"{len(raw):,} bytes for {dtype.name}{list(shape)}, which takes {_bytes(dtype, count):,}",
                    hint=_AGAIN,
                    where=where,
                )
            return _from_bytes(memoryview(raw), dtype, count).reshape(shape)
        return _from_numbers(tensor, used, dtype, count, where).reshape(shape)

    def dense(self, sparse: messages.SparseTensorProto, where: str) -> Array:
        """The array with zeros that a sparse tensor stands for."""
        dtype = element(sparse.values.data_type, where)
        shape = checked_shape(sparse.dims, dtype, where)
        (stored,) = _rank(sparse.values.dims, 1, "values", where)
        size = math.prod(shape)
        self._sparse_bytes += stored * dtype.itemsize
        self._dense_bytes += size * dtype.itemsize
        if stored > size or self._dense_bytes > UNFOLDED + UNFOLDED_BY_BYTE * self._sparse_bytes:
            raise LoadError(
                f"{stored:,} values for {dtype.name}{list(shape)}, {size * dtype.itemsize:,} bytes",
                hint="tensors that are nearly empty are not stored as arrays; make it in the model",
                where=where,
            )
        values = self.array(sparse.values, where)
        result = np.zeros(size, dtype.numpy)
        result[self._positions(sparse, shape, stored, where)] = values
        return result.reshape(shape)

    def _positions(self, sparse: messages.SparseTensorProto, shape: tuple[int, ...], stored: int, where: str) -> Array:
        """Where each value stands among all elements; in order, none twice."""
        indices = sparse.indices
        if indices.data_type != TensorProto.INT64 or list(indices.dims) not in ([stored], [stored, len(shape)]):
            raise LoadError(
                f"indices of shape {list(indices.dims)[:HIGHEST_RANK]} for {stored} values",
                hint=f"they are i64[{stored}] or i64[{stored}, {len(shape)}]",
                where=where,
            )
        found = self.array(indices, where)
        limits = np.array([math.prod(shape)] if found.ndim == 1 else shape, np.int64)
        rows = found.reshape(stored, len(limits))
        if np.any(rows < 0) or np.any(rows >= limits):
            raise LoadError(f"an index outside of {list(shape)}", hint=_AGAIN, where=where)
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))] if found.ndim == 2 else [1]
        flat = rows @ np.array(strides, np.int64)
        if np.any(flat[1:] <= flat[:-1]):
            raise LoadError("indices that are out of order, or one twice", hint=_AGAIN, where=where)
        return flat


def checked_shape(dims: Sequence[int], dtype: DType, where: str) -> tuple[int, ...]:
    """The sizes of a tensor that could exist."""
    if len(dims) > HIGHEST_RANK:
        raise LoadError(f"a tensor of rank {len(dims)}", hint=f"ranks go up to {HIGHEST_RANK}", where=where)
    total = dtype.itemsize
    for size in dims:
        if not 0 <= size <= LARGEST:
            raise LoadError(f"a size is {size}", hint=f"sizes go from 0 to {LARGEST}", where=where)
        total *= size or 1
    if total > LARGEST:
        raise LoadError(f"a tensor of the sizes {list(dims)}", hint=f"none has more than {LARGEST} bytes", where=where)
    return tuple(dims)


def _rank(dims: Sequence[int], rank: int, what: str, where: str) -> tuple[int, ...]:
    if len(dims) != rank or any(size < 0 for size in dims):
        raise LoadError(
            f"{what} of shape {list(dims[:HIGHEST_RANK])}", hint=f"a sparse tensor has them in rank {rank}", where=where
        )
    return tuple(dims)


def _bytes(dtype: DType, count: int) -> int:
    """What elements take where they are stored; narrow ones share bytes."""
    return (count * dtype.bits + 7) // 8


def _from_bytes(raw: memoryview, dtype: DType, count: int) -> Array:
    """Elements as `raw_data` holds them: little-endian, narrow ones packed from the low bits on."""
    if dtype.bits < 8:
        return _unpacked(np.frombuffer(raw, np.uint8), dtype, count)
    if dtype.kind == "bool":
        return np.frombuffer(raw, np.uint8) != 0
    found: Array = np.frombuffer(raw, dtype.numpy)
    if sys.byteorder == "big":
        found = found.byteswap()
    return found if found.flags.aligned else found.copy()


def _unpacked(packed: Array, dtype: DType, count: int) -> Array:
    each = 8 // dtype.bits
    shifts = np.arange(each, dtype=np.uint8) * np.uint8(dtype.bits)
    codes = (packed[:, None] >> shifts) & np.uint8(2**dtype.bits - 1)
    return np.ascontiguousarray(codes.reshape(-1)[:count]).view(dtype.numpy)


def _from_numbers(tensor: TensorProto, used: Sequence[str], dtype: DType, count: int, where: str) -> Array:
    """Elements that are listed one by one, or packed into numbers of one byte."""
    name = _TYPED.get(tensor.data_type, "int32_data")
    if used and used != [name]:
        raise LoadError(f"{dtype.name} elements in {used[0]}", hint=f"they are kept in {name}", where=where)
    listed: Sequence[Any] = getattr(tensor, name)
    packed = dtype.bits < 8
    wanted = _bytes(dtype, count) if packed else 2 * count if dtype.kind == "complex" else count
    if len(listed) != wanted:
        raise LoadError(
            f"{len(listed):,} numbers in {name} for {dtype.name}{list(tensor.dims)}, which takes {wanted:,}",
            hint=_AGAIN,
            where=where,
        )
    if dtype.kind == "complex":
        return np.fromiter(listed, np.float32, wanted).view(dtype.numpy)
    if name != "int32_data":
        return _fitting(np.fromiter(listed, _WIDE[name], wanted), dtype, where)
    numbers = np.fromiter(listed, np.int64, wanted)
    if packed:
        return _unpacked(_within(numbers, 0, 255, dtype, where).astype(np.uint8), dtype, count)
    if dtype.kind == "float":
        # Bits of a float as a number; some writers extend their sign.
        half = 2 ** (dtype.bits - 1)
        bits = _within(numbers, -half, 2 * half - 1, dtype, where) & (2 * half - 1)
        return bits.astype(f"u{dtype.itemsize}").view(dtype.numpy)
    return _fitting(numbers, dtype, where)


_WIDE: dict[str, Any] = {
    "float_data": np.float32,
    "double_data": np.float64,
    "int64_data": np.int64,
    "uint64_data": np.uint64,
}


def _fitting(numbers: Array, dtype: DType, where: str) -> Array:
    if dtype.kind in ("int", "uint", "bool"):
        numbers = _within(numbers, *whole_range(dtype), dtype, where)
    return numbers.astype(dtype.numpy)


def _within(numbers: Array, least: int, most: int, dtype: DType, where: str) -> Array:
    if len(numbers) and not (least <= int(numbers.min()) and int(numbers.max()) <= most):
        raise LoadError(
            f"a number outside of {least} to {most} as an element of {dtype.name}", hint=_AGAIN, where=where
        )
    return numbers
