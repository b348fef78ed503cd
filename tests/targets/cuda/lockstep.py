"""A GPU in NumPy: scheduled kernels of the loop language, all threads of a block in lockstep.

It judges the schedule without a device: which thread does what, reductions over lanes and warps, shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import partial

import numpy as np

from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import (
    Alloc,
    AllocBarriers,
    AllReduce,
    Amend,
    Arrive,
    AtomicUpdate,
    AwaitCopies,
    AwaitPhase,
    AwaitProducts,
    Ballot,
    Barrier,
    ClusterBarrier,
    CommitCopies,
    CopyAsync,
    CopyBox,
    CopyBulk,
    ExpectBytes,
    Expr,
    FenceShared,
    FromLane,
    GridBarrier,
    Kernel,
    LoadMatrices,
    Loop,
    MultiplyMatrices,
    MultiplyShared,
    NarrowMatrices,
    Prefetch,
    Receipt,
    Receive,
    Roles,
    ScaleMatrices,
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
from tests.targets.cuda.matrices import CHUNK, Matrices
from tests.targets.cuda.phases import PhaseBarrier, Turns, boxed
from tests.targets.cuda.resident_blocks import run_resident, run_sub_grid
from tests.targets.cuda.threads import LANES, NOT_WRITTEN, assert_whole_warps, gathered


class Machine(Matrices):
    """One launch of a kernel on buffers of bytes."""

    copies_late = False
    """Whether a warp that copies goes on as late as it may, not as early."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, tuple[Array, int]], sizes: Mapping[str, int]) -> None:
        super().__init__(kernel, buffers, sizes)
        self.groups: list[list[tuple[Array, Array, Array]]] = [[]]
        """Copies that have not arrived: bytes of shared memory, where, and what."""
        self.barriers: dict[str, list[PhaseBarrier]] = {}
        self.turns: Turns | None = None
        self.role = 0
        self.stream: Iterator[None] = iter(())
        """What the warp that copies has left to do: it goes on until it waits."""

    def run(self) -> None:
        launch = self.kernel.launch
        if self.kernel.counter:
            with np.errstate(all="ignore"):
                return run_resident(self)
        assert launch is not None and self.grid % launch.cluster == 0, "clusters have all their blocks"
        with np.errstate(all="ignore"):
            for first in reversed(range(0, self.grid, launch.cluster)):
                for part in _between_barriers(self.kernel.body):
                    # Blocks come backwards, those of a cluster, too: none may need what another writes before it.
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
            case Amend():
                raise AssertionError("no kernel that runs has one")
            case Alloc(pointer, dtype, count, space):
                each = 1 if space == "shared" else self.block
                if pointer not in self.buffers:
                    self.buffers[pointer] = (
                        np.full(each * count * dtype.itemsize, NOT_WRITTEN, np.uint8),
                        count * dtype.itemsize,
                    )
            case Barrier():
                assert mask.all(), "every thread of the block comes to a barrier"
            case Receive(receipts):
                assert mask.all(), "all threads of a block receive"
                for receipt in receipts:
                    self.receive(receipt, mask)
            case AllReduce(name, op, dtype, group):
                assert_whole_warps(mask)
                rows = self.names[name].reshape(-1, LANES)
                distance = (group or LANES) // 2
                while distance:
                    rows = self.apply(op, [rows, rows[:, np.arange(LANES) ^ distance]], dtype)
                    distance //= 2
                self.names[name] = np.where(mask, rows.reshape(-1), self.names[name])
            case FromLane(name, source, lane, _):
                assert_whole_warps(mask)
                asked = self.value(lane, mask)
                assert ((asked >= 0) & (asked < LANES))[mask].all(), "a warp has the lane"
                found = self.names[source][self.threads // LANES * LANES + np.where(mask, asked, 0)]
                self.names[name] = np.where(mask, found, self.names.get(name, found))
            case Ballot(name, source):
                assert_whole_warps(mask)
                bits = self.names[source].astype(np.uint32).reshape(-1, LANES) << np.arange(LANES, dtype=np.uint32)
                found = np.repeat(np.bitwise_or.reduce(bits, axis=1), LANES)
                self.names[name] = np.where(mask, found, self.names.get(name, found))
            case AtomicUpdate(tensor, at, op, value):
                self.update(tensor, self.address(tensor, at, mask), op, self.value(value, mask), mask)
            case CopyAsync():
                self.copy(statement, mask)
            case Prefetch():
                self.prefetch(statement, mask)
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
            case ScaleMatrices():
                self.scale(statement, mask)
            case NarrowMatrices():
                self.narrow(statement, mask)
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
            case AllocBarriers(name, count, arrivals, is_new):
                assert mask.all(), "every thread waits for new barriers"
                if not is_new:
                    assert len(self.barriers[name]) == count, "they were made before"
                    return
                self.barriers[name] = [PhaseBarrier(arrivals) for _ in range(count)]
            case ExpectBytes(barrier, slot, count):
                assert mask.sum() == 1, "one thread expects bytes"
                self.barrier(barrier, slot, mask).arrive(1, count)
            case Arrive(barrier, slot):
                self.barrier(barrier, slot, mask).arrive(int(mask.sum()))
                if not self.copies_late:
                    next(self.stream, None)
            case AwaitPhase(barrier, slot, phase):
                found, left = self.barrier(barrier, slot, mask), self.same(phase, mask)
                if self.turns is None:
                    if not found.has_left(left):
                        next(self.stream, None)
                    assert found.has_left(left), "nobody else is there to wait for"
                    return
                self.turns.until(self.role, lambda: found.has_left(left))
            case CopyBulk():
                self.copy_bulk(statement, mask)
            case CopyBox():
                self.copy_box(statement, mask)
            case ClusterBarrier():
                raise AssertionError("a cluster waits outside of loops and conditions")
            case WarpBarrier(warps):
                assert warps in (1, 4), "lanes of a warp or of a warpgroup wait"
                _ = assert_whole_warps(mask) if warps == 1 else self.groups_of(mask)

    def start_pass(self, number: int) -> None:
        following = min(number + 1, self.kernel.passes - 1)
        self.names = {"pass": np.full(self.block, number)}
        for name in self.kernel.tabled:
            self.buffers[name], self.buffers[NEXT + name] = (self.buffers[f"{name}.{at}"] for at in (number, following))

    def roles(self, statement: Roles, mask: Array) -> None:
        """Both bodies, in turns."""
        first = self.threads < statement.warps * LANES
        self.turns = Turns(2)

        def run(index: int) -> None:
            own = copy(self)
            own.role, own.names, own.memo, own.groups, own.products = index, dict(self.names), {}, [[]], []
            own.statements(*((statement.body, mask & first) if index == 0 else (statement.other, mask & ~first)))

        self.turns.run((run, run))

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
        shared[where] = NOT_WRITTEN
        self.barrier(statement.barrier, statement.slot, mask).copies.append((shared, where, raw))

    def copy_bulk(self, statement: CopyBulk, mask: Array) -> None:
        sources = self.address(statement.source, statement.source_at, mask, CHUNK)[mask]
        targets = self.address(statement.target, statement.target_at, mask, CHUNK)[mask]
        assert not (sources % 16).any() and not (targets % 16).any() and not statement.nbytes % 16, "copies are aligned"
        buffer, shared = self.buffers[statement.source.pointer][0], self.buffers[statement.target.pointer][0]
        for source, target in zip(sources, targets, strict=True):
            where = target + np.arange(statement.nbytes)
            shared[where] = NOT_WRITTEN
            raw = buffer[source : source + statement.nbytes].copy()
            assert raw.size == statement.nbytes, "a copy is inside of its tensor"
            self.barrier(statement.barrier, statement.slot, mask).copies.append((shared, where, raw))

    def update(self, tensor: Tensor, address: Array, op: str, value: Array, mask: Array) -> None:
        """Atomic updates; threads come in reverse, since kernels must not depend on their order."""
        assert tensor.space == "global" and tensor.dtype.bits in (32, 64) and tensor.dtype.is_integer
        item = tensor.dtype.itemsize
        assert not (address[mask] % item).any(), "atomic updates are aligned"
        buffer = self.buffers[tensor.pointer][0]
        for at, x in zip(address[mask][::-1], value[mask][::-1], strict=True):
            one = buffer[at : at + item].view(tensor.dtype.numpy)
            one[...] = self.apply(op, [one, np.asarray([x], tensor.dtype.numpy)], tensor.dtype)

    def prefetch(self, statement: Prefetch, mask: Array) -> None:
        """Nothing happens, but what is asked for must be there."""
        early, self.is_early = self.is_early, False
        first = self.address(statement.source, statement.source_at, mask)[mask]
        self.is_early = early
        nbytes = self.value(statement.nbytes, mask)[mask]
        assert not (first % 16).any() and not (nbytes % 16).any() and (nbytes > 0).all(), "requests are aligned"
        assert (first + nbytes <= len(self.buffers[statement.source.pointer][0])).all(), "requests are inside"

    def receive(self, receipt: Receipt, mask: Array) -> None:
        """Blocks come in the order of what they need: every word must be there."""
        source, item = receipt.source, receipt.source.dtype.itemsize
        (first,) = set(self.address(source, receipt.source_at, mask).tolist())
        assert first % 16 == 0 and 2 * item * receipt.count % 16 == 0, "words are loaded as vectors"
        words = self.buffers[source.pointer][0][first : first + 2 * item * receipt.count].reshape(-1, 2, item)
        stamps = np.frombuffer(self.stamp.to_bytes(item, "little"), np.uint8)
        there = (words[:, 1] == stamps).all(-1)
        assert len(words) == receipt.count and there.all(), f"nobody sends {int((~there).sum())} words of {receipt}"
        self.buffers[receipt.target.pointer][0][: item * receipt.count] = words[:, 0].reshape(-1)

    def copy(self, statement: CopyAsync, mask: Array) -> None:
        """Copies arrive when they are waited for; until then shared memory holds what was there, spoiled."""
        inside = self.value(statement.inside, mask).astype(bool) & mask
        count = statement.nbytes
        assert count == 16 or inside[mask].all(), "small copies are whole"
        word = None if count < 16 else CHUNK
        source = self.address(statement.source, statement.source_at, inside, word)
        target = self.address(statement.target, statement.target_at, mask, word)
        assert not (source % count).any() and not (target[mask] % count).any(), "copies are aligned"
        raw = np.zeros((self.block, count), np.uint8)
        raw[inside] = gathered(self.buffers[statement.source.pointer][0], source[inside], count)
        buffer = self.buffers[statement.target.pointer][0]
        where = target[mask][:, None] + np.arange(count)
        buffer[where] = NOT_WRITTEN
        self.groups[-1].append((buffer, where, raw[mask]))

    def loop(self, statement: Loop, mask: Array) -> None:
        extent = self.value(statement.extent, mask).astype(np.int64)
        first, step = np.zeros(self.block, np.int64), 1
        if statement.kind in ("block", "warp", "thread", "lane"):
            # Not remembered: the id of this expression is soon that of another one.
            first = self.one(ThreadIndex(statement.kind), mask)
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
