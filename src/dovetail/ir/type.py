"""Types of values: a tensor of a dtype and a shape, or a tuple of types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Dim, Size, parse_size, product, substitute, symbols
from dovetail.ir.dtype import DType

SizeLike: TypeAlias = int | str | Dim


@dataclass(frozen=True, slots=True)
class TensorType:
    """Elements of one dtype, arranged in a shape."""

    dtype: DType
    shape: tuple[Size, ...]

    @staticmethod
    def of(dtype: DType, *shape: SizeLike) -> TensorType:
        """A type from sizes as people write them: ints, names and small expressions."""
        sizes = tuple(parse_size(s) if isinstance(s, str) else s for s in shape)
        for size in sizes:
            if isinstance(size, int) and size < 0:
                raise TypeRuleError(f"a size is {size}", hint="sizes are zero or more; name an unknown size, as in 's'")
        return TensorType(dtype, sizes)

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


@dataclass(frozen=True, slots=True)
class TupleType:
    """The results of an op that has several."""

    items: tuple[TensorType, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


Type: TypeAlias = TensorType | TupleType


def tensors(type: Type) -> tuple[TensorType, ...]:
    """The tensors that a type consists of."""
    return (type,) if isinstance(type, TensorType) else type.items


def type_symbols(type: Type) -> Iterator[str]:
    for tensor in tensors(type):
        for size in tensor.shape:
            if isinstance(size, Dim):
                yield from symbols(size)


def bind_type(type: Type, binding: Mapping[str, Size]) -> Type:
    """The type with its symbols replaced."""
    if isinstance(type, TensorType):
        if type.is_static:
            return type
        return TensorType(type.dtype, tuple(substitute(s, binding) for s in type.shape))
    return TupleType(tuple(TensorType(t.dtype, tuple(substitute(s, binding) for s in t.shape)) for t in type.items))
