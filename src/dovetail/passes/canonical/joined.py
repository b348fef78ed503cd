"""Axes that are joined for a while and cut apart again stay apart."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.ops.view import VIEW_OPS
from dovetail.passes.canonical.rule import listed, rule
from dovetail.passes.canonical.views import joins_again

_MOST = 48
"""How many values between the cut and the joins are looked at: scores, masks and a softmax are about twenty."""
_REDUCTIONS = (ops.reduce_max, ops.reduce_min, ops.reduce_sum, ops.reduce_mean, ops.reduce_any, ops.reduce_all)


@rule(ops.split)
def split_of_joined(value: Value) -> Value | None:
    """Batches or rows that are joined for products, masks and norms, and cut apart after them, stay apart."""
    (root,) = value.operands
    axis: int = value.attrs["axis"]
    if value.known_type is None or axis == -1 or root.op in VIEW_OPS:
        return None
    found: dict[Value, Value] = {}
    seen: set[Value] = set()
    stack = [root]
    while stack:
        inner = stack[-1]
        if inner in found:
            stack.pop()
            continue
        cut = _cut(value, inner)
        if cut is not None:
            found[inner] = cut
            continue
        if inner not in seen and (len(seen) == _MOST or not _does_each_alike(inner, axis)):
            return None
        seen.add(inner)
        rows = axis == -2 and inner.op is ops.matmul
        pending = [v for v in (inner.operands[:1] if rows else inner.operands) if v not in found]
        stack.extend(pending)
        if not pending:
            below = [found[v] for v in inner.operands[:1]] if rows else [found[v] for v in inner.operands]
            found[inner] = inner.with_operands((*below, *(_for_all_rows(v) for v in inner.operands[len(below) :])))
    return found[root]


def _cut(split: Value, value: Value) -> Value | None:
    """What a split makes of a value that it takes back, or that has nothing to cut; None where one must look below."""
    axis: int = split.attrs["axis"]
    if value.rank < -axis:
        return value
    if value.shape[axis] == 1:
        return ops.unsqueeze(value, axes=(axis,))
    if value.op is not leaf.CONST and value.op not in VIEW_OPS:
        return None
    repeats = value.op is ops.expand and value.attrs["axis"] == axis
    cut = split.with_operands((value,))
    return cut if repeats or value.op is leaf.CONST or joins_again(cut) else None


def _does_each_alike(value: Value, axis: int) -> bool:
    """Whether an op does the same to every element of an axis."""
    if value.op in _REDUCTIONS:
        return all(axis < a for a in value.attrs["axes"])
    if value.op is ops.permute:
        return axis < -len(value.attrs["order"])
    if value.op is ops.gather_elements:
        return axis < value.attrs["axis"]
    return value.op is ops.matmul or (value.op.elementwise and bool(value.operands))


def _for_all_rows(matrix: Value) -> Value:
    """The right side of a product whose rows get another axis."""
    return matrix if matrix.rank == 2 else ops.unsqueeze(matrix, axes=(-3,))


RULES = listed(globals())
