"""What did not fuse, and why: the records that fusing leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.value import Value

PRIVATE = "interior_is_private"
COST = "cost"
NEAR = "near_miss"
BETWEEN = "op_between"
TYPE = "result_type_is_kept"
CYCLE = "results_do_not_feed_operands"


@dataclass(frozen=True, slots=True)
class Applied:
    """A fusion that happened: the rule, what it swallowed, and what stands there now."""

    rule: str
    variant: str
    root: Value
    covers: tuple[Value, ...]
    """The values it swallowed, the root included."""
    value: Value

    def follow(self, moved: Mapping[Value, Value]) -> Applied:
        return replace(self, value=moved.get(self.value, self.value)) if moved else self


@dataclass(frozen=True, slots=True)
class Missed:
    """A fusion that did not happen: how far it got and which named condition refused."""

    rule: str
    variant: str
    root: Value
    covers: tuple[Value, ...]
    """The values it would have swallowed, as they were matched, the root first."""
    reason: str
    """The stable name of the guard or cause."""
    message: str
    hint: str
    """The words of the declaration; a report gives a hint only where following it keeps the numbers and gains."""
    now: tuple[Value, ...] = ()
    """Where those values are after the passes that followed."""
    caught: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)
    """Operands, numbers and options by the names of the declaration, as they were matched."""
    results: tuple[Value, ...] = ()
    """What the fused value would have stood for; the root is the first."""
    shared: tuple[Value, ...] = ()
    """Inner values that others read."""
    between: tuple[Value, ...] = ()
    """The ops that stand between two of the pattern, where those alone keep it from matching, operands first."""
    place: Value | None = None
    """What its root stands for in the graph that fusing was given."""

    @property
    def values(self) -> tuple[Value, ...]:
        """Where the values that it would have swallowed are now."""
        return self.now or self.covers

    @property
    def stands(self) -> bool:
        """Whether the values are still apart."""
        return len(set(self.values)) > 1

    def follow(self, moved: Mapping[Value, Value]) -> Missed:
        return replace(self, now=tuple([moved.get(v, v) for v in self.values])) if moved else self

    def __str__(self) -> str:
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"missed {self.rule} ({self.reason}): {self.message}{hint}"


def declined_by_cost(with_it: float, without: float) -> str:
    """Spell both prices of a fusion that the machine model declined."""
    return f"with it {with_it * 1e6:.5g} µs, without it {without * 1e6:.5g} µs by the machine model"


def still_missed(missed: Iterable[Missed]) -> tuple[Missed, ...]:
    """Return the misses that stand, each once: their values are still apart, and no larger attempt says the same."""
    open_ = list({(m.rule, m.reason, m.root): m for m in missed if m.stands}.values())
    inside = {(m.rule, m.reason, v) for m in open_ for v in m.covers if v is not m.root}
    firm = {m.root for m in open_ if m.reason != NEAR}
    refused = {(m.rule, m.root) for m in open_ if m.reason not in (NEAR, BETWEEN)}
    return tuple(
        m
        for m in open_
        if (m.rule, m.reason, m.root) not in inside
        and not (m.reason == NEAR and m.root in firm)
        and not (m.reason == BETWEEN and (m.rule, m.root) in refused)
    )
