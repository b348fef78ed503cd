"""What extraction chooses from: classes as numbers, the options of each with their price and the classes they read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Cost, Prices, estimate, flops_of, is_free, is_given, standing, type_bytes
from dovetail.egraph.engine import EGraph, is_early
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.ops.region import is_prologue

RUNS_A_BINDING = 1000
"""How many runs share the work of binding parameters. The number matters little, as each step on weights has to be
worth a start and `LEAST_WORTH` besides."""
LEAST_WORTH = 0.1
"""The share of a kernel's time that each step on its weights has to save. Predicted times of kernels differ from
measured ones by a fifth (the mean over the benchmark's workloads and real models), those of two kernels of one kind in
much the same way: half of it, none can tell. With it no exporter's file gets more kernels, those on weights counted."""


class Part(NamedTuple):
    """What an option brings to a kernel that it is joined into: arithmetic, or only where that kernel reads."""

    flops: int
    view: bool = False


class Option(NamedTuple):
    """One node of a class."""

    cost: float
    """Seconds of each run, as a kernel of its own."""
    reads: tuple[int, ...]
    """The classes of its operands, each once."""
    node: Value | None = None
    part: Part | None = None
    """None where a target joins it with nothing."""
    toll: float = 0.0
    """What it costs once, as the share of a run: a faster run must be worth it, a slower one never is."""
    ops: int = 0
    """Of choices that cost the same, the one of fewer ops is better."""


class Extent(NamedTuple):
    """What a kernel moves of a class that it reads or writes."""

    bytes: int
    is_argument: bool
    """Whether it was there before a run began."""
    early: bool = False
    """Whether weights alone decide it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Choose an option for each class that the roots need, without a cycle, at the least total cost."""

    options: Sequence[Sequence[Option]]
    roots: tuple[int, ...]
    names: Sequence[Value] = ()
    """What stands for each class in the e-graph."""
    extents: Sequence[Extent] = ()
    prices: Prices | None = None

    def region(self, root: int, flops: int, read: Mapping[int, Collection[int]]) -> float:
        """Return the cost of a kernel that writes one class and reads others, each as far as its views reach."""
        total, weights = self.extents[root].bytes, 0
        for base, views in read.items():
            bytes = min(self.extents[base].bytes, sum([self.extents[v].bytes for v in views]))
            total += bytes
            weights += bytes if self.extents[base].is_argument else 0
        assert self.prices is not None
        return self.prices.machine.seconds(Cost(flops, total, weights))

    def live(self, picks: Sequence[int]) -> list[int]:
        """Return the classes that the roots need, operands before readers. There must be no cycle."""
        classes: list[int] = []
        opened, done = bytearray(len(self.options)), bytearray(len(self.options))
        stack = list(reversed(self.roots))
        while stack:
            c = stack[-1]
            if not opened[c]:
                opened[c] = 1
                stack.extend([r for r in reversed(self.options[c][picks[c]].reads) if not done[r]])
                continue
            stack.pop()
            if not done[c]:
                done[c] = 1
                classes.append(c)
        return classes


def problem_of(egraph: EGraph, roots: Iterable[Value], seconds: Prices, keep: Iterable[Value] = ()) -> Problem:
    """Return the classes below the roots. Of options that read the same, keep the cheapest, and those to `keep`."""
    kept = set(keep)
    number: dict[Value, int] = {}
    names: list[Value] = []
    options: list[list[Option]] = []
    extents: list[Extent] = []

    def numbered(leader: Value) -> int:
        known = number.get(leader)
        if known is None:
            known = number[leader] = len(names)
            names.append(leader)
        return known

    tops = tuple(dict.fromkeys(numbered(egraph.find(v)) for v in roots))
    position = 0
    while position < len(names):
        leader = names[position]
        early = egraph.is_constant(leader)
        best: dict[tuple[bool, tuple[int, ...]], Option] = {}
        others: list[Option] = []
        for node in egraph.equal(leader):
            if leader in node.operands or (early and not all([egraph.is_constant(v) for v in node.operands])):
                continue
            reads = tuple(dict.fromkeys([numbered(v) for v in node.operands]))
            option = _option(standing(node, egraph.is_constant), node, reads, seconds, early=early)
            if node in kept:
                others.append(option)
                continue
            key = (option.part is None, reads)
            known = best.get(key)
            if known is None or (option.cost, option.toll) < (known.cost, known.toll):
                best[key] = option
        options.append([*others, *best.values()])
        extents.append(_extent(leader, seconds, early=early))
        position += 1
    for c, stake in _stakes(options, extents).items():
        options[c] = [_with_stake(option, stake) for option in options[c]]
    return Problem(options, tops, names, extents, seconds)


def _stakes(options: Sequence[Sequence[Option]], extents: Sequence[Extent]) -> dict[int, float]:
    """Return the cost of the cheapest per-run kernel that depends on each class that weights alone decide."""
    stakes: dict[int, float] = {}
    waiting = [(option.cost, option.reads) for listed in options for option in listed if option.cost]
    while waiting:
        cost, reads = waiting.pop()
        for r in reads:
            if extents[r].early and cost < stakes.get(r, inf):
                stakes[r] = cost
                waiting += [(cost, option.reads) for option in options[r] if option.reads]
    return stakes


def _with_stake(option: Option, stake: float) -> Option:
    return option._replace(toll=option.toll + LEAST_WORTH * stake) if option.toll else option


def _option(met: Value, node: Value, reads: tuple[int, ...], seconds: Prices, *, early: bool) -> Option:
    if not node.operands and is_free(node):
        return Option(0.0, (), node)
    if early:
        # A step more in a plan has to be worth a start, however seldom it runs.
        toll = 0.0 if is_free(node) else seconds([met]) / RUNS_A_BINDING + seconds.machine.launch_seconds
        return Option(0.0, reads, node, None, toll, 1 if toll else 0)
    return Option(seconds([met]), reads, node, part_of(node, seconds), 0.0, 0 if is_free(node) else 1)


def part_of(node: Value, seconds: Prices) -> Part | None:
    """Return what a node would bring to a region."""
    if node.op.elementwise:
        return Part(estimate(flops_of(node), seconds.sizes))
    return Part(0, view=True) if is_prologue(node) else None


def _extent(value: Value, seconds: Prices, *, early: bool) -> Extent:
    # A number is written into the kernel.
    is_number = value.op is leaf.CONST and not value.operands and value.rank == 0
    bytes = 0 if is_number else estimate(type_bytes(value.type), seconds.sizes)
    return Extent(bytes, early or is_given(value), early)


def problem_of_graph(graph: Graph, seconds: Prices) -> Problem:
    """Return a graph as a problem that leaves no choice."""
    early: set[Value] = set()
    number = {v: at for at, v in enumerate(graph.values)}
    options: list[list[Option]] = []
    extents: list[Extent] = []
    for value in graph.values:
        is_bound = is_early(value, early)
        if is_bound:
            early.add(value)
        reads = tuple(dict.fromkeys([number[v] for v in value.operands]))
        options.append([_option(standing(value, early.__contains__), value, reads, seconds, early=is_bound)])
        extents.append(_extent(value, seconds, early=is_bound))
    tops = tuple(dict.fromkeys(number[v] for v in graph.outputs.values()))
    return Problem(options, tops, graph.values, extents, seconds)
