"""Type promotion as torch has it: among tensors with axes first, then tensors of rank 0, then Python numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dovetail.errors import UnsupportedError
from dovetail.ir.dim import Dim
from dovetail.ir.dtype import DType, bool_, c64, f32, f64, i16, i64, u8
from dovetail.ir.value import Value

_KINDS = ("bool", "uint", "int", "float", "complex")


def common_dtype(operands: Iterable[Any]) -> DType:
    """The dtype that torch computes an operation of these in; numbers and sizes count less than tensors."""
    ranked: list[DType | None] = [None, None, None]
    for operand in operands:
        level, dtype = _level(operand)
        held = ranked[level]
        ranked[level] = dtype if held is None else promoted(held, dtype)
    found: DType | None = None
    for dtype in ranked:
        if dtype is not None:
            found = dtype if found is None or _category(dtype) > _category(found) else found
    return f32 if found is None else found


def promoted(a: DType, b: DType) -> DType:
    """The dtype of two tensors of one level."""
    if a is b or b is bool_:
        return a
    if a is bool_:
        return b
    low, high = sorted((a, b), key=lambda d: (_category(d), d.bits))
    if high.kind == "complex":
        if low is f64:
            raise UnsupportedError("complex numbers of two f64", hint="compute in complex64")
        return high
    if _category(low) != _category(high):
        return high
    if high.is_float:
        return f32 if low.bits == high.bits else high
    if (low.kind == "uint") == (high.kind == "uint"):
        return high
    signed, unsigned = (low, high) if low.kind == "int" else (high, low)
    if unsigned is not u8:
        raise UnsupportedError(f"{a.name} with {b.name}", hint="torch does not promote them either")
    return i16 if signed.bits == 8 else signed


def _level(operand: Any) -> tuple[int, DType]:
    if isinstance(operand, Value):
        return (0 if operand.rank else 1), operand.dtype
    if isinstance(operand, bool):
        return 2, bool_
    if isinstance(operand, int | Dim):
        return 2, i64
    return 2, (c64 if isinstance(operand, complex) else f32)


def _category(dtype: DType) -> int:
    kind = _KINDS.index(dtype.kind)
    return kind if kind != 1 else 2
