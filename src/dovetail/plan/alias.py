"""Views as strides: a value that is stored in the memory of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TypeAlias

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.type import TensorType
from dovetail.ir.value import Op, Value

Strides: TypeAlias = tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Alias:
    """The root that holds a value's elements, the offset of the first one and the strides, in bytes."""

    root: Value
    offset: Size
    strides: Strides


def find_aliases(values: Iterable[Value], known: Mapping[Value, Alias] | None = None) -> dict[Value, Alias]:
    """Return the alias of every value that needs no memory of its own; views of views lead to the root at once.

    `known` gives the layout of values that are not dense in memory of their own.
    """
    aliases: dict[Value, Alias] = dict(known or {})
    for value in values:
        if value.op is leaf.ITEM:
            pack, index = value.operands[0], int(value.attrs["index"])
            if pack.op is leaf.PACK:
                aliases[value] = locate(pack.operands[index], aliases)
            continue
        rule = _RULES.get(value.op)
        if rule is not None:
            of = locate(value.operands[0], aliases)
            seen = _nowhere(value) if 0 in value.shape else rule(value, of.offset, of.strides)
            if seen is not None:
                aliases[value] = Alias(of.root, *seen)
    return aliases


def locate(value: Value, aliases: Mapping[Value, Alias]) -> Alias:
    """Return where a value is stored: in its root if it is a view, else densely in memory of its own."""
    return aliases.get(value) or Alias(value, 0, dense_strides(value.tensor))


def root_of(value: Value, aliases: Mapping[Value, Alias]) -> Value:
    """Return the value whose memory holds a value's elements."""
    alias = aliases.get(value)
    return value if alias is None else alias.root


def is_view(value: Value, aliases: Mapping[Value, Alias]) -> bool:
    """Return whether a value is stored in the memory of another."""
    return root_of(value, aliases) is not value


def dense_strides(type: TensorType) -> Strides:
    """Byte strides of a dense tensor in row-major order."""
    strides: list[Size] = []
    step: Size = type.dtype.itemsize
    for size in reversed(type.shape):
        strides.append(step)
        step = size * step
    strides.reverse()
    return tuple(strides)


def is_dense(type: TensorType, strides: Strides) -> bool:
    """Return whether strides are those of a dense tensor; the stride of an axis of size 1 does not count."""
    dense = dense_strides(type)
    return strides == dense or all(
        size == 1 or stride == expected for size, stride, expected in zip(type.shape, strides, dense, strict=True)
    )


_Seen: TypeAlias = tuple[Size, Strides]
_Rule: TypeAlias = Callable[[Value, Size, Strides], "_Seen | None"]
"""From the view and the offset and strides of its operand to its own; None where strides cannot tell."""


def _nowhere(value: Value) -> _Seen:
    """Return a view without elements, which needs no offset; a flip or an empty slice would point outside."""
    return 0, dense_strides(value.tensor)


def _split(value: Value, offset: Size, strides: Strides) -> _Seen:
    at = int(value.attrs["axis"]) + len(strides)
    return offset, (*strides[:at], value.shape[at + 1] * strides[at], *strides[at:])


def _merge(value: Value, offset: Size, strides: Strides) -> _Seen | None:
    shape = value.operands[0].shape
    last = value.attrs["axis"] + len(strides)
    first = last - value.attrs["count"] + 1
    # Axes of size 1 have no stride to speak of.
    axes = [i for i in range(first, last + 1) if shape[i] != 1]
    for outer, inner in pairwise(axes):
        if strides[outer] != shape[inner] * strides[inner]:
            return None
    return offset, (*strides[:first], strides[axes[-1]] if axes else 0, *strides[last + 1 :])


def _unsqueeze(value: Value, offset: Size, strides: Strides) -> _Seen:
    rest = iter(strides)
    rank = value.rank
    return offset, tuple([0 if a - rank in value.attrs["axes"] else next(rest) for a in range(rank)])


def _squeeze(value: Value, offset: Size, strides: Strides) -> _Seen:
    rank = len(strides)
    return offset, tuple([s for a, s in enumerate(strides) if a - rank not in value.attrs["axes"]])


def _permute(value: Value, offset: Size, strides: Strides) -> _Seen:
    order: tuple[int, ...] = value.attrs["order"]
    return offset, (*strides[: len(strides) - len(order)], *[strides[a] for a in order])


def _slice(value: Value, offset: Size, strides: Strides) -> _Seen:
    axis: int = value.attrs["axis"]
    at = axis + len(strides)
    stride = strides[at]
    return offset + value.attrs["start"] * stride, (
        *strides[:at],
        stride * value.attrs["step"],
        *strides[at + 1 :],
    )


def _part(value: Value, offset: Size, strides: Strides) -> _Seen:
    axis: int = value.attrs["axis"]
    return offset + value.attrs["index"] * value.shape[axis] * strides[axis], strides


def _expand(value: Value, offset: Size, strides: Strides) -> _Seen:
    at = value.attrs["axis"] + len(strides)
    return offset, (*strides[:at], 0, *strides[at + 1 :])


def _flip(value: Value, offset: Size, strides: Strides) -> _Seen:
    flipped = list(strides)
    axes: tuple[int, ...] = value.attrs["axes"]
    for axis in axes:
        offset = offset + (value.shape[axis] - 1) * strides[axis]
        flipped[axis] = -strides[axis]
    return offset, tuple(flipped)


def _same(value: Value, offset: Size, strides: Strides) -> _Seen:
    return offset, strides


_RULES: Mapping[Op, _Rule] = {
    ops.split: _split,
    ops.merge: _merge,
    ops.unsqueeze: _unsqueeze,
    ops.squeeze: _squeeze,
    ops.permute: _permute,
    ops.slice_: _slice,
    ops.part: _part,
    ops.expand: _expand,
    ops.flip: _flip,
    ops.sized: _same,
    ops.again: _same,
    ops.stop_gradient: _same,
}
