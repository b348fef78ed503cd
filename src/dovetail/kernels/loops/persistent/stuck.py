"""The watchdog word of a persistent kernel: where a thread waited for other blocks in vain, written before the trap.

The context of the device is lost with the kernel, and all of its memory. So the word is in memory of the host, and the
address of that follows the counter of the grid.
"""

from __future__ import annotations

from typing import NamedTuple

PLACE = 8
"""Bytes from the counter of the grid to the address of the word; where there is 0, none is written."""
PASS, PART = 16, 32
"""The first bits of the pass and of the part; those below are the block."""
AT_BARRIER, IS_WRITTEN = 1 << 48, 1 << 49
_NUMBERS = (1 << 16) - 1


class Wait(NamedTuple):
    """A wait of a block for others."""

    part: int
    """How many parts of the pass were done before."""
    pass_: int
    block: int
    at_barrier: bool
    """Whether it was for all others at a barrier of the grid, not for what some of them send."""

    def __str__(self) -> str:
        what = "the barrier of the grid after part" if self.at_barrier else "what other blocks send to part"
        number = self.part - self.at_barrier
        return f"block {self.block} waited in pass {self.pass_} for {what} {number}"


def word(part: int, *, at_barrier: bool = False) -> int:
    """The bits that are the same for all blocks and passes."""
    return (part & _NUMBERS) << PART | (AT_BARRIER if at_barrier else 0) | IS_WRITTEN


def wait_of(word: int) -> Wait | None:
    """What was written; None where nothing was."""
    if not word & IS_WRITTEN:
        return None
    part, number = word >> PART & _NUMBERS, word >> PASS & _NUMBERS
    return Wait(part, number, word & _NUMBERS, bool(word & AT_BARRIER))


__all__ = ["PASS", "PLACE", "Wait", "wait_of", "word"]
