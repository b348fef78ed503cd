"""The memory of arrays that a run writes to, and whether other arrays share it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from dovetail.dataclass import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class MemorySpans:
    """The memory of arrays that share none, in order of their addresses."""

    indices: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    places: tuple[int, ...]
    """The addresses in the order of `indices`."""

    @staticmethod
    def of(indices: Iterable[int], arrays: Sequence[Any], starts: Sequence[int]) -> MemorySpans | None:
        """The spans of some of the arrays; None where two overlap."""
        spans = sorted([(starts[i], starts[i] + arrays[i].nbytes) for i in indices if arrays[i].nbytes])
        if any(start < end for (_, end), (start, _) in pairwise(spans)):
            return None
        at = tuple(indices)
        return MemorySpans(
            at, tuple([s for s, _ in spans]), tuple([e for _, e in spans]), tuple([starts[i] for i in at])
        )

    def are_at(self, starts: Sequence[int]) -> bool:
        """Whether the arrays are where they were."""
        return tuple([starts[i] for i in self.indices]) == self.places

    def meet(self, start: int, count: int) -> bool:
        """Whether bytes from an address on are among them."""
        at = bisect_right(self.ends, start)
        return count > 0 and at < len(self.starts) and self.starts[at] < start + count


__all__ = ["MemorySpans"]
