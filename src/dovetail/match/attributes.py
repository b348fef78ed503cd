"""The attributes of a value as if it were spelled with the op of a pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.ir.dim import Size, divide
from dovetail.ir.value import Value
from dovetail.ops.movement import part, slice_, split


def attributes_as(pattern: Value, value: Value) -> Mapping[str, Any] | None:
    """What the pattern compares its own attributes with; None where the value is of another op."""
    if pattern.op is value.op:
        return _split_like(pattern, value) if value.op is split else value.attrs
    if pattern.op is slice_ and value.op is part:
        return slice_bounds(value)
    return _slice_as_part(value) if pattern.op is part and value.op is slice_ else None


def _split_like(pattern: Value, value: Value) -> Mapping[str, Any]:
    """A split by parts is one by size too, so that it is written as the pattern has it."""
    axis: int = value.attrs["axis"]
    sizes = {"parts": value.shape[axis - 1], "size": value.shape[axis]}
    return {"axis": axis, **{name: None if pattern.attrs[name] is None else sizes[name] for name in sizes}}


def slice_bounds(value: Value) -> Mapping[str, Any]:
    """The attributes of a slice, or of the slice that a part is."""
    if value.op is slice_:
        return value.attrs
    axis: int = value.attrs["axis"]
    index: int = value.attrs["index"]
    length = value.shape[axis]
    return {"axis": axis, "start": length * index, "stop": length * (index + 1), "step": 1}


def _slice_as_part(value: Value) -> Mapping[str, Any] | None:
    axis: int = value.attrs["axis"]
    start: Size = value.attrs["start"]
    stop: Size = value.attrs["stop"]
    length, whole = stop - start, value.operands[0].shape[axis]
    if value.attrs["step"] != 1 or length == 0:
        return None
    index, parts = divide(start, length), divide(whole, length)
    return {"axis": axis, "index": index, "parts": parts} if isinstance(index, int) and isinstance(parts, int) else None
