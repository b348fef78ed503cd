"""Copies of the machine in NumPy: asynchronous ones, which arrive when they are waited for, barriers that count them,
and words that blocks receive from each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Self

import numpy as np

from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import (
    AllocBarriers,
    Arrive,
    AwaitCopies,
    AwaitPhase,
    CommitCopies,
    CopyAsync,
    CopyBox,
    CopyBulk,
    ExpectBytes,
    Expr,
    Kernel,
    Prefetch,
    Receipt,
    Receive,
    TensorMap,
)
from tests.targets.cuda.matrices import CHUNK, Matrices
from tests.targets.cuda.phases import PhaseBarrier, Turns, boxed
from tests.targets.cuda.places import gathered
from tests.targets.cuda.threads import NOT_WRITTEN


class Copies(Matrices):
    """Threads that copy, and wait for copies."""

    copies_late = False
    """Whether a warp that copies goes on as late as it may, not as early."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, tuple[Array, int]], sizes: Mapping[str, int]) -> None:
        super().__init__(kernel, buffers, sizes)
        self.groups: list[list[tuple[Array, Array, Array]]] = [[]]
        """Copies that have not arrived: bytes of shared memory, where, and what."""
        self.encoded: dict[TensorMap, TensorMap] = {}
        """The tensor maps of a launch, by those of the loops; where there is none, the loops' own."""
        self.barriers: dict[str, list[PhaseBarrier]] = {}
        self.turns: Turns | None = None
        self.role = 0
        self.cluster: list[Self] = [self]
        """The blocks that copy to each other's shared memory; one where none does."""
        self.stream: Iterator[None] = iter(())
        """What the warp that copies has left to do: it goes on until it waits."""

    def alloc_barriers(self, statement: AllocBarriers, mask: Array) -> None:
        assert mask.all(), "every thread waits for new barriers"
        if not statement.is_new:
            assert len(self.barriers[statement.name]) == statement.count, "they were made before"
            return
        self.barriers[statement.name] = [PhaseBarrier(statement.arrivals) for _ in range(statement.count)]

    def expect(self, statement: ExpectBytes, mask: Array) -> None:
        assert mask.sum() == 1, "one thread expects bytes"
        self.barrier(statement.barrier, statement.slot, mask).arrive(1, statement.count)

    def arrive(self, statement: Arrive, mask: Array) -> None:
        if statement.blocks == 1:
            self.barrier(statement.barrier, statement.slot, mask).arrive(int(mask.sum()))
        else:
            number, lanes = self.same(statement.slot, mask), (self.threads % self.lanes)[mask]
            for block, machine in enumerate(self.cluster):
                machine.barriers[statement.barrier][number].arrive(int((lanes == block).sum()))
            assert len(self.cluster) == statement.blocks and lanes.max() < statement.blocks, (
                "a lane arrives at each block"
            )
        if not self.copies_late:
            next(self.stream, None)

    def await_phase(self, statement: AwaitPhase, mask: Array) -> None:
        found, left = self.barrier(statement.barrier, statement.slot, mask), self.same(statement.phase, mask)
        if self.turns is None:
            if not found.has_left(left):
                next(self.stream, None)
            assert found.has_left(left), "nobody else is there to wait for"
            return
        self.turns.until(self.role, lambda: found.has_left(left))

    def barrier(self, name: str, slot: Expr, mask: Array) -> PhaseBarrier:
        return self.barriers[name][self.same(slot, mask)]

    def copy_box(self, statement: CopyBox, mask: Array) -> None:
        assert mask.sum() == 1, "one thread copies a box"
        of = self.encoded.get(statement.source, statement.source)
        buffer, start = self.buffers[of.pointer]
        sizes, strides = [self.size(n) for n in of.sizes], [self.size(n) for n in of.strides]
        at, taps = [self.same(x, mask) for x in statement.at], [self.same(x, mask) for x in statement.taps]
        raw = boxed(buffer, start + self.size(of.offset), sizes, strides, at, of.box_lines, of.traversal, taps)
        target = int(self.address(statement.target, statement.target_at, mask)[mask][0])
        assert target % 1024 == 0 and not any(stride % 16 for stride in strides), "boxes start where the swizzle begins"
        assert len(raw) == statement.nbytes
        where = target + np.arange(len(raw))
        assert statement.blocks in (1, len(self.cluster)), "all blocks of a cluster get a copy"
        for machine in self.cluster if statement.blocks > 1 else [self]:
            shared = machine.buffers[statement.target.pointer][0]
            shared[where] = NOT_WRITTEN
            machine.barriers[statement.barrier][self.same(statement.slot, mask)].copies.append((shared, where, raw))

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

    def prefetch(self, statement: Prefetch, mask: Array) -> None:
        """Nothing happens, but what is asked for must be there."""
        early, self.is_early = self.is_early, False
        first = self.address(statement.source, statement.source_at, mask)[mask]
        self.is_early = early
        nbytes = self.value(statement.nbytes, mask)[mask]
        assert not (first % 16).any() and not (nbytes % 16).any() and (nbytes > 0).all(), "requests are aligned"
        assert (first + nbytes <= len(self.buffers[statement.source.pointer][0])).all(), "requests are inside"

    def receive(self, statement: Receive, mask: Array) -> None:
        assert mask.all(), "all threads of a block receive"
        for receipt in statement.receipts:
            self.receive_words(receipt, mask)

    def receive_words(self, receipt: Receipt, mask: Array) -> None:
        """Blocks come in the order of what they need: every word must be there."""
        source, item = receipt.source, receipt.source.dtype.itemsize
        (first,) = set(self.address(source, receipt.source_at, mask).tolist())
        assert first % 16 == 0 and 2 * item * receipt.count % 16 == 0, "words are loaded as vectors"
        words = self.buffers[source.pointer][0][first : first + 2 * item * receipt.count].reshape(-1, 2, item)
        stamps = np.frombuffer(self.stamp.to_bytes(item, "little"), np.uint8)
        there = (words[:, 1] == stamps).all(-1)
        assert len(words) == receipt.count and there.all(), f"nobody sends {int((~there).sum())} words of {receipt}"
        self.buffers[receipt.target.pointer][0][: item * receipt.count] = words[:, 0].reshape(-1)

    def commit(self, statement: CommitCopies, mask: Array) -> None:
        self.groups.append([])

    def await_copies(self, statement: AwaitCopies, mask: Array) -> None:
        while len(self.groups) > statement.pending + 1:
            for buffer, where, raw in self.groups.pop(0):
                buffer[where] = raw

    def copy(self, statement: CopyAsync, mask: Array) -> None:
        """Copies arrive when they are waited for; until then shared memory holds what was there, spoiled."""
        inside = self.value(statement.inside, mask).astype(bool) & mask
        count = statement.nbytes
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


__all__ = ["Copies"]
