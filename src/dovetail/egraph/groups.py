"""Groups in the e-graph: members that share an operand, and their joined form."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dovetail.declare.fused import Call, Variant
from dovetail.declare.group import Group
from dovetail.egraph.engine import EGraph
from dovetail.egraph.proof import Application
from dovetail.errors import TypeRuleError
from dovetail.ir.value import Op, Value, attrs_key
from dovetail.match import fits, matches


class _Member(NamedTuple):
    node: Value
    call: Call


class Joining:
    """Adds the joined form of every group to its members; the cost decides which readers take it."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._at_root: dict[Op, list[Variant]] = {}
        for variant in group.variants:
            self._at_root.setdefault(variant.pattern.op, []).append(variant)

    def applications(self, egraph: EGraph, nodes: Iterable[Value]) -> Iterator[Application]:
        sharing: dict[Hashable, dict[Value, _Member]] = {}
        for node in nodes:
            for variant in self._at_root.get(node.op, ()):
                member = self._member(egraph, node, variant) if fits(variant.outline, node, egraph.equal) else None
                if member is not None:
                    key = self._key(member, variant, egraph)
                    sharing.setdefault(key, {}).setdefault(egraph.find(node), member)
                    break
        for members in sharing.values():
            if len(members) > 1:
                yield from self._joined(list(members.values()))

    def _member(self, egraph: EGraph, node: Value, variant: Variant) -> _Member | None:
        bound = next(matches(variant.pattern, node, equal=egraph.equal), None)
        if bound is None:
            return None
        names: dict[str, Any] = {**variant.fixed, **bound.names}
        if egraph.is_constant(names[self._group.shared]):
            return None
        holds = all(g.check({**names, "result": node}) for g in self._group.guards)
        return _Member(node, Call(names)) if holds else None

    def _key(self, member: _Member, variant: Variant, egraph: EGraph) -> Hashable:
        options = {k: v for k, v in sorted(member.call.names.items()) if not isinstance(v, Value)}
        shared, kind = egraph.find(member.call.names[self._group.shared]), self._group.kind_of(member.call)
        return (variant.pattern, shared, attrs_key(options), kind)

    def _joined(self, members: Sequence[_Member]) -> Iterator[Application]:
        try:
            results = self._group.join([m.call for m in members])
        except TypeRuleError:
            return
        if any(r.type != m.node.type for r, m in zip(results, members, strict=True)):
            return
        covers = tuple(m.node for m in members)
        label = f"{len(members)} members"
        for member, result in zip(members, results, strict=True):
            yield Application(self._group.name, label, self._group.numerics, member.node, result, covers)
