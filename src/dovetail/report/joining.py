"""Why no rule joined two kernels: whether a declared op has both, and what keeps it from being here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.cost import is_free
from dovetail.declare.fused import FusedOp, Variant
from dovetail.derive.missed import COST
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
BETWEEN = "op_between"
SHAPES = "shapes_differ"
NUMBERS = "options_differ"
PATTERN = "ops_differ"

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


@dataclass(frozen=True)
class Joining:
    """The declared ops of a setup, and the graph in which they were looked for."""

    setup: Setup
    graph: Graph
    """The graph after fusing: what is still apart there was not joined by a declared op."""
    home: Mapping[Value, Value]
    """Value of that graph -> its kernel."""
    keepers: Keepers

    @staticmethod
    def of(lowered: Lowered, setup: Setup, kernels: KernelMap, keepers: Keepers) -> Joining:
        last = max((i for i, r in enumerate(lowered.records) if r.stage == "fused"), default=-1)
        graph = lowered.records[last].after.settled() if last >= 0 else lowered.written
        home: dict[Value, Value] = {}
        for value in graph.values:
            now = value
            for record in lowered.records[last + 1 :]:
                now = record.after.moved.get(now, now)
            kernel = kernels.kernel_of(now)
            if kernel is not None and value.op not in leaf.LEAVES:
                home[value] = kernel
        return Joining(setup, graph, home, keepers)

    def cause(self, producer: Value, consumer: Value) -> Cause:
        """Why these kernels are two, where no miss and no other reader says so."""
        pairs = self._pairs.get((producer, consumer), [])
        attempts = [attempt for made, _, reader in pairs for attempt in self._attempts(made, reader)]
        if attempts:
            best = max(attempts, key=lambda a: (a.share, self._is_on(a.op)))
            made, between, reader = pairs[0]
            return self._told(best, made, between, reader)
        names = (pairs[0][0].op.name, pairs[0][2].op.name) if pairs else (producer.op.name, consumer.op.name)
        message = f"no declared op has {names[0]} and {names[1]}"
        return Cause("", NO_RULE, message, "declare a fused op whose body has both, with a kernel that computes it")

    def _is_on(self, op: FusedOp[...]) -> bool:
        return self.setup.claims.has(op.name) and op.name not in self.setup.without

    @cached_property
    def _pairs(self) -> dict[tuple[Value, Value], list[tuple[Value, tuple[Value, ...], Value]]]:
        """For each pair of kernels: what one makes, the views and casts in between, and what reads it in the other."""
        found: dict[tuple[Value, Value], list[tuple[Value, tuple[Value, ...], Value]]] = {}
        for reader in self.graph.values:
            consumer = self.home.get(reader)
            if consumer is None or _is_between(reader):
                continue
            for operand in dict.fromkeys(reader.operands):
                made, between = _under(operand)
                producer = self.home.get(made)
                if producer is not None and producer is not consumer:
                    found.setdefault((producer, consumer), []).append((made, between, reader))
        return found

    @cached_property
    def _by_edge(self) -> dict[tuple[str, str], dict[FusedOp[...], list[Variant]]]:
        """For two ops the declared ops in which one reads the other, maybe through views and casts."""
        found: dict[tuple[str, str], dict[FusedOp[...], list[Variant]]] = {}
        for op in self.setup.ops:
            for variant in op.variants:
                for edge in _edges(variant.results):
                    found.setdefault(edge, {}).setdefault(op, []).append(variant)
        return found

    def _attempts(self, made: Value, reader: Value) -> list[_Attempt]:
        """The best attempt of each declared op that has both ops, one reading the other."""
        roots = self._above(reader)
        found: list[_Attempt] = []
        for op, variants in self._by_edge.get((made.op.name, reader.op.name), {}).items():
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
        if not self.setup.claims.has(op.name):
            keep = self.keepers(op.name)
            other = f"; {' and '.join(keep)} {'keeps' if len(keep) == 1 else 'keep'} it" if keep else ""
            return Cause(op.name, NO_KERNEL, f"{both}, and {self.setup.claims.target} has no kernel for it{other}")
        names = [v.op.name for v in between]
        foreign = [name for name in names if name not in _ops_in(op)]
        if foreign:
            return Cause(op.name, BETWEEN, f"{both}; here {', '.join(foreign)} stands in between")
        if failed is None and best.share == 1.0:
            return Cause(op.name, COST, f"{both}; the search chose other fusions for them")
        if failed is None:
            return Cause(op.name, PATTERN, f"{both}; what is computed of {reader.op.name} here is not what it computes")
        place = f"{failed.at.op.name} {failed.at.type}" if failed.at.op is not leaf.HOLE else ""
        where = f" at {place}" if place else ""
        reason = {"op": PATTERN, "operand": OPERANDS, "number": NUMBERS, "size": SHAPES}[failed.kind]
        return Cause(op.name, reason, f"{both}; it wants {failed.wanted}, and found {failed.found}{where}")


def _is_between(value: Value) -> bool:
    return is_free(value) or value.op is ops.cast


def _under(value: Value) -> tuple[Value, tuple[Value, ...]]:
    """What views and casts were made of, and these."""
    between: list[Value] = []
    while _is_between(value) and len(value.operands) == 1 and len(between) < _MOST_BETWEEN:
        between.append(value)
        (value,) = value.operands
    return value, tuple(between)


def _edges(results: tuple[Value, ...]) -> frozenset[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for value in walk(results):
        if not _is_pattern_view(value):
            found.update((below.op.name, value.op.name) for below in _inner(value.operands))
    return frozenset(found)


def _inner(operands: Iterable[Value]) -> list[Value]:
    found: list[Value] = []
    for value in operands:
        while _is_pattern_view(value) and value.operands:
            value = value.operands[0]
        if value.operands:
            found.append(value)
    return found


def _is_pattern_view(value: Value) -> bool:
    return bool(value.operands) and _is_between(value) and len(value.operands) == 1


def _ops_in(op: FusedOp[...]) -> frozenset[str]:
    return frozenset(v.op.name for variant in op.variants for v in walk(variant.results))


__all__ = ["NO_RULE", "Cause", "Joining", "Keepers"]
