"""What became of the graphs that torch.compile captured, as data and as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.report.report import Report
from dovetail.report.text import time_text

Kind: TypeAlias = Literal["inference", "forward", "backward"]


@dataclass(frozen=True, slots=True)
class Fallback:
    """An operator that torch runs, how often it stands in the graph, why, where, and what it took so far."""

    op: str
    count: int
    reason: str
    places: tuple[str, ...]
    bytes: int
    """Read and written by one run of the graph, at the sizes of its first call."""
    seconds: float
    """Of one run of the graph, as measured in all runs but the first; 0 where there was no other."""


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """Where dynamo ended a graph early, and why."""

    reason: str
    place: str


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One captured graph: the regions that we compiled, and what torch runs between them."""

    name: str
    kind: Kind
    regions: tuple[Report, ...]
    """What fused in each region, what did not and why."""
    fallbacks: tuple[Fallback, ...]
    graph_break: GraphBreak | None
    """Why the graph ends where it does; None where the function ends there too."""
    runs: int
    seconds: float
    """Of one run without dynamo's guards, as measured in some after the first; 0 where there was no other."""

    @property
    def fallback_seconds(self) -> float:
        return sum(f.seconds for f in self.fallbacks)

    def __str__(self) -> str:
        return "\n".join(_graph_lines(self))


@dataclass(frozen=True, slots=True)
class Explained:
    """A compiled function as one call ran it."""

    graphs: tuple[GraphReport, ...]
    """Those that the call ran."""
    breaks: tuple[GraphBreak, ...]
    """Every graph break of the process since dynamo was reset; without a place where dynamo skipped a function."""
    call_seconds: float
    guard_seconds: float | None
    """What dynamo takes to check that the graphs fit the arguments: the call with guards, less the call without.

    None where dynamo does not call the function without guards.
    """

    def __str__(self) -> str:
        share = "" if self.guard_seconds is None else f", of which guards take {time_text(self.guard_seconds)}"
        count = f"{len(self.graphs)} graph{'s' * (len(self.graphs) != 1)}"
        lines = [f"{count}, {time_text(self.call_seconds)} a call{share}"]
        for broken in self.breaks:
            lines.append(f"graph break{f' at {broken.place}' if broken.place else ''}: {broken.reason}")
        for graph in self.graphs:
            lines += _graph_lines(graph)
        return "\n".join(lines)


def _graph_lines(graph: GraphReport) -> Iterator[str]:
    took = f", {time_text(graph.seconds)} a run" if graph.seconds else ""
    regions = f"{len(graph.regions)} region{'s' * (len(graph.regions) != 1)}"
    calls = sum(f.count for f in graph.fallbacks)
    yield f"{graph.name}: {regions}, {calls} call{'s' * (calls != 1)} by torch{took}"
    for region in graph.regions:
        yield f"  {region.summary}"
    for one in graph.fallbacks:
        price = f"{time_text(one.seconds)} a run, " if one.seconds else ""
        yield f"  torch runs {one.op} {one.count} time{'s' * (one.count > 1)}: {one.reason} ({price}{one.bytes} bytes)"
        yield f"    at {', '.join(one.places)}"
    if graph.graph_break is not None:
        yield f"  ends at {graph.graph_break.place}: {graph.graph_break.reason}"
