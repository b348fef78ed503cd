"""What an attribute may be, and how large: the same limits for graphs that are read and graphs that are verified."""

from __future__ import annotations

from typing import Any, cast

from dovetail.errors import GraphError
from dovetail.ir.dim import LARGEST_SIZE, Dim, check_size
from dovetail.ir.dtype import ALL, DType
from dovetail.ir.graph import Subgraph
from dovetail.ir.literal import Literal
from dovetail.ir.type import TensorType, Type, tensors

DEEPEST = 32
"""How many tuples and sub-graphs may stand inside each other."""
LONGEST_TUPLE = 4096
HIGHEST_RANK = 64
LARGEST_INT = 2**127


def check_attribute(value: Any, depth: int = 0) -> None:
    """Raise unless the value is of a kind that attributes have."""
    if depth > DEEPEST:
        raise GraphError(f"more than {DEEPEST} tuples inside each other", hint="flatten the attribute")
    match value:
        case None | bool() | float() | str() | Subgraph():
            pass
        case int():
            if abs(value) > LARGEST_INT:
                raise GraphError("a whole number beyond 127 bits", hint="use a constant, or a smaller number")
        case Literal():
            check_type(TensorType(value.dtype, value.array.shape))
        case DType():
            _check_dtype(value)
        case Dim():
            check_size(value)
        case TensorType():
            check_type(value)
        case tuple():
            items = cast("tuple[Any, ...]", value)
            if len(items) > LONGEST_TUPLE:
                raise GraphError(f"a tuple of {len(items)} items", hint="use a constant for so many numbers")
            for item in items:
                check_attribute(item, depth + 1)
        case _:
            raise GraphError(
                f"an attribute of the kind {type(value).__name__}",
                hint="use None, bool, int, float, str, a dtype, size, type, array or sub-graph, or a tuple of them",
            )


def check_type(type: Type) -> None:
    """Raise unless every dtype is ours and every size is well formed and not negative."""
    for tensor in tensors(type):
        _check_dtype(tensor.dtype)
        if tensor.rank > HIGHEST_RANK:
            raise GraphError(f"a tensor of rank {tensor.rank}", hint=f"ranks go up to {HIGHEST_RANK}")
        for size in tensor.shape:
            _check_axis(size)


def _check_dtype(dtype: Any) -> None:
    if dtype not in ALL:
        raise GraphError(f"the dtype {dtype}", hint=f"use one of {', '.join(d.name for d in ALL)}")


def _check_axis(size: Any) -> None:
    if size.__class__ is int and 0 <= size <= LARGEST_SIZE:
        return
    if isinstance(size, bool) or not isinstance(size, int | Dim):
        raise GraphError(f"a size is {size!r}", hint="a size is an int or made of symbols")
    check_size(size)
    if isinstance(size, int) and size < 0:
        raise GraphError(f"a size is {size}", hint="sizes are zero or more")
