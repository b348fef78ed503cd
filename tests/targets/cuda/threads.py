"""The threads of one block in NumPy: their names, what expressions give them, and memory within its bounds.

Scalars are computed by the primitives' own meanings. Reads and writes out of bounds are errors, and so are two threads
that store different values in one place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from dovetail import ops
from dovetail.ir.dim import Size, evaluate
from dovetail.ir.dtype import DType, f8e4m3fn, f8e5m2, i64
from dovetail.ir.literal import Array
from dovetail.kernels.loops.analysis import shared_bytes
from dovetail.kernels.loops.ir import Call, Expr, Extent, Kernel, Load, Name, Number, Tensor, ThreadIndex
from dovetail.kernels.loops.resident import NEXT

LANES = 32
_OPS = {op.name: op for op in ops.ALL}

NOT_WRITTEN = 0xFF
"""What memory holds before it is written: floats that are not a number, so that products by 0 show it too."""


_FP8 = {
    name: dtype
    for kind, dtype in {"e4m3": f8e4m3fn, "e5m2": f8e5m2}.items()
    for name in (f"{kind}_of_f32", f"f16_of_{kind}")
}
"""Conversion instructions, and their dtype of 8 bits."""


class Threads:
    """Threads of a block that compute in lockstep, on buffers of bytes."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, tuple[Array, int]], sizes: Mapping[str, int]) -> None:
        assert kernel.launch is not None
        self.kernel, self.sizes = kernel, sizes
        self.block = kernel.launch.block
        given = kernel.launch.shared_bytes
        assert not given or kernel.counter or shared_bytes(kernel.body) <= given, "allocations fit what a launch gives"
        self.shared = np.full(given, NOT_WRITTEN, np.uint8)
        """The shared memory of a block, where allocations take turns in it."""
        self.grid = self.size(kernel.launch.grid)
        self.buffers = dict(buffers)
        self.threads = np.arange(self.block)
        self.names: dict[str, Array] = {}
        self.memo: dict[int, Array] = {}
        self.number = 0
        self.stamp = 0
        """The number of a launch in the words that its blocks send to each other."""
        self.is_early = False
        """Whether kernels before this one may still run: it may read constants alone."""

    def size(self, size: Size) -> int:
        return size if isinstance(size, int) else evaluate(size, self.sizes)

    def same(self, expr: Expr, mask: Array) -> int:
        """What all threads have in common."""
        (found,) = set(self.value(expr, mask)[mask].tolist())
        return int(found)

    def value(self, expr: Expr, mask: Array) -> Array:
        if type(expr) is Name:
            return self.names[expr.name]
        found = self.memo.get(id(expr))
        if found is None:
            found = self.memo[id(expr)] = self.one(expr, mask)
        return found

    def one(self, expr: Expr, mask: Array) -> Array:
        # By type, those that are most frequent first: matching patterns takes longer than most operations here.
        if type(expr) is Call:
            return self.apply(expr.op, [self.value(x, mask) for x in expr.operands], expr.dtype)
        if type(expr) is Number:
            real = expr.value.real if isinstance(expr.value, complex) else expr.value
            return _filled(self.block, real, expr.dtype)
        if type(expr) is Extent:
            return _filled(self.block, self.size(expr.size), i64)
        if type(expr) is Load:
            return self.load(expr.tensor, self.address(expr.tensor, expr.at, mask), mask)
        match expr:
            case ThreadIndex("block"):
                return _filled(self.block, self.number, i64)
            case ThreadIndex("thread"):
                return self.threads
            case ThreadIndex(kind):
                return self.threads % LANES if kind == "lane" else self.threads // LANES
            case _:
                raise AssertionError(expr)

    def apply(self, op: str, xs: list[Array], dtype: DType) -> Array:
        if op == "cast":
            return np.asarray(_OPS["cast"].meaning(xs[0], dtype=dtype)).astype(dtype.numpy)
        if op in ("clock", "clock_after"):
            return np.full(self.block, time.perf_counter_ns())
        if op == "bitcast":
            return xs[0].view(dtype.numpy)
        if op in _FP8:
            narrow = _FP8[op]
            return xs[0].view(narrow.numpy).astype(dtype.numpy) if op.startswith("f16") else _saturated(xs[0], narrow)
        if op in ("exp_falling", "near_exp", "fma"):
            return np.exp(xs[0]) if op != "fma" else xs[0] * xs[1] + xs[2]
        if op == "near_exp2":
            return np.exp2(xs[0])
        found: Any = np.asarray(_meaning(op)(*xs))
        return found if found.dtype == dtype.numpy else found.astype(dtype.numpy)

    def address(self, tensor: Tensor, at: Sequence[Expr], mask: Array, nbytes: int | None = None) -> Array:
        """Where each thread finds an element, of which that many bytes must be inside."""
        if self.is_early and tensor.space == "global":
            constant = tensor.pointer.removeprefix(NEXT) in self.kernel.constants
            assert constant, f"{tensor.pointer} is used before the kernels before have ended"
        buffer, start = self.buffers[tensor.pointer]
        last = len(buffer) - (self.word(tensor) if nbytes is None else nbytes)
        found: Any = self.size(tensor.offset)
        if tensor.space != "shared" and tensor.space != "private":
            found = found + start
        for stride, index in zip(tensor.strides, at, strict=True):
            found = found + (stride if type(stride) is int else self.size(stride)) * self.value(index, mask)
        if tensor.space == "private":
            found = found + self.threads * start
        # A buffer that is not empty holds the first place, which stands for those of threads without work.
        found = np.where(mask, found, 0)
        # What is negative is large without a sign.
        if last < 0 or np.maximum.reduce(found.view(np.uint64)) > last:
            outside = found[mask & ((found < 0) | (found > last))]
            assert not outside.size, f"{tensor.pointer} is addressed at {outside[0]} of {len(buffer)} bytes"
        return found

    def word(self, tensor: Tensor) -> int:
        """Bytes that an element takes."""
        return tensor.dtype.itemsize * (2 if tensor.space == "stamped" else 1)

    def load(self, tensor: Tensor, address: Array, mask: Array) -> Array:
        buffer, _ = self.buffers[tensor.pointer]
        item = tensor.dtype.itemsize
        if np.count_nonzero(mask) == self.block:
            return gathered(buffer, address, item).reshape(-1).view(tensor.dtype.numpy)
        raw = np.zeros((self.block, item), np.uint8)
        raw[mask] = gathered(buffer, address[mask], item)
        return raw.reshape(-1).view(tensor.dtype.numpy)

    def store(self, tensor: Tensor, address: Array, value: Array, mask: Array) -> None:
        buffer, _ = self.buffers[tensor.pointer]
        item = tensor.dtype.itemsize
        raw = np.ascontiguousarray(value.astype(tensor.dtype.numpy)).view(np.uint8).reshape(self.block, item)[mask]
        if tensor.space == "stamped":
            stamp = np.frombuffer(self.stamp.to_bytes(item, "little"), np.uint8)
            raw = np.hstack([raw, np.broadcast_to(stamp, raw.shape)])
        assert scatter(buffer, address[mask], raw), f"two threads store different values in {tensor.pointer}"


@cache
def _meaning(op: str) -> Callable[..., Any]:
    return _OPS[op.removeprefix("fold_").removeprefix("near_")].meaning


def gathered(buffer: Array, first: Array, count: int) -> Array:
    """That many bytes from each of these places."""
    word = _word(buffer, first, count)
    return buffer.view(word)[_places(first, count, word)].view(np.uint8).reshape(-1, count)


def scatter(buffer: Array, first: Array, raw: Array) -> bool:
    """Write bytes to each of these places; whether they are there afterwards."""
    word = _word(buffer, first, raw.shape[1])
    places, words, wide = _places(first, raw.shape[1], word), raw.view(word), buffer.view(word)
    words = words.reshape(places.shape)
    wide[places] = words
    return bool((wide[places] == words).all())


def _word(buffer: Array, first: Array, count: int) -> np.dtype[Any]:
    """The widest words in which bytes can be copied."""
    low = int(np.bitwise_or.reduce(first)) | len(buffer) | count
    return _WORDS[min(low & -low, 8)]


def _places(first: Array, count: int, word: np.dtype[Any]) -> Array:
    """The numbers of the words that bytes from each place take."""
    places = first // word.itemsize
    return places if count == word.itemsize else places[:, None] + np.arange(count // word.itemsize)


_WORDS = {np.dtype(kind).itemsize: np.dtype(kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64)}


def _filled(count: int, number: float, dtype: DType) -> Array:
    """A number in every thread."""
    return _remembered(count, number, math.copysign(1.0, number), dtype)


@lru_cache(maxsize=4096)
def _remembered(count: int, number: float, sign: float, dtype: DType) -> Array:
    """The same, once for each number; the sign tells 0 from -0."""
    found = np.full(count, number, dtype.numpy)
    found.flags.writeable = False
    return found


def _saturated(x: Array, narrow: DType) -> Array:
    """Bits of the nearest number of 8 bits, which is finite."""
    least, most = narrow.range
    return np.clip(x, least, most).astype(narrow.numpy).view(np.uint8)


def assert_whole_warps(mask: Array) -> None:
    warps = mask.reshape(-1, LANES)
    assert (warps.all(1) | ~warps.any(1)).all(), "every lane of a warp takes part"


__all__ = ["LANES", "NOT_WRITTEN", "Threads", "assert_whole_warps", "gathered", "scatter"]
