"""Why no rule joined two kernels: whether a declared op has both, and what keeps it from being here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.cost import is_free
from dovetail.declare.fused import FusedOp, Variant
from dovetail.derive.missed import BETWEEN, COST
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.match import Bound, Mismatch, match
from dovetail.passes.pipeline import Lowered, Setup
from dovetail.report.kernels import KernelMap

NO_RULE = "no_rule"
NO_KERNEL = "no_kernel"
SWITCHED_OFF = "switched_off"
OPERANDS = "operands_differ"
SHAPES = "shapes_differ"
NUMBERS = "options_differ"
PATTERN = "ops_differ"
SPELLED_OUT = "spelled_out"

Through: TypeAlias = Callable[[Value], bool]
"""Whether an op may stand between two that a declared op joins."""
Pair: TypeAlias = tuple[Value, tuple[Value, ...], Value]
"""What one kernel makes, what is in between, and what reads it in another kernel."""
Keepers: TypeAlias = Callable[[str], Sequence[str]]
"""From the name of an op to the names of the targets that keep it as one kernel."""
_MOST_ROOTS = 12
"""How many values above a reader are tried as roots: a block ends a handful of ops further on."""
_MOST_BETWEEN = 8


@dataclass(frozen=True, slots=True)
class Cause:
    """Why two kernels are two."""

    rule: str
    reason: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """How much of one pattern was found around two values."""

    op: FusedOp[...]
    share: float
    failed: Mismatch | None

    @property
    def is_whole(self) -> bool:
        return self.failed is None and self.share == 1.0


@dataclass(frozen=True)
class Joining:
    """The declared ops of a setup, and the graph in which they were looked for."""

    setup: Setup
    graph: Graph
    """The graph after fusing: what is still apart there was not joined by a declared op."""
    home: Mapping[Value, Value]
    """Value of that graph -> its kernel."""
    expanded: Mapping[Value, Value]
    """Kernel -> the declared op of that graph that the target has spelled out, and the kernel is a part of."""
    keepers: Keepers

    @staticmethod
    def of(lowered: Lowered, setup: Setup, kernels: KernelMap, keepers: Keepers) -> Joining:
        last = max((i for i, r in enumerate(lowered.records) if r.stage == "fused"), default=-1)
        graph = lowered.records[last].after.settled() if last >= 0 else lowered.written
        final: dict[Value, Value] = {}
        home: dict[Value, Value] = {}
        for value in graph.values:
            now = value
            for record in lowered.records[last + 1 :]:
                now = record.after.moved.get(now, now)
            final[value] = now
            kernel = kernels.kernel_of(now)
            if kernel is not None and value.op not in leaf.LEAVES:
                home[value] = kernel
        return Joining(setup, graph, home, _expanded(graph, final, home, kernels), keepers)

    def cause(self, producer: Value, consumer: Value) -> Cause:
        """Why these kernels are two, where no miss and no other reader says so."""
        made_by, read_by = self.expanded.get(producer), self.expanded.get(consumer)
        if made_by is not None and made_by is read_by:
            both = f"{made_by.op.name} has {producer.op.name} and {consumer.op.name}"
            return self._without_kernel(made_by.op.name, both, f" of {made_by.type}")
        ends = producer if made_by is None else self.home[made_by], consumer if read_by is None else self.home[read_by]
        for through in (_is_between, is_free):
            pairs = self._pairs[through].get(ends, [])
            attempts = [attempt for made, _, reader in pairs for attempt in self._attempts(made, reader, through)]
            if attempts:
                best = max(attempts, key=lambda a: (a.is_whole, self._is_on(a.op), a.share))
                made, between, reader = pairs[0]
                return self._told(best, made, between, reader)
        pairs = self._pairs[_is_between].get(ends, [])
        copy = None if pairs else next((kernel for kernel in (consumer, producer) if is_free(kernel)), None)
        if copy is not None:
            told = f"{copy.op.name} {copy.type} stands in between: no view has its layout, so its elements are copied"
            return Cause("", BETWEEN, told)
        late = next((kernel for kernel in (producer, consumer) if kernel not in self._homes), None)
        if late is not None:
            told = f"{late.op.name} {late.type} is part of an op that {self.setup.claims.target} spells out"
            return Cause("", SPELLED_OUT, f"{told}, after declared ops were looked for")
        names = (pairs[0][0].op.name, pairs[0][2].op.name) if pairs else (producer.op.name, consumer.op.name)
        kernels = (producer.op.name, consumer.op.name)
        for op in self._by_edge[_is_between].get(kernels, ()):
            both = f"{op.name} has {kernels[0]} and {kernels[1]}"
            return Cause(op.name, PATTERN, f"{both}; here they are written as {names[0]} and {names[1]}")
        message = f"no declared op has {names[0]} and {names[1]}"
        return Cause("", NO_RULE, message, "declare a fused op whose body has both, with a kernel that computes it")

    def _is_on(self, op: FusedOp[...]) -> bool:
        return self.setup.claims.has(op.name) and op.name not in self.setup.without

    @cached_property
    def _homes(self) -> frozenset[Value]:
        return frozenset(self.home.values())

    @cached_property
    def _pairs(self) -> dict[Through, dict[tuple[Value, Value], list[Pair]]]:
        """For each pair of kernels: what one makes, the views and casts in between, and what reads it in the other;
        then the same with views alone in between, where a cast is a kernel."""
        return {through: self._pairs_through(through) for through in (_is_between, is_free)}

    def _pairs_through(self, through: Through) -> dict[tuple[Value, Value], list[Pair]]:
        found: dict[tuple[Value, Value], list[Pair]] = {}
        for reader in self.graph.values:
            consumer = self.home.get(reader)
            if consumer is None or through(reader):
                continue
            for operand in dict.fromkeys(reader.operands):
                made, between = _under(operand, through)
                producer = self.home.get(made)
                if producer is not None and producer is not consumer:
                    found.setdefault((producer, consumer), []).append((made, between, reader))
        return found

    @cached_property
    def _by_edge(self) -> dict[Through, dict[tuple[str, str], dict[FusedOp[...], list[Variant]]]]:
        """For two ops the declared ops in which one reads the other, maybe through views and casts, or views alone."""
        found: dict[Through, dict[tuple[str, str], dict[FusedOp[...], list[Variant]]]] = {}
        for through in (_is_between, is_free):
            edges = found.setdefault(through, {})
            for op in self.setup.ops:
                for variant in op.variants:
                    for edge in _edges(variant.results, through):
                        edges.setdefault(edge, {}).setdefault(op, []).append(variant)
        return found

    def _attempts(self, made: Value, reader: Value, through: Through) -> list[_Attempt]:
        """The best attempt of each declared op that has both ops, one reading the other."""
        roots = self._above(reader)
        found: list[_Attempt] = []
        for op, variants in self._by_edge[through].get((made.op.name, reader.op.name), {}).items():
            best = _Attempt(op, 0.0, None)
            for variant in variants:
                for root in roots:
                    if root.op is variant.pattern.op and best.share < 1.0:
                        outcome = match(variant.pattern, root)
                        share = 1.0 if isinstance(outcome, Bound) else outcome.matched / variant.size
                        if share > best.share:
                            best = _Attempt(op, share, None if isinstance(outcome, Bound) else outcome)
            found.append(best)
        return found

    def _above(self, reader: Value) -> list[Value]:
        """A value and the nearest that are computed from it: roots of patterns that may have it."""
        found = [reader]
        for value in found:
            found += [r for r in dict.fromkeys(self.graph.uses.readers.get(value, ())) if r not in found]
            if len(found) >= _MOST_ROOTS:
                break
        return found[:_MOST_ROOTS]

    def _told(self, best: _Attempt, made: Value, between: Sequence[Value], reader: Value) -> Cause:
        op, failed = best.op, best.failed
        both = f"{op.name} has {made.op.name} and {reader.op.name}"
        if op.name in self.setup.without:
            return Cause(op.name, SWITCHED_OFF, f"{both}, and is switched off")
        if best.is_whole and not self.setup.claims.has(op.name):
            return self._without_kernel(op.name, both)
        names = [v.op.name for v in between]
        foreign = [name for name in names if name not in _ops_in(op)]
        if foreign:
            return Cause(op.name, BETWEEN, f"{both}; here {', '.join(foreign)} stands in between")
        if best.is_whole:
            return Cause(op.name, COST, f"{both}; the search chose other fusions for them")
        if failed is None:
            return Cause(op.name, PATTERN, f"{both}; what is computed of {reader.op.name} here is not what it computes")
        place = f"{failed.at.op.name} {failed.at.type}" if failed.at.op is not leaf.HOLE else ""
        where = f" at {place}" if place else ""
        reason = {"op": PATTERN, "operand": OPERANDS, "number": NUMBERS, "size": SHAPES}[failed.kind]
        return Cause(op.name, reason, f"{both}; it wants {failed.expected}, and found {failed.found}{where}")

    def _without_kernel(self, name: str, both: str, type: str = "") -> Cause:
        """What no kernel of the target computes, and which targets have one; `type` says that others of it have."""
        keep: Sequence[str] = () if type else self.keepers(name)
        other = f"; {' and '.join(keep)} {'keeps' if len(keep) == 1 else 'keep'} it" if keep else ""
        return Cause(name, NO_KERNEL, f"{both}, and {self.setup.claims.target} has no kernel for it{type}{other}")


def _expanded(
    graph: Graph, final: Mapping[Value, Value], home: Mapping[Value, Value], kernels: KernelMap
) -> dict[Value, Value]:
    """The kernels of declared ops that the target has spelled out, by kernel."""
    residents: dict[Value, set[Value]] = {}
    for value, kernel in home.items():
        residents.setdefault(kernel, set()).add(value)
    found: dict[Value, Value] = {}
    for value in graph.values:
        if not isinstance(value.op, FusedOp) or final[value].op is value.op:
            continue
        pending, seen = [final[value]], {final[value]}
        while pending:
            now = pending.pop()
            kernel = kernels.kernel_of(now)
            if kernel is None or value not in residents.get(kernel, {value}):
                continue
            if found.setdefault(kernel, value) is value:
                pending += [v for v in now.operands if v not in seen]
                seen.update(now.operands)
    return found


def _is_between(value: Value) -> bool:
    return is_free(value) or value.op is ops.cast


def _under(value: Value, through: Through) -> tuple[Value, tuple[Value, ...]]:
    """What views and casts were made of, and these."""
    between: list[Value] = []
    while through(value) and len(value.operands) == 1 and len(between) < _MOST_BETWEEN:
        between.append(value)
        (value,) = value.operands
    return value, tuple(between)


def _edges(results: tuple[Value, ...], through: Through) -> frozenset[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for value in walk(results):
        if not _is_passed(value, through):
            found.update((below.op.name, value.op.name) for below in _inner(value.operands, through))
    return frozenset(found)


def _inner(operands: Iterable[Value], through: Through) -> list[Value]:
    found: list[Value] = []
    for value in operands:
        while _is_passed(value, through):
            value = value.operands[0]
        if value.operands:
            found.append(value)
    return found


def _is_passed(value: Value, through: Through) -> bool:
    return len(value.operands) == 1 and through(value)


def _ops_in(op: FusedOp[...]) -> frozenset[str]:
    return frozenset(v.op.name for variant in op.variants for v in walk(variant.results))


__all__ = ["NO_RULE", "Cause", "Joining", "Keepers"]
