"""The order in which the interpreter runs values."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.passes.specialize import fresh_symbols, value_symbols


@dataclass(frozen=True, slots=True)
class Schedule:
    """The values that some outputs need, in the order in which they run, and how often each is read."""

    order: list[Value]
    readers: Mapping[Value, int]
    wanted: frozenset[Value]

    @staticmethod
    def of(outputs: Sequence[Value], leaves: Container[Value], sizes: Container[str]) -> Schedule:
        order = _after_binders(walk(outputs, until=leaves), leaves, sizes)
        readers = dict.fromkeys(order, 0)
        for value in order:
            if value not in leaves:
                for operand in value.operands:
                    readers[operand] += 1
        return Schedule(order, readers, frozenset(outputs))


def _after_binders(order: list[Value], leaves: Container[Value], sizes: Container[str]) -> list[Value]:
    """The order with every value after those that find the sizes it mentions, where the run finds any."""
    binders = {n: v for v in order if v not in leaves for n in fresh_symbols(v) if n not in sizes}
    if not binders:
        return order
    ordered: dict[Value, None] = {}
    opened: set[Value] = set()
    stack = order[::-1]
    while stack:
        value = stack[-1]
        if value in ordered or value in opened or value in leaves:
            ordered.setdefault(stack.pop())
            continue
        opened.add(value)
        asked = {n: None for n in value_symbols(value) if n in binders}
        stack += [v for v in (*value.operands, *(binders[n] for n in asked)) if v not in opened]
    return list(ordered)
