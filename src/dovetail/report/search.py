"""What the search of an e-graph looked at and what it cost, as data of the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from dovetail.dataclass import dataclass
from dovetail.passes.pipeline import Lowered


@dataclass(frozen=True, slots=True)
class SearchEntry:
    """Alternatives that were held, rules that proposed them, the time it took, and the cost of what was chosen."""

    classes: int
    nodes: int
    """Nodes of all classes, those as given included."""
    pieces: int
    solved: int
    """How many of the pieces looked different; the others were replayed."""
    fired: Mapping[str, int]
    """How often each rule fired, counted once for pieces that look the same."""
    seconds: Mapping[str, float] = field(compare=False)
    """Time of each step: greedy fusion, applying rules, extracting, building."""
    phases: Mapping[str, float] = field(compare=False)
    """Time of each phase of rules, within that of applying them."""
    given_seconds: float
    """Predicted time of the graph as it was given, of what greedy fusion makes of it, and of what was chosen."""
    greedy_seconds: float
    chosen_seconds: float

    @property
    def gain(self) -> float:
        """The share of greedy fusion's predicted time that the choice saves."""
        return 1 - self.chosen_seconds / self.greedy_seconds if self.greedy_seconds else 0.0


def search_of(lowered: Lowered) -> SearchEntry | None:
    """How the e-graph came to its choice; None where fusions were chosen greedily."""
    if lowered.state.decided is None:
        return None
    found = lowered.state.decided.search
    return SearchEntry(
        classes=found.classes,
        nodes=found.nodes,
        pieces=found.pieces,
        solved=found.solved,
        fired=dict(found.fired),
        seconds=dict(found.seconds),
        phases=dict(found.phases),
        given_seconds=found.original,
        greedy_seconds=found.greedy,
        chosen_seconds=found.chosen,
    )


__all__ = ["SearchEntry", "search_of"]
