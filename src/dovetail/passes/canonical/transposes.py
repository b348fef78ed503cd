"""Transposes move from the operands of a concat to its result."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.value import Value
from dovetail.ops.view import VIEW_OPS
from dovetail.passes.canonical.rule import listed, rule
from dovetail.passes.canonical.views import simplest_view

_LONGEST = 8
"""Most views of an operand that are searched."""


@rule(ops.concat)
def concat_before_permute(value: Value) -> Value | None:
    """concat(permute(x), …) is permute(concat(x, …))."""
    if value.known_type is None or not all(v.op in VIEW_OPS for v in value.operands):
        return None
    for found in dict.fromkeys(order for v in value.operands if (order := _order(v)) is not None):
        order = (*range(-value.rank, -len(found)), *found)
        back = tuple([order.index(axis) - value.rank for axis in range(-value.rank, 0)])
        joined = [simplest_view(ops.permute(v, order=back)) for v in value.operands]
        if all(map(_keeps_order, joined)) or (found[-1] != -1 and all(map(_keeps_last, joined))):
            return ops.permute(ops.concat(*joined, axis=order[value.attrs["axis"]]), order=order)
    return None


def _order(value: Value) -> tuple[int, ...] | None:
    """The order that the axes of a tensor were put in; an axis that was added after that is the last of its source."""
    view = _repeated(value)
    if view.op is ops.permute:
        return view.attrs["order"]
    if view.op is not ops.unsqueeze or len(view.attrs["axes"]) > 1 or view.operands[0].op is not ops.permute:
        return None
    found: tuple[int, ...] = view.operands[0].attrs["order"]
    order = [axis - 1 for axis in (*range(1 - view.rank, -len(found)), *found)]
    order.insert(view.rank + view.attrs["axes"][0], -1)
    return tuple(order)


def _repeated(value: Value) -> Value:
    """What is repeated along axes that it has."""
    for _ in range(_LONGEST):
        if value.op is not ops.expand:
            break
        (value,) = value.operands
    return value


def _keeps_last(value: Value) -> bool:
    """Whether the last axis of a view is the last of its source."""
    inner = _repeated(value)
    return _keeps_order(value) or (inner.op is ops.permute and inner.attrs["order"][-1] == -1)


def _keeps_order(value: Value) -> bool:
    for _ in range(_LONGEST):
        if value.op not in VIEW_OPS:
            return True
        if value.op is ops.permute:
            return False
        (value,) = value.operands
    return False


RULES = listed(globals())
