"""Building the report of a lowered graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeAlias

from dovetail.declare.cost import (
    ASSUMED_SIZE,
    Cost,
    Machine,
    estimate,
    is_free,
    is_given,
    kernel_cost,
    standing,
    type_bytes,
)
from dovetail.declare.fused import FusedOp
from dovetail.derive.missed import NEAR, Applied
from dovetail.ir import leaf
from dovetail.ir.dim import Size, total
from dovetail.ir.dtype import i8, u8
from dovetail.ir.graph import Graph, Subgraph, subgraphs
from dovetail.ir.type import tensors
from dovetail.ir.value import Value
from dovetail.ops.region import anchor_of, region, steps
from dovetail.passes.epilogues import EPILOGUE, PROLOGUE
from dovetail.passes.legalize import DispatchRow
from dovetail.passes.memory_rules import UPDATE
from dovetail.passes.pipeline import Lowered, Setup, with_near_misses
from dovetail.plan.emitted import Emitted
from dovetail.plan.plan import Plan
from dovetail.plan.served import Served
from dovetail.report.boundary import boundaries
from dovetail.report.hints import Hints
from dovetail.report.host_calls import host_calls
from dovetail.report.joining import Joining, Keepers
from dovetail.report.kernels import KernelMap, compiled_kernel, kernel_map
from dovetail.report.missed import missed_entries
from dovetail.report.recompute import recompute_of
from dovetail.report.record import DonatedEntry, FusedEntry, Kernel, PassEntry, StoppedEntry
from dovetail.report.repeats import repeats
from dovetail.report.report import Report
from dovetail.report.rounding import NOTHING
from dovetail.report.search import search_of
from dovetail.report.units import time_text
from dovetail.report.weights import weights_of
from dovetail.settings import BF16

Sizes: TypeAlias = Mapping[str, Size]


def build_report(
    lowered: Lowered,
    plan: Plan,
    setup: Setup,
    machine: Machine,
    served: Mapping[Value, Served],
    keepers: Keepers,
    emitted: Callable[[], Sequence[Emitted]] | None,
    errors: Mapping[Value, float] | None,
) -> Report:
    """The report of one compilation, in terms of the graph as written with its blocks spelled out.

    `emitted` reads back kernels that a compiler made; it is called when someone asks the report for them. `errors` are
    those of kernels that round.
    """
    errors = errors or {}
    written = lowered.written
    hints = Hints.of(setup.ops, setup.claims, machine, setup.sizes, written.params)
    final = lowered.graph
    known = setup.sizes
    kernels = kernel_map(written, plan, lowered.places)
    bind_time = frozenset(step.value for step in plan.phase("bind"))
    updates = {step.value for step in plan.steps if step.over is not None and UPDATE.operands(step.value)}
    found = with_near_misses(lowered)
    firm = [m for m in found if m.reason != NEAR]
    entries = missed_entries(found, kernels, bind_time, hints, machine, known)
    near = tuple(m for m in entries if m.is_near)
    variants = served if machine.is_host else dict[Value, Served]()
    costs = {k: _cost(standing(k, bind_time.__contains__)) for k in kernels.kernels}
    costs |= {k: _cost_in_place(k, costs[k]) for k in updates}
    donated = _donated(plan, machine, known)
    listed = tuple(
        _kernel(
            k,
            costs[k],
            _as_served(costs[k], variants.get(k), known),
            kernels,
            machine,
            known,
            once=k in bind_time,
            by=_told_rounding(served.get(k, Served()), costs[k], setup, once=k in bind_time),
            error=errors.get(k),
        )
        for k in kernels.kernels
    )
    written_by_kernels = [v for v in final.outputs.values() if v not in updates]
    run_costs = [_as_served(cost, variants.get(k), known) for k, cost in costs.items() if k not in bind_time]
    return Report(
        graph=written.name,
        target=setup.claims.target,
        nodes_before=written.count(),
        nodes_after=final.count(),
        ops_before=_histogram(written),
        ops_after=_histogram(final),
        fused=_all_fused(kernels, bind_time, lowered.state.applied, _joins(setup), machine, known),
        missed=tuple(m for m in entries if not m.is_near),
        near=near,
        boundaries=boundaries(kernels, firm, bind_time, Joining.of(lowered, setup, kernels, keepers), machine, known),
        kernels=listed,
        dispatch=_with_served(lowered.state.dispatch, served),
        passes=tuple(PassEntry(r.name, r.before.count(), r.after.count(), r.seconds) for r in lowered.records),
        predicted_seconds=sum(k.seconds for k in listed if k.phase == "run") + sum(d.seconds for d in donated),
        assumed_sizes={s: estimate(known.get(s, ASSUMED_SIZE)) for s in final.symbols},
        arena_bytes=plan.arena_size if isinstance(plan.arena_size, int) else None,
        calibration=machine.source,
        floor_seconds=_floor(run_costs, written_by_kernels, machine, known),
        repeats=repeats(kernels, bind_time),
        stopped=_stopped(lowered),
        search=search_of(lowered),
        donated=donated,
        weights=weights_of(final, machine),
        recompute=recompute_of(lowered, plan, machine, known),
        compiled=None if emitted is None else cache(lambda: tuple(compiled_kernel(e, kernels) for e in emitted())),
    )


def _donated(plan: Plan, machine: Machine, sizes: Sizes) -> tuple[DonatedEntry, ...]:
    """Every donation, and what copies take where an output is not computed in the input's memory."""
    found: list[DonatedEntry] = []
    for one in plan.donations:
        bytes = estimate(one.copied, sizes)
        found.append(DonatedEntry(one.output, one.input, bytes, machine.moving(2 * bytes), one.reason))
    return tuple(found)


def _stopped(lowered: Lowered) -> tuple[StoppedEntry, ...]:
    """The budgets that the e-graph spent, where it was asked."""
    decided = lowered.state.decided
    found = () if decided is None else decided.search.stopped
    return tuple(StoppedEntry("e-graph", s.phase, s.limit, s.message) for s in found)


def _histogram(graph: Graph) -> dict[str, int]:
    counts = Counter(v.op.name for v in graph.values)
    return dict(sorted(counts.items()))


def _cost(kernel: Value) -> Cost:
    # A view that is a step of its own is one that has to be copied.
    return Cost(0, type_bytes(kernel.type) * 2) if is_free(kernel) else kernel_cost(kernel)


def _cost_in_place(kernel: Value, cost: Cost) -> Cost:
    """An update in place moves what it writes, and not the tensor that it writes into."""
    _, indices, updates = kernel.operands
    read = dict.fromkeys((indices, updates))
    moved = type_bytes(updates.type) + total(type_bytes(v.type) for v in read)
    return replace(cost, bytes=moved, given=total(type_bytes(v.type) for v in read if is_given(v)))


def _as_served(cost: Cost, by: Served | None, sizes: Sizes) -> Cost:
    """The cost of a step as its kernel has it: the dense work of the variant, and the op's elementwise steps."""
    own = None if by is None else by.cost
    if own is None:
        return cost
    flops = estimate(own.flops, sizes) + estimate(cost.flops, sizes) - estimate(cost.dense, sizes)
    if own.dtype is not None:
        return replace(own, flops=flops)
    # Traffic of the variant alone lacks what the steps read.
    bytes = max(estimate(cost.bytes, sizes), estimate(own.bytes, sizes))
    given = max(estimate(cost.given, sizes), estimate(own.given, sizes))
    return replace(own, flops=flops, bytes=bytes, given=given, dtype=cost.dtype)


def _floor(costs: Sequence[Cost], outputs: Iterable[Value], machine: Machine, sizes: Sizes) -> float:
    """All work at the peak, or reading what comes from outside once and writing outputs: what is between stays near."""
    given = sum(estimate(cost.given, sizes) for cost in costs)
    written = sum(estimate(type_bytes(v.type), sizes) for v in outputs)
    work = sum(machine.least_work(cost, sizes) for cost in costs)
    return max(work, machine.floor(Cost(0, given + written, given)))


def _with_served(rows: tuple[DispatchRow, ...], served: Mapping[Value, Served]) -> tuple[DispatchRow, ...]:
    """What the target keeps and has no compiled kernel for is told apart, and what a template that raised was for."""
    raised = {(v.op.name, by.on_host): by.why for v, by in served.items() if by.why}
    for on_host in (True, False):
        counts = Counter(v.op.name for v, by in served.items() if by.on_host == on_host and (on_host or by.why))
        told: list[DispatchRow] = []
        for row in rows:
            apart = min(counts[row.op], row.count) if row.outcome == "native" else 0
            if row.count > apart:
                told.append(replace(row, count=row.count - apart))
            if apart:
                why = raised.get((row.op, on_host), "no compiled kernel takes it")
                instead = "it runs as NumPy on the host" if on_host else "another kernel takes it"
                told.append(DispatchRow(row.op, "host" if on_host else "native", apart, f"{why}: {instead}"))
        rows = tuple(told)
    return rows


def _told_rounding(by: Served, cost: Cost, setup: Setup, *, once: bool) -> Served:
    """What rounds nothing is told, too, where products were to be rounded."""
    multiplies = not once and estimate(cost.dense, setup.sizes) > 0
    return replace(by, rounding=NOTHING) if setup.precision == BF16 and multiplies and not by.rounding else by


def _kernel(
    kernel: Value,
    cost: Cost,
    priced: Cost,
    kernels: KernelMap,
    machine: Machine,
    sizes: Sizes,
    *,
    once: bool,
    by: Served,
    error: float | None,
) -> Kernel:
    """A kernel with the arithmetic and traffic of its op, and the seconds of the variant."""
    return Kernel(
        name=kernels.names[kernel],
        op=kernel.op.name,
        type=str(kernel.type),
        phase="bind" if once else "run",
        nodes=kernels.nodes[kernel],
        serves=kernels.served.get(kernel, ()),
        absorbed=kernels.absorbed[kernel],
        flops=estimate(cost.flops, sizes),
        bytes=estimate(cost.bytes, sizes),
        seconds=machine.host_step.of(cost, sizes, calls=host_calls(kernel))
        if by.on_host and machine.host_step is not None
        else machine.seconds(priced, sizes),
        floor_seconds=machine.floor(priced, sizes),
        on_host=by.on_host,
        lacks=by.lacks,
        form=by.variant or "",
        anchor=_anchor(kernel),
        inside=_inside(kernel, machine, sizes),
        bound="arithmetic" if machine.work(priced, sizes) > machine.traffic(priced, sizes) else "memory",
        rounding=by.rounding,
        error=error,
    )


def _anchor(kernel: Value) -> str:
    """What a region is around, in words; nothing of a region of elementwise steps alone."""
    body: Subgraph | None = kernel.attrs["body"] if kernel.op is region else None
    anchor = None if body is None else anchor_of(body)
    if body is None or anchor is None:
        return ""
    dtypes = {t.dtype for v in kernel.operands for t in tensors(v.type)}
    is_product = estimate(kernel_cost(kernel).dense) > 0
    narrow = " int8" if is_product and anchor.dtype.is_integer and not dtypes.isdisjoint((i8, u8)) else ""
    count = len(steps(body))
    return f"{anchor.op.name}{narrow} + {count} step{'s' if count > 1 else ''}"


def _inside(kernel: Value, machine: Machine, sizes: Sizes) -> tuple[str, ...]:
    """The kernels of a branch or of a trip of a loop, the longest first, with the time of each kind."""
    if kernel.op is region:
        return ()
    spent: dict[str, list[float]] = {}
    for body in subgraphs(kernel):
        for value in body.values:
            if value.operands and not is_free(value):
                title = _anchor(value) or value.op.name
                spent.setdefault(title, []).append(machine.seconds(_cost(value), sizes))
    ranked = sorted(spent.items(), key=lambda item: -sum(item[1]))
    return tuple(f"{len(took)} × {title} {time_text(sum(took))}" for title, took in ranked)


def _joins(setup: Setup) -> frozenset[str]:
    """The rules whose result is a plain op that does the work of several: the rest of a chain is algebra."""
    return frozenset(group.name for group in setup.groups)


def _all_fused(
    kernels: KernelMap,
    bind_time: Collection[Value],
    applied: Iterable[Applied],
    joins: Collection[str],
    machine: Machine,
    sizes: Sizes,
) -> tuple[FusedEntry, ...]:
    """Every kernel that fuses, with the nodes as written that it computes."""
    led_to: dict[Value, list[Applied]] = {}
    for fusion in applied:
        kernel = kernels.kernel_of(fusion.value)
        if kernel is not None:
            led_to.setdefault(kernel, []).append(fusion)
    joined = [k for k, some in led_to.items() if k not in bind_time and any(a.rule in joins for a in some)]
    fused = [k for k in kernels.kernels if _is_fused(k) or k in joined]
    return tuple(_fused(k, kernels, led_to.get(k, []), joins, machine, sizes) for k in fused)


def _is_fused(kernel: Value) -> bool:
    return isinstance(kernel.op, FusedOp) or kernel.op is region


def _fused(
    kernel: Value, kernels: KernelMap, applied: list[Applied], joins: Collection[str], machine: Machine, sizes: Sizes
) -> FusedEntry:
    chain = tuple(dict.fromkeys(a.rule for a in applied))
    inner = max(len(kernels.nodes[kernel]) - 1, 0)
    saved = estimate(_saved_bytes(applied), sizes)
    seconds = machine.moving(saved) + inner * machine.launch_seconds
    nodes = kernels.nodes[kernel] or kernels.served[kernel]
    return FusedEntry(_rule(kernel, chain, joins), nodes, chain, kernels.names[kernel], saved, seconds)


def _rule(kernel: Value, chain: tuple[str, ...], joins: Collection[str]) -> str:
    """What a fused kernel is called: its op; around an anchor, the anchor where it is fused, else what joined it."""
    if not _is_fused(kernel):
        # Matmuls that were joined are a matmul again; the rule that joined them says what it is.
        return [rule for rule in chain if rule in joins][-1]
    anchor = anchor_of(kernel.attrs["body"]) if kernel.op is region else None
    if anchor is None:
        return kernel.op.name
    joined = [rule for rule in chain if rule in (EPILOGUE, PROLOGUE)]
    return anchor.op.name if isinstance(anchor.op, FusedOp) or not joined else joined[-1]


def _saved_bytes(applied: list[Applied]) -> Size:
    """What is not moved: inner tensors that are neither written nor read back, and operands that are read only once."""
    rules = {fusion.rule for fusion in applied}
    covers = dict.fromkeys(v for fusion in applied for v in fusion.covers)
    # What a rule on the way has made stands for values that are listed themselves.
    written = [v for v in covers if v.op.name not in rules]
    readers = Counter(v for reader in written for v in dict.fromkeys(reader.operands))
    # A root that another fusion has swallowed is inside now.
    swallowed = {v for fusion in applied for c in fusion.covers if c is not fusion.root for v in (c, *c.operands)}
    swallowed |= {v for fusion in applied for v in fusion.root.operands}
    roots = {fusion.root for fusion in applied} - swallowed
    total: Size = 0
    for value, count in readers.items():
        if not is_free(value) or value.op in (leaf.INPUT, leaf.PARAM):
            inner = value in covers and value not in roots
            total = total + type_bytes(value.type) * (count + 1 if inner else count - 1)
    return total
