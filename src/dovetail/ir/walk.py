"""Walking graphs. Nothing here recurses: a chain of 100,000 values is a normal graph."""

from __future__ import annotations

from collections.abc import Container, Iterable

from dovetail.ir.value import Value


def walk(outputs: Iterable[Value], *, until: Container[Value] = ()) -> list[Value]:
    """Return every value that the outputs need, once, operands before users; nothing below the values of `until`."""
    order: list[Value] = []
    seen: set[Value] = set()
    opened: list[Value] = []
    stack: list[Value | None] = list(outputs)
    stack.reverse()
    while stack:
        value = stack.pop()
        if value is None:  # the operands of the value that was opened last are in the order
            order.append(opened.pop())
            continue
        while value not in seen:
            seen.add(value)
            operands = value.operands
            if not operands or value in until:
                order.append(value)
                break
            opened.append(value)
            stack.append(None)
            value = operands[0]
            if len(operands) > 1:
                stack.extend(operands[:0:-1])
    return order
