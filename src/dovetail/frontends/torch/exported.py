"""An exported program as plain data: leaves, calls of operators in order, outputs. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Dim
from dovetail.ir.literal import Array
from dovetail.ir.origin import Origin
from dovetail.ir.type import TensorType

GETITEM = "getitem"
"""The call that takes one of several results."""


@dataclass(frozen=True, slots=True)
class Ref:
    """What a leaf or an earlier call made, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A result that dovetail has no type for, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Real:
    """A float that sizes decide: an operation of other numbers."""

    op: Literal["size", "number", "add", "mul", "div", "pow", "sqrt"]
    arguments: tuple[Any, ...]
    """A size, a float, or other `Real`s."""


Result: TypeAlias = TensorType | Dim | Real | int | float | bool | str | Unknown | tuple["Result", ...] | None
"""What a call makes, as torch inferred it: a tensor type, a number, a size, or several of them."""


@dataclass(frozen=True, slots=True)
class Body:
    """A sub-graph that a call is given: a branch, a step of a loop, a function of scores."""

    name: str
    parameters: tuple[str, ...]
    """The names that its calls have for what it is given."""
    calls: tuple[Call, ...]
    outputs: tuple[Any, ...]
    """`Ref`, numbers or None."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator; arguments are in the order of its schema, without defaults at the end."""

    name: str
    op: str
    """As torch prints it: aten.linear.default."""
    arguments: tuple[Any, ...]
    """`Ref`, `Body`, numbers, sizes, `DType`, strings, None, and lists of these."""
    names: tuple[str, ...]
    """The schema's names of the positional arguments; empty where there is no schema."""
    keywords: Mapping[str, Any]
    """Keyword-only arguments that differ from their defaults."""
    result: Result
    origins: tuple[Origin, ...] = ()
    where: str = ""
    """The place in the user's program, for messages."""


LeafKind = Literal["input", "state", "param", "constant"]
"""A tensor of the caller, a buffer that the program changes, a weight, or an array that is part of the program."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that the program starts from."""

    name: str
    kind: LeafKind
    type: TensorType
    target: str = ""
    """The name that the program's owner has for it: of a parameter, a buffer or an argument."""
    array: Array | None = None
    frozen: str = ""
    """Why the program's owner does not train this weight; empty where it is trained."""


@dataclass(frozen=True, slots=True)
class Output:
    """One result of the program: a tensor, or something that is the same in every run."""

    value: Any
    """`Ref`, or the number itself."""
    mutates: str = ""
    """The leaf whose new content this is; empty for what the caller gets."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A program: what it starts from, what it calls, what it returns."""

    name: str
    leaves: tuple[Leaf, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Output, ...]
    sizes: frozenset[str] = frozenset()
    """The outputs that are sizes, which a caller gets as integers."""
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict[str, tuple[int, int | None]])
    """The smallest and the largest size that torch exported the program for, by symbol."""
