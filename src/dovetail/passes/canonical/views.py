"""Chains of views become their one minimal form."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.value import Value
from dovetail.ops.view import VIEW_OPS, View
from dovetail.ops.view_chain import build_view
from dovetail.passes.canonical.rule import listed, rule

_LONGEST = 32
"""How far down a chain is followed. Minimal chains are shorter; only odd ones need a bound."""
_VIEWS = frozenset(VIEW_OPS)


@rule(*VIEW_OPS, inner="keep")
def minimal_view(value: Value) -> Value | None:
    """Any chain of split, merge, permute, squeeze, unsqueeze and expand: cut, order, join, each once."""
    if _is_minimal_alone(value):
        return None
    view = view_of(value)
    return None if view is None else build_view(view)


def view_of(value: Value) -> View | None:
    """The view that a value is of the first value below it that is none."""
    if value.known_type is not None and 0 in value.shape:
        return None
    chain: list[Value] = []
    source = value
    while source.op in _VIEWS and len(chain) < _LONGEST:
        chain.append(source)
        source = source.operands[0]
    view = View(source)
    for step in reversed(chain):
        if not view.apply(step):
            view = View(step.operands[0], view)
            if not view.apply(step):
                view = View(step)
        below = view.below
        if below is not None and view.keeps_order and below.reshape(view.shape):
            view = below
    return view


def _is_minimal_alone(value: Value) -> bool:
    """Whether a look at one op tells that nothing can be gained: most are, and a view is dear to build."""
    (x,) = value.operands
    if x.op in _VIEWS:
        return False
    op, attrs = value.op, value.attrs
    if op is ops.permute:
        order = attrs["order"]
        if not order or order[0] == -len(order):
            return False
        return x.known_type is None or 1 not in x.shape
    if op is ops.expand:
        return attrs["size"] != 1
    if op is ops.split:
        parts = attrs["parts"]
        if x.known_type is None or 1 in x.shape:
            return False
        outer = value.shape[attrs["axis"] - 1]
        return isinstance(parts, int) and parts != 1 and outer != value.tensor.count
    if op is ops.unsqueeze:
        return bool(attrs["axes"]) and (x.known_type is None or 1 not in x.shape)
    if op is ops.squeeze:
        return bool(attrs["axes"]) and (x.known_type is None or 1 not in value.shape)
    return x.known_type is None or 1 not in x.shape


@rule(ops.matmul, inner="final")
def swapped_right_operand(value: Value) -> Value | None:
    """A right operand whose contracted axis was its last is written as that operand with its last two axes swapped."""
    left, right = value.operands
    if right.op not in _VIEWS:
        return None
    view = view_of(right)
    if view is None or len(view.blocks) < 2 or not view.blocks[-2].pieces:
        return None
    if any(len(block.sizes) > 1 for block in view.blocks[-2:]):
        return None
    last = view.blocks[-2].pieces[-1]
    if last.axis != _last_axis(view) or last.inner != 1:
        return None
    view.blocks[-2:] = [view.blocks[-1], view.blocks[-2]]
    rows = build_view(view)
    return None if rows is None else ops.matmul(left, ops.permute(rows, order=(-1, -2)))


def _last_axis(view: View) -> int:
    """The innermost axis of the source that has more than one element."""
    return max((p.axis for block in view.blocks for p in block.pieces if p.axis < 0), default=0)


RULES = listed(globals())
