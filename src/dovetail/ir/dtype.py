"""Element types, and the tensor types written with them: `f32["b", "s", 384]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

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

ALL = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, c64)
SIGNED = (i8, i16, i32, i64)
UNSIGNED = (u8, u16, u32, u64)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (f16, bf16, f32, f64)
INEXACT = (*FLOATS, c64)
NUMBERS = INTEGERS + INEXACT

BY_NAME = {d.name: d for d in ALL}
_BY_NUMPY = {d.numpy: d for d in ALL}


def of_numpy(dtype: np.dtype[Any]) -> DType | None:
    """The element type of a NumPy dtype in either byte order, or None."""
    return _BY_NUMPY.get(dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype)
