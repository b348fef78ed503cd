"""Bisecting: the first edit that moves an output too far from what the graph as written gives in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.dataclass import dataclass
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.passes.history import History, Made
from dovetail.progress import phase
from dovetail.runtime.deviation import deviations

Run = Callable[[Graph], Mapping[str, Array]]
"""Gives the outputs of a graph that is on its way, for inputs that stay the same."""


@dataclass(frozen=True, slots=True)
class Moved:
    """An output with the distance of its numbers from those of the graph as written."""

    output: str
    deviation: float


@dataclass(frozen=True, slots=True)
class Culprit:
    """The edit at which an output passes the bound, with its number, and the deviations on both sides of it."""

    made: Made
    number: int
    before: Moved
    after: Moved


@dataclass(frozen=True, slots=True)
class Bisection:
    """What bisecting found; no culprit where all edits together stay within the bound."""

    edits: int
    probes: int
    final: Moved
    """With all edits made."""
    start: Moved
    """With none."""
    culprit: Culprit | None


def bisect(
    history: History, run: Run, wanted: Mapping[str, Array], bound: float, *, output: str | None = None
) -> Bisection:
    """Search the edits in their order for the first that moves an output beyond the bound, by halves."""
    names = [name for name in wanted if output is None or name == output]
    probed: dict[int, Moved] = {}

    def probe(count: int) -> Moved:
        if count not in probed:
            graph = history.replay(count)
            away = deviations(lambda: run(graph), wanted)
            probed[count] = Moved(*max(((n, away[n]) for n in names), key=lambda item: item[1]))
        return probed[count]

    total = len(history.edits)
    with phase("bisect") as told:
        start, final = probe(0), probe(total)
        low, high = 0, total
        if final.deviation <= bound or start.deviation > bound:
            return Bisection(total, len(probed), final, start, None)
        while high - low > 1:
            middle = (low + high) // 2
            told.at(len(probed), total.bit_length() + 2, f"edit {middle} of {total}", done=1 - (high - low) / total)
            low, high = (low, middle) if probe(middle).deviation > bound else (middle, high)
    culprit = Culprit(history.edits[high - 1], high, probed[low], probed[high])
    return Bisection(total, len(probed), final, start, culprit)


__all__ = ["Bisection", "Culprit", "Moved", "bisect"]
