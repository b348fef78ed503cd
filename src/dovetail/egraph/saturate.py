"""Saturating: phases of rules, each applied until it has nothing new to say or a budget is spent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import field

from dovetail.dataclass import dataclass
from dovetail.egraph.engine import EGraph
from dovetail.egraph.proof import Application
from dovetail.egraph.rules import RuleSet
from dovetail.ir.value import Value


@dataclass(frozen=True, slots=True)
class Budget:
    """How far an e-graph may grow, in counts: the same graph ends the same way on any machine, however busy it is."""

    nodes: int = 20_000
    """Nodes that rules may add to one piece of a graph, or as many times its own as `growth` says."""
    matches: int = 40_000
    """Matches that one round of one phase may find, or as many times the nodes as `growth` says."""
    growth: int = 4
    rounds: int = 6
    """How often the rules of one phase are tried."""
    seconds: float | None = None
    """The time limit of the search. With one, two runs may differ."""

    def at_most(self, limit: int, size: int) -> int:
        """Return a limit for an e-graph of a size: large graphs may have more of everything."""
        return max(limit, self.growth * size)


@dataclass(frozen=True, slots=True)
class Stopped:
    """A budget that was spent before the rules had nothing more to say."""

    phase: str
    limit: str
    message: str


@dataclass(frozen=True, slots=True)
class Phase:
    """Rules that are applied together, again and again where they can feed each other."""

    name: str
    rules: RuleSet
    repeats: bool = False


@dataclass(slots=True)
class Saturation:
    """What came of it: the applications in their order, counts by rule, time by phase, what stopped it."""

    log: list[Application] = field(default_factory=list[Application])
    fired: Counter[str] = field(default_factory=Counter[str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    stopped: list[Stopped] = field(default_factory=list[Stopped])


def saturate(egraph: EGraph, phases: Sequence[Phase], budget: Budget | None = None) -> Saturation:
    """Apply the rules of each phase in turn; what they replace stays."""
    limits = budget or Budget()
    done = Saturation()
    most = egraph.size + limits.at_most(limits.nodes, egraph.size)
    ends = None if limits.seconds is None else time.perf_counter() + limits.seconds
    looked: dict[int, set[Value]] = {}
    for phase in phases:
        started = time.perf_counter()
        # Rules that come again look at what is new since they were here.
        stopped = _run(egraph, phase, done, limits, most, ends, looked.setdefault(id(phase.rules), set()))
        done.seconds[phase.name] = done.seconds.get(phase.name, 0.0) + time.perf_counter() - started
        if stopped is not None:
            done.stopped.append(stopped)
            # Rounds are a limit of one phase; what the others are for is still worth looking for.
            if stopped.limit != "rounds":
                break
    return done


def _run(
    egraph: EGraph, phase: Phase, done: Saturation, limits: Budget, most: int, ends: float | None, looked: set[Value]
) -> Stopped | None:
    """Run one phase. All matches of a round are collected from one e-graph, then applied."""
    for _ in range(limits.rounds if phase.repeats else 1):
        nodes = [node for node in egraph.nodes if node not in looked]
        looked.update(nodes)
        matches, stopped = _round(egraph, phase, nodes, limits, ends)
        news = 0
        for application in matches:
            if egraph.apply(application):
                news += 1
                done.log.append(application)
                done.fired[application.rule] += 1
                if egraph.size > most:
                    egraph.rebuild()
                    return Stopped(phase.name, "nodes", f"{most:,} nodes were reached")
        egraph.rebuild()
        if stopped is not None or not news:
            return stopped
    return Stopped(phase.name, "rounds", f"{limits.rounds} rounds were not enough") if phase.repeats else None


def _round(
    egraph: EGraph, phase: Phase, nodes: Sequence[Value], limits: Budget, ends: float | None
) -> tuple[list[Application], Stopped | None]:
    """Return the matches of one round, and the limit that ended it, if one did."""
    matches: list[Application] = []
    most = limits.at_most(limits.matches, egraph.size)
    for application in phase.rules.applications(egraph, nodes):
        matches.append(application)
        if len(matches) >= most:
            return matches, Stopped(phase.name, "matches", f"{most:,} matches were found in one round")
        if ends is not None and time.perf_counter() > ends:
            return matches, Stopped(phase.name, "seconds", f"{limits.seconds:g} s were spent")
    return matches, None
