"""Elements as LLVM spells them: types and literals."""

from __future__ import annotations

import struct
from typing import Protocol

import numpy as np

from dovetail.errors import UnsupportedError
from dovetail.ir.dtype import DType, bf16, bool_, f16, f32, f64


class InstructionWriter(Protocol):
    """Where instructions go."""

    @property
    def rounds_to_bf16(self) -> bool:
        """Whether the machine has an instruction that rounds f32 to bf16."""
        ...

    @property
    def takes_halves(self) -> bool:
        """Whether one instruction widens either half of a register, at the price of registers."""
        ...

    def let(self, instruction: str) -> str:
        """Append an instruction with a result, and give the name of the result."""
        ...

    def use(self, function: str) -> None:
        """Say that a function of the library of scalar functions is called."""
        ...


NARROW = (f16, bf16)
"""Floats that are computed in f32 and rounded after every step, as NumPy does."""


def spelled(dtype: DType) -> str:
    """The type of an element while it is computed with."""
    if dtype is bool_:
        return "i1"
    if dtype.is_integer:
        return f"i{dtype.bits}"
    # LLVM's own bfloat goes through f32 wherever it is a scalar, and x86 makes 0 of denormals then.
    name = {f16: "half", bf16: "i16", f32: "float", f64: "double"}.get(dtype)
    if name is None:
        raise UnsupportedError(f"arithmetic of {dtype.name} in compiled code", hint="cast it to f32")
    return name


def stored(dtype: DType) -> str:
    """The type of an element in memory."""
    return "i8" if dtype is bool_ else spelled(dtype)


def is_compiled(dtype: DType) -> bool:
    """Whether elements of a dtype can be computed with in compiled code."""
    return dtype.kind != "complex" and dtype.bits >= 8 and (not dtype.is_float or dtype in (f16, bf16, f32, f64))


def literal(value: complex, dtype: DType) -> str:
    """A number as LLVM writes it."""
    if dtype is bool_:
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value.real))
    number = float(np.asarray(value.real).astype(dtype.numpy).astype(np.float64))
    if dtype is f16:
        return f"0xH{np.float16(number).view(np.uint16):04X}"
    if dtype is bf16:
        return str(struct.unpack("<I", struct.pack("<f", number))[0] >> 16)
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def suffix(dtype: DType) -> str:
    """How intrinsics name a type."""
    return {"half": "f16", "float": "f32", "double": "f64"}.get(spelled(dtype), spelled(dtype))
