"""Rules as the e-graph applies them: given a node, every application that is possible there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from dovetail.declare.fused import FusedOp, Variant
from dovetail.derive.fuse import numerics_of, stands_for
from dovetail.egraph.engine import EGraph
from dovetail.egraph.proof import STRICTNESS, Application, Numerics
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.type import TupleType
from dovetail.ir.value import Op, Value
from dovetail.match import Bound, Outlines, matches

_MAX_MATCHES = 16
"""How many matches of one pattern at one node are tried."""


class RuleSet(Protocol):
    """Rules that are looked for together, all on the same e-graph, before any of them is applied."""

    def applications(self, egraph: EGraph, nodes: Iterable[Value]) -> Iterator[Application]:
        """Yield the applications of the rules at these nodes, and leave the e-graph as it is."""
        ...


class Rewrite(Protocol):
    """A directed rewrite of one value, as canonicalising has them."""

    @property
    def name(self) -> str: ...
    @property
    def ops(self) -> tuple[Op, ...]: ...
    @property
    def rewrite(self) -> Callable[[Value], Value | None]: ...
    @property
    def numerics(self) -> Numerics: ...
    @property
    def on_constant(self) -> bool: ...


def admitted(numerics: Numerics, strict: bool) -> bool:
    """Return whether a rule may be used; strictly, only those that keep every bit."""
    return not strict or STRICTNESS[numerics] == 0


class Rewrites:
    """Directed rewrites: a node and what it is rewritten to are equal."""

    def __init__(self, rewrites: Sequence[Rewrite], *, strict: bool = False) -> None:
        self._by_op: dict[Op, list[Rewrite]] = {}
        for rewrite in rewrites:
            if admitted(rewrite.numerics, strict):
                for op in rewrite.ops:
                    self._by_op.setdefault(op, []).append(rewrite)

    def applications(self, egraph: EGraph, nodes: Iterable[Value]) -> Iterator[Application]:
        for node in nodes:
            if node.op in self._by_op:
                yield from self._at(node)

    def _at(self, node: Value) -> Iterator[Application]:
        on_constant = any(v.op is leaf.CONST for v in node.operands)
        for rewrite in self._by_op[node.op]:
            if on_constant or not rewrite.on_constant:
                result = rewrite.rewrite(node)
                if result is not None and result is not node and result.known_type == node.known_type:
                    yield Application(rewrite.name, "", rewrite.numerics, node, result, (node,))


class Unfolding:
    """A declared op is its body: what was written fused may be fused in another way."""

    def __init__(self, ops: Sequence[FusedOp[...]]) -> None:
        self._ops: frozenset[Op] = frozenset(ops)

    def applications(self, egraph: EGraph, nodes: Iterable[Value]) -> Iterator[Application]:
        for node in nodes:
            body = node.op.expansion(node.operands, node.attrs) if node.op in self._ops else None
            if body is not None and body.known_type == node.known_type and body.op is not leaf.PACK:
                yield Application(f"unfold_{node.op.name}", "", "exact", node, body, (node,))


class Form:
    """One pattern of a declared op, and which of its applications are admitted."""

    __slots__ = ("op", "strict", "variant")

    def __init__(self, op: FusedOp[...], variant: Variant, *, strict: bool = False) -> None:
        self.op = op
        self.variant = variant
        self.strict = strict


class Declared:
    """The patterns of declared ops that can be found at the same time, with their guards."""

    def __init__(self, ops: Sequence[FusedOp[...]], *, strict: bool = False) -> None:
        listed = [(op, variant) for op in ops for variant in op.patterns if not (strict and variant.spelling)]
        self._forms = [Form(op, variant, strict=strict) for op, variant in listed]
        self._needs = frozenset[Op]().union(*[variant.needs for _, variant in listed])
        self._known: dict[frozenset[Op], dict[Op, _Glance]] = {}

    def applications(self, egraph: EGraph, nodes: Iterable[Value]) -> Iterator[Application]:
        at_root = self._at_root(self._needs & egraph.ops)
        for node in nodes:
            glance = at_root.get(node.op)
            if glance is not None:
                yield from self._at(egraph, node, glance)

    def _at_root(self, there: frozenset[Op]) -> dict[Op, _Glance]:
        """Return the patterns that these ops allow, by their root ops."""
        glances = self._known.get(there)
        if glances is None:
            glances = self._known[there] = {}
            for form in self._forms:
                if form.variant.needs <= there:
                    glances.setdefault(form.variant.pattern.op, _Glance()).add(form)
        return glances

    def _at(self, egraph: EGraph, node: Value, glance: _Glance) -> Iterator[Application]:
        seen: set[tuple[Form, frozenset[Value]]] = set()
        bounds: dict[Value, list[Bound]] = {}
        for form in glance.at(node, egraph):
            pattern = form.variant.pattern
            # Forms that differ in what they keep look for the same.
            if pattern not in bounds:
                bounds[pattern] = list(islice(matches(pattern, node, equal=egraph.equal), _MAX_MATCHES))
            for bound in bounds[pattern]:
                # Another order of the same operands would be another node of the same cost.
                key = (form, frozenset(bound.covered.values()))
                if key not in seen:
                    applications = applied(form, bound, node, egraph)
                    if applications:
                        seen.add(key)
                        yield from applications


def applied(form: Form, bound: Bound, root: Value, egraph: EGraph) -> tuple[Application, ...]:
    """Return the equalities of one match, one for each result; none where a guard refuses or the types differ."""
    numerics = numerics_of(form.variant, bound)
    if not admitted(numerics, form.strict):
        return ()
    names: dict[str, Any] = {**form.variant.fixed, **bound.names}
    bound_values = {**names, "result": root}
    for guard in form.op.guards:
        if not guard.check(bound_values):
            return ()
    covers = tuple(dict.fromkeys([root, *bound.covered.values()]))
    instead = taken(covers, egraph)
    if instead is None:
        return ()
    try:
        fused = form.op(**names)
    except TypeRuleError:
        return ()
    results = tuple(stands_for(r, bound) for r in form.variant.results)
    types = fused.type.items if isinstance(fused.type, TupleType) else (fused.type,)
    if types != tuple(r.type for r in results):
        return ()
    built = [fused] if len(results) == 1 else [leaf.item(fused, i) for i in range(len(results))]
    pairs = zip(results, built, strict=True)
    return tuple([Application(form.op.name, form.variant.label, numerics, a, b, covers, instead) for a, b in pairs])


def taken(covers: Sequence[Value], egraph: EGraph) -> tuple[tuple[Value, Value], ...] | None:
    """Operands in a match and the equal values that it has instead; None where one operand stands for two values."""
    chosen: dict[Value, Value] = {}
    for node in covers:
        # A view that matching made stands in no class yet.
        if node in egraph and chosen.setdefault(egraph.find(node), node) is not node:
            return None
    return tuple([(leader, node) for leader, node in chosen.items() if leader is not node])


class _Glance:
    """Patterns with one root op: a glance at a node tells most of them out."""

    def __init__(self) -> None:
        self._outlines = Outlines()
        self._patterns: dict[int, list[Form]] = {}

    def add(self, form: Form) -> None:
        self._patterns.setdefault(self._outlines.number(form.variant.outline), []).append(form)

    def at(self, node: Value, egraph: EGraph) -> Iterator[Form]:
        for number in sorted(self._outlines.fitting(node, equal=egraph.equal)):
            yield from self._patterns[number]
