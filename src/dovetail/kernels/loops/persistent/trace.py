"""A persistent kernel that records when its blocks come to each moment of a pass: cycles of their multiprocessors, and
the time of the device.

A moment is the start of a part, what follows each barrier of its block and each wait for copies, and its end. One
thread of a block stores it after the words of the kernel, so that the kernel takes no further argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.loops.ir import (
    ZERO,
    AwaitPhase,
    Barrier,
    Call,
    Extent,
    Kernel,
    Loop,
    Name,
    Receive,
    Statement,
    Store,
    SubGrid,
    Tensor,
    ThreadIndex,
    When,
)
from dovetail.kernels.loops.persistent.passes import part_in, with_part

CLOCK = Call("clock", (), i64)
"""Cycles of the multiprocessor that runs a thread in the lower half, nanoseconds of the device in the upper one."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a block comes to some place of a pass."""

    part: int
    """The number of the part in the order in which blocks run them."""
    after: str
    """What has just ended there."""


def traced(kernel: Kernel, first: int) -> tuple[Kernel, int]:
    """A persistent kernel that records its moments `first` bytes after its counter, and how many bytes they take.

    They are in the order of `moments`, then by pass, then by the number of the block in the part.
    """
    launch = kernel.launch
    assert launch is not None and isinstance(launch.grid, int), "all blocks run at once"
    item, blocks = i64.itemsize, launch.grid
    strides = (kernel.passes * blocks * item, blocks * item, item)
    writer = _Writer(Tensor(kernel.counter, i64, strides, first))
    body = tuple([s if part_in(s) is None else with_part(s, writer.part) for s in kernel.body])
    return replace(kernel, body=body), writer.count * strides[0]


def moments(kernel: Kernel) -> list[Moment]:
    """The moments of a kernel that keeps them."""
    parts = [part for part in map(part_in, kernel.body) if part is not None]
    return [Moment(number, after) for number, part in enumerate(parts) for after in _moments(part.body)]


def _moments(body: Sequence[Statement]) -> Iterator[str]:
    before = "start"
    for s in body:
        if _is_moment(s):
            yield before
        elif _has_moments(s):
            yield from _moments(s.body)
            before = "end"
        else:
            before = type(s).__name__


def _is_moment(statement: Statement) -> bool:
    return isinstance(statement, When) and any(isinstance(s, Store) and s.value == CLOCK for s in statement.body)


def _has_moments(statement: Statement) -> TypeGuard[Loop]:
    """Whether moments of a part are within a statement: its tiles."""
    return isinstance(statement, Loop) and statement.kind == "block"


@dataclass(slots=True)
class _Writer:
    tensor: Tensor
    count: int = 0

    def part(self, part: SubGrid) -> Statement:
        return replace(part, body=(self._moment(), *self._within(part.body), self._moment()))

    def _within(self, body: Sequence[Statement]) -> Iterator[Statement]:
        for s in body:
            if _has_moments(s):
                s = replace(s, body=tuple(self._within(s.body)))
            yield s
            if isinstance(s, (AwaitPhase, Barrier, Receive)):
                yield self._moment()

    def _moment(self) -> Statement:
        at = (Extent(self.count), Name("pass"), ThreadIndex("block"))
        self.count += 1
        is_first = Call("equal", (ThreadIndex("thread"), ZERO), bool_)
        return When(is_first, (Store(self.tensor, at, CLOCK),))


__all__ = ["Moment", "moments", "traced"]
