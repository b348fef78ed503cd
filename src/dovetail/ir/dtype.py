"""Element types, and the tensor types written with them: `f32["b", "s", 384]`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from dovetail.ir.type import SizeLike, TensorType

Kind = Literal["bool", "int", "uint", "float", "complex"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type: its name, its NumPy dtype, its kind and its width."""

    name: str
    numpy: np.dtype[Any]
    kind: Kind
    bits: int

    @property
    def itemsize(self) -> int:
        return (self.bits + 7) // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_inexact(self) -> bool:
        return self.kind in ("float", "complex")

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest finite number."""
        if self.is_inexact:
            limits = cast(Any, ml_dtypes.finfo(self.numpy))
            return float(limits.min), float(limits.max)
        return whole_range(self)

    @property
    def roundoff(self) -> float:
        """Half the distance from 1 to the next number; 0 for what is not rounded."""
        return float(cast(Any, ml_dtypes.finfo(self.numpy)).eps) / 2 if self.is_inexact else 0.0

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __iter__(self) -> NoReturn:
        # Python would iterate by f32[0], f32[1], … for ever.
        raise TypeError(f"{self.name} is a dtype and holds no items")

    def __getitem__(self, shape: SizeLike | tuple[SizeLike, ...]) -> TensorType:
        from dovetail.ir.type import TensorType  # a type is written with its dtype in front

        return TensorType.of(self, *(shape if isinstance(shape, tuple) else (shape,)))


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


def whole_range(dtype: DType) -> tuple[int, int]:
    """The least and the largest number of a type of whole numbers."""
    if dtype.kind == "bool":
        return 0, 1
    return (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)


BY_NAME = {d.name: d for d in ALL}
_BY_NUMPY = {d.numpy: d for d in ALL}


def holds(dtype: DType, number: float) -> bool:
    """Whether a narrow float type has a place for a number: some have neither infinity nor NaN, one has no 0."""
    if math.isfinite(number):
        least, largest = dtype.range
        return least <= number <= largest
    return dtype is f8e5m2 if math.isinf(number) else dtype is not f4e2m1


def of_numpy(dtype: np.dtype[Any]) -> DType | None:
    """The element type of a NumPy dtype in either byte order, or None."""
    return _BY_NUMPY.get(dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype)
