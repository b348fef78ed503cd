"""Numbers and masks around the product of queries and keys."""

from __future__ import annotations

import math

from dovetail import ops
from dovetail.ir.dtype import DType, f16
from dovetail.ir.value import Value
from dovetail.ops.view import VIEW_OPS
from dovetail.passes.canonical.arithmetic import are_scores
from dovetail.passes.canonical.casts import loses_nothing
from dovetail.passes.canonical.rule import listed, number_in, rule, under_numbers

_LONGEST = 8
"""How many views are looked under."""
_SWALLOWS = -1e37
"""A score that is added to such a number is lost behind its last digit."""


@rule(ops.matmul)
def scale_beside_product(value: Value) -> Value | None:
    """Queries or keys that are scaled and then seen another way, as by heads, are seen so first and then scaled."""
    if value.known_type is None or not are_scores(value):
        return None
    left, right = (_scaled_last(v) for v in value.operands)
    if left is None and right is None:
        return None
    x, y = value.operands
    return ops.matmul(x if left is None else left, y if right is None else right)


def _scaled_last(value: Value) -> Value | None:
    """Views of a tensor times a number as the views of the tensor, times the number."""
    above: list[Value] = []
    while value.op in VIEW_OPS and len(above) < _LONGEST:
        above.append(value)
        (value,) = value.operands
    if not above or not _is_scaled(value):
        return None
    inner, number = value.operands
    for view in reversed(above):
        inner = view.with_operands((inner,))
    return value.with_operands((inner, number))


@rule(ops.matmul, numerics="reassociated")
def scale_on_queries(value: Value) -> Value | None:
    """q @ (kᵀ * s) is (q * s) @ kᵀ, where the number brings nothing out of range and queries have none."""
    left, right = value.operands
    if value.known_type is None or not are_scores(value) or not _is_scaled(right) or _is_scaled(left):
        return None
    keys, number = right.operands
    scale = number_in(number) or 0
    if abs(scale) > 1 if right.op is ops.mul else abs(scale) < 1:
        return None
    return ops.matmul(right.with_operands((left, number)), keys)


def _is_scaled(value: Value) -> bool:
    return value.op in (ops.mul, ops.div) and number_in(value.operands[1]) is not None and not value.operands[1].rank


@rule(ops.mul, ops.div, on_constant=True, numerics="reassociated")
def masked_after_scaled(value: Value) -> Value | None:
    """(q @ kᵀ + m) * s is q @ kᵀ * s + m * s, where the number brings nothing out of range."""
    total, number = value.operands
    scale = number_in(number)
    if value.known_type is None or total.op is not ops.add or scale is None or number.rank or scale == 0:
        return None
    if abs(scale) > 1 if value.op is ops.mul else abs(scale) < 1:
        return None
    for found, mask in (total.operands, total.operands[::-1]):
        if are_scores(found) and mask.rank:
            return ops.add(value.with_operands((found, number)), value.with_operands((mask, number)))
    return None


@rule(ops.maximum, on_constant=True, numerics="reassociated")
def clipped_mask(value: Value) -> Value | None:
    """q @ kᵀ + m, at least a number that swallows any score, is q @ kᵀ plus m that is at least the number."""
    total, bound = value.operands
    least = number_in(bound)
    if value.known_type is None or total.op is not ops.add or value.dtype is f16 or least is None or bound.rank:
        return None
    if not -math.inf < least <= _SWALLOWS:
        return None
    for found, mask in (total.operands, total.operands[::-1]):
        if are_scores(found) and not are_scores(mask):
            return ops.add(found, ops.maximum(mask, bound))
    return None


@rule(ops.add, numerics="reassociated")
def scores_as_wide_as_mask(value: Value) -> Value | None:
    """q @ kᵀ that is cast to the wider type of a mask is the product of the wider q and k."""
    if value.known_type is None:
        return None
    for wide, mask in (value.operands, value.operands[::-1]):
        if wide.op is ops.cast and mask.rank and not are_scores(mask) and _are_narrow(wide):
            return ops.add(_product_of_wider(wide), mask)
    return None


def _are_narrow(wide: Value) -> bool:
    (narrow,) = wide.operands
    path, product = under_numbers(narrow)
    is_one_dtype = all(v.dtype is narrow.dtype for v in (product, *[above for above, _ in path]))
    return is_one_dtype and are_scores(narrow) and loses_nothing(narrow.dtype, wide.dtype)


def _product_of_wider(wide: Value) -> Value:
    path, product = under_numbers(wide.operands[0])
    result = ops.matmul(*(_widened(v, wide.dtype) for v in product.operands))
    for above, below in reversed(path):
        others = [result if v is below else ops.cast(v, dtype=wide.dtype) for v in above.operands]
        result = above.with_operands(tuple(others))
    return result


def _widened(value: Value, dtype: DType) -> Value:
    """A tensor in a wider type, cast before it is scaled or seen another way."""
    above: list[tuple[Value, tuple[Value, ...]]] = []
    while len(above) < _LONGEST:
        scaled = value.op in (ops.mul, ops.div) and not value.operands[1].rank
        if not scaled and value.op not in VIEW_OPS:
            break
        above.append((value, tuple(ops.cast(v, dtype=dtype) for v in value.operands[1:])))
        value = value.operands[0]
    result = ops.cast(value, dtype=dtype)
    for op, numbers in reversed(above):
        result = op.with_operands((result, *numbers))
    return result


@rule(ops.cast)
def cast_before_repeat(value: Value) -> Value | None:
    """What is repeated is cast before, where there is less of it."""
    above: list[Value] = []
    (inner,) = value.operands
    while inner.op in VIEW_OPS and len(above) < _LONGEST:
        above.append(inner)
        (inner,) = inner.operands
    while above and above[-1].op is not ops.expand:
        above.pop()
    if value.known_type is None or not above:
        return None
    inner = value.with_operands(above[-1].operands)
    for view in reversed(above):
        inner = view.with_operands((inner,))
    return inner


RULES = listed(globals())
