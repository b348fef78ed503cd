"""Typed handles of SSA values: pyright refuses one kind in place of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from dovetail.dataclass import dataclass

ElementType: TypeAlias = Literal["float", "half", "bfloat", "i1", "i8", "i16", "i32", "i64", "ptr"]
"""The type of a vector's elements, as LLVM spells it."""
_BYTES = {"float": 4, "half": 2, "bfloat": 2, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "ptr": 8}
_MANGLED = {"float": "f32", "half": "f16", "bfloat": "bf16", "ptr": "p0"}


@dataclass(frozen=True, slots=True)
class VectorType:
    """The type of a vector: how many elements it has, and of which type."""

    count: int
    element: ElementType

    def __str__(self) -> str:
        return f"<{self.count} x {self.element}>"

    @property
    def mangled(self) -> str:
        """How names of intrinsics spell it, such as v16f32."""
        return f"v{self.count}{_MANGLED.get(self.element, self.element)}"

    @property
    def bytes(self) -> int:
        return self.count * _BYTES[self.element]

    def of(self, element: ElementType) -> VectorType:
        """As many elements of another type."""
        return VectorType(self.count, element)


class Handle(str):
    """An SSA value, a parameter or a literal, as it is spelled."""

    __slots__ = ()
    type: ClassVar[str] = ""
    """The LLVM type; "" where it depends on the width of vectors, which the builder knows."""


class Ptr(Handle):
    """A pointer."""

    __slots__ = ()
    type = "ptr"


class I64(Handle):
    """A 64-bit integer; instructions say whether they take it as signed."""

    __slots__ = ()
    type = "i64"


class I32(Handle):
    """A 32-bit integer."""

    __slots__ = ()
    type = "i32"


class I1(Handle):
    """A truth value."""

    __slots__ = ()
    type = "i1"


class F32(Handle):
    """A single-precision scalar."""

    __slots__ = ()
    type = "float"


class Vec(Handle):
    """A vector, one element per lane."""

    __slots__ = ("lanes",)
    lanes: VectorType | None
    """Its type; None of a vector of f32 that is as wide as those of the builder's device."""

    def __new__(cls, name: str, lanes: VectorType | None = None) -> Vec:
        vector = super().__new__(cls, name)
        vector.lanes = lanes
        return vector


class VecI32(Handle):
    """A vector of 32-bit integers, one per lane."""

    __slots__ = ()


class VecI64(Handle):
    """A vector of 64-bit integers, one per lane."""

    __slots__ = ()


class Mask(Handle):
    """A vector of truth values, one per lane."""

    __slots__ = ()


Int: TypeAlias = I64 | int
"""An integer operand: a handle, or a literal."""
Order: TypeAlias = Literal["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"]
NULL = Ptr("null")
TRUE, FALSE = I1("true"), I1("false")


class Phi:
    """A value that depends on the block that control comes from. Incoming values are added as they become known."""

    def __init__(self, name: str, type: str) -> None:
        self.name = name
        self.type = type
        self.incoming: list[tuple[str, str]] = []

    def add(self, value: str, block: str) -> None:
        self.incoming.append((value, block))

    def __str__(self) -> str:
        return f"  {self.name} = phi {self.type} {', '.join(f'[ {x}, %{block} ]' for x, block in self.incoming)}"


@dataclass(slots=True)
class Carried:
    """What a loop hands from iteration to iteration. The body replaces items; after the loop they are the last ones."""

    index: I64
    vectors: list[Vec] = field(default_factory=list[Vec])
    pointers: list[Ptr] = field(default_factory=list[Ptr])
    integers: list[I64] = field(default_factory=list[I64])
    again: I1 = FALSE
    """Of `repeat`: whether another iteration follows; the body sets it."""

    @property
    def handles(self) -> list[Handle]:
        return [*self.integers, *self.pointers, *self.vectors]

    def set(self, handles: Sequence[str]) -> None:
        """Replace everything, in the order of `handles`."""
        ints, pointers = len(self.integers), len(self.integers) + len(self.pointers)
        self.integers[:] = map(I64, handles[:ints])
        self.pointers[:] = map(Ptr, handles[ints:pointers])
        self.vectors[:] = [Vec(x, of.lanes) for x, of in zip(handles[pointers:], self.vectors, strict=True)]


def carried_by(start: Carried, phis: Sequence[Phi], index: I64) -> Carried:
    """The phis of a loop as the handles that its body sees; without phis, a copy."""
    carried = Carried(index, list(start.vectors), list(start.pointers), list(start.integers))
    if phis:
        carried.set([phi.name for phi in phis])
    return carried
