"""Types of values: a tensor of a dtype and a shape, or a tuple of types.

`DType` and `TensorType` are one file because each is written with the other: `f32["b", 384]`. `ir.dtype` lists them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Literal, NoReturn, TypeAlias, cast

import ml_dtypes
import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Dim, Size, product, symbols
from dovetail.ir.size_text import parse_size

SizeLike: TypeAlias = int | str | Dim


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
        return TensorType.of(self, *(shape if isinstance(shape, tuple) else (shape,)))


def whole_range(dtype: DType) -> tuple[int, int]:
    """Return the least and the largest number of an integer type."""
    if dtype.kind == "bool":
        return 0, 1
    return (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class TensorType:
    """Elements of one dtype, arranged in a shape."""

    dtype: DType
    shape: tuple[Size, ...]

    # Types are compared everywhere: without making a tuple of each.
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return other.__class__ is TensorType and self.shape == other.shape and self.dtype is other.dtype  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.shape)

    @staticmethod
    def of(dtype: DType, *shape: SizeLike) -> TensorType:
        """Return a type from sizes as people write them: ints, names and small expressions."""
        return TensorType(dtype, tuple(map(_size, shape)))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def count(self) -> Size:
        """The number of elements."""
        return product(self.shape)

    @property
    def bytes(self) -> Size:
        return self.count * self.dtype.itemsize

    @property
    def is_static(self) -> bool:
        return all(isinstance(s, int) for s in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


def _size(spelled: SizeLike) -> Size:
    size = parse_size(spelled) if isinstance(spelled, str) else spelled
    if isinstance(size, Dim):
        return size
    try:
        whole = operator.index(size)
    except TypeError:
        raise TypeRuleError(f"a size is {size!r}", hint="sizes are whole numbers or names, as in f32[4, 's']") from None
    if whole < 0:
        raise TypeRuleError(f"a size is {whole}", hint="sizes are zero or more; name an unknown size, as in 's'")
    return whole


@dataclass(frozen=True, slots=True)
class TupleType:
    """The results of an op that has several."""

    items: tuple[TensorType, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


Type: TypeAlias = TensorType | TupleType


def tensors(type: Type) -> tuple[TensorType, ...]:
    """Return the tensors that a type consists of."""
    return (type,) if isinstance(type, TensorType) else type.items


def type_symbols(type: Type) -> Iterator[str]:
    for tensor in tensors(type):
        for size in tensor.shape:
            if isinstance(size, Dim):
                yield from symbols(size)


def with_sizes(type: Type, size: Callable[[Size], Size]) -> Type:
    """Return the type with each size replaced by a function's result."""
    if isinstance(type, TensorType):
        return type if type.is_static else TensorType(type.dtype, tuple(map(size, type.shape)))
    return TupleType(tuple(TensorType(t.dtype, tuple(map(size, t.shape))) for t in type.items))
