"""Chains of views become their one minimal form."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import Any, TypeAlias

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import f32
from dovetail.ir.type import TensorType
from dovetail.ir.value import Op, Value, make
from dovetail.ops.view import REPEATED, VIEW_OPS, Block, Piece, View
from dovetail.ops.view_chain import build_view
from dovetail.passes.canonical.rule import listed, rule, under_numbers

Step: TypeAlias = tuple[Op, tuple[tuple[str, Any], ...]]
Steps: TypeAlias = tuple[Step, ...]
"""Ops of one operand and their attributes, each applied to the result of the one before."""

_LONGEST = 16
"""How far down a chain is followed. Minimal chains are shorter; only odd ones need a bound."""
_VIEWS: frozenset[Op] = frozenset(VIEW_OPS)
_STORED = (leaf.PARAM, leaf.CONST)


@rule(*VIEW_OPS)
def minimal_view(value: Value) -> Value | None:
    """Any chain of split, merge, permute, squeeze, unsqueeze and expand: cut, order, join, each once."""
    if _is_minimal_alone(value):
        return None
    source, steps = _chain_of(value)
    found = _minimal(_shape_of(source), steps)
    return None if found is None or found == steps else _replayed(source, found)


@rule(ops.stop_gradient)
def differentiated(value: Value) -> Value:
    """A graph that is compiled has its gradients already: what stopped one is its operand."""
    return value.operands[0]


@rule(ops.matmul, final=True)
def swapped_right_operand(value: Value) -> Value | None:
    """A right operand whose contracted axis was its last is written as that operand with its last two axes swapped."""
    left, right = value.operands
    if right.op not in _VIEWS:
        return None
    source, steps = _chain_of(right)
    found = _swapped(_shape_of(source), steps) if any(op is ops.permute for op, _ in steps) else None
    return None if found is None or found == steps else ops.matmul(left, _replayed(source, found))


@rule(ops.matmul, final=True)
def rows_on_both_sides(value: Value) -> Value | None:
    """qᵀ of columns times k of columns is q @ kᵀ of rows: keys are written as rows that are swapped."""
    left, right = value.operands
    if value.known_type is None or right.rank < 3 or not _are_columns(left):
        return None
    source, steps = _chain_of(right)
    if source.op in _STORED or _swapped(_shape_of(source), steps) is not None:
        return None
    return ops.matmul(left, ops.permute(ops.permute(right, order=(-1, -2)), order=(-1, -2)))


def _are_columns(value: Value) -> bool:
    """Whether the rows of a matrix are the columns of a source, scaled by a number or not."""
    source, steps = _chain_of(under_numbers(value)[1])
    return any(op is ops.permute for op, _ in steps) and _swapped(_shape_of(source), steps) is not None


def simplest_view(value: Value) -> Value:
    """A chain of views in its minimal form, where there is one."""
    source, steps = _chain_of(value)
    found = _minimal(_shape_of(source), steps)
    return value if found is None else _replayed(source, found)


def joins_again(cut: Value) -> bool:
    """Whether a split takes back what the view under it did, or a part of it."""
    source, steps = _chain_of(cut)
    found = _minimal(_shape_of(source), steps)
    return found is not None and len(found) < len(steps)


def _chain_of(value: Value, longest: float = _LONGEST) -> tuple[Value, Steps]:
    """The first value below that is no view, and the views from there on; or as many of them as are looked at."""
    steps: list[Step] = []
    while value.op in _VIEWS and len(steps) < longest:
        steps.append((value.op, tuple(value.attrs.items())))
        (value,) = value.operands
    return value, tuple(reversed(steps))


def _shape_of(source: Value) -> tuple[Size, ...] | None:
    type = source.known_type
    return type.shape if isinstance(type, TensorType) else None


def _replayed(source: Value, steps: Steps) -> Value:
    for op, attrs in steps:
        source = make(op, (source,), dict(attrs))
    return source


# Layers repeat, and so do their views.
@lru_cache(maxsize=4096)
def _minimal(shape: tuple[Size, ...] | None, steps: Steps) -> Steps | None:
    """The fewest steps that do the same to any source of this shape, or of any shape."""
    view = view_of(_replayed(_any_source(shape), steps))
    built = None if view is None else build_view(view)
    return None if built is None else _chain_of(built, inf)[1]


@lru_cache(maxsize=4096)
def _swapped(shape: tuple[Size, ...] | None, steps: Steps) -> Steps | None:
    """The same steps with a swap of the last two axes as the last, if the last but one holds the source's last axis."""
    view = view_of(_replayed(_any_source(shape), steps))
    if view is None or len(view.blocks) < 2 or not view.blocks[-2].pieces:
        return None
    if any(len(block.sizes) > 1 for block in view.blocks[-2:]):
        return None
    innermost = max((p.axis for block in view.blocks for p in block.pieces if p.axis != REPEATED), default=REPEATED)
    last = view.blocks[-2].pieces[-1]
    if last.axis != innermost or last.inner != 1:
        return None
    view.blocks[-2:] = [view.blocks[-1], view.blocks[-2]]
    rows = build_view(view)
    return None if rows is None else _chain_of(ops.permute(rows, order=(-1, -2)), inf)[1]


def _any_source(shape: tuple[Size, ...] | None) -> Value:
    return leaf.hole("source") if shape is None else leaf.argument(0, TensorType(f32, shape))


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


RULES = listed(globals())
