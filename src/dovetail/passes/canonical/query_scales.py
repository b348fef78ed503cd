"""Learned scales of attention scores, one for each head or query: they move to the queries."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.dtype import f16
from dovetail.ir.value import Value
from dovetail.passes.canonical.arithmetic import are_scores
from dovetail.passes.canonical.rule import listed, rule, under_numbers


@rule(ops.mul, ops.div, numerics="reassociated")
def factor_on_queries(value: Value) -> Value | None:
    """q @ kᵀ times a factor that is one for all keys is (q times the factor) @ kᵀ; in f16 that could overflow."""
    if value.known_type is None or not value.dtype.is_float or value.dtype is f16:
        return None
    orders = (value.operands, value.operands[::-1]) if value.op is ops.mul else (value.operands,)
    for found, factor in orders:
        if factor.rank and factor.shape[-1] == 1 and are_scores(found) and not are_scores(factor):
            return _scaled_first(value, found, factor)
    return None


def _scaled_first(value: Value, found: Value, factor: Value) -> Value | None:
    """The same product of queries that were multiplied before, where the factor stretches none of their axes."""
    path, product = under_numbers(found)
    q, keys = product.operands
    if any(above.op not in (ops.mul, ops.div) or above.operands[0] is not below for above, below in path):
        return None
    scaled = value.with_operands((q, factor))
    if scaled.shape != q.shape:
        return None
    result = ops.matmul(scaled, keys)
    for above, _ in reversed(path):
        result = above.with_operands((result, *above.operands[1:]))
    return result


RULES = listed(globals())
