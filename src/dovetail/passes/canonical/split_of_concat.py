"""A concat whose parts are split again later: the ops between them run on the parts."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.ops.view import VIEW_OPS
from dovetail.passes.canonical.arithmetic import are_scores
from dovetail.passes.canonical.rule import listed, rule
from dovetail.passes.canonical.views import joins_again
from dovetail.passes.canonical.weights import softmax_of

_MOST = 48
"""Most values between the split and the concats: scores, masks and a softmax are about twenty."""
_STORED = (leaf.CONST, leaf.PARAM)
_REDUCTIONS = (ops.reduce_max, ops.reduce_min, ops.reduce_sum, ops.reduce_mean, ops.reduce_any, ops.reduce_all)
_ALONG_ANOTHER_AXIS = (ops.gather_elements, ops.part, ops.slice_, ops.pad, ops.concat)


@rule(ops.split)
def split_of_joined(value: Value) -> Value | None:
    """Batches or rows that are joined for products, masks and norms, and cut apart after them, stay apart."""
    (root,) = value.operands
    axis: int = value.attrs["axis"]
    if value.known_type is None or axis == -1 or root.op in VIEW_OPS:
        return None
    found: dict[tuple[Value, int], Value] = {}
    seen: set[tuple[Value, int]] = set()
    stack = [(root, axis)]
    while stack:
        place = inner, axis = stack[-1]
        if place in found:
            stack.pop()
            continue
        cut = _cut(value, inner, axis)
        if cut is not None:
            found[place] = cut
            continue
        below = _axis_below(inner, axis)
        if below is None or (place not in seen and len(seen) == _MOST):
            return None
        seen.add(place)
        rows = axis == -2 and inner.op is ops.matmul
        parts = [(v, below) for v in (inner.operands[:1] if rows else inner.operands)]
        pending = [part for part in parts if part not in found]
        stack.extend(pending)
        if not pending:
            others = (_for_all_rows(v) for v in inner.operands[len(parts) :])
            found[place] = inner.with_operands((*(found[part] for part in parts), *others))
    return found[root, value.attrs["axis"]]


def _cut(split: Value, value: Value, axis: int) -> Value | None:
    """What a split makes of a value that it takes back, or that has nothing to cut; None where one must look below."""
    if value.rank < -axis:
        return value
    if value.shape[axis] == 1:
        return ops.unsqueeze(value, axes=(axis,))
    if value.op not in _STORED and value.op not in VIEW_OPS:
        return None
    repeats = value.op is ops.expand and value.attrs["axis"] == axis
    cut = ops.split(value, axis=axis, parts=split.attrs["parts"], size=split.attrs["size"])
    return cut if repeats or value.op in _STORED or joins_again(cut) else None


def _axis_below(value: Value, axis: int) -> int | None:
    """The same axis in the operands of an op that does the same to every element of it; None where it does not."""
    op, attrs = value.op, value.attrs
    if op in _REDUCTIONS:
        return axis if all(axis < a for a in attrs["axes"]) else None
    if op in VIEW_OPS:
        return _axis_under_view(value, axis)
    if op in _ALONG_ANOTHER_AXIS:
        return axis if axis < attrs["axis"] else None
    if op is ops.matmul:
        return axis if axis < -2 or (axis == -2 and not _is_attention(value)) else None
    return axis if op.elementwise and value.operands else None


def _is_attention(product: Value) -> bool:
    """Whether it is of queries and keys, or of the softmax of such, guarded or not, and values.

    Heads that share their keys are joined to the rows of queries and of weights, and are cut apart again.
    """
    weights = product.operands[0]
    if weights.op is ops.merge:
        return False
    return are_scores(product) or any(softmax_of(v) is not None for v in (weights, *weights.operands))


def _axis_under_view(view: Value, axis: int) -> int | None:
    """The same axis in what is viewed, where the view changes only axes behind it, such as those of heads."""
    op, attrs = view.op, view.attrs
    if op is ops.split:
        return axis + 1 if axis < attrs["axis"] - 1 else None
    if op is ops.merge:
        return axis + 1 - attrs["count"] if axis < attrs["axis"] else None
    if op is ops.permute:
        return axis if axis < -len(attrs["order"]) else None
    if op is ops.expand:
        return axis if axis < attrs["axis"] else None
    axes: tuple[int, ...] = attrs["axes"]
    if op is ops.unsqueeze:
        return axis + len(axes) if all(axis < a for a in axes) else None
    below = axis - len(axes)
    return below if all(below < a for a in axes) else None


def _for_all_rows(matrix: Value) -> Value:
    """The right side of a product whose rows get another axis."""
    return matrix if matrix.rank == 2 else ops.unsqueeze(matrix, axes=(-3,))


RULES = listed(globals())
