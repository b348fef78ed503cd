"""Layers in the steps of a plan: those that follow each other and repeat with the same kernels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import Kernels

LEAST_PASSES = 3
"""Fewer are not worth a kernel of their own."""
LONGEST = 64
"""Steps of a pass, at most."""
LaunchedSteps: TypeAlias = Sequence[tuple[Step, Kernels]]


@dataclass(frozen=True, slots=True)
class Repetition:
    """Steps that follow each other and repeat with the same kernels."""

    first: int
    length: int
    """Steps of a pass."""
    covered: int
    """Steps of all passes, and those of one that is not complete."""

    @property
    def passes(self) -> int:
        """Those that are complete."""
        return self.covered // self.length

    @property
    def steps(self) -> range:
        """The steps of all passes."""
        return range(self.first, self.first + self.covered)

    @property
    def every(self) -> list[range]:
        """The steps of each pass; the last one may end early."""
        end = self.first + self.covered
        return [range(at, min(at + self.length, end)) for at in range(self.first, end, self.length)]

    def of_kernels(self, steps: LaunchedSteps) -> Repetition:
        """The same from the first step of a kernel to the last step of one: others join the step after them."""
        last = self.first + self.length - 1
        shift = next(i for i in range(self.length) if steps[last + i][1] is not None)
        end = self.first + self.covered
        while steps[end - 1][1] is None:
            end -= 1
        return replace(self, first=self.first + shift, covered=end - self.first - shift)


def longest_repetition(keys: Sequence[Hashable]) -> Repetition | None:
    """The repetition that covers most; of equal ones that with the shortest pass. A key of () repeats nothing."""
    best: Repetition | None = None
    for length in range(1, min(LONGEST, len(keys) // LEAST_PASSES) + 1):
        start = 0
        for end in range(len(keys) - length + 1):
            if end < len(keys) - length and keys[end] != () and keys[end] == keys[end + length]:
                continue
            one = Repetition(start, length, end - start + length)
            if one.passes >= LEAST_PASSES and (best is None or one.passes * length > best.passes * best.length):
                best = one
            start = end + 1
    return best


def key_of(kernels: Kernels) -> Hashable:
    """What a step shares with those that it repeats."""
    return None if kernels is None else tuple([kernel.kernel.identity for kernel in kernels])


__all__ = ["LEAST_PASSES", "LaunchedSteps", "Repetition", "key_of", "longest_repetition"]
