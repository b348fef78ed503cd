"""Walking graphs. Nothing here recurses: a chain of 100,000 values is a normal graph."""

from __future__ import annotations

from collections.abc import Container, Iterable

from dovetail.ir.value import Value


def walk(outputs: Iterable[Value], *, until: Container[Value] = ()) -> list[Value]:
    """Every value that the outputs need, once, operands before users; nothing behind the values of `until`."""
    order: list[Value] = []
    opened: set[Value] = set()
    done: set[Value] = set()
    stack = list(outputs)
    stack.reverse()
    while stack:
        value = stack[-1]
        if value.operands and value not in opened and value not in until:
            opened.add(value)
            stack.extend(value.operands[::-1])
            continue
        stack.pop()
        if value not in done:
            done.add(value)
            order.append(value)
    return order
