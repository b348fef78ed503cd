"""Chains of views become their one minimal form."""

from __future__ import annotations

from itertools import pairwise

from dovetail import ops
from dovetail.ir.dim import product
from dovetail.ir.value import Value
from dovetail.ops.view import VIEW_OPS, Block, Piece, View
from dovetail.ops.view_chain import build_view
from dovetail.passes.canonical.rule import listed, rule

_LONGEST = 32
"""How far down a chain is followed. Minimal chains are shorter; only odd ones need a bound."""
_VIEWS = frozenset(VIEW_OPS)


@rule(*VIEW_OPS)
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
    return view if view.below is None else _on_fewest_axes(view)


def _on_fewest_axes(view: View) -> View:
    """A view of a reshape that it cannot be one with: the shape between them gets as few axes as possible."""
    for _ in range(_LONGEST):
        again = _rebased(view)
        if again is None or again.below is None or again.lengths == view.lengths:
            return again or view
        view = again
    return view


def _rebased(view: View) -> View | None:
    """The same view, its source reshaped so that pieces which stay together are one axis; None where it is."""
    below, axes = view.below, view.cut_axes()
    if below is None or axes is None:
        return None
    groups: list[list[Piece]] = []
    pairs = {pair for block in view.blocks for pair in pairwise(block.pieces)}
    for piece in [p for axis in axes for p in axis]:
        if groups and (groups[-1][-1], piece) in pairs:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    if not below.reshape([product(tuple(p.size for p in group)) for group in groups]):
        return None
    source = build_view(below) if below.has_spans else None
    fresh = below if source is None else View(source, below)
    parts = {group[0]: fresh.blocks[at].pieces for at, group in enumerate(groups)}
    parts |= {piece: () for group in groups for piece in group[1:]}
    fresh.blocks = [
        Block(tuple(q for p in block.pieces for q in parts.get(p, (p,))), block.sizes) for block in view.blocks
    ]
    return fresh if fresh.reshape(fresh.shape) else None


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
        if x.known_type is None or 1 in value.shape:
            return False
        return isinstance(attrs["parts"], int)
    if op is ops.unsqueeze:
        return bool(attrs["axes"]) and (x.known_type is None or 1 not in x.shape)
    if op is ops.squeeze:
        return bool(attrs["axes"]) and (x.known_type is None or 1 not in value.shape)
    return x.known_type is None or 1 not in x.shape


@rule(ops.matmul, final=True)
def swapped_right_operand(value: Value) -> Value | None:
    """A right operand whose contracted axis was its last is written as that operand with its last two axes swapped."""
    left, right = value.operands
    view = view_of(right) if _is_permuted(right) else None
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


def _is_permuted(value: Value) -> bool:
    for _ in range(_LONGEST):
        if value.op is ops.permute:
            return True
        if value.op not in _VIEWS:
            return False
        (value,) = value.operands
    return False


def _last_axis(view: View) -> int:
    """The innermost axis of the source that has more than one element."""
    return max((p.axis for block in view.blocks for p in block.pieces if p.axis < 0), default=0)


RULES = listed(globals())
