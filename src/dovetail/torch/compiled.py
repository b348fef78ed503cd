"""One captured graph, compiled: its regions by us, the rest by torch, with what both cost."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from dovetail.errors import UnsupportedError
from dovetail.frontends.torch.dynamo.division import Division, Refusal
from dovetail.frontends.torch.dynamo.nodes import bytes_of
from dovetail.frontends.torch.dynamo.region import Region
from dovetail.frontends.torch.dynamo.script import scripted
from dovetail.runtime.compile import compile
from dovetail.runtime.program import Program
from dovetail.targets.runtime.calls.repeated_call import RepeatedCall
from dovetail.torch.options import Options
from dovetail.torch.region_call import DeviceRegionCall, RegionCall
from dovetail.torch.report import Fallback, GraphBreak, GraphReport, Kind

_live: list[weakref.ref[CompiledGraph]] = []
"""Graphs that dynamo holds, in the order in which they were compiled."""

TIMED_RUNS = 64
"""How many runs of a graph are timed, after its first and in `explain`."""


class EagerCall:
    """A call that torch runs, with how often it ran and how long it took."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.runs = 0
        self.nanoseconds = 0
        self._run = refusal.node.target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter_ns()
        outputs = self._run(*args, **kwargs)
        took = time.perf_counter_ns() - started
        if self.runs:
            self.nanoseconds += took
        self.runs += 1
        return outputs

    @property
    def seconds(self) -> float:
        """Of one run; the first is left out."""
        return self.nanoseconds / 1e9 / max(self.runs - 1, 1)


class CompiledGraph:
    """Runs a captured graph, from its inputs to the list of its outputs."""

    def __init__(self, module: Any, name: str, kind: Kind, options: Options, ended: GraphBreak | None) -> None:
        self.name = name
        self.kind: Kind = kind
        self.graph_break = ended
        self.runs = 0
        self._timed = 0
        self._nanoseconds = 0
        """What the runs took that were timed."""
        self._to_time = TIMED_RUNS
        """How many of the next runs are timed: clocks cost as much as a small kernel."""
        division, programs = _compiled(Division(module, options.rules, name), options)
        self.division = division
        self.programs = tuple(programs.values())
        self._eager = {refusal.node: EagerCall(refusal) for refusal in division.refusals}
        self._regions = {region: _call(program, region, options) for region, program in programs.items()}
        self._run: Callable[[tuple[Any, ...]], Any] = scripted(division, self._regions, self._runner)
        if isinstance(self._run, RegionCall):
            own = weakref.ref(self)  # the region is not in a cycle with the graph

            def repeat(run: RepeatedCall) -> None:
                if (graph := own()) is not None:
                    graph._run = run  # between two calls of dynamo, a function less is a microsecond less

            self._run.when_repeated = repeat

    def _runner(self, node: Any) -> Any:
        return self._eager.get(node, node.target)

    def run(self, inputs: tuple[Any, ...]) -> Any:
        """Run the graph on the inputs."""
        self.runs += 1
        if self._to_time > 0:
            return self._run_timed(inputs)
        return self._run(inputs)

    def time_runs(self) -> None:
        """Time the next runs too."""
        self._to_time = TIMED_RUNS

    def _run_timed(self, inputs: tuple[Any, ...]) -> Any:
        started = time.perf_counter_ns()
        outputs = self._run(inputs)
        if self.runs > 1:
            self._nanoseconds += time.perf_counter_ns() - started
            self._timed += 1
            self._to_time -= 1
        return outputs

    def report(self) -> GraphReport:
        """Report what became of the graph, and its times so far."""
        regions = tuple(program.report for program in self.programs)
        seconds = self._nanoseconds / 1e9 / max(self._timed, 1)
        return GraphReport(self.name, self.kind, regions, self._fallbacks(), self.graph_break, self.runs, seconds)

    def _fallbacks(self) -> tuple[Fallback, ...]:
        grouped: dict[tuple[str, str], list[EagerCall]] = {}
        for call in self._eager.values():
            grouped.setdefault((call.refusal.op, call.refusal.reason), []).append(call)
        return tuple(
            Fallback(
                op,
                len(calls),
                reason,
                tuple(dict.fromkeys(c.refusal.where for c in calls)),
                sum(bytes_of(c.refusal.node) for c in calls),
                sum(c.seconds for c in calls),
            )
            for (op, reason), calls in grouped.items()
        )


def note(graph: CompiledGraph) -> None:
    """List a graph among those that dynamo holds."""
    _live[:] = [ref for ref in _live if ref() is not None]
    _live.append(weakref.ref(graph))


def live() -> tuple[CompiledGraph, ...]:
    """Return the graphs that dynamo holds, in the order in which they were compiled."""
    return tuple(graph for ref in list(_live) if (graph := ref()) is not None)


def _call(program: Program, region: Region, options: Options) -> Callable[..., Sequence[Any]]:
    return RegionCall(program, region) if options.target != "cuda" else DeviceRegionCall(program, region)


def _compiled(division: Division, options: Options) -> tuple[Division, dict[Region, Program]]:
    """Return a division whose regions all compile; one that the target lacks an op for is left to torch."""
    if options.fallback == "error":
        refuse_fallbacks(division)
    programs: dict[Region, Program] = {}
    for region in division.steps:
        if isinstance(region, Region):
            try:
                programs[region] = compile(
                    region.graph, target=options.target, ops=options.declared, **options.settings
                )
            except UnsupportedError as error:
                return _compiled(division.refuse(region, error.message.splitlines()[0]), options)
    return division, programs


def refuse_fallbacks(division: Division) -> None:
    """Raise one error that lists all calls that torch would run, with counts and places."""
    if not division.refusals:
        return
    grouped: dict[tuple[str, str], list[str]] = {}
    for one in division.refusals:
        grouped.setdefault((one.op, one.reason), []).append(one.where)
    lines = [
        f"  {op}: {len(places)} time{'s' * (len(places) > 1)}, {reason}, at {'; '.join(dict.fromkeys(places))}"
        for (op, reason), places in sorted(grouped.items(), key=lambda item: -len(item[1]))
    ]
    count = len({op for op, _ in grouped})
    what = "1 operator is" if count == 1 else f"{count} operators are"
    raise UnsupportedError(
        "\n".join([f"{what} not supported:", *lines]),
        hint='options={"fallback": "eager"} lets torch run them; docs/torch-operators.md lists those that have rules',
    )


__all__ = ["CompiledGraph", "live", "note", "refuse_fallbacks"]
