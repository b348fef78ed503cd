"""Identities: algebra that holds whether or not it pays, each declared once by its two sides."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.egraph.engine import EGraph
from dovetail.egraph.proof import Application, Numerics
from dovetail.egraph.rules import admitted, taken
from dovetail.errors import DovetailError
from dovetail.ir import leaf
from dovetail.ir.origin import unrecorded
from dovetail.ir.value import Op, Value
from dovetail.match import Outlines, matches
from dovetail.match.outline import outline_of

Sides: TypeAlias = Callable[..., Iterator[Value]]
"""Yields the left side, then the right one; the second is only computed where types are known."""
_MAX_MATCHES = 8
"""In which one node may match, by what its operands equal: a bound, so that a large class costs no more than others."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a condition may read of the values that an identity caught, in addition to their types."""

    egraph: EGraph

    def is_constant(self, *values: Value) -> bool:
        """Return whether all of them are known when parameters are bound."""
        return all(self.egraph.is_constant(v) for v in values if v in self.egraph)

    def is_one_of(self, value: Value, *ops: Op) -> bool:
        """Return whether one of these ops computes it, or a value that it equals."""
        return value in self.egraph and any([v.op in ops for v in self.egraph.equal(value)])

    def is_read_once(self, value: Value) -> bool:
        return value not in self.egraph or self.egraph.count_uses(value) <= 1


class Identity:
    """Two sides that are equal; where the left one stands, the right one may, if the condition holds."""

    def __init__(self, sides: Sides, numerics: Numerics, when: Callable[..., bool] | None) -> None:
        self.name = sides.__name__
        self.doc = inspect.getdoc(sides) or ""
        self.numerics: Numerics = numerics
        self.sides = sides
        self.when = when
        self.condition = "" if when is None else when.__name__.lstrip("_")
        """What must hold, by name; empty where nothing must."""
        self._asks = tuple(inspect.signature(when).parameters) if when is not None else ()
        parameters = inspect.signature(sides).parameters.values()
        with unrecorded():
            caught: dict[str, Any] = {
                p.name: leaf.Hole(p.name) if p.kind is p.KEYWORD_ONLY else leaf.hole(p.name) for p in parameters
            }
            self.pattern = next(sides(**caught))
        self.outline = outline_of(self.pattern)

    def right(self, names: Mapping[str, Any], sight: Sight) -> Value | None:
        """Return the right side for what was caught; None where the condition refuses or the types do not fit."""
        if self.when is not None and not self.when(**{n: sight if n == "sight" else names[n] for n in self._asks}):
            return None
        try:
            _, result = islice(self.sides(**names), 2)
        except DovetailError:
            return None
        return result

    def __repr__(self) -> str:
        return f"<identity {self.name}>"


def identity(*, numerics: Numerics = "exact", when: Callable[..., bool] | None = None) -> Callable[[Sides], Identity]:
    """Declare an identity by a function that yields both its sides; keyword-only parameters are caught attributes."""
    return lambda sides: Identity(sides, numerics, when)


class Identities:
    """Identities as rules of the e-graph."""

    def __init__(self, identities: Sequence[Identity], *, strict: bool = False) -> None:
        self._at_root: dict[Op, _Glance] = {}
        for each in identities:
            if admitted(each.numerics, strict):
                self._at_root.setdefault(each.pattern.op, _Glance()).add(each)

    def applications(self, egraph: EGraph, nodes: Iterable[Value]) -> Iterator[Application]:
        sight = Sight(egraph)
        for node in nodes:
            glance = self._at_root.get(node.op)
            for each in () if glance is None else glance.at(node, egraph):
                for bound in islice(matches(each.pattern, node, equal=egraph.equal), _MAX_MATCHES):
                    result = each.right(bound.names, sight)
                    if result is None or result.known_type != node.known_type:
                        continue
                    covers = tuple(dict.fromkeys([node, *bound.covered.values()]))
                    instead = taken(covers, egraph)
                    if instead is not None:
                        yield Application(each.name, "", each.numerics, node, result, covers, instead)


class _Glance:
    """Identities whose left sides have one root op: a glance at a node tells most of them out."""

    def __init__(self) -> None:
        self._outlines = Outlines()
        self._listed: list[tuple[int, Identity]] = []

    def add(self, identity: Identity) -> None:
        self._listed.append((self._outlines.number(identity.outline), identity))

    def at(self, node: Value, egraph: EGraph) -> Sequence[Identity]:
        """Return those whose outlines fit, in the order in which they were added."""
        fitting = self._outlines.fitting(node, equal=egraph.equal)
        return [identity for number, identity in self._listed if number in fitting] if fitting else ()
