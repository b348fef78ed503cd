"""Numbers and masks around the product of queries and keys."""

from __future__ import annotations

import math

from dovetail import ops
from dovetail.ir.dtype import f16
from dovetail.ir.value import Value
from dovetail.ops.view import VIEW_OPS
from dovetail.passes.canonical.arithmetic import are_scores
from dovetail.passes.canonical.rule import listed, number_in, rule

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
    return ops.matmul(left or value.operands[0], right or value.operands[1])


def _scaled_last(value: Value) -> Value | None:
    """Views of a tensor times a number as the views of the tensor, times the number."""
    above: list[Value] = []
    while value.op in VIEW_OPS and len(above) < _LONGEST:
        above.append(value)
        (value,) = value.operands
    if not above or value.op not in (ops.mul, ops.div):
        return None
    inner, number = value.operands
    if number_in(number) is None or number.rank:
        return None
    for view in reversed(above):
        inner = view.with_operands((inner,))
    return value.with_operands((inner, number))


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
        if are_scores(found) and not are_scores(mask) and mask.rank:
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


RULES = listed(globals())
