"""The element types; `f32["b", "s", 384]` is a tensor type."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from dovetail.ir.type import DType, Kind, whole_range

bool_ = DType("bool", np.dtype(np.bool_), "bool", 8)
i8 = DType("i8", np.dtype(np.int8), "int", 8)
i16 = DType("i16", np.dtype(np.int16), "int", 16)
i32 = DType("i32", np.dtype(np.int32), "int", 32)
i64 = DType("i64", np.dtype(np.int64), "int", 64)
u8 = DType("u8", np.dtype(np.uint8), "uint", 8)
u16 = DType("u16", np.dtype(np.uint16), "uint", 16)
u32 = DType("u32", np.dtype(np.uint32), "uint", 32)
u64 = DType("u64", np.dtype(np.uint64), "uint", 64)
f16 = DType("f16", np.dtype(np.float16), "float", 16)
bf16 = DType("bf16", np.dtype(ml_dtypes.bfloat16), "float", 16)
f32 = DType("f32", np.dtype(np.float32), "float", 32)
f64 = DType("f64", np.dtype(np.float64), "float", 64)
c64 = DType("c64", np.dtype(np.complex64), "complex", 64)
f8e4m3fn = DType("f8e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn), "float", 8)
f8e4m3fnuz = DType("f8e4m3fnuz", np.dtype(ml_dtypes.float8_e4m3fnuz), "float", 8)
f8e5m2 = DType("f8e5m2", np.dtype(ml_dtypes.float8_e5m2), "float", 8)
f8e5m2fnuz = DType("f8e5m2fnuz", np.dtype(ml_dtypes.float8_e5m2fnuz), "float", 8)
f8e8m0 = DType("f8e8m0", np.dtype(ml_dtypes.float8_e8m0fnu), "float", 8)
f4e2m1 = DType("f4e2m1", np.dtype(ml_dtypes.float4_e2m1fn), "float", 4)
i4 = DType("i4", np.dtype(ml_dtypes.int4), "int", 4)
u4 = DType("u4", np.dtype(ml_dtypes.uint4), "uint", 4)
i2 = DType("i2", np.dtype(ml_dtypes.int2), "int", 2)
u2 = DType("u2", np.dtype(ml_dtypes.uint2), "uint", 2)

NARROW = (f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0, f4e2m1, i4, u4, i2, u2)
"""Types to store in: they are moved, picked and cast, and nothing is computed in them. An element takes one byte."""
ALL = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, c64, *NARROW)
SIGNED = (i8, i16, i32, i64)
UNSIGNED = (u8, u16, u32, u64)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (f16, bf16, f32, f64)
INEXACT = (*FLOATS, c64)
NUMBERS = INTEGERS + INEXACT


BY_NAME = {d.name: d for d in ALL}
_BY_NUMPY = {d.numpy: d for d in ALL}


def holds(dtype: DType, number: float) -> bool:
    """Return whether a narrow float type has a place for a number: some have neither infinity nor NaN, one has no 0."""
    if math.isfinite(number):
        least, largest = dtype.range
        return least <= number <= largest
    return dtype is f8e5m2 if math.isinf(number) else dtype is not f4e2m1


def of_numpy(dtype: np.dtype[Any]) -> DType | None:
    """Return the element type of a NumPy dtype in either byte order, or None."""
    return _BY_NUMPY.get(dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype)


__all__ = [
    "ALL",
    "BY_NAME",
    "FLOATS",
    "INEXACT",
    "INTEGERS",
    "NARROW",
    "NUMBERS",
    "SIGNED",
    "UNSIGNED",
    "DType",
    "Kind",
    "bf16",
    "bool_",
    "c64",
    "f4e2m1",
    "f8e4m3fn",
    "f8e4m3fnuz",
    "f8e5m2",
    "f8e5m2fnuz",
    "f8e8m0",
    "f16",
    "f32",
    "f64",
    "holds",
    "i2",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "of_numpy",
    "u2",
    "u4",
    "u8",
    "u16",
    "u32",
    "u64",
    "whole_range",
]
