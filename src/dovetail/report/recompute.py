"""What a backward pass saves and what it computes again, for reports."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Machine, estimate
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.passes.pipeline import Lowered
from dovetail.passes.recompute.choice import Halves, is_product
from dovetail.passes.recompute.rebuild import RECOMPUTE
from dovetail.plan.plan import Plan
from dovetail.report.html.arena import arena_picture


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """A tensor of the forward pass that the backward pass reads."""

    op: str
    type: str
    where: str
    bytes: int
    reader: str
    """An op of the backward pass that reads it, or reads what is computed again from it, with its place."""
    seconds: float | None
    """What computing it again would take; None where it cannot be."""
    reason: str
    """Why it is saved."""


@dataclass(frozen=True, slots=True)
class AgainEntry:
    """A value that the backward pass computes again."""

    op: str
    type: str
    where: str
    bytes: int
    """What saving it would take; 0 where only others that are computed again read it."""
    seconds: float


@dataclass(frozen=True, slots=True)
class RecomputeEntry:
    """What a backward pass reads of the forward pass."""

    saved: tuple[SavedEntry, ...]
    again: tuple[AgainEntry, ...]
    all_bytes: int
    """What saving everything would take."""
    peak_bytes: int
    peak_where: str
    """The place of the step at which most memory is held."""
    seconds: float
    """Of what is computed again."""

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.saved)


def recompute_of(lowered: Lowered, plan: Plan, machine: Machine, sizes: Mapping[str, Size]) -> RecomputeEntry | None:
    """The entry of a graph with a backward pass."""
    made = lowered.state.recompute
    if made is None:
        return None
    teller = _Teller(lowered, machine, sizes)
    again = tuple([teller.again(v) for v in made.choice.again])
    held: list[int] = arena_picture(plan, sizes)["held"]
    steps = plan.phase("run")
    worst = max(range(len(steps)), key=lambda i: held[i], default=None)
    return RecomputeEntry(
        saved=tuple([teller.saved(v) for v in made.choice.saved]),
        again=again,
        all_bytes=sum(teller.halves.bytes(v) for v in teller.read),
        peak_bytes=estimate(plan.peak, sizes),
        peak_where="" if worst is None else plan.graph.where(steps[worst].value),
        seconds=sum(a.seconds for a in again),
    )


def told_of(
    lowered: Lowered, value: Value, machine: Machine, sizes: Mapping[str, Size]
) -> SavedEntry | AgainEntry | None:
    """What becomes of one value of the graph as written; None for one that the backward pass does not need."""
    made = lowered.state.recompute
    if made is None:
        return None
    for record in lowered.records:
        if record.name == RECOMPUTE:
            break
        if record.stage != "mir":
            value = record.after.moved.get(value, value)
    teller = _Teller(lowered, machine, sizes)
    if value in made.choice.saved:
        return teller.saved(value)
    return teller.again(value) if value in made.choice.again else None


class _Teller:
    """Speaks of the values of one choice, with the prices of one machine."""

    def __init__(self, lowered: Lowered, machine: Machine, sizes: Mapping[str, Size]) -> None:
        made = lowered.state.recompute
        assert made is not None, "a graph with a backward pass"
        self.choice, graph = made.choice, made.halves.graph
        self.halves = Halves(graph, machine, sizes)
        self.read = self.halves.saving_all()
        self.readers = _readers(self.halves, self.choice.saved)

    def saved(self, value: Value) -> SavedEntry:
        halves = self.halves
        needed = [(v, halves.seconds(v)) for v in halves.needed_again(value, self.choice)]
        seconds = None if any(s is None for _, s in needed) else sum(s or 0.0 for _, s in needed)
        products = [v.op.name for v, _ in needed if is_product(v)]
        if seconds is None:
            reason = "it cannot be computed again"
        elif products:
            reason = f"computing it again takes {' and '.join(dict.fromkeys(products))}, which only a budget asks for"
        else:
            reason = "computing it again takes longer than its bytes are worth"
        reader = self.readers.get(value)
        at = "" if reader is None else halves.graph.where(reader)
        by = "" if reader is None else f"{reader.op.name} at {at}" if at else reader.op.name
        where = halves.graph.where(value)
        return SavedEntry(value.op.name, str(value.type), where, halves.bytes(value), by, seconds, reason)

    def again(self, value: Value) -> AgainEntry:
        bytes = self.halves.bytes(value) if value in self.read else 0
        seconds = self.halves.seconds(value) or 0.0
        return AgainEntry(value.op.name, str(value.type), self.halves.graph.where(value), bytes, seconds)


def _readers(halves: Halves, saved: tuple[Value, ...]) -> dict[Value, Value]:
    """For each saved value an op of the backward pass that needs it, directly or through what is computed again."""
    found: dict[Value, Value] = {}
    kept = set(saved)
    for value, readers in halves.readers.items():
        stack, seen = [value], {value}
        while stack:
            at = stack.pop()
            if at in kept:
                found.setdefault(at, readers[0])
                continue
            fresh = [v for v in at.operands if v not in seen and not halves.is_given(v)]
            seen.update(fresh)
            stack += fresh
    return found


__all__ = ["AgainEntry", "RecomputeEntry", "SavedEntry", "recompute_of", "told_of"]
