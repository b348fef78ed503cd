"""A GPU in NumPy: scheduled kernels of the loop language, all threads of a block in lockstep.

It judges the schedule without a device: which thread does what, reductions over lanes and warps, shared memory. Scalars
are computed by the primitives' own meanings. Reads and writes out of bounds are errors, and so are two threads that
store different values in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dovetail import ops
from dovetail.ir.dim import Size, evaluate
from dovetail.ir.dtype import DType, c64
from dovetail.ir.literal import Array
from dovetail.kernels.loops.analysis import shared_bytes
from dovetail.kernels.loops.ir import (
    Alloc,
    AllocBarriers,
    AllReduce,
    Arrive,
    AtomicUpdate,
    AwaitCopies,
    AwaitPhase,
    AwaitProducts,
    Barrier,
    Call,
    ClusterBarrier,
    CommitCopies,
    CopyAsync,
    CopyBox,
    ExpectBytes,
    Expr,
    Extent,
    FenceShared,
    FromLane,
    GridBarrier,
    Kernel,
    Load,
    LoadMatrices,
    Loop,
    MultiplyMatrices,
    MultiplyShared,
    Name,
    Number,
    Roles,
    Set,
    Statement,
    Store,
    SubGrid,
    Tensor,
    ThreadIndex,
    WarpBarrier,
    When,
)
from dovetail.kernels.loops.resident import NEXT
from tests.targets.cuda.phases import PhaseBarrier, Turns, boxed

LANES = 32
_CHUNK = c64
"""A dtype of half of an asynchronous copy, for bounds."""
_OPS = {op.name: op for op in ops.ALL}


class Machine:
    """One launch of a kernel on buffers of bytes."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, tuple[Array, int]], sizes: Mapping[str, int]) -> None:
        assert kernel.launch is not None
        self.kernel, self.sizes = kernel, sizes
        self.block = kernel.launch.block
        given = kernel.launch.shared_bytes
        assert not given or kernel.counter or shared_bytes(kernel.body) <= given, "allocations fit what a launch gives"
        self.shared = np.full(given, 0xA5, np.uint8)
        """The shared memory of a block, where allocations take turns in it."""
        self.grid = self.size(kernel.launch.grid)
        self.buffers = dict(buffers)
        self.threads = np.arange(self.block)
        self.names: dict[str, Array] = {}
        self.memo: dict[int, Array] = {}
        self.number = 0
        self.is_early = False
        """Whether kernels before this one may still run: it may read constants alone."""
        self.groups: list[list[tuple[Array, Array, Array]]] = [[]]
        """Copies that have not arrived: bytes of shared memory, where, and what."""
        self.products: list[Callable[[], None]] = []
        """Products by warpgroups that have started: they read shared memory as late as they may."""
        self.barriers: dict[str, list[PhaseBarrier]] = {}
        self.turns: Turns | None = None
        self.role = 0

    def size(self, size: Size) -> int:
        return size if isinstance(size, int) else evaluate(size, self.sizes)

    def run(self) -> None:
        launch = self.kernel.launch
        if self.kernel.counter:
            return run_resident(self)
        assert launch is not None and self.grid % launch.cluster == 0, "clusters have all their blocks"
        with np.errstate(all="ignore"):
            for first in range(0, self.grid, launch.cluster):
                for part in _between_barriers(self.kernel.body):
                    # Blocks of a cluster come backwards: none may need what another writes before the next barrier.
                    for number in reversed(range(first, first + launch.cluster)):
                        self.one_block(number, part)

    def one_block(self, number: int, body: Sequence[Statement]) -> None:
        self.number, self.names = number, {}
        self.is_early = True
        self.statements(self.kernel.early, np.ones(self.block, bool))
        self.is_early = False
        self.statements(body, np.ones(self.block, bool))

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
            case Alloc(pointer, dtype, count, "shared", int() as offset):
                nbytes = count * dtype.itemsize
                assert offset + nbytes <= len(self.shared), "allocations fit what a launch gives"
                self.buffers[pointer] = self.shared[offset : offset + nbytes], nbytes
            case SubGrid():
                assert mask.all(), "every thread comes to work that is shared"
                run_sub_grid(self, statement)
            case GridBarrier():
                raise AssertionError("a grid waits outside of loops and conditions")
            case Alloc(pointer, dtype, count, space):
                each = 1 if space == "shared" else self.block
                if pointer not in self.buffers:
                    self.buffers[pointer] = (
                        np.full(each * count * dtype.itemsize, 0xA5, np.uint8),
                        count * dtype.itemsize,
                    )
            case Barrier():
                assert mask.all(), "every thread of the block comes to a barrier"
            case AllReduce(name, op, dtype, group):
                _assert_whole_warps(mask)
                rows = self.names[name].reshape(-1, LANES)
                distance = (group or LANES) // 2
                while distance:
                    rows = self.apply(op, [rows, rows[:, np.arange(LANES) ^ distance]], dtype)
                    distance //= 2
                self.names[name] = np.where(mask, rows.reshape(-1), self.names[name])
            case FromLane(name, source, lane, _):
                _assert_whole_warps(mask)
                asked = self.value(lane, mask)
                assert ((asked >= 0) & (asked < LANES))[mask].all(), "a warp has the lane"
                found = self.names[source][self.threads // LANES * LANES + np.where(mask, asked, 0)]
                self.names[name] = np.where(mask, found, self.names.get(name, found))
            case AtomicUpdate(tensor, at, op, value):
                self.update(tensor, self.address(tensor, at, mask), op, self.value(value, mask), mask)
            case CopyAsync():
                self.copy(statement, mask)
            case CommitCopies():
                self.groups.append([])
            case AwaitCopies(pending):
                while len(self.groups) > pending + 1:
                    for buffer, where, raw in self.groups.pop(0):
                        buffer[where] = raw
            case LoadMatrices():
                self.load_matrices(statement, mask)
            case MultiplyMatrices():
                self.multiply(statement, mask)
            case FenceShared():
                assert mask.all(), "every thread orders what it copied"
            case AwaitProducts():
                self.groups_of(mask)
                self.multiplied()
            case MultiplyShared():
                self.multiplied()
                self.products.append(partial(self.multiply_shared, statement, self.matrices(statement, mask)))
            case Roles():
                self.roles(statement, mask)
            case AllocBarriers(name, count, arrivals):
                assert mask.all(), "every thread waits for new barriers"
                self.barriers[name] = [PhaseBarrier(arrivals) for _ in range(count)]
            case ExpectBytes(barrier, slot, count):
                assert mask.sum() == 1, "one thread expects bytes"
                self.barrier(barrier, slot, mask).arrive(1, count)
            case Arrive(barrier, slot):
                self.barrier(barrier, slot, mask).arrive(int(mask.sum()))
            case AwaitPhase(barrier, slot, phase):
                found, left = self.barrier(barrier, slot, mask), self.same(phase, mask)
                assert self.turns is not None, "roles wait for each other"
                self.turns.until(self.role, lambda: found.has_left(left))
            case CopyBox():
                self.copy_box(statement, mask)
            case ClusterBarrier():
                raise AssertionError("a cluster waits outside of loops and conditions")
            case WarpBarrier():
                _assert_whole_warps(mask)

    def roles(self, statement: Roles, mask: Array) -> None:
        """Both bodies, in turns."""
        first = self.threads < statement.warps * LANES
        self.turns = Turns(2)

        def run(index: int) -> None:
            own = copy(self)
            own.role, own.names, own.memo, own.groups, own.products = index, dict(self.names), {}, [[]], []
            own.statements(*((statement.body, mask & first) if index == 0 else (statement.other, mask & ~first)))

        self.turns.run((run, run))

    def same(self, expr: Expr, mask: Array) -> int:
        """What all threads have in common."""
        (found,) = set(self.value(expr, mask)[mask].tolist())
        return int(found)

    def barrier(self, name: str, slot: Expr, mask: Array) -> PhaseBarrier:
        return self.barriers[name][self.same(slot, mask)]

    def copy_box(self, statement: CopyBox, mask: Array) -> None:
        assert mask.sum() == 1, "one thread copies a box"
        of = statement.source
        buffer, start = self.buffers[of.pointer]
        sizes, strides = [self.size(n) for n in of.sizes], [self.size(n) for n in of.strides]
        at, taps = [self.same(x, mask) for x in statement.at], [self.same(x, mask) for x in statement.taps]
        raw = boxed(buffer, start + self.size(of.offset), sizes, strides, at, of.box_lines, of.traversal, taps)
        target = int(self.address(statement.target, statement.target_at, mask)[mask][0])
        assert target % 1024 == 0 and not any(stride % 16 for stride in strides), "boxes start where the swizzle begins"
        assert len(raw) == statement.nbytes
        where = target + np.arange(len(raw))
        shared = self.buffers[statement.target.pointer][0]
        shared[where] = 0xA5
        self.barrier(statement.barrier, statement.slot, mask).copies.append((shared, where, raw))

    def multiplied(self) -> None:
        """The products that have started are done."""
        while self.products:
            self.products.pop(0)()

    def groups_of(self, mask: Array) -> list[int]:
        """The first thread of each warpgroup that takes part."""
        groups = mask.reshape(-1, 4 * LANES)
        assert (groups.all(1) | ~groups.any(1)).all(), "whole warpgroups multiply"
        return [int(g) * 4 * LANES for g in np.nonzero(groups.all(1))[0]]

    def update(self, tensor: Tensor, address: Array, op: str, value: Array, mask: Array) -> None:
        """Atomic updates; threads come in reverse, since kernels must not depend on their order."""
        assert tensor.space == "global" and tensor.dtype.bits in (32, 64) and tensor.dtype.is_integer
        item = tensor.dtype.itemsize
        assert not (address[mask] % item).any(), "atomic updates are aligned"
        buffer = self.buffers[tensor.pointer][0]
        for at, x in zip(address[mask][::-1], value[mask][::-1], strict=True):
            one = buffer[at : at + item].view(tensor.dtype.numpy)
            one[...] = self.apply(op, [one, np.asarray([x], tensor.dtype.numpy)], tensor.dtype)

    def copy(self, statement: CopyAsync, mask: Array) -> None:
        """Copies arrive when they are waited for; until then shared memory holds what was there, spoiled."""
        inside = self.value(statement.inside, mask).astype(bool) & mask
        wide = replace(statement.source, dtype=_CHUNK), replace(statement.target, dtype=_CHUNK)
        source = self.address(wide[0], statement.source_at, inside)
        target = self.address(wide[1], statement.target_at, mask)
        assert not (source % 16).any() and not (target[mask] % 16).any(), "copies are aligned"
        raw = np.zeros((self.block, 16), np.uint8)
        raw[inside] = self.buffers[statement.source.pointer][0][source[inside][:, None] + np.arange(16)]
        buffer = self.buffers[statement.target.pointer][0]
        where = target[mask][:, None] + np.arange(16)
        buffer[where] = 0xA5
        self.groups[-1].append((buffer, where, raw[mask]))

    def load_matrices(self, statement: LoadMatrices, mask: Array) -> None:
        _assert_whole_warps(mask)
        at = self.address(replace(statement.source, dtype=_CHUNK), statement.source_at, mask)
        assert not (at % 16).any(), "rows of matrices are aligned"
        rows = self.buffers[statement.source.pointer][0][at[:, None] + np.arange(16)].view(np.uint16)
        matrices = rows.reshape(-1, 4, 8, 8)
        if statement.transposed:
            matrices = matrices.swapaxes(-1, -2)
        found = matrices.reshape(-1, 4, LANES, 2).swapaxes(1, 2).reshape(self.block, 8)
        self.keep(statement.target, statement.target_at, np.ascontiguousarray(found), mask)

    def multiply(self, statement: MultiplyMatrices, mask: Array) -> None:
        _assert_whole_warps(mask)
        kind = statement.left.dtype.numpy
        left = self.kept(statement.left, statement.left_at, 16, mask).view(kind).astype(np.float32)
        right = self.kept(statement.right, statement.right_at, 8, mask).view(kind).astype(np.float32)
        sums = self.kept(statement.sums, statement.sums_at, 16, mask).view(np.float32)
        r, c = np.arange(LANES) // 4, 2 * (np.arange(LANES) % 4)
        a, b = np.zeros((self.block // LANES, 16, 16), np.float32), np.zeros((self.block // LANES, 16, 8), np.float32)
        for e in range(8):
            a[:, r + 8 * (e // 2 % 2), c + e % 2 + 8 * (e // 4)] = left[:, e].reshape(-1, LANES)
        for e in range(4):
            b[:, c + e % 2 + 8 * (e // 2), r] = right[:, e].reshape(-1, LANES)
        made = a @ b
        total = np.stack([made[:, r + 8 * (e // 2), c + e % 2].reshape(-1) for e in range(4)], -1)
        self.keep(statement.sums, statement.sums_at, np.ascontiguousarray(sums + total).view(np.uint16), mask)

    def matrices(self, statement: MultiplyShared, mask: Array) -> list[tuple[int, int, int]]:
        """The first thread of each warpgroup, and where its factors start."""
        left = self.address(statement.left, statement.left_at, mask)
        right = self.address(statement.right, statement.right_at, mask)
        return [(first, int(left[first]), int(right[first])) for first in self.groups_of(mask)]

    def multiply_shared(self, statement: MultiplyShared, starts: list[tuple[int, int, int]]) -> None:
        r, c = np.arange(LANES) // 4, 2 * (np.arange(LANES) % 4)
        buffer, each = self.buffers[statement.sums.pointer]
        sums = buffer.view(np.float32).reshape(self.block, each // 4)
        for first, left_at, right_at in starts:
            left = self.matrix(statement, statement.left, left_at, 64, statement.left_along_k)
            right = self.matrix(statement, statement.right, right_at, statement.columns, statement.right_along_k)
            made = left @ right.T
            for warp in range(4):
                lanes = slice(first + warp * LANES, first + (warp + 1) * LANES)
                for j in range(statement.columns // 8):
                    for e in range(4):
                        sums[lanes, 4 * j + e] += made[16 * warp + r + 8 * (e // 2), 8 * j + c + e % 2]

    def matrix(self, statement: MultiplyShared, tensor: Tensor, start: int, rows: int, along_k: bool) -> Array:
        """Rows along 64 of k, as tensor cores find them in shared memory by a descriptor."""
        assert start % 1024 == 0, "tiles start where the swizzle begins"
        row, k = np.meshgrid(np.arange(rows), np.arange(64), indexing="ij")
        line, along = (row, k) if along_k else (k, row % 64)
        panel = 0 if along_k else row // 64 * statement.panel_bytes
        place = start + panel + 128 * line + 16 * ((along // 8) ^ (line % 8)) + 2 * (along % 8)
        raw = self.buffers[tensor.pointer][0]
        words = np.stack([raw[place], raw[place + 1]], -1)
        return np.ascontiguousarray(words).view(tensor.dtype.numpy)[..., 0].astype(np.float32)

    def kept(self, tensor: Tensor, at: Sequence[Expr], count: int, mask: Array) -> Array:
        """Bytes of a private tensor, of each thread."""
        first = self.address(tensor, at, mask)
        bytes_of = self.buffers[tensor.pointer][0]
        return np.stack([bytes_of[first + i] for i in range(count)], -1)

    def keep(self, tensor: Tensor, at: Sequence[Expr], words: Array, mask: Array) -> None:
        raw = words.view(np.uint8)[mask]
        first = self.address(tensor, at, mask)[mask]
        for i in range(raw.shape[-1]):
            self.buffers[tensor.pointer][0][first + i] = raw[:, i]

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
        if op == "bitcast":
            return xs[0].view(dtype.numpy)
        if op in ("exp_falling", "near_exp", "fma"):
            return np.exp(xs[0]) if op != "fma" else xs[0] * xs[1] + xs[2]
        found: Any = _OPS[op.removeprefix("fold_").removeprefix("near_")].meaning(*xs)
        return np.asarray(found).astype(dtype.numpy)

    def address(self, tensor: Tensor, at: Sequence[Expr], mask: Array) -> Array:
        found = np.full(self.block, self.size(tensor.offset), np.int64)
        for stride, index in zip(tensor.strides, at, strict=True):
            found = found + self.size(stride) * self.value(index, mask)
        constant = tensor.pointer.removeprefix(NEXT) in self.kernel.constants
        assert not (self.is_early and tensor.space == "global") or constant, (
            f"{tensor.pointer} is used before the kernels before have ended"
        )
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


def _assert_whole_warps(mask: Array) -> None:
    warps = mask.reshape(-1, LANES)
    assert (warps.all(1) | ~warps.any(1)).all(), "every lane of a warp takes part"


def run_sub_grid(machine: Machine, statement: SubGrid) -> None:
    """The part of a block in work that few blocks share: it has indices, scalars and private memory of its own."""
    first = (machine.number - statement.first) % machine.grid
    for number in range(first, statement.blocks, machine.grid):
        own = copy(machine)
        own.block, own.grid, own.number = statement.threads, statement.blocks, number
        own.threads, own.names, own.memo = np.arange(statement.threads), {}, {}
        own.statements(statement.body, np.ones(statement.threads, bool))


def run_resident(machine: Machine) -> None:
    """A kernel whose blocks all run at the same time: they come backwards, from one barrier of the grid to the next."""
    kernel, every = machine.kernel, np.ones(machine.block, bool)
    blocks: list[Machine] = []
    for number in range(machine.grid):
        one = copy(machine)
        one.buffers, one.groups, one.shared, one.number = dict(machine.buffers), [[]], machine.shared.copy(), number
        one.buffers |= {NEXT + name: machine.buffers[f"{name}.0"] for name in kernel.tabled}
        one.is_early = True
        one.statements(kernel.early, every)
        blocks.append(one)
    for number in range(kernel.passes):
        following = min(number + 1, kernel.passes - 1)
        for one in blocks:
            one.names = {"pass": np.full(machine.block, number)}
            one.buffers |= {name: machine.buffers[f"{name}.{number}"] for name in kernel.tabled}
            one.buffers |= {NEXT + name: machine.buffers[f"{name}.{following}"] for name in kernel.tabled}
        part: list[Statement] = []
        for statement in kernel.body:
            part.append(statement)
            if isinstance(statement, GridBarrier):
                for one in reversed(blocks):
                    one.is_early = False
                    one.statements(part[:-1], every)
                    one.is_early = True
                    one.statements(statement.meanwhile, every)
                part.clear()
        assert not part, "a pass ends with a barrier"


def _between_barriers(body: Sequence[Statement]) -> list[list[Statement]]:
    """The parts of a body between the barriers of its cluster. Nothing but memory goes from one to the next."""
    found: list[list[Statement]] = [[]]
    for statement in body:
        if isinstance(statement, ClusterBarrier):
            found.append([])
        else:
            found[-1].append(statement)
    return found


__all__ = ["Machine"]
