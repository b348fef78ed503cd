"""Expressions of the loop language: elements of tensors, literals, sizes, indices and primitives of scalars."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, i64

LoopKind: TypeAlias = Literal["serial", "parallel", "vector", "unrolled", "block", "warp", "thread", "lane"]
"""How the iterations of a loop run.

`serial`: one after the other. `parallel`: in any order, and what they sum up may be reassociated; a scheduler says how.
`vector`: together in a vector. `unrolled`: one after the other, each with code of its own. The rest is for GPUs:
iteration i goes to block i, or to warp, thread or lane i of the block, modulo how many of them there are.
"""
Space: TypeAlias = Literal["global", "shared", "private", "stamped"]
"""Where memory is: of the device, of a block, of one thread, or of the device in words with the number of a launch."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Elements in memory: which pointer of the kernel, their dtype, and their strides in bytes."""

    pointer: str
    dtype: DType
    strides: tuple[Size, ...]
    offset: Size = 0
    """Bytes from the pointer to the first element."""
    space: Space = "global"


@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    value: complex
    dtype: DType

    @property
    def rounded(self) -> float:
        """The real number that the dtype has for it."""
        return float(np.asarray(self.value.real).astype(self.dtype.numpy))

    @property
    def reciprocal(self) -> float | None:
        """What to multiply by instead of a division by it; None where that may leave the range of f32."""
        return 1 / self.rounded if 1e-30 < abs(self.value) < 1e30 else None


@dataclass(frozen=True, slots=True)
class Extent:
    """A size as an i64."""

    size: Size

    @property
    def dtype(self) -> DType:
        return i64


@dataclass(frozen=True, slots=True)
class Name:
    """A loop's variable, or a scalar that `Set` keeps."""

    name: str
    dtype: DType = i64


@dataclass(frozen=True, slots=True)
class ThreadIndex:
    """Which block runs this, or which warp, thread or lane of its block."""

    kind: LoopKind

    @property
    def dtype(self) -> DType:
        return i64


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a tensor."""

    tensor: Tensor
    at: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype


@dataclass(frozen=True, slots=True)
class Call:
    """A primitive of scalars. Comparisons take operands of one dtype and give bool; `cast` gives its own dtype."""

    op: str
    operands: tuple[Expr, ...]
    dtype: DType


Expr: TypeAlias = Number | Extent | Name | ThreadIndex | Load | Call

__all__ = [
    "Call", "Expr", "Extent", "Load", "LoopKind", "Name", "Number", "Space", "Tensor", "ThreadIndex",
]  # fmt: skip
