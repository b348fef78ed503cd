"""The attributes of a value as if it were spelled with the op of a pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.ir.dim import Size, divide
from dovetail.ir.value import Value
from dovetail.ops.movement import part, slice_, split, squeeze, unsqueeze

UNITS = (squeeze, unsqueeze)
"""The ops for axes of size 1. Which of several such axes they mean changes nothing."""


def attributes_as(pattern: Value, value: Value) -> Mapping[str, Any] | None:
    """Return the attributes that a pattern compares with its own; None where the value is of another op."""
    if pattern.op is split and value.op in (split, unsqueeze):
        return _split_like(pattern, value)
    if pattern.op is value.op:
        return _units_like(pattern, value) if value.op in UNITS else value.attrs
    if pattern.op is slice_ and value.op is part:
        return slice_bounds(value)
    return _slice_as_part(value) if pattern.op is part and value.op is slice_ else None


def _split_like(pattern: Value, value: Value) -> Mapping[str, Any] | None:
    """Return a split by parts as one by size, and a new axis of size 1 as a split into one part or by size 1."""
    axis: int = value.attrs["axis"] if value.op is split else pattern.attrs["axis"]
    if value.op is unsqueeze and not is_split(value, axis):
        return None
    sizes = {"parts": value.shape[axis - 1], "size": value.shape[axis]}
    return {"axis": axis, **{name: None if pattern.attrs[name] is None else sizes[name] for name in sizes}}


def is_split(value: Value, axis: int) -> bool:
    """Return whether an unsqueeze is what a split of this axis gives: both keep the order of elements."""
    (x,) = value.operands
    if value.rank != x.rank + 1 or x.rank < -axis:
        return False
    at = axis + x.rank
    return (*x.shape[:at], *value.shape[at : at + 2], *x.shape[at + 1 :]) == value.shape


def _units_like(pattern: Value, value: Value) -> Mapping[str, Any]:
    """Return a squeeze or unsqueeze of other axes of size 1 that gives the same shape is the pattern's own."""
    axes: tuple[int, ...] = pattern.attrs["axes"]
    (x,) = value.operands
    wide, narrow = (x, value) if value.op is squeeze else (value, x)
    if axes == value.attrs["axes"] or wide.rank != narrow.rank + len(axes) or any(a < -wide.rank for a in axes):
        return value.attrs
    others = tuple(s for a, s in enumerate(wide.shape, -wide.rank) if a not in axes)
    return pattern.attrs if others == narrow.shape and all(wide.shape[a] == 1 for a in axes) else value.attrs


def slice_bounds(value: Value) -> Mapping[str, Any]:
    """Return the attributes of a slice, or of the slice that a part is."""
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
