"""What did not fuse, and why: the records that fusing leaves behind."""

from __future__ import annotations

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
