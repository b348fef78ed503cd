"""Widening inside kernels: a contraction of integers that were widened from bytes reads the bytes.

The widening steps become the prologue of the contraction's kernel, in each of its readers, so that no tensor of wide
integers is stored.
"""

from __future__ import annotations

from dovetail import ops
from dovetail.derive.edit import Log
from dovetail.derive.fuse import Fused
from dovetail.derive.missed import Applied
from dovetail.ir import leaf
from dovetail.ir.dtype import i8, i32, u8
from dovetail.ir.graph import Graph
from dovetail.ir.inline import outline
from dovetail.ir.rewrite import Replacement, rebuild, replace_roots
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops.region import region
from dovetail.passes.claims import Claims
from dovetail.passes.epilogues import PROLOGUE
from dovetail.passes.regions import BuildRegion, weight_only

_BYTES = (i8, u8)
_VIEWS = (ops.squeeze, ops.unsqueeze, ops.split, ops.merge, ops.permute)


def widen_inside(graph: Graph, claims: Claims, log: Log | None = None) -> Fused:
    """The graph with the widening of bytes inside the contractions that read it."""
    graph = rebuild(graph, lambda value, operands: _viewed_as_bytes(value, operands, claims))
    static = weight_only(graph)
    replacements: dict[Value, Replacement] = {}
    built: dict[Value, Value] = {}
    if log is not None:
        log.begin("roots")
    for value in graph.values:
        claim = claims.anchors.get(value.op.name)
        if claim is None or not claim.widens or not isinstance(value.type, TensorType) or value in static:
            continue
        inside = {v: steps for v in value.operands if v not in static and (steps := _widening(v))}
        if not inside:
            continue
        taken = [step for steps in inside.values() for step in steps]
        read = [x for v in value.operands for x in (_given(inside[v]) if v in inside else (v,)) if not _is_scalar(x)]
        operands = tuple(dict.fromkeys(read))
        body, covers = outline([value], operands), tuple(dict.fromkeys([value, *taken]))
        replacements[value] = Replacement(operands, BuildRegion(value, body, operands, built), covers)
        if log is not None:
            made = region(body, operands)
            log.replace(PROLOGUE, _label(value), "exact", (value,), (made,), operands, covers)
    if not replacements:
        return Fused(graph, (), ())
    new = replace_roots(graph, replacements)
    applied = [Applied(PROLOGUE, _label(v), v, r.covers, built[v]) for v, r in replacements.items() if v in built]
    return Fused(new, tuple(applied), ())


def _viewed_as_bytes(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """A contraction of views of integers that were widened reads widened views of the bytes."""
    claim = claims.anchors.get(value.op.name)
    if claim is None or not claim.widens or not isinstance(value.type, TensorType):
        return None
    moved = tuple(map(_widened_view, operands))
    return None if all(x is y for x, y in zip(moved, operands, strict=True)) else value.with_operands(moved)


def _widened_view(operand: Value) -> Value:
    views, source = list[Value](), operand
    while source.op in _VIEWS:
        views.append(source)
        (source,) = source.operands
    steps = _widening(source) if views else ()
    if not steps:
        return operand
    wide = source if source.op is ops.cast else source.operands[0]
    (found,) = wide.operands
    for view in reversed(views):
        found = view.with_operands((found,))
    found = wide.with_operands((found,))
    return found if wide is source else source.with_operands((found, source.operands[1]))


def _label(value: Value) -> str:
    return f"{value.op.name}, bytes"


def _widening(value: Value) -> tuple[Value, ...]:
    """The steps that make i32 of bytes, and subtract one zero point; none where it is something else."""
    if value.op is ops.cast:
        return (value,) if value.dtype is i32 and value.operands[0].dtype in _BYTES else ()
    if value.op not in (ops.add, ops.sub) or value.dtype is not i32:
        return ()
    wide, zero = value.operands
    if wide.op is not ops.cast or wide.operands[0].dtype not in _BYTES or wide.shape != value.shape:
        return ()
    if zero.op is leaf.CONST and zero.tensor.count == 1:
        return (value, wide)
    if value.op is ops.sub and zero.op is ops.cast and zero.tensor.count == 1 and zero.operands[0].dtype in _BYTES:
        return (value, wide, zero)
    return ()


def _given(steps: tuple[Value, ...]) -> list[Value]:
    """What the steps read that is none of them."""
    return [x for step in steps for x in step.operands if x not in steps]


def _is_scalar(value: Value) -> bool:
    """A rank-0 constant is written into the kernel and is no operand."""
    return value.op is leaf.CONST and value.rank == 0


__all__ = ["widen_inside"]
