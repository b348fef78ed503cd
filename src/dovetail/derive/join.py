"""Joining: find the members of declared groups, ask their guards and the cost, replace them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Machine, total_seconds, view_base
from dovetail.declare.fused import Call, Variant
from dovetail.declare.group import Group
from dovetail.derive.edit import Log
from dovetail.derive.fuse import ANY_MACHINE, Fused, reaches
from dovetail.derive.missed import COST, CYCLE, TYPE, Applied, Missed, declined_by_cost, still_missed
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf, origin
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph, follow
from dovetail.ir.origin import Origin
from dovetail.ir.rewrite import CyclicReplacementError, Replacement, replace_roots
from dovetail.ir.value import Op, Value, attrs_key
from dovetail.ir.walk import walk
from dovetail.match import Bound, fits, match


def join(
    graph: Graph,
    groups: Sequence[Group],
    *,
    machine: Machine = ANY_MACHINE,
    sizes: Mapping[str, Size] | None = None,
    log: Log | None = None,
) -> Fused:
    """Join the members of these groups, one group after the other; members that do not fit stay as they are."""
    applied: list[Applied] = []
    missed: list[Missed] = []
    base, graph = graph, graph.settled()
    for group in groups:
        step = _Joining(graph.settled(), group, machine, sizes)
        joined = step.run()
        if log is not None:
            step.note(log)
        applied = [a.follow(joined.moved) for a in applied] + step.applied
        missed = [m.follow(joined.moved) for m in [*missed, *step.missed]]
        graph = replace(joined, moved=follow(graph.moved, joined.moved))
    return Fused(replace(graph, moved=follow(base.moved, graph.moved)), tuple(applied), still_missed(missed))


@dataclass(frozen=True, slots=True)
class _Member:
    """One value that fits the form, with what its operands and options are."""

    value: Value
    variant: Variant
    call: Call

    @property
    def operands(self) -> list[Value]:
        return [v for v in self.call.names.values() if isinstance(v, Value)]


@dataclass(slots=True)
class _Party:
    """Members that are joined, and what is built for them."""

    members: list[_Member]
    built: tuple[Value, ...] = ()

    @property
    def values(self) -> tuple[Value, ...]:
        return tuple(m.value for m in self.members)

    @property
    def needs(self) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(v for m in self.members for v in m.operands))


@dataclass
class _Joining:
    """One group over one graph."""

    graph: Graph
    group: Group
    machine: Machine
    sizes: Mapping[str, Size] | None
    applied: list[Applied] = field(default_factory=list[Applied])
    missed: list[Missed] = field(default_factory=list[Missed])
    joined: Sequence[_Party] = ()

    def run(self) -> Graph:
        parties: list[_Party] = []
        for members in self._sharing():
            fitting = self._independent(self._fitting(members))
            if len(fitting) > 1 and self._pays(fitting):
                parties.append(_Party(fitting))
        return self._replace(parties) if parties else self.graph

    def _sharing(self) -> list[list[_Member]]:
        """Members of one form that share the operand, in the order of the graph; two of them at least."""
        at_root: dict[Op, list[Variant]] = {}
        for variant in self.group.variants:
            at_root.setdefault(variant.pattern.op, []).append(variant)
        members_of: dict[Any, list[_Member]] = {}
        for value in self.graph.values:
            member = self._member(value, at_root.get(value.op, ()))
            if member is not None and member.call.names[self.group.shared] in self.at_run_time:
                members_of.setdefault(self._key(member), []).append(member)
        return [members for members in members_of.values() if len(members) > 1]

    def _member(self, value: Value, variants: Sequence[Variant]) -> _Member | None:
        for variant in variants:
            bound = match(variant.pattern, value) if fits(variant.outline, value) else None
            if isinstance(bound, Bound):
                return _Member(value, variant, Call({**variant.fixed, **bound.names}))
        return None

    def _key(self, member: _Member) -> Any:
        options = {k: v for k, v in sorted(member.call.names.items()) if not isinstance(v, Value)}
        shared, kind = member.call.names[self.group.shared], self.group.kind_of(member.call)
        return (member.variant.pattern, shared, attrs_key(options), kind)

    def _fitting(self, members: list[_Member]) -> list[_Member]:
        fitting: list[_Member] = []
        for member in members:
            names = {**member.call.names, "result": member.value}
            refused = next((g for g in self.group.guards if not g.check(names)), None)
            if refused is None:
                fitting.append(member)
            else:
                self._miss(member, members, refused.name, refused.explain(names), refused.hint)
        return fitting

    def _independent(self, members: list[_Member]) -> list[_Member]:
        """Return the members that need no other member's result."""
        kept: dict[Value, _Member] = {}
        for member in members:
            if kept and self._depends(member, kept):
                message = "it is computed from another member's result"
                self._miss(member, members, CYCLE, message, "compute its operands from what the members share")
            else:
                kept[member.value] = member
        return list(kept.values())

    def _depends(self, member: _Member, others: Mapping[Value, _Member]) -> bool:
        first = self.position[next(iter(others))]
        # Parameters, and what stands before all of them, depend on none.
        late = [v for v in member.operands if v.operands and self.position.get(v, first + 1) > first]
        return bool(late) and reaches(late, others, self.position)

    def _pays(self, members: list[_Member]) -> bool:
        root = members[-1]
        try:
            results = self.group.join([m.call for m in members])
        except TypeRuleError as error:
            self._miss(root, members, TYPE, error.message, error.hint)
            return False
        if any(r.type != m.value.type for r, m in zip(results, members, strict=True)):
            self._miss(root, members, TYPE, "joined, the members have other types", "leave them apart")
            return False
        apart = total_seconds([m.value for m in members], self.machine, self.sizes)
        together = total_seconds(self._run_each_time(results, members), self.machine, self.sizes)
        if together >= apart:
            self._miss(root, members, COST, declined_by_cost(together, apart), "")
        return together < apart

    def _run_each_time(self, results: Sequence[Value], members: Sequence[_Member]) -> list[Value]:
        """Return the new values that cannot be computed once, when the parameters are bound."""
        operands = {v for m in members for v in m.operands}
        late: dict[Value, None] = {}
        for value in walk(results, until=operands):
            if value not in operands and any(v in late or v in self.at_run_time for v in value.operands):
                late[value] = None
        return list(late)

    @cached_property
    def at_run_time(self) -> set[Value]:
        """The values that depend on what a run is given."""
        late: set[Value] = set()
        for value in self.graph.values:
            if value.op in (leaf.INPUT, leaf.ARGUMENT) or any(v in late for v in value.operands):
                late.add(value)
        return late

    @cached_property
    def position(self) -> dict[Value, int]:
        return {v: i for i, v in enumerate(self.graph.values)}

    def _miss(self, member: _Member, members: Sequence[_Member], reason: str, message: str, hint: str) -> None:
        covers = tuple(dict.fromkeys((member.value, *(m.value for m in members))))
        label = member.variant.label
        self.missed.append(Missed(self.group.name, label, member.value, covers, reason, message, hint))

    def _replace(self, parties: list[_Party]) -> Graph:
        while True:
            for party in parties:
                party.built = ()
            try:
                graph = replace_roots(self.graph, self._replacements(parties))
            except CyclicReplacementError as error:
                party = next(p for p in parties if error.root in p.values)
                parties = [p for p in parties if p is not party]
                message = "two groups would read each other's results"
                self._miss(party.members[0], party.members, CYCLE, message, "break the loop between them")
                continue
            return self._credited(graph, parties)

    def _replacements(self, parties: Sequence[_Party]) -> dict[Value, Replacement]:
        replacements: dict[Value, Replacement] = {}
        for party in parties:
            first = party.members[0].value
            for index, member in enumerate(party.members):
                # The first member brings what all are built from; the others wait for it.
                needs = (first,) if index else party.needs
                replacements[member.value] = Replacement(needs, _Build(self.group, party, index), (member.value,))
        return replacements

    def _credited(self, graph: Graph, parties: Sequence[_Party]) -> Graph:
        """Credit what the members became part of with the origins of all; each result keeps its own."""
        self.joined = parties
        origins: dict[Value, tuple[Origin, ...]] = dict(graph.origins)
        for party in parties:
            results = party.built
            everyone = origin.merge(*(self.graph.origins.get(v, ()) for v in party.values))
            needs = {graph.moved.get(v, v) for v in party.needs}
            for value in walk(results, until=needs):
                if everyone and value not in needs and value not in results:
                    origins[value] = everyone
            label = f"{len(party.members)} members"
            self.applied.append(Applied(self.group.name, label, party.values[0], party.values, view_base(results[0])))
        return replace(graph, origins=origins)

    def note(self, log: Log) -> None:
        """Write down what was joined, in terms of the graph as it was."""
        log.begin("roots")
        for party in self.joined:
            joined = self.group.join([m.call for m in party.members])
            label = f"{len(party.members)} members"
            log.replace(self.group.name, label, self.group.numerics, party.values, joined, party.needs, party.values)


@dataclass(frozen=True, slots=True)
class _Build:
    """Builds one member's value out of new operands; the joined form is built once for all."""

    group: Group
    party: _Party
    index: int

    def __call__(self, new: Callable[[Value], Value]) -> Value:
        if not self.party.built:
            calls = [
                Call({k: new(v) if isinstance(v, Value) else v for k, v in m.call.names.items()})
                for m in self.party.members
            ]
            self.party.built = self.group.join(calls)
        return self.party.built[self.index]
