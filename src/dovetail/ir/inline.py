"""Sub-graphs made from values, and values made from sub-graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.ir import leaf
from dovetail.ir.graph import Subgraph
from dovetail.ir.rewrite import rebuild_values
from dovetail.ir.value import Value


def inline(body: Subgraph, operands: Sequence[Value]) -> tuple[Value, ...]:
    """Return the results of a sub-graph on these operands."""

    def step(value: Value, _: tuple[Value, ...]) -> Value | None:
        if value.op is not leaf.ARGUMENT:
            return None
        index: int = value.attrs["index"]
        return operands[index]

    new = rebuild_values(body.results, step)
    return tuple(new[v] for v in body.results)


def outline(results: Sequence[Value], operands: Sequence[Value]) -> Subgraph:
    """Return the sub-graph that computes `results` from `operands`, which become its arguments."""
    index = {v: i for i, v in enumerate(operands)}
    new: dict[Value, Value] = {v: leaf.argument(i, v.tensor) for v, i in index.items()}
    for value in _above(results, new):
        new[value] = value.with_operands(tuple([new[v] for v in value.operands]))
    return Subgraph(tuple(v.tensor for v in operands), tuple(new[v] for v in results))


def _above(results: Iterable[Value], stop: dict[Value, Value]) -> list[Value]:
    """Return the values above those in `stop` that the results need, operands first."""
    order: list[Value] = []
    done: set[Value] = set(stop)
    stack = list(results)
    while stack:
        value = stack[-1]
        if value in done:
            stack.pop()
            continue
        pending = [v for v in value.operands if v not in done]
        if pending:
            stack.extend(pending)
        else:
            done.add(value)
            order.append(value)
            stack.pop()
    return order
