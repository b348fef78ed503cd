"""A rule turns one call of an ATen operator into values. Its signature says what it takes.

    @rule("aten.transpose.int")
    def transpose(n: Node, x: Value, dim0: int, dim1: int) -> Value:
        return build.swap(x, dim0, dim1)

Positional parameters are the arguments of the schema in their order, keyword-only parameters its keyword-only
arguments by name. An argument that differs from its default and that no parameter takes is refused, so that nothing is
silently ignored; those in `SAID_BY_THE_RESULT` say what the type of the result says as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.frontends.shared import rule as shared
from dovetail.frontends.shared.rule import Made
from dovetail.ir.dim import Size
from dovetail.ir.value import Value

Number: TypeAlias = float | complex | Size | Value
"""A Python number, a size, or a tensor in its place."""

SAID_BY_THE_RESULT = frozenset(
    {"dtype", "device", "layout", "pin_memory", "memory_format", "non_blocking", "out_dtype", "requires_grad"}
)
"""Keyword-only arguments that rules need not take: the type of the result says the same, or no result depends on it."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What the function of a rule takes."""

    positional: int
    """How many positional parameters there are; -1 where it takes any number."""
    keywords: frozenset[str] | None
    """The keyword-only parameters; None where it takes any."""


@dataclass(frozen=True, slots=True)
class Rule(shared.Rule):
    """How calls of one operator become values."""

    @property
    def signature(self) -> Signature:
        return _signature(self.function)


def rule(*ops: str) -> Callable[[Callable[..., Made]], tuple[Rule, ...]]:
    """Declare how calls of some operators are read; names are as torch prints them."""

    def declare(function: Callable[..., Made]) -> tuple[Rule, ...]:
        return tuple(Rule(_whole(op), function) for op in ops)

    return declare


def _whole(op: str) -> str:
    """The name of an operator with its namespace; ATen's is left out."""
    return op if op.count(".") > 1 or op.startswith("higher_order.") else f"aten.{op}"


@cache
def _signature(function: Callable[..., Made]) -> Signature:
    """Read when a rule is first used: a model uses few of them."""
    listed = list(inspect.signature(function).parameters.values())[1:]
    rest = any(p.kind is p.VAR_POSITIONAL for p in listed)
    positional = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in listed)
    named = frozenset(p.name for p in listed if p.kind is p.KEYWORD_ONLY)
    return Signature(-1 if rest else positional, None if any(p.kind is p.VAR_KEYWORD for p in listed) else named)
