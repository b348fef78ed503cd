"""The threads of one block in NumPy: their names, what expressions give them, and memory within its bounds.

Scalars are computed by the primitives' own meanings. Reads and writes out of bounds are errors, and so are two threads
that store different values in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from dovetail.ir.dim import Size, evaluate
from dovetail.ir.dtype import i64
from dovetail.ir.literal import Array
from dovetail.kernels.loops.analysis import shared_bytes
from dovetail.kernels.loops.ir import Expr, Kernel, Tensor
from dovetail.kernels.loops.persistent.kernel import NEXT
from tests.targets.cuda.expressions import Expressions
from tests.targets.cuda.places import Known, Value, gathered, gathered_by, scatter, scatter_by

NOT_WRITTEN = 0xFF
"""What memory holds before it is written: floats that are not a number, so that products by 0 show it too."""

Found: TypeAlias = tuple[Array, Known, Any, bool]
"""The buffer of a place, what is known of the place before a block runs, the rest of it, and whether the bounds of what
is known tell that all threads are inside."""


class Threads:
    """Threads of a block that compute in lockstep, on buffers of bytes."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, tuple[Array, int]], sizes: Mapping[str, int]) -> None:
        assert kernel.launch is not None
        self.kernel, self.sizes = kernel, sizes
        given, self.lanes = kernel.launch.shared_bytes, kernel.launch.warp
        assert not given or kernel.counter or shared_bytes(kernel.body) <= given, "allocations fit what a launch gives"
        self.shared = np.full(given, NOT_WRITTEN, np.uint8)
        """The shared memory of a block, where allocations take turns in it."""
        self.grid = self.size(kernel.launch.grid)
        self.buffers = dict(buffers)
        self.names: dict[str, Value] = {}
        self.memo: dict[int, Value] = {}
        self.expressions: dict[int, Expressions] = {}
        """By the number of threads that a part of the kernel has."""
        self.resize(kernel.launch.block)
        self.number = 0
        self.stamp = 0
        """The number of a launch in the words that its blocks send to each other."""
        self.is_early = False
        """Whether kernels before this one may still run: it may read constants alone."""

    def size(self, size: Size) -> int:
        return size if isinstance(size, int) else evaluate(size, self.sizes)

    def resize(self, block: int) -> None:
        """Be that many threads from now on."""
        self.block, self.threads = block, np.arange(block)
        if block not in self.expressions:
            self.expressions[block] = Expressions(block, self.lanes, self.size)
        self.own = self.expressions[block]

    def same(self, expr: Expr, mask: Array) -> int:
        """What all threads have in common."""
        value = self.one(expr, mask)
        if not isinstance(value, int):
            (value,) = set(self.filled(value)[mask].tolist())
        return int(value)

    def one(self, expr: Expr, mask: Array) -> Value:
        """What an expression gives: a number where all threads have the same."""
        return self.own.function(expr)(self, mask)

    def value(self, expr: Expr, mask: Array) -> Array:
        """The same, for each thread."""
        return self.filled(self.one(expr, mask))

    def filled(self, value: Value) -> Array:
        return self.own.filled(value)

    def named(self, name: str) -> Array:
        """What each thread keeps under a name."""
        return self.filled(self.names[name])

    def is_whole(self, mask: Array) -> bool:
        return mask is self.own.every or np.count_nonzero(mask) == self.block

    def address(self, tensor: Tensor, at: Sequence[Expr], mask: Array, nbytes: int | None = None) -> Array:
        """Where each thread finds an element, of which that many bytes must be inside."""
        return self._checked(tensor, self._found(tensor, at, mask, nbytes), mask, nbytes)

    def _checked(self, tensor: Tensor, of: Found, mask: Array, nbytes: int | None = None) -> Array:
        buffer, known, shared, is_near = of
        found = known.first + shared
        if not self.is_whole(mask):
            # A buffer that is not empty holds the first place, which stands for those of threads without work.
            found = np.where(mask, found, 0)
        last = len(buffer) - (word_of(tensor) if nbytes is None else nbytes)
        # What is negative is large without a sign.
        if not is_near and (last < 0 or np.maximum.reduce(found.view(np.uint64)) > last):
            outside = found[mask & ((found < 0) | (found > last))]
            assert not outside.size, f"{tensor.pointer} is addressed at {outside[0]} of {len(buffer)} bytes"
        return found

    def _found(self, tensor: Tensor, at: Sequence[Expr], mask: Array, nbytes: int | None = None) -> Found:
        if self.is_early and tensor.space == "global":
            constant = tensor.pointer.removeprefix(NEXT) in self.kernel.constants
            assert constant, f"{tensor.pointer} is used before the kernels before have ended"
        buffer, start = self.buffers[tensor.pointer]
        place = self.own.place(tensor, at, start)
        known, shared = place.found(0 if tensor.space in ("shared", "private") else start, self, mask)
        if isinstance(shared, int):
            last = len(buffer) - (word_of(tensor) if nbytes is None else nbytes)
            return buffer, known, shared, shared + known.low >= 0 and shared + known.high <= last
        return buffer, known, shared, False

    def load(self, tensor: Tensor, at: Sequence[Expr], mask: Array) -> Value:
        item = tensor.dtype.itemsize
        buffer, known, shared, is_near = found = self._found(tensor, at, mask)
        whole = self.is_whole(mask)
        if is_near:
            if whole and tensor.dtype is i64 and known.low == known.high:
                first = shared + known.low
                return int.from_bytes(buffer[first : first + item].tobytes(), "little", signed=True)
            raw = gathered_by(buffer, known, shared, item)
            if not whole:
                raw[~mask] = 0
        elif whole:
            raw = gathered(buffer, self._checked(tensor, found, mask), item)
        else:
            raw = np.zeros((self.block, item), np.uint8)
            raw[mask] = gathered(buffer, self._checked(tensor, found, mask)[mask], item)
        return raw.reshape(-1).view(tensor.dtype.numpy)

    def store(self, tensor: Tensor, at: Sequence[Expr], value: Array, mask: Array) -> None:
        item = tensor.dtype.itemsize
        raw = np.ascontiguousarray(value.astype(tensor.dtype.numpy, copy=False)).view(np.uint8)
        raw = raw.reshape(self.block, item)
        if tensor.space == "stamped":
            stamp = np.frombuffer(self.stamp.to_bytes(item, "little"), np.uint8)
            raw = np.hstack([raw, np.broadcast_to(stamp, raw.shape)])
        agree = self.scatter(tensor, at, raw, mask)
        assert agree, f"two threads store different values in {tensor.pointer}"

    def kept(self, tensor: Tensor, at: Sequence[Expr], count: int, mask: Array) -> Array:
        """That many bytes of a private tensor, of each thread."""
        buffer, known, shared, is_near = found = self._found(tensor, at, mask, count)
        if is_near:
            return gathered_by(buffer, known, shared, count)
        return gathered(buffer, self._checked(tensor, found, mask), count)

    def scatter(self, tensor: Tensor, at: Sequence[Expr], raw: Array, mask: Array) -> bool:
        """Write bytes of each thread; whether they are there afterwards."""
        buffer, known, shared, is_near = found = self._found(tensor, at, mask, raw.shape[1])
        if is_near:
            return scatter_by(buffer, known, shared, raw, None if self.is_whole(mask) else mask)
        return scatter(buffer, self._checked(tensor, found, mask)[mask], raw[mask])


def word_of(tensor: Tensor) -> int:
    """Bytes that an element takes."""
    return tensor.dtype.itemsize * (2 if tensor.space == "stamped" else 1)


def assert_whole_warps(mask: Array, lanes: int) -> None:
    warps = mask.reshape(-1, lanes)
    assert (warps.all(1) | ~warps.any(1)).all(), "every lane of a warp takes part"


__all__ = ["NOT_WRITTEN", "Threads", "assert_whole_warps"]
