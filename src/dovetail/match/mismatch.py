"""The two outcomes of a match. A failed match is a value that says where and why."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from dovetail.dataclass import dataclass
from dovetail.ir.value import Value

Kind = Literal["op", "operand", "number", "size"]


class Bound(NamedTuple):
    """What a pattern caught: operands and numbers by name, and the values it would swallow."""

    names: dict[str, Any]
    covered: dict[Value, Value]
    """Pattern value -> the graph value it stands for, leaves of the pattern left out."""
    forgiven: Mismatch | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How far a match got and what stopped it."""

    at: Value
    expected: str
    found: str
    matched: int
    """How many ops of the pattern had been found by then."""
    kind: Kind = "op"
    """What differs: the op, an operand that was met before, a number or option, or a size."""

    def __str__(self) -> str:
        return f"wanted {self.expected}, found {self.found}"
