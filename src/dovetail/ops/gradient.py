"""What a primitive says about its gradient: a rule, that it is piecewise constant, or a refusal with its reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.graph import Subgraph
from dovetail.ir.value import Value

Parts: TypeAlias = tuple[Value | None, ...]
"""One gradient for each operand; None where nothing flows."""
Pull: TypeAlias = Callable[..., Parts]
"""`pull(g, y, *operands, **attributes)`: from the gradient of the result y to the gradients of the operands.

An elementwise rule gives parts of the shape of y: the walk sums them over the axes that a broadcast stretched. Of an op
with several results, g is a tuple with None for each result without a gradient.
"""
UnaryPull: TypeAlias = Callable[[Value, Value, Value], Parts]
BinaryPull: TypeAlias = Callable[[Value, Value, Value, Value], Parts]
PullBody: TypeAlias = Callable[[Subgraph, Sequence[int], Sequence[int]], Subgraph]
"""The pull of a sub-graph: its arguments, then the gradients of the chosen results, give those of chosen arguments."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Nothing flows through the op: small changes of its operands do not change its result."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The op has a slope, and no rule; a gradient through it is a typed error."""

    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class Nested:
    """The rule of an op with sub-graphs: `pull(pull_body, wanted, g, y, *operands, **attributes)`.

    `wanted` are the operands whose gradients are needed.
    """

    pull: Callable[..., Parts]


Gradient: TypeAlias = Pull | Constant | Refused | Nested

STEPS = Constant("its result moves in steps")
NOT_FLOAT = Constant("its result is not a float")
NO_OPERAND = Constant("it reads no float")


class NoRuleError(Exception):
    """Raised inside a rule for a case that it does not have; the walk lists all of them in one error."""

    def __init__(self, reason: str, hint: str) -> None:
        self.refused = Refused(reason, hint)
        super().__init__(reason)


__all__ = [
    "NOT_FLOAT",
    "NO_OPERAND",
    "STEPS",
    "BinaryPull",
    "Constant",
    "Gradient",
    "Nested",
    "NoRuleError",
    "Parts",
    "Pull",
    "PullBody",
    "Refused",
    "UnaryPull",
]
