"""A GPU in NumPy: scheduled kernels of the loop language, all threads of a block in lockstep.

It judges the schedule without a device: which thread does what, reductions over lanes and warps, shared memory. Scalars
are computed by the primitives' own meanings. Reads and writes out of bounds are errors, and so are two threads that
store different values in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail import ops
from dovetail.ir.dim import Size, evaluate
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import (
    Alloc,
    AllReduce,
    Barrier,
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
)

LANES = 32
_OPS = {op.name: op for op in ops.ALL}


class Machine:
    """One launch of a kernel on buffers of bytes."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, tuple[Array, int]], sizes: Mapping[str, int]) -> None:
        assert kernel.launch is not None
        self.kernel, self.sizes = kernel, sizes
        self.block = kernel.launch.block
        self.grid = self.size(kernel.launch.grid)
        self.buffers = dict(buffers)
        self.threads = np.arange(self.block)
        self.names: dict[str, Array] = {}
        self.memo: dict[int, Array] = {}
        self.number = 0

    def size(self, size: Size) -> int:
        return size if isinstance(size, int) else evaluate(size, self.sizes)

    def run(self) -> None:
        with np.errstate(all="ignore"):
            for number in range(self.grid):
                self.number, self.names = number, {}
                self.statements(self.kernel.body, np.ones(self.block, bool))

    def statements(self, body: Sequence[Statement], mask: Array) -> None:
        for statement in body:
            self.memo = {}
            self.statement(statement, mask)

    def statement(self, statement: Statement, mask: Array) -> None:
        match statement:
            case Set(name, value):
                found = self.value(value, mask)
                before = self.names.get(name)
                self.names[name] = (
                    found if before is None or before.dtype != found.dtype else np.where(mask, found, before)
                )
            case Store(tensor, at, value):
                self.store(tensor, self.address(tensor, at, mask), self.value(value, mask), mask)
            case When(condition, body):
                inside = mask & self.value(condition, mask).astype(bool)
                if inside.any():
                    self.statements(body, inside)
            case Loop():
                self.loop(statement, mask)
            case Alloc(pointer, dtype, count, space):
                each = 1 if space == "shared" else self.block
                if pointer not in self.buffers:
                    self.buffers[pointer] = (
                        np.full(each * count * dtype.itemsize, 0xA5, np.uint8),
                        count * dtype.itemsize,
                    )
            case Barrier():
                assert mask.all(), "every thread of the block comes to a barrier"
            case AllReduce(name, op, dtype):
                warps = mask.reshape(-1, LANES)
                assert (warps.all(1) | ~warps.any(1)).all(), "every lane of a warp takes part"
                rows = self.names[name].reshape(-1, LANES)
                distance = LANES // 2
                while distance:
                    rows = self.apply(op, [rows, rows[:, np.arange(LANES) ^ distance]], dtype)
                    distance //= 2
                self.names[name] = np.where(mask, rows.reshape(-1), self.names[name])

    def loop(self, statement: Loop, mask: Array) -> None:
        extent = self.value(statement.extent, mask).astype(np.int64)
        first, step = np.zeros(self.block, np.int64), 1
        if statement.kind in ("block", "warp", "thread", "lane"):
            first = self.value(ThreadIndex(statement.kind), mask)
            step = {"block": self.grid, "warp": self.block // LANES, "thread": self.block, "lane": LANES}[
                statement.kind
            ]
        hidden = self.names.pop(statement.variable, None)
        at = first
        while (inside := mask & (at < extent)).any():
            self.names[statement.variable] = at
            self.statements(statement.body, inside)
            at = at + step
        self.names.pop(statement.variable, None)
        if hidden is not None:
            self.names[statement.variable] = hidden

    def value(self, expr: Expr, mask: Array) -> Array:
        found = self.memo.get(id(expr))
        if found is None:
            found = self.memo[id(expr)] = self.one(expr, mask)
        return found

    def one(self, expr: Expr, mask: Array) -> Array:
        match expr:
            case Number(value, dtype):
                real = value.real if isinstance(value, complex) else value
                return np.full(self.block, real, dtype.numpy)
            case Extent(size):
                return np.full(self.block, self.size(size), np.int64)
            case Name(name):
                return self.names[name]
            case ThreadIndex(kind):
                every: dict[str, Array] = {
                    "block": np.full(self.block, self.number),
                    "thread": self.threads,
                    "lane": self.threads % LANES,
                    "warp": self.threads // LANES,
                }
                return every[kind].astype(np.int64)
            case Load(tensor, at):
                return self.load(tensor, self.address(tensor, at, mask), mask)
            case Call(op, operands, dtype):
                return self.apply(op, [self.value(x, mask) for x in operands], dtype)

    def apply(self, op: str, xs: list[Array], dtype: DType) -> Array:
        if op == "cast":
            return np.asarray(_OPS["cast"].meaning(xs[0], dtype=dtype)).astype(dtype.numpy)
        if op in ("exp_falling", "fma"):
            return np.exp(xs[0]) if op == "exp_falling" else xs[0] * xs[1] + xs[2]
        found: Any = _OPS[op.removeprefix("fold_")].meaning(*xs)
        return np.asarray(found).astype(dtype.numpy)

    def address(self, tensor: Tensor, at: Sequence[Expr], mask: Array) -> Array:
        found = np.full(self.block, self.size(tensor.offset), np.int64)
        for stride, index in zip(tensor.strides, at, strict=True):
            found = found + self.size(stride) * self.value(index, mask)
        buffer, start = self.buffers[tensor.pointer]
        found = found + (
            self.threads * start if tensor.space == "private" else 0 if tensor.space == "shared" else start
        )
        inside = (found >= 0) & (found + tensor.dtype.itemsize <= len(buffer))
        assert inside[mask].all(), f"{tensor.pointer} is addressed at {found[mask & ~inside][0]} of {len(buffer)} bytes"
        return np.where(mask, found, 0)

    def load(self, tensor: Tensor, address: Array, mask: Array) -> Array:
        buffer, _ = self.buffers[tensor.pointer]
        item = tensor.dtype.itemsize
        raw = np.zeros((self.block, item), np.uint8)
        raw[mask] = buffer[address[mask][:, None] + np.arange(item)]
        return raw.reshape(-1).view(tensor.dtype.numpy)

    def store(self, tensor: Tensor, address: Array, value: Array, mask: Array) -> None:
        buffer, _ = self.buffers[tensor.pointer]
        item = tensor.dtype.itemsize
        raw = np.ascontiguousarray(value.astype(tensor.dtype.numpy)).view(np.uint8).reshape(self.block, item)[mask]
        where = address[mask][:, None] + np.arange(item)
        buffer[where] = raw
        assert (buffer[where] == raw).all(), f"two threads store different values in {tensor.pointer}"


__all__ = ["Machine"]
