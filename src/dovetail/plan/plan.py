"""The plan: a graph with a schedule, memory, views, phases, io and a fingerprint. It is what targets compile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.cost import is_free
from dovetail.errors import GraphError, OptionError
from dovetail.ir import leaf
from dovetail.ir.dim import Size, check_size, symbols
from dovetail.ir.graph import Graph
from dovetail.ir.type import type_symbols
from dovetail.ir.value import Value
from dovetail.passes.claims import Claims
from dovetail.passes.memory_rules import NO_RULES, MemoryRules
from dovetail.passes.specialize import fresh_symbols, symbols_of, value_symbols
from dovetail.plan.alias import Alias, find_aliases, is_view, locate, root_of
from dovetail.plan.arena import Aligned, Arena, Pool, Slot, allocate
from dovetail.plan.donation import Donated, Donation, joined, plan_donations
from dovetail.plan.fingerprint import fingerprint
from dovetail.plan.liveness import Flow, Measure, make_flow, results_of
from dovetail.plan.manifest import Manifest, manifest_of
from dovetail.plan.phases import Phase, bind_values
from dovetail.plan.result_layout import result_layouts
from dovetail.plan.schedule import schedule


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel: the value that it computes, in which phase, and the tensors whose memory its results take over."""

    name: str
    value: Value
    phase: Phase
    overs: tuple[Value | None, ...] = ()
    """For each result the tensor that it is written over, or None; empty where no result works in place."""

    @property
    def over(self) -> Value | None:
        """The tensor that the result of a step with one result is written over."""
        return self.overs[0] if len(self.overs) == 1 else None

    @property
    def operands(self) -> tuple[Value, ...]:
        return self.value.operands

    @property
    def results(self) -> tuple[Value, ...]:
        """The tensors that it makes: the value, or each of its items."""
        return results_of(self.value)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a graph runs. Steps of the bind phase come first and run when parameters are bound, the rest in every run.

    Every tensor is in a slot, in an alias of one, or in the memory of an input, parameter or constant.
    """

    graph: Graph = field(compare=False)
    """The fingerprint stands for it where plans are compared."""
    target: str
    alignment: int
    options: Mapping[str, Any]
    steps: tuple[Step, ...]
    slots: Mapping[Value, Slot]
    aliases: Mapping[Value, Alias]
    manifest: Manifest
    arena_size: Size
    """Bytes that a run needs."""
    scratch_size: Size
    """Bytes that the bind phase needs and gives back."""
    bound_size: Size
    """Bytes that the results of the bind phase keep."""
    unshared_bytes: Size
    """What the tensors of a run would take without sharing."""
    peak: Size
    """The most bytes that tensors of a run hold at once; no arena is smaller."""
    symbols: tuple[str, ...]
    """Sizes that are not known yet: of inputs, or found while running."""
    fingerprint: str
    donations: tuple[Donation, ...] = ()
    """Outputs in the memory of inputs, which a run overwrites."""
    memory_limit: int = field(default=0, compare=False)
    """The most bytes that a run may allocate at once; 0 is what the machine has left."""
    rules: MemoryRules = field(default=NO_RULES, compare=False)
    """What the planner knew of the target's kernels; a plan that was read from text has none."""

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def bytes_saved(self) -> Size:
        """What sharing memory saves."""
        return self.unshared_bytes - self.arena_size

    def phase(self, phase: Phase) -> tuple[Step, ...]:
        return tuple([s for s in self.steps if s.phase == phase])

    def locate(self, value: Value) -> Alias:
        """Return the root that holds a tensor, with the tensor's offset and strides."""
        return locate(value, self.aliases)

    def root_of(self, value: Value) -> Value:
        """Return the root alone: that of most tensors is the tensor itself, whose strides need not be computed."""
        return root_of(value, self.aliases)


_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_NOTHING_DONATED: Mapping[Value, Value] = MappingProxyType({})


def make_plan(
    graph: Graph,
    *,
    target: str | Claims,
    alignment: int = 64,
    options: Mapping[str, Any] = _NO_OPTIONS,
    rules: MemoryRules | None = None,
) -> Plan:
    """Plan a graph whose every value the target runs as one kernel.

    Claims bring the memory rules of a target. A name brings none unless `rules` are given: the plan is then right for
    any kernel.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise OptionError(f"the alignment is {alignment}", hint="it is a power of two, such as 64")
    name, known = (target, NO_RULES) if isinstance(target, str) else (target.target, target.memory)
    rules = known if rules is None else rules
    manifest = manifest_of(graph)
    aliases = find_aliases(graph.values, result_layouts(graph, rules))
    bind = bind_values(graph)
    steps = [v for v in graph.values if v.op not in leaf.LEAVES and not is_view(v, aliases)]
    early = [v for v in steps if v in bind]
    late = [v for v in steps if v not in bind] if early else steps
    sizes = _Sizes(graph, steps, aliases)
    outputs = {root_of(v, aliases) for v in graph.outputs.values()}
    read = {root_of(v, aliases) for step in late for v in step.operands} if early else outputs
    kept = {v for value in early for v in results_of(value) if v in outputs or v in read}
    measure = Measure(alignment)
    at_bind = _Phase.of(
        make_flow(early, aliases, kept, sizes.sources, measure, rules), sizes, "scratch", alignment, kept
    )
    donated = plan_donations(graph, late, aliases, rules, sizes.sources)
    flow = make_flow(late, aliases, outputs, joined(sizes.sources, donated.after), measure, rules)
    at_run = _Phase.of(_without(flow, donated.donors), sizes, "arena", alignment, donated.donors)
    alone = {v for v in kept if _is_seen_through(v, rules)}
    bound, bound_size = _keep(at_bind.flow, kept, alone, sizes, alignment)
    return Plan(
        graph=graph,
        target=name,
        alignment=alignment,
        options=dict(options),
        steps=(*at_bind.steps(early, "bind", 0), *at_run.steps(late, "run", len(early), donated.over)),
        slots={**bound, **at_bind.slots, **at_run.slots, **_donated_slots(donated)},
        aliases=aliases,
        manifest=manifest,
        arena_size=at_run.arena.size,
        scratch_size=at_bind.arena.size,
        bound_size=bound_size,
        unshared_bytes=at_run.arena.unshared,
        peak=at_run.arena.peak,
        symbols=sizes.symbols,
        fingerprint=fingerprint(graph, target=name, alignment=alignment, options=options),
        donations=tuple(donated.donations),
        rules=rules,
    )


def with_launches(plan: Plan, launched: Sequence[Collection[Value]]) -> Plan | None:
    """Return the plan with memory for launches that several steps share.

    `launched` has for each step of the run phase, in order, the tensors that its launches read or write: what no launch
    does has no memory. A launch is one moment: what it reads is there until it ends, and what it writes is nowhere that
    it reads. Steps that run in place still do; None where a symbolic arena has no room for one of them.
    """
    steps = plan.phase("run")
    outputs = {plan.root_of(v) for v in plan.graph.outputs.values()}
    flow = make_flow([s.value for s in steps], plan.aliases, outputs, {}, Measure(plan.alignment))
    number = {tensor: t for t, tensor in enumerate(flow.tensors)}
    elsewhere = {t for tensor, t in number.items() if tensor in plan.slots and plan.slots[tensor].pool != "arena"}
    taken = [None if s.over is None else number.get(s.over) for s in steps]
    over = {i: t for i, t in enumerate(taken) if t is not None and t not in elsewhere}
    used = [{number[root] for root in map(plan.root_of, some) if root in number} for some in launched]
    flow = replace(flow, over=tuple([(over[i],) if i in over else () for i in range(len(steps))]))
    arena = allocate(flow, range(len(steps)), "arena", plan.alignment, elsewhere, used)
    if any([t in arena.slots and arena.over.get(i) != t for i, t in over.items()]):
        return None
    slots = {tensor: slot for tensor, slot in plan.slots.items() if slot.pool != "arena"}
    slots |= {flow.tensors[t]: slot for t, slot in arena.slots.items()}
    return replace(plan, slots=slots, arena_size=arena.size, unshared_bytes=arena.unshared, peak=arena.peak)


def step_by_step(plan: Plan) -> Plan:
    """Return the plan with memory for steps that run one by one."""
    return with_launches(plan, [(*step.operands, *step.results) for step in plan.phase("run")]) or plan


def _donated_slots(donated: Donated) -> dict[Value, Slot]:
    return {tensor: Slot(0, tensor.tensor.bytes, "donated", donor) for tensor, donor in donated.donors.items()}


def _without(flow: Flow, donors: Mapping[Value, Value]) -> Flow:
    """Return the flow with nothing to hold for tensors in the memory of inputs."""
    if not donors:
        return flow
    weights = [0 if t in donors else w for t, w in zip(flow.tensors, flow.weights, strict=True)]
    return replace(flow, weights=tuple(weights))


class _Sizes:
    """The symbols of a graph, and which steps find those that depend on data."""

    def __init__(self, graph: Graph, steps: Sequence[Value], aliases: Mapping[Value, Alias]) -> None:
        bound, late = symbols_of(graph)
        self.symbols = tuple(sorted(bound | late))
        self.late = late
        self.sources = _sources(steps, aliases, late) if late else {}

    def is_late(self, size: Size) -> bool:
        """Return whether only a run computes a size."""
        return bool(self.late) and not self.late.isdisjoint(symbols(size))


def _sources(steps: Sequence[Value], aliases: Mapping[Value, Alias], late: set[str]) -> dict[Value, Sequence[Value]]:
    """Return for each step the steps that bind a size it needs."""
    source: dict[str, Value] = {}
    for value in steps:
        for name in fresh_symbols(value):
            source.setdefault(name, value)
    needs: dict[Value, Sequence[Value]] = {}
    for value in steps:
        names = {name for name in _needed(value, aliases) if name in late}
        needs[value] = [source[n] for n in sorted(names) if n in source and source[n] is not value]
    return needs


def _needed(value: Value, aliases: Mapping[Value, Alias]) -> Iterable[str]:
    yield from value_symbols(value)
    for operand in value.operands:
        yield from type_symbols(operand.type)
        alias = aliases.get(operand)
        for size in (alias.offset, *alias.strides) if alias is not None else ():
            yield from symbols(size)


@dataclass(frozen=True, slots=True)
class _Phase:
    """One phase, scheduled and placed."""

    flow: Flow
    order: Sequence[int]
    arena: Arena
    slots: dict[Value, Slot]

    @staticmethod
    def of(flow: Flow, sizes: _Sizes, pool: Pool, alignment: int, kept: Collection[Value] = ()) -> _Phase:
        """Tensors that are `kept` get no slot here; those whose size is found while running are allocated alone."""
        order = schedule(flow)
        alone = {t for t, size in enumerate(flow.sizes) if sizes.is_late(size)} if sizes.late else set[int]()
        aside = {t for t, value in enumerate(flow.tensors) if value in kept} if kept else set[int]()
        arena = allocate(flow, order, pool, alignment, alone | aside)
        slots = {flow.tensors[t]: slot for t, slot in arena.slots.items()}
        slots |= {flow.tensors[t]: Slot(0, flow.sizes[t], "heap") for t in alone - aside}
        return _Phase(flow, order, arena, slots)

    def steps(
        self, values: Sequence[Value], phase: Phase, first: int, donated: Mapping[Value, Value] = _NOTHING_DONATED
    ) -> list[Step]:
        """Return the values in order as steps, numbered from `first`; `donated` is overwritten outside the arena."""
        steps: list[Step] = []
        for number, i in enumerate(self.order, first):
            taken = self.arena.over.get(i)
            overs = [donated.get(t) for t in results_of(values[i])] if taken is None else [self.flow.tensors[taken]]
            in_place = tuple(overs) if any(t is not None for t in overs) else ()
            steps.append(Step(f"{values[i].op.name}_{number}", values[i], phase, in_place))
        return steps


def _is_seen_through(value: Value, rules: MemoryRules) -> bool:
    """Return whether kernels look through what the bind phase makes of weights, joined pieces included."""
    if value.op is ops.concat:
        return all([_is_seen_through(v, rules) for v in value.operands])
    if is_free(value) and len(value.operands) == 1:
        return _is_seen_through(value.operands[0], rules)
    return value.op.name in rules.seen_through


def _keep(
    flow: Flow, kept: Collection[Value], alone: Collection[Value], sizes: _Sizes, alignment: int
) -> tuple[dict[Value, Slot], Size]:
    """Consecutive slots for the results that are kept, and their total size; some are allocated alone."""
    aligned = Aligned(alignment)
    end: Size = 0
    slots: dict[Value, Slot] = {}
    for value, size in zip(flow.tensors, flow.sizes, strict=True):
        if value not in kept:
            continue
        slots[value] = Slot(0, size, "heap")
        if not sizes.is_late(size) and value not in alone:
            try:
                further = end + aligned(size)
                check_size(further)
            except GraphError:
                continue  # too many different sizes to add up: the tensor is allocated alone
            slots[value], end = Slot(end, size, "bound"), further
    return slots, end
