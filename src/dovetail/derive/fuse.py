"""Fusing: match the declared patterns, ask their guards and the cost, replace roots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import islice
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Machine, Prices
from dovetail.declare.fused import FusedOp, Variant
from dovetail.declare.guard import Guard
from dovetail.derive.edit import Log, Numerics
from dovetail.derive.missed import COST, CYCLE, PRIVATE, TYPE, Applied, Missed, declined_by_cost, still_missed
from dovetail.derive.near import Round, near_misses
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph, follow
from dovetail.ir.rewrite import CyclicReplacementError, Replacement, replace_roots
from dovetail.ir.type import TupleType
from dovetail.ir.value import Op, Value
from dovetail.match import Bound, Outlines, matches
from dovetail.ops.elementwise import div, mul

ANY_MACHINE = Machine(flops_per_second=1e11, bytes_per_second=2e10, launch_seconds=1e-6)
"""What decides where no target is named: traffic and launches matter, arithmetic is cheap."""

_MOST_ORDERS = 8
"""How many orders of the operands of commutative ops the guards are asked about."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A graph after fusing, with what happened and what did not."""

    graph: Graph
    applied: tuple[Applied, ...]
    missed: tuple[Missed, ...]
    rounds: Sequence[Round] = ()
    """What each stratum was given: near misses are looked for there, when someone asks."""


def fuse(
    graph: Graph,
    ops: Sequence[FusedOp[...]],
    *,
    machine: Machine = ANY_MACHINE,
    sizes: Mapping[str, Size] | None = None,
    near: bool = False,
    always: bool = False,
    log: Log | None = None,
    prices: Prices | None = None,
) -> Fused:
    """Fuse with these ops. Earlier ops are preferred; an op waits for the ops that its body is made of.

    With `near`, patterns that fit but for one op are reported as misses too; with `always`, it is not checked whether
    it pays to fuse a pattern whose inner values have no other reader. `log` records each fusion. `prices` are those of
    this machine and these sizes, where a caller has them.
    """
    applied: list[Applied] = []
    missed: list[Missed] = []
    rounds: list[Round] = []
    base, graph = graph, graph.settled()
    seconds = prices or Prices(machine, sizes)
    written = {v: v for v in graph.values}
    for stratum in strata(ops):
        before = graph.settled()
        step = _Round(before, stratum, seconds, always)
        fused = step.run()
        if log is not None:
            step.note(log)
        rounds.append(Round(before, stratum, fused.moved))
        applied = [a.follow(fused.moved) for a in applied] + step.applied
        # What another rule has swallowed was not missed there: a hint for it would not be true any more.
        swallowed = {v for fusion in step.applied for v in fusion.covers}
        new = [replace(m, place=written.get(m.root, m.root)) for m in step.missed]
        open_ = [m for m in [*missed, *new] if m.values[0] not in swallowed]
        # The root of a fusion comes after all that it swallowed, so that the root is what the new value stands for.
        written = {fused.moved.get(v, v): written.get(v, v) for v in before.values}
        missed = [m.follow(fused.moved) for m in open_]
        graph = replace(fused, moved=follow(graph.moved, fused.moved))
    open_ = missed + (near_misses(rounds, applied) if near else [])
    whole = replace(graph, moved=follow(base.moved, graph.moved))
    return Fused(whole, tuple(applied), still_missed(open_), tuple(rounds))


def strata(ops: Sequence[FusedOp[...]]) -> list[list[FusedOp[...]]]:
    """Ops in the order they can be found: by stage, then after the ops their bodies are made of."""
    levels: dict[tuple[int, int], list[FusedOp[...]]] = {}
    depth: dict[Op, int] = {}
    known = set(ops)
    for stage_index, stage in enumerate(("recognise", "fuse")):
        waiting = [op for op in ops if op.stage == stage]
        while waiting:
            ready = [op for op in waiting if not any(p in waiting for p in op.parts if p is not op)] or waiting
            for op in ready:
                below = [depth[p] for p in op.parts if p in known and p in depth and p.stage == stage and p is not op]
                depth[op] = max(below, default=-1) + 1
                levels.setdefault((stage_index, depth[op]), []).append(op)
            waiting = [op for op in waiting if op not in depth]
    return [levels[key] for key in sorted(levels)]


@dataclass(slots=True)
class _Candidate:
    """A match that may be taken."""

    op: FusedOp[...]
    variant: Variant
    root: Value
    bound: Bound
    names: dict[str, Any]
    covers: tuple[Value, ...]
    results: tuple[Value, ...]
    gain: float = 0.0
    """Seconds saved by the machine model."""


@dataclass(slots=True)
class _Round:
    """One stratum over one graph: all matches are against the same graph, then roots are replaced at once."""

    graph: Graph
    ops: Sequence[FusedOp[...]]
    seconds: Prices
    always: bool
    applied: list[Applied] = field(default_factory=list[Applied])
    missed: list[Missed] = field(default_factory=list[Missed])
    claimed: set[Value] = field(default_factory=set[Value])
    taken: dict[Value, _Candidate] = field(default_factory=dict[Value, _Candidate])
    position: dict[Value, int] = field(default_factory=dict[Value, int])

    def run(self) -> Graph:
        self.position = {v: i for i, v in enumerate(self.graph.values)}
        for op, places in zip(self.ops, _glances(self.ops, self.graph.values), strict=True):
            for root, variants in places:
                if root not in self.claimed:
                    self._try_root(op, root, variants)
        return self._replace()

    def _try_root(self, op: FusedOp[...], root: Value, variants: Sequence[Variant]) -> None:
        refused: Callable[[], Missed] | None = None
        best: _Candidate | None = None
        for variant in variants:
            for bound in islice(matches(variant.pattern, root), _MOST_ORDERS):
                candidate = self._candidate(op, variant, root, bound)
                if self._is_claimed(candidate):
                    continue
                verdict = self._refusal(candidate)
                if verdict is None:
                    best = candidate if best is None or candidate.gain > best.gain else best
                    break
                refused = refused or verdict
        if best is not None:
            self.claimed.update(best.covers)
            self.taken[root] = best
        elif refused is not None:
            self.missed.append(refused())

    def _is_claimed(self, candidate: _Candidate) -> bool:
        """Return whether another match has what this one would swallow; values that stay serve both."""
        claimed = [v for v in candidate.covers if v in self.claimed]
        return bool(claimed) and not set(_with_inner_operands(self._shared_interior(candidate), candidate)).issuperset(
            claimed
        )

    def _candidate(self, op: FusedOp[...], variant: Variant, root: Value, bound: Bound) -> _Candidate:
        results = tuple([stands_for(r, bound) for r in variant.results])
        covers = tuple(dict.fromkeys([*bound.covered.values(), *results]))
        return _Candidate(op, variant, root, bound, {**variant.fixed, **bound.names}, covers, results)

    def _refusal(self, candidate: _Candidate) -> Callable[[], Missed] | None:
        """Return why a match may not be taken, computed on demand: most refused matches fuse in another way."""
        bound = {**candidate.names, "result": candidate.root}
        for guard in candidate.op.guards:
            if not guard.check(bound):
                return partial(self._ruled_out, candidate, guard, bound)
        try:
            fused = candidate.op(**candidate.names)
        except TypeRuleError as error:
            return partial(self._miss, candidate, TYPE, error.message, "")
        kept = fused.type.items if isinstance(fused.type, TupleType) else (fused.type,)
        if kept != tuple([r.type for r in candidate.results]):
            message = f"the op gives {fused.type}, the graph has {candidate.root.type}"
            return partial(self._miss, candidate, TYPE, message, "")
        return self._unprofitable(candidate, fused)

    def _ruled_out(self, candidate: _Candidate, guard: Guard, bound: Mapping[str, Any]) -> Missed:
        return self._miss(candidate, guard.name, guard.explain(bound), guard.hint)

    def _unprofitable(self, candidate: _Candidate, fused: Value) -> Callable[[], Missed] | None:
        """Return the miss of a fusion that does not pay, with the inner values that others read kept."""
        shared = self._shared_interior(candidate)
        apart = self.seconds(candidate.covers)
        together = self.seconds([fused])
        candidate.gain = apart - together - self.seconds(_with_inner_operands(shared, candidate))
        if candidate.gain > 0 or (not shared and (self.always or candidate.op.stage == "recognise")):
            return self._cyclic(candidate)
        if shared:
            return partial(self._read_elsewhere, candidate, shared)
        return partial(self._miss, candidate, COST, declined_by_cost(together, apart), "")

    def _read_elsewhere(self, candidate: _Candidate, shared: Sequence[Value]) -> Missed:
        culprit = shared[0]
        readers = "a graph output" if self.graph.uses.is_output(culprit) else "read outside the pattern too"
        message = f"{culprit.op.name} {culprit.type} is {readers}, so it would be computed twice"
        miss = self._miss(candidate, PRIVATE, message, "")
        return replace(miss, shared=tuple(shared))

    def _shared_interior(self, candidate: _Candidate) -> list[Value]:
        """Return what a match would swallow and others read; in `mm + mm` the fused op reads one of them itself."""
        inside: dict[Value, int] = {}
        for value in candidate.covers:
            for operand in value.operands:
                inside[operand] = inside.get(operand, 0) + 1
        uses = self.graph.uses
        caught = {v for v in candidate.names.values() if isinstance(v, Value)}
        return [
            v
            for v in candidate.covers
            if v not in candidate.results and (v in caught or uses.count(v) > inside.get(v, 0))
        ]

    def _cyclic(self, candidate: _Candidate) -> Callable[[], Missed] | None:
        """Return the miss of a second result that feeds the operands of the value that now computes it."""
        if len(candidate.results) == 1:
            return None
        operands = [v for v in candidate.names.values() if isinstance(v, Value)]
        if reaches(operands, candidate.results, self.position):
            return partial(
                self._miss,
                candidate,
                CYCLE,
                "an operand is computed from one of the results",
                "",
            )
        return None

    def _miss(self, candidate: _Candidate, reason: str, message: str, hint: str) -> Missed:
        return Missed(
            candidate.op.name,
            candidate.variant.label,
            candidate.root,
            candidate.covers,
            reason,
            message,
            hint,
            caught=candidate.names,
            results=candidate.results,
        )

    def _replace(self) -> Graph:
        while True:
            try:
                built: dict[Value, Value] = {}
                graph = replace_roots(self.graph, self._replacements(built))
            except CyclicReplacementError as error:
                candidate = next(f for f in self.taken.values() if error.root in f.results)
                del self.taken[candidate.root]
                self.missed.append(self._miss(candidate, CYCLE, "two fusions would read each other's results", ""))
                continue
            for candidate in self.taken.values():
                if candidate.root in built:
                    self.applied.append(
                        Applied(
                            candidate.op.name,
                            candidate.variant.label,
                            candidate.root,
                            candidate.covers,
                            built[candidate.root],
                        )
                    )
            return graph

    def note(self, log: Log) -> None:
        """Write down what was fused, in terms of the graph as it was."""
        log.begin("roots")
        for candidate in self.taken.values():
            value = candidate.op(**candidate.names)
            several = len(candidate.results) > 1
            results = [leaf.item(value, i) for i in range(len(candidate.results))] if several else [value]
            numerics = numerics_of(candidate.variant, candidate.bound)
            needs = [v for v in candidate.names.values() if isinstance(v, Value)]
            log.replace(
                candidate.op.name,
                candidate.variant.label,
                numerics,
                candidate.results,
                results,
                needs,
                candidate.covers,
            )

    def _replacements(self, built: dict[Value, Value]) -> dict[Value, Replacement]:
        replacements: dict[Value, Replacement] = {}
        for candidate in self.taken.values():
            needs = tuple(v for v in candidate.names.values() if isinstance(v, Value))
            for index, result in enumerate(candidate.results):
                replacements[result] = Replacement(needs, _Build(candidate, index, built), candidate.covers)
        return replacements


@dataclass(frozen=True, slots=True)
class _Build:
    """Builds one result of a taken match out of new operands."""

    candidate: _Candidate
    index: int
    built: dict[Value, Value]

    def __call__(self, new: Any) -> Value:
        names = {k: new(v) if isinstance(v, Value) else v for k, v in self.candidate.names.items()}
        value = self.candidate.op(**names)
        self.built[self.candidate.root] = value
        return value if len(self.candidate.results) == 1 else leaf.item(value, self.index)


def numerics_of(variant: Variant, bound: Bound) -> Numerics:
    """Return the numerics of a spelling: one that is not the body may round otherwise, as x / 3 and x * (1 / 3)."""
    turned = any([p.op is not v.op and p.op in _EACH_OTHER for p, v in bound.covered.items()])
    return "reassociated" if variant.spelling or turned else "exact"


_EACH_OTHER = (mul, div)
"""The matcher finds either where a pattern has the other with a number."""


def stands_for(result: Value, bound: Bound) -> Value:
    """Return the value of a pattern's result; another item of the root's tuple is not matched itself."""
    value = bound.covered.get(result)
    return leaf.item(bound.covered[result.operands[0]], result.attrs["index"]) if value is None else value


def _glances(ops: Sequence[FusedOp[...]], values: Sequence[Value]) -> list[list[tuple[Value, tuple[Variant, ...]]]]:
    """Return for each op the roots at which its patterns may be, the last first, with the patterns that a glance
    allows.
    """
    at_root: dict[Op, _Glance] = {}
    there = {value.op for value in values}
    for index, op in enumerate(ops):
        for variant in op.patterns:
            if variant.needs <= there:
                at_root.setdefault(variant.pattern.op, _Glance()).add(index, variant)
    roots: list[list[tuple[Value, tuple[Variant, ...]]]] = [[] for _ in ops]
    for root in reversed(values):
        glance = at_root.get(root.op)
        for index, variants in () if glance is None else glance.at(root):
            roots[index].append((root, variants))
    return roots


class _Glance:
    """Variants of several ops with one root op: a glance at a root tells most of them out."""

    def __init__(self) -> None:
        self._outlines = Outlines()
        self._listed: list[tuple[int, int, Variant]] = []
        self._known: dict[frozenset[int], list[tuple[int, tuple[Variant, ...]]]] = {}

    def add(self, index: int, variant: Variant) -> None:
        self._listed.append((self._outlines.number(variant.outline), index, variant))

    def at(self, root: Value) -> list[tuple[int, tuple[Variant, ...]]]:
        """Return by the index of its op the variants whose outlines fit the root."""
        fitting = frozenset(self._outlines.fitting(root))
        fitting_variants = self._known.get(fitting)
        if fitting_variants is None:
            by_op: dict[int, list[Variant]] = {}
            for number, index, variant in self._listed:
                if number in fitting:
                    by_op.setdefault(index, []).append(variant)
            fitting_variants = self._known[fitting] = [(index, tuple(listed)) for index, listed in by_op.items()]
        return fitting_variants


def _with_inner_operands(shared: Iterable[Value], candidate: _Candidate) -> list[Value]:
    """Return the shared values and everything inside the match that they are computed from."""
    inside = set(candidate.covers)
    kept: dict[Value, None] = {}
    stack = list(shared)
    while stack:
        value = stack.pop()
        if value in inside and value not in kept:
            kept[value] = None
            stack.extend(value.operands)
    return list(kept)


def reaches(starts: Iterable[Value], goals: Collection[Value], position: Mapping[Value, int]) -> bool:
    """Return whether one of the values is computed from a goal. What comes before all goals in the graph is not."""
    first = min(position[v] for v in goals)
    seen: set[Value] = set()
    stack = list(starts)
    while stack:
        value = stack.pop()
        if value in goals:
            return True
        # A view that matching made stands nowhere in the graph yet.
        if value not in seen and position.get(value, first + 1) > first:
            seen.add(value)
            stack.extend(value.operands)
    return False
