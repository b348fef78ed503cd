"""Mixtures of experts: products of groups of rows, each with the weights of its expert."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.torch.importing.node import Node, cast
from dovetail.frontends.torch.importing.rule import collected, rule
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("transformers.grouped_mm_fallback.default", "_grouped_mm.default")
def grouped_product(n: Node, x: Value, weight: Value, offs: Value | None = None) -> Value:
    """Rows up to each offset times the matrix of their group; rows after the last offset are 0."""
    if offs is None or x.rank != 2 or weight.rank != 3:
        raise n.unsupported("groups that are not rows of a matrix with offsets", hint="pass offsets")
    groups = weight.shape[0]
    if not isinstance(groups, int):
        raise n.unsupported("a number of groups that is not known", hint="export the model with fixed sizes")
    rows = ops.iota(size=x.shape[0])
    ends = cast(offs, i64)
    passed = ops.cast(ops.greater_equal(build.expand_dims(rows, 1), ends), dtype=i64)
    group = ops.reduce_sum(passed, axes=(-1,))
    total: Value | None = None
    for index in range(groups):
        y = x @ build.select(weight, axis=0, index=index)
        mine = ops.where(ops.equal(group, index), y, n.value(0, y.dtype))
        total = mine if total is None else total + mine
    return build.zeros(n.shape, n.dtype) if total is None else cast(total, n.dtype)


RULES = collected(globals())
