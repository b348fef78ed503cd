"""Constant arrays as attribute values: immutable, compared by content."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.errors import UnsupportedError
from dovetail.ir.dtype import DType, of_numpy

Array = NDArray[Any]


class Literal:
    """A read-only array with its digest."""

    __slots__ = ("_hash", "array", "digest", "dtype")

    array: Array
    dtype: DType
    digest: bytes

    def __init__(self, array: Array) -> None:
        dtype = of_numpy(array.dtype)
        if dtype is None:
            raise UnsupportedError(f"a constant of dtype {array.dtype}", hint="convert it to a dtype that dovetail has")
        owned = np.array(array, dtype=dtype.numpy, order="C", copy=True)
        if dtype.kind == "bool":
            np.not_equal(owned.view(np.uint8), 0, out=owned)  # a view of other bytes may hold a true that is not 1
        elif dtype.bits < 8:
            owned.view(np.uint8)[...] &= 2**dtype.bits - 1  # NumPy does not look at the bits above
        owned.flags.writeable = False
        self.array = owned
        self.dtype = dtype
        # Content, not ==: it tells 0.0 from -0.0 and keeps NaN equal to itself.
        self.digest = (
            hashlib.blake2b(owned.tobytes(), digest_size=16).digest() if owned.nbytes > 16 else owned.tobytes()
        )
        self._hash = hash((self.digest, dtype.name, owned.shape))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Literal)
            and self._hash == other._hash
            and self.dtype is other.dtype
            and self.array.shape == other.array.shape
            and self.digest == other.digest
        )

    def __repr__(self) -> str:
        return f"Literal({self.dtype.name}{list(self.array.shape)})"


def is_table_of_truths(array: Array) -> bool:
    """Return whether it holds nothing but 0 and 1, and both."""
    # Most arrays are weights, and show it at once.
    for part in (array.reshape(-1)[:64], array):
        ones = part == 1
        if not (ones | ((part == 0) & ~np.signbit(part))).all():
            return False
    return bool(array.size) and not (array == 1).all() and not (array == 0).all()
