"""What did not fuse, and why: the records that fusing leaves behind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.ir.value import Value

PRIVATE = "interior_is_private"
COST = "cost"
NEAR = "near_miss"
TYPE = "result_type_is_kept"
CYCLE = "results_do_not_feed_operands"
TAKEN = "taken_by_another_rule"


@dataclass(frozen=True, slots=True)
class Applied:
    """A fusion that happened: the rule, what it swallowed, and what stands there now."""

    rule: str
    variant: str
    root: Value
    covers: tuple[Value, ...]
    """The values it swallowed, the root included."""
    value: Value


@dataclass(frozen=True, slots=True)
class Missed:
    """A fusion that did not happen: how far it got and which named condition refused."""

    rule: str
    variant: str
    root: Value
    covers: tuple[Value, ...]
    reason: str
    """The stable name of the guard or cause."""
    message: str
    hint: str

    def __str__(self) -> str:
        return f"missed {self.rule} ({self.reason}): {self.message}\n  hint: {self.hint}"


def still_missed(missed: Iterable[Missed], applied: Iterable[Applied]) -> tuple[Missed, ...]:
    """The misses that stand: nothing else has swallowed their values, and no larger attempt says the same."""
    swallowed: dict[Value, list[frozenset[Value]]] = {}
    for fusion in applied:
        covers = frozenset(fusion.covers)
        for value in fusion.covers:
            swallowed.setdefault(value, []).append(covers)
    open_ = [m for m in missed if not any(set(m.covers) <= c for c in swallowed.get(m.root, ()))]
    inside = {(m.rule, m.reason, v) for m in open_ for v in m.covers if v is not m.root}
    firm = {m.root for m in open_ if m.reason != NEAR}
    return tuple(
        m for m in open_ if (m.rule, m.reason, m.root) not in inside and not (m.reason == NEAR and m.root in firm)
    )
