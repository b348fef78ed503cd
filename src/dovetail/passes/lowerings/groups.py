"""Products of groups of rows for targets without a kernel of them: memory does not grow with rows times matrices."""

from __future__ import annotations

from dovetail import library, ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.passes.claims import Claims

FEW_ROWS = 16
"""Rows whose matrices are gathered at once, as those of a token are."""


def lower_grouped_matmul(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """Rows times matrices that are gathered as they are stored, few at once, or one by one where their number is not
    known; floats of a run, or of parameters, meet all rows, of which each keeps the product of its group."""
    x, w, ends = operands
    rows, groups = x.shape[0], w.shape[0]
    if groups == 0:
        return build.zeros(value.shape, value.dtype)
    group = _group_of(rows, ends)
    # What the target does not read as it is stored is spelled out already; it is gathered before that.
    base, views = _stored(value.operands[1])
    if not views and isinstance(groups, int) and not (isinstance(rows, int) and rows <= FEW_ROWS):
        total = build.zeros(value.shape, value.dtype)
        for index in range(groups):
            mine = ops.equal(ops.unsqueeze(group, axes=(-1,)), index)
            total = ops.where(mine, x @ build.select(w, axis=0, index=index), total)
        return total
    base = base if views else w

    def product(some: Value, which: Value, stored: Value) -> tuple[Value]:
        matrices = _seen(ops.gather(stored, which, axis=0), views)
        return (ops.squeeze(ops.unsqueeze(some, axes=(-2,)) @ matrices, axes=(-2,)),)

    last = ops.cast(ops.extent(size=groups - 1), dtype=group.dtype)
    which = ops.minimum(group, last)
    if isinstance(rows, int) and rows <= FEW_ROWS:
        (found,) = product(x, which, base)
    elif isinstance(rows, int):
        # As many in a trip as a token has: loops that are unrolled have few trips.
        blank = -rows % FEW_ROWS
        filled = [
            ops.concat(v, build.zeros((blank, *v.shape[1:]), v.dtype), axis=0) if blank else v for v in (x, which)
        ]
        some = [ops.split(v, axis=-v.rank, size=FEW_ROWS) for v in filled]
        trips = ops.merge(ops.scan(product, [], some, [base]).outputs[0], axis=-2)
        found = ops.slice_(trips, axis=-2, start=0, stop=rows)
    else:
        found = ops.scan(product, [], [x, which], [base]).outputs[0]
    return ops.where(ops.unsqueeze(ops.less_equal(group, last), axes=(-1,)), found, 0.0)


def lower_grouped_outer(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """A product for each group, of rows of which those of others are 0."""
    x, y, ends = operands
    group = ops.unsqueeze(_group_of(x.shape[0], ends), axes=(-1,))

    def one(which: Value, left: Value, right: Value, groups: Value) -> tuple[Value]:
        mine = ops.where(ops.equal(groups, which), left, 0.0)
        return (ops.permute(mine, order=(-1, -2)) @ right,)

    return ops.scan(one, [], [ops.iota(size=ends.shape[0])], [x, y, group]).outputs[0]


def _group_of(rows: Size, ends: Value) -> Value:
    """The group of each row: the number of groups that end before it."""
    passed = ops.cum_max(ops.cast(ends, dtype=_COUNTED), axis=-1)
    ended = ops.less_equal(passed, ops.unsqueeze(ops.iota(size=rows), axes=(-1,)))
    return ops.squeeze(ops.reduce_sum(ops.cast(ended, dtype=_COUNTED), axes=(-1,)), axes=(-1,))


_COUNTED = i64


def _stored(w: Value) -> tuple[Value, list[Value]]:
    """The parameter that a stack of matrices is made from, and what makes it, outermost first; nothing where it is
    floats as they are."""
    views: list[Value] = []
    while w.op in (ops.permute, ops.cast, library.dequantise_blocks):
        views.append(w)
        (w,) = w.operands
    is_narrow = any(v.op is not ops.permute for v in views)
    return w, views if w.op is leaf.PARAM and is_narrow else []


def _seen(some: Value, views: list[Value]) -> Value:
    """The same made of matrices that were gathered."""
    for view in reversed(views):
        some = ops.permute(some, order=(-1, -2)) if view.op is ops.permute else view.with_operands((some,))
    return some


__all__ = ["FEW_ROWS", "lower_grouped_matmul", "lower_grouped_outer"]
