"""Products of dequantised tensors as products of integers, for targets that multiply bytes faster than floats.

Sums of integers are exact, so that the result is nearer to the exact one than a sum of floats is.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from dovetail import ops
from dovetail.derive.edit import Log
from dovetail.ir import leaf
from dovetail.ir.dim import product as product_of
from dovetail.ir.dtype import f32, i8, i32, u8
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.passes.canonical.rule import rule
from dovetail.passes.canonicalize import canonicalize

MOST_PRODUCTS = 16_384
"""Products of two bytes whose sum fits 32 bits with room to spare."""
_VIEWS = (ops.squeeze, ops.unsqueeze, ops.split, ops.merge, ops.permute)
_SMALLEST, _LARGEST = 1e-20, 1e20
"""Between these a scale and its products with others stay in range."""


@rule(ops.matmul, ops.conv, numerics="reassociated")
def product_of_bytes(value: Value) -> Value | None:
    """A product or a convolution of dequantised bytes with dequantised weights sums up integers and scales the sums."""
    if value.known_type is None or value.dtype is not f32:
        return None
    x, w = _dequantised_view(value.operands[0]), value.operands[1]
    if not _is_dequantised(x) or x.attrs["axis"] is not None or not _is_number(x.operands[1]):
        return None
    order = tuple(w.attrs["order"]) if w.op is ops.permute else None
    held = w.operands[0] if order is not None else w
    if not _is_dequantised(held) or not _is_given(held.operands[0]):
        return None
    deep = x.shape[-1] if value.op is ops.matmul else product_of(w.shape[1:])
    kept = -1 if value.op is ops.matmul else -w.rank
    axis: int | None = held.attrs["axis"]
    if axis is not None and (axis if order is None else _moved(axis, order)) != kept:
        return None
    if not isinstance(deep, int) or deep > MOST_PRODUCTS or w.rank < 2 or (value.op is ops.matmul and w.rank != 2):
        return None
    integers = _integers(held)
    sums = value.with_operands((_integers(x), integers if order is None else ops.permute(integers, order=order)))
    scale = held.operands[1]
    if scale.rank and value.op is ops.conv:
        scale = ops.unsqueeze(scale, axes=tuple(range(2 - value.rank, 0)))
    return ops.cast(sums, dtype=f32) * (scale * x.operands[1])


@rule(ops.quantise)
def quantised_by_steps(value: Value) -> Value | None:
    """Quantisation of a tensor by one known scale as elementwise steps, which an epilogue takes in."""
    if value.known_type is None or value.attrs["axis"] is not None or value.dtype not in (i8, u8):
        return None
    x, scale, zero = value.operands
    if x.dtype is not f32 or not _is_number(scale) or zero.op is not leaf.CONST:
        return None
    low, high = value.dtype.range
    steps = ops.round_(x / scale) + ops.cast(zero, dtype=f32)
    return ops.cast(ops.clip(steps, float(low), float(high)), dtype=value.dtype)


@rule(ops.dequantise)
def dequantised_by_steps(value: Value) -> Value | None:
    """Dequantisation of a run's tensor by one scale as elementwise steps."""
    if not _is_dequantised(value) or value.attrs["axis"] is not None or _is_given(value.operands[0]):
        return None
    return ops.cast(_integers(value), dtype=f32) * value.operands[1]


def _is_dequantised(value: Value) -> bool:
    if value.op is not ops.dequantise or value.known_type is None or value.dtype is not f32:
        return False
    q, scale, _ = value.operands
    return q.dtype in (i8, u8) and scale.dtype is f32


def _dequantised_view(x: Value) -> Value:
    """A view of a tensor that is dequantised by one scale, as the dequantised view of its bytes."""
    views, source = list[Value](), x
    while source.op in _VIEWS:
        views.append(source)
        (source,) = source.operands
    if not views or not _is_dequantised(source) or source.attrs["axis"] is not None:
        return x
    found, *scale = source.operands
    for view in reversed(views):
        found = view.with_operands((found,))
    return source.with_operands((found, *scale))


def _is_number(scale: Value) -> bool:
    known = leaf.scalar_of(scale)
    return scale.rank == 0 and isinstance(known, float) and _SMALLEST < known < _LARGEST


def _is_given(value: Value) -> bool:
    return value.op in (leaf.PARAM, leaf.CONST)


def _moved(axis: int, order: tuple[int, ...]) -> int:
    """Where an axis is after a permutation."""
    rank = len(order)
    return [o % rank for o in order].index(axis % rank) - rank


def _integers(value: Value) -> Value:
    """What a dequantised tensor is before it is scaled, in i32."""
    q, _, zero = value.operands
    wide = ops.cast(q, dtype=i32)
    if _is_zero(zero):
        return wide
    axis: int | None = value.attrs["axis"]
    low = ops.cast(zero, dtype=i32)
    if axis is not None and axis % q.rank != q.rank - 1:
        low = ops.unsqueeze(low, axes=tuple(range(axis % q.rank + 1 - q.rank, 0)))
    return wide - low


def _is_zero(zero: Value) -> bool:
    return zero.op is leaf.CONST and not zero.attrs["value"].array.any()


PRODUCTS = (product_of_bytes,)
STEPS = (quantised_by_steps, dequantised_by_steps)
RULES = (*PRODUCTS, *STEPS)


def use_integers(graph: Graph, *, without: AbstractSet[str] = frozenset(), log: Log | None = None) -> Graph:
    """The graph with integer products; what is quantised elsewhere is spelled out after them."""
    if not any(isinstance(v.type, TensorType) and v.op in (ops.quantise, ops.dequantise) for v in graph.values):
        return graph
    return canonicalize(
        canonicalize(graph, rules=PRODUCTS, without=without, log=log), rules=STEPS, without=without, log=log
    )


__all__ = ["RULES", "use_integers"]
