"""Barriers in shared memory, copies that they count, and roles of warps that take turns, for the machine in NumPy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import BOX, Traversal


@dataclass(slots=True)
class PhaseBarrier:
    """One barrier: what its phase still waits for, and copies that have not arrived."""

    arrivals: int
    missing: int = field(init=False)
    nbytes: int = 0
    phase: int = 0
    awaited: int = 0
    """Phases whose end something has waited for."""
    copies: list[tuple[Array, Array, Array]] = field(default_factory=list[tuple[Array, Array, Array]])
    """Bytes of shared memory, where, and what."""

    def __post_init__(self) -> None:
        self.missing = self.arrivals

    def arrive(self, threads: int, nbytes: int = 0) -> None:
        self.missing -= threads
        self.nbytes += nbytes
        assert self.missing >= 0, "no more threads arrive than a phase has"
        self._end()

    def has_left(self, phase: int) -> bool:
        """Whether a phase has ended; copies arrive when they are waited for."""
        while self.copies:
            buffer, where, raw = self.copies.pop(0)
            buffer[where] = raw
            self.nbytes -= raw.size
        self._end()
        if self.phase % 2 == phase:
            return False
        self.awaited = self.phase
        return True

    def _end(self) -> None:
        if self.missing == 0 and self.nbytes == 0:
            self.phase += 1
            self.missing = self.arrivals


def boxed(
    matrix: Array,
    start: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    at: Sequence[int],
    count: int,
    traversal: Traversal | None = None,
    taps: Sequence[int] = (),
) -> Array:
    """The bytes of a box of a tensor as the TMA writes them: zeros outside, chunks of each line permuted."""
    made = np.zeros((count, BOX), np.uint16)
    element, length = at[0], sizes[0]
    inside = np.arange(max(element, 0), max(min(element + BOX, length), max(element, 0)))
    places = _lines(at[1], count) if traversal is None else _pixels(sizes, at, count, traversal, taps)
    for line, place in enumerate(places):
        if all(0 <= x < size for x, size in zip(place, sizes[1:], strict=True)) and len(inside):
            first = start + sum(x * stride for x, stride in zip(place, strides, strict=True)) + 2 * int(inside[0])
            assert first + 2 * len(inside) <= len(matrix), "a box is inside of the matrix"
            made[line, inside - element] = matrix[first : first + 2 * len(inside)].view(np.uint16)
    chunks = made.view(np.uint8).reshape(count, 8, 16)
    order = np.arange(8)[None, :] ^ (np.arange(count) % 8)[:, None]
    return np.take_along_axis(chunks, order[..., None], 1).reshape(-1)


def _lines(first: int, count: int) -> list[tuple[int, ...]]:
    return [(first + i,) for i in range(count)]


def _pixels(
    sizes: Sequence[int], at: Sequence[int], count: int, by: Traversal, taps: Sequence[int]
) -> list[tuple[int, ...]]:
    """Where a copy reads: it goes through the box of pixels along each axis, and to the next image at the end."""
    *spatial, image = at[1:]
    found: list[tuple[int, ...]] = []
    for _ in range(count):
        found.append((*[x + tap for x, tap in zip(spatial, taps, strict=True)], image))
        for axis, (lower, upper, stride) in enumerate(zip(by.lower, by.upper, by.strides, strict=True)):
            spatial[axis] += stride
            if spatial[axis] <= sizes[1 + axis] - 1 + upper:
                break
            spatial[axis] = lower
        else:
            image += 1
    return found


class Turns:
    """Roles that run one at a time: each goes on until it waits for what another one does."""

    def __init__(self, count: int) -> None:
        self.condition = threading.Condition()
        self.running = 0
        self.waiting: dict[int, Callable[[], bool]] = {}
        self.alive = set(range(count))
        self.failed: list[BaseException] = []

    def run(self, roles: Sequence[Callable[[int], None]]) -> None:
        """Run all roles to their ends."""
        threads = [threading.Thread(target=self._role, args=(i, role), daemon=True) for i, role in enumerate(roles)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failed:
            raise self.failed[0]

    def _role(self, index: int, role: Callable[[int], None]) -> None:
        try:
            with self.condition:
                self.condition.wait_for(lambda: self.running == index or self.failed)
            if not self.failed:
                with np.errstate(all="ignore"):
                    role(index)
        except BaseException as error:
            self.failed.append(error)
        finally:
            with self.condition:
                self.alive.discard(index)
                self._next(index)

    def until(self, index: int, ready: Callable[[], bool]) -> None:
        """Let others run until something is so."""
        while not ready():
            with self.condition:
                self.waiting[index] = ready
                assert any(r not in self.waiting or self.waiting[r]() for r in self.alive), "all roles wait: a deadlock"
                self._next(index)
                self.condition.wait_for(lambda: self.running == index or self.failed)
            assert not self.failed, "another role has failed"
        self.waiting.pop(index, None)

    def _next(self, index: int) -> None:
        others = sorted(self.alive, key=lambda other: (other <= index, other))
        self.running = others[0] if others else -1
        self.condition.notify_all()


__all__ = ["PhaseBarrier", "Turns", "boxed"]
