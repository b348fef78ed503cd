"""Array libraries, as prepared calls use them: which arrays they take, where elements are, how to allocate results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays.address import address

Numbered: TypeAlias = Sequence[tuple[int, Any]]
"""What belongs to each array, with the index of the array: calls take microseconds, of which a zip takes one."""


@dataclass(frozen=True, slots=True, eq=False)
class ArrayLibrary:
    """NumPy, or a library like it: its arrays have a `shape`, an `ndim` and `nbytes`."""

    dtype: Callable[[DType], Any]
    """The library's own dtype for one of ours."""
    shapes: Callable[[Sequence[Any], Numbered], tuple[tuple[int, ...], ...] | None]
    """The shapes of arrays of these dtypes; None where one cannot be used as it is: dense, in host memory."""
    address: Callable[[Any], int]
    """The address of the first element."""
    empty: Callable[[tuple[int, ...], DType], Callable[[], Any]]
    """What makes new dense arrays of a shape and a dtype."""
    view: Callable[[Any], Array]
    """An array as a NumPy array of the same memory."""
    wrap: Callable[[Array, DType], Any]
    """A NumPy array as an array of the library of the same memory."""
    can_write: Callable[[Any], bool]
    """Whether a kernel may write to an array that can be used as it is."""
    like: Callable[[Sequence[Any]], Callable[..., bool]] | None = None
    """Given arrays that can be used as they are: one call that checks whether others have their dtypes and shapes, and
    can be used too. It may say no where they can."""
    comes_again: Callable[[Any], None] | None = None
    """Is notified of prepared calls of which one has run twice in a row."""


def _shapes(arrays: Sequence[Any], dtypes: Numbered) -> tuple[tuple[int, ...], ...] | None:
    shapes: list[tuple[int, ...]] = []
    for index, dtype in dtypes:
        array = arrays[index]
        if array.__class__ is not np.ndarray or array.dtype is not dtype or not array.flags.c_contiguous:
            return None
        shapes.append(array.shape)
    return tuple(shapes)


NUMPY = ArrayLibrary(
    dtype=lambda dtype: dtype.numpy,
    shapes=_shapes,
    address=address,
    empty=lambda shape, dtype: partial(np.empty, shape, dtype.numpy),
    view=lambda array: array,
    wrap=lambda array, dtype: array,
    can_write=lambda array: array.flags.carray,
)

__all__ = ["NUMPY", "ArrayLibrary", "Numbered"]
