"""Sizes and dtypes in declared bodies: deferred while a pattern is traced, where operands have no type yet."""

from __future__ import annotations

from typing import Any

from dovetail.ir.leaf import DTypeOf, SizeOf
from dovetail.ir.value import Value


def size_of(x: Value, axis: int) -> Any:
    """Return the size of an axis: a size, or `SizeOf`, which the matcher resolves, while a pattern is traced."""
    return SizeOf(x, axis) if x.known_type is None else x.shape[axis]


def dtype_of(x: Value) -> Any:
    """Return the dtype of a value, or `DTypeOf`, which the matcher resolves, while a pattern is traced."""
    return DTypeOf(x) if x.known_type is None else x.dtype
