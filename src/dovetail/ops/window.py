"""Windows that slide over the spatial axes of [n, c, *spatial]: what convolution and pooling share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import TraceError, TypeRuleError
from dovetail.ir.dim import Dim, Size, floordiv, smallest
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType
from dovetail.ops.primitive import Array, Kind


def _per_axis(value: Any, rank: int | None) -> tuple[int, ...]:
    """Return one integer for each spatial axis; a single one stands for all."""
    listed = _listed(value, rank, 1)
    for number in listed:
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise TypeRuleError(f"{number!r} where an integer is wanted", hint="pass ints, one for each spatial axis")
    return tuple(int(number) for number in listed)


def _around(value: Any, rank: int | None) -> tuple[Size, ...]:
    """Padding in front of every spatial axis, then after every one; one number for each axis serves both."""
    listed = _listed(value, rank, 2)
    if rank is not None and len(listed) == rank - 2:
        listed = listed * 2
    return tuple(size if isinstance(size, Dim) else _per_axis((size,), None)[0] for size in listed)


def _listed(value: Any, rank: int | None, sides: int) -> tuple[Any, ...]:
    if isinstance(value, tuple | list):
        return tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if rank is None:
        raise TraceError(
            f"{value!r} for every spatial axis of a tensor of unknown rank", hint="write one number for each axis"
        )
    return (value,) * (sides * max(rank - 2, 0))


PerAxis = Annotated[Any, Kind("ints", _per_axis)]
"""One integer for each spatial axis."""
Around = Annotated[Any, Kind("sizes", _around)]
"""Padding: in front of every spatial axis, then after every one."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one axis: its size, its step, the distance of its taps, the padding around the axis."""

    size: Size
    stride: int
    dilation: int
    before: Size
    after: Size

    @property
    def reach(self) -> Size:
        """From the first tap to the last, both included."""
        return (self.size - 1) * self.dilation + 1

    def places(self, length: Size, *, ceil: bool = False) -> Size:
        """Return how many windows fit; `ceil` adds one over the end if it starts before the padding there."""
        room = length + self.before + self.after - self.reach
        if not ceil:
            return floordiv(room, self.stride) + 1
        return smallest(
            floordiv(room + self.stride - 1, self.stride) + 1,
            floordiv(length + self.before - 1, self.stride) + 1,
        )


def windows(
    facts: Facts,
    x: TensorType,
    sizes: Sequence[Size],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[Size, ...],
) -> list[Window]:
    """Return one window for each spatial axis, checked."""
    count = x.rank - 2
    if not 1 <= count <= 3:
        raise TypeRuleError(f"{facts.op} of rank {x.rank}", hint="it takes [n, c, *spatial] with 1 to 3 spatial axes")
    for what, numbers, expected in (
        ("the window", sizes, count),
        ("strides", strides, count),
        ("dilations", dilations, count),
        ("padding", padding, 2 * count),
    ):
        if len(numbers) != expected:
            raise TypeRuleError(
                f"{facts.op}: {what} has {len(numbers)} numbers for {count} spatial axes", hint=f"give {expected}"
            )
    if any(n < 1 for n in (*strides, *dilations)):
        raise TypeRuleError(f"{facts.op}: strides {strides}, dilations {dilations}", hint="they are 1 or more")
    for size in sizes:
        facts.at_least(size, 1, "the size of a window")
    for amount in padding:
        facts.at_least(amount, 0, "an amount of padding")
    return [Window(sizes[i], strides[i], dilations[i], padding[i], padding[count + i]) for i in range(count)]


def slid(facts: Facts, x: TensorType, along: Sequence[Window], *, ceil: bool = False) -> tuple[Size, ...]:
    """Return the spatial sizes of the result, one element for each place of the window."""
    for length, window in zip(x.shape[2:], along, strict=True):
        facts.at_least(length + window.before + window.after, window.reach, "a padded axis, against the window's reach")
    return tuple(w.places(length, ceil=ceil) for length, w in zip(x.shape[2:], along, strict=True))


def taps(kernel: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield every offset within a window, in the order of memory."""
    yield from np.ndindex(*kernel)


def tapped(
    padded: Array, tap: tuple[int, ...], places: Sequence[int], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> Array:
    """Return what one tap of the window sees at every place."""
    index: list[slice] = [slice(None), slice(None)]
    for offset, count, stride, dilation in zip(tap, places, strides, dilations, strict=True):
        start = offset * dilation
        index.append(slice(start, start + stride * (count - 1) + 1, stride) if count > 0 else slice(0, 0))
    return padded[tuple(index)]


def padded_by(x: Array, before: Sequence[int], after: Sequence[int], value: Any) -> Array:
    """Pad the spatial axes with one number."""
    return np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)], constant_values=value)
