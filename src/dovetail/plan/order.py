"""Results that are read with their axes in another order: they are laid out in it, so that nobody moves them."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.library import attention, rope_attention
from dovetail.plan.alias import Alias, Strides, dense_strides

_WRITTEN_IN_ANY_ORDER = (attention, rope_attention)
"""Ops whose kernels write rows wherever they are wanted, each dense in itself."""


def turned_results(graph: Graph) -> dict[Value, Alias]:
    """Where those results lie, in memory of their own, of which all that is read is one permutation."""
    asked = {v for v in graph.values if v.op in _WRITTEN_IN_ANY_ORDER}
    if not asked:
        return {}
    readers: dict[Value, list[Value]] = {v: [] for v in asked}
    for value in graph.values:
        for operand in value.operands:
            if operand in asked:
                readers[operand].append(value)
    outputs = set(graph.outputs.values())
    found: dict[Value, Alias] = {}
    for value in graph.values:
        if value in asked and value not in outputs and _is_one_turn(readers[value]):
            found[value] = Alias(value, 0, _strides(value, readers[value][0]))
    return found


def _is_one_turn(readers: list[Value]) -> bool:
    """Whether all readers want the same permutation, and it leaves rows whole."""
    if not readers or any(r.op is not ops.permute for r in readers):
        return False
    orders = {r.attrs["order"] for r in readers}
    return len(orders) == 1 and next(iter(orders))[-1] == -1


def _strides(value: Value, turned: Value) -> Strides:
    """How far apart elements lie if they are dense once they are permuted."""
    order: tuple[int, ...] = turned.attrs["order"]
    strides = dense_strides(turned.tensor)
    found = list(strides)
    for axis, stride in zip(order, strides[value.rank - len(order) :], strict=True):
        found[axis + value.rank] = stride
    return tuple(found)


__all__ = ["turned_results"]
