"""Result layouts: what is only read permuted is stored in that order, and images that convolutions read may be NHWC."""

from __future__ import annotations

from collections.abc import Collection

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import product
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops.region import anchor_of, region
from dovetail.passes.memory_rules import ChannelsLast, MemoryRules
from dovetail.plan.alias import Alias, Strides, dense_strides


def result_layouts(graph: Graph, rules: MemoryRules) -> dict[Value, Alias]:
    """Strides for the results that are not stored in the order of their axes."""
    layouts = permuted_results(graph, rules.strided_results)
    return layouts if rules.channels_last is None else layouts | channels_last(graph, rules.channels_last)


def channels_last(graph: Graph, rule: ChannelsLast) -> dict[Value, Alias]:
    """Strides for the images whose channels are innermost: no reader refuses, and one gains or the writer does."""
    if not any(rule.prefers(v) or any(rule.gains(v, i) for i in range(len(v.operands))) for v in graph.values):
        return {}
    readers: dict[Value, list[tuple[Value, int]]] = {}
    for value in graph.values:
        for index, operand in enumerate(value.operands):
            readers.setdefault(operand, []).append((value, index))
    outputs = set(graph.outputs.values())
    layouts: dict[Value, Alias] = {}
    for value in reversed(graph.values):
        if value in outputs or not isinstance(value.type, TensorType) or value.rank < 3 or not rule.writes(value):
            continue
        gains = rule.prefers(value)
        for reader, index in readers.get(value, ()):
            gains = gains or reader in layouts or rule.gains(reader, index)
            if not rule.gains(reader, index) and not rule.keeps(reader, index):
                break
        else:
            if gains and 0 not in value.shape:
                layouts[value] = Alias(value, 0, channels_last_strides(value.tensor))
    return layouts


def channels_last_strides(type: TensorType) -> Strides:
    """Return the strides of an image whose channels are innermost."""
    item, channels = type.dtype.itemsize, type.shape[1]
    pixels = dense_strides(TensorType(type.dtype, type.shape[2:]))
    return (item * channels * product(type.shape[2:]), item, *(s * channels for s in pixels))


def permuted_results(graph: Graph, strided: Collection[str]) -> dict[Value, Alias]:
    """Strides for results of which one permutation of rows is read; `strided` names the ops that can write them."""
    candidates = {v for v in graph.values if _writer(v) in strided} if strided else set[Value]()
    if not candidates:
        return {}
    readers: dict[Value, list[Value]] = {v: [] for v in candidates}
    # What a value shows: a candidate, also where the backward pass reads it again.
    source = {v: v for v in candidates}
    for value in graph.values:
        for operand in value.operands:
            if operand in source:
                shown = source[operand]
                if value.op is ops.again:
                    source[value] = shown
                else:
                    readers[shown].append(value)
    outputs = {source.get(v, v) for v in graph.outputs.values()}
    layouts: dict[Value, Alias] = {}
    for value in graph.values:
        if value in candidates and value not in outputs:
            rows = _permuted_rows(readers[value])
            if rows is not None:
                layouts[value] = Alias(value, 0, _strides(value, rows))
    return layouts


def _writer(value: Value) -> str:
    """Return the op whose kernel writes a tensor, which may be one of several results."""
    if not isinstance(value.type, TensorType):
        return ""
    return _name(value.operands[0]) if value.op is leaf.ITEM else _name(value)


def _name(value: Value) -> str:
    """Return the op whose kernel writes a value: that of its anchor, where it is a region."""
    inner = anchor_of(value.attrs["body"]) if value.op is region and isinstance(value.type, TensorType) else None
    return value.op.name if inner is None else inner.op.name


def _permuted_rows(readers: list[Value]) -> Value | None:
    """Return the permutation that all readers apply which keep the last axis last; the others move it, whatever the
    order.
    """
    if any(r.op is not ops.permute for r in readers):
        return None
    rows = {r.attrs["order"]: r for r in readers if r.attrs["order"][-1] == -1}
    return next(iter(rows.values())) if len(rows) == 1 else None


def _strides(value: Value, permuted: Value) -> Strides:
    """Return the strides of a value whose permutation is dense."""
    order: tuple[int, ...] = permuted.attrs["order"]
    strides = dense_strides(permuted.tensor)
    strides_ = list(strides)
    for axis, stride in zip(order, strides[value.rank - len(order) :], strict=True):
        strides_[axis + value.rank] = stride
    return tuple(strides_)


__all__ = ["channels_last", "permuted_results", "result_layouts"]
