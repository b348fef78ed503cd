"""Rewrite rules for an e-graph, derived from the declarations: pattern, conditions, what stands there instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp, Variant
from dovetail.derive.condition import Condition, OpaqueGuardError, condition_of
from dovetail.ir import leaf
from dovetail.ir.spell import quote
from dovetail.ir.value import Value
from dovetail.ir.walk import walk


@dataclass(frozen=True, slots=True)
class Rule:
    """One variant of a declared op as a rewrite."""

    op: FusedOp[...]
    variant: Variant
    conditions: tuple[tuple[str, Condition], ...]
    """Guard name and what it asks; guards that always hold for this variant are left out."""
    opaque: str = ""
    """The guard that cannot be written as a condition, and why: it is asked of the values of each match instead."""

    @property
    def name(self) -> str:
        return f"{self.op.name}[{self.variant.label}]"

    def __str__(self) -> str:
        left = " ; ".join(spell(r) for r in self.variant.results)
        when = "".join(f"\n  when {name}: {condition}" for name, condition in self.conditions)
        note = f"\n  asked of each match: {self.opaque}" if self.opaque else ""
        return f"{self.name}\n  {left}{when}{note}"


def rules(ops: Sequence[FusedOp[...]]) -> list[Rule]:
    """Return every variant of every op, in order, one rule each."""
    return [_rule(op, variant) for op in ops for variant in op.patterns]


def _rule(op: FusedOp[...], variant: Variant) -> Rule:
    conditions: list[tuple[str, Condition]] = []
    choices: dict[str, Any] = {**variant.choice, "result": leaf.hole("result")}
    for guard in op.guards:
        try:
            condition = condition_of(guard, choices)
        except OpaqueGuardError as error:
            return Rule(op, variant, (), f"{guard.name}: {error}")
        if condition.paths != ((),):
            conditions.append((guard.name, condition))
    return Rule(op, variant, tuple(conditions))


def spell(pattern: Value) -> str:
    """Return a pattern as one line: ?x for what is caught, shared values spelled each time they are read."""
    text: dict[Value, str] = {}
    for value in walk([pattern]):
        if value.op is leaf.HOLE:
            text[value] = f"?{value.attrs['name']}"
        elif value.op is leaf.NUMBER:
            number = value.attrs["value"]
            text[value] = _number(number)
        else:
            attrs = [f"{k}={_number(v)}" for k, v in value.attrs.items() if k != "operands" and v is not None]
            text[value] = f"{value.op.name}({', '.join([*(text[v] for v in value.operands), *attrs])})"
    return text[pattern]


def _number(value: Any) -> str:
    match value:
        case leaf.Hole(name=name, written="as_is"):
            return f"?{name}"
        case leaf.Hole(name=name, written=written):
            return f"{written}(?{name})"
        case leaf.SizeOf(of=of, axis=axis):
            return f"size({of.attrs.get('name', of.op.name)}, {axis})"
        case leaf.DTypeOf(of=of):
            return f"dtype({of.attrs.get('name', of.op.name)})"
        case str():
            return quote(value)
        case tuple():
            return f"({', '.join(_number(v) for v in cast(tuple[Any, ...], value))})"
        case _:
            return str(value)
