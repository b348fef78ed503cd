"""Walking graphs. Nothing here recurses: a chain of 100,000 values is a normal graph."""

from __future__ import annotations

from collections.abc import Container, Iterable

from dovetail.ir.value import Value


def walk(outputs: Iterable[Value], *, until: Container[Value] = ()) -> list[Value]:
    """Every value that the outputs need, once, operands before users; nothing behind the values of `until`."""
    order: list[Value] = []
    done: set[Value] = set()
    stack = list(outputs)
    stack.reverse()
    while stack:
        value = stack[-1]
        if value in done:
            stack.pop()
            continue
        pending = [v for v in value.operands if v not in done] if value not in until else []
        if pending:
            pending.reverse()
            stack.extend(pending)
        else:
            done.add(value)
            order.append(value)
            stack.pop()
    return order
