"""The functions that the attentions of a graph will call, known before the graph is lowered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dovetail import library, ops
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.attention.parts import (
    columns_function,
    key_rows,
    out_function,
    values_function,
    weights_function,
)
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import widths


def early_functions(values: Iterable[Value], device: CpuDevice) -> list[SharedFunction]:
    """The functions of attentions that are spelled out in a graph, without those that depend on strides of masks."""
    asked = dict.fromkeys([(*v.shape[-2:], _is_bare(v.operands[0])) for v in values if _is_attention(v)])
    listed = [(widths(device, queries), features, twos) for queries, features, twos in asked]
    found = {f.name: f for wide, size, twos in listed if isinstance(size, int) for f in _of(device, wide, size, twos)}
    return list(found.values())


def _of(device: CpuDevice, needed: Sequence[int], features: int, twos: bool) -> Iterator[SharedFunction]:
    for wide in reversed(needed):
        rows = key_rows(device, wide)
        if features >= rows:
            yield values_function(device, wide, rows)[0]
        if features % rows:
            yield values_function(device, wide, features % rows)[0]
        yield weights_function(device, wide, twos=twos)[0]
    yield columns_function(device, "float")[0]
    yield out_function(device, features, "float")[0]


def _is_attention(value: Value) -> bool:
    """Whether a value is the product of a softmax with the values of keys, for more than a few queries."""
    if value.op is not ops.matmul or value.dtype is not f32:
        return False
    weights, taken = value.operands
    queries = value.shape[-2] if value.rank > 1 else 1
    is_many = not isinstance(queries, int) or queries > ATTENTION.few
    return is_many and weights.rank > 2 and weights.rank == taken.rank and _scores(weights) is not None


def _scores(weights: Value) -> Value | None:
    """What a softmax is of; None for other values."""
    if weights.op is library.softmax:
        return weights.operands[0]
    raised = weights.operands[0] if weights.op is ops.div else weights
    moved = raised.operands[0] if raised.op is ops.exp else raised
    return moved.operands[0] if raised.op is ops.exp and moved.op is ops.sub else None


def _is_bare(weights: Value) -> bool:
    """Whether nothing but a scale comes between the product of queries and keys and the softmax."""
    found = _scores(weights)
    while found is not None and found.op in (ops.mul, ops.div):
        found = found.operands[0]
    return found is not None and found.op in (ops.matmul, library.scores)


__all__ = ["early_functions"]
