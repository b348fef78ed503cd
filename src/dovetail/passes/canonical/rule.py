"""A rewrite as data: what it looks at, what it gives, whether it keeps every bit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.derive.edit import Faithful
from dovetail.ir import leaf
from dovetail.ir.dtype import DType
from dovetail.ir.type import TensorType
from dovetail.ir.value import Op, Value

_LONGEST = 8
"""Most ops with numbers that are searched."""
Rewrite = Callable[[Value], "Value | None"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Gives what stands in place of a value with canonical operands, or None where it has nothing to say."""

    name: str
    ops: tuple[Op, ...]
    rewrite: Rewrite
    numerics: Faithful
    """Nothing in range may leave it: a rule that moves a factor checks the range of 16-bit types."""
    on_constant: bool
    """Whether it looks at values with a constant operand only."""
    final: bool
    """Whether its result stays as it is, for it is written to suit its place; such a rule comes last."""
    doc: str


def rule(
    *ops: Op, numerics: Faithful = "exact", on_constant: bool = False, final: bool = False
) -> Callable[[Rewrite], Rule]:
    """Declare a rule for values of these ops by a function whose name is the rule's."""

    def declare(rewrite: Rewrite) -> Rule:
        doc = (inspect.getdoc(rewrite) or "").split("\n")[0]
        return Rule(rewrite.__name__, ops, rewrite, numerics, on_constant, final, doc)

    return declare


def listed(namespace: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules that a module declares, in the order of its lines."""
    return tuple(v for v in namespace.values() if isinstance(v, Rule))


def dtype_if_known(value: Value) -> DType | None:
    """The dtype of one tensor; None in a pattern."""
    type = value.known_type
    return type.dtype if isinstance(type, TensorType) else None


def number_in(value: Value) -> float | int | bool | None:
    """The real number that a one-element constant holds, in a graph or a pattern; None for anything else."""
    if value.op is leaf.NUMBER:
        number = value.attrs["value"]
        return number if isinstance(number, int | float) else None
    found = leaf.scalar_of(value)
    return None if isinstance(found, complex) else found


def number_like(number: float, value: Value) -> Value:
    """A number in the dtype of a value."""
    return leaf.scalar(number, dtype_if_known(value))


def under_numbers(value: Value) -> tuple[list[tuple[Value, Value]], Value]:
    """The operand below elementwise ops with numbers, and these ops from above, each with its operand on the path."""
    path: list[tuple[Value, Value]] = []
    while value.op.elementwise and value.known_type is not None and len(path) < _LONGEST:
        tensors = [v for v in value.operands if v.rank]
        if len(tensors) != 1:
            break
        path.append((value, tensors[0]))
        value = tensors[0]
    return path, value


def is_constant(value: Value) -> bool:
    return value.op is leaf.CONST or value.op is leaf.NUMBER
