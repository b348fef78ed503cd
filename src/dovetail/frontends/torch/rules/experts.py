"""Mixtures of experts: products of groups of rows, each with the weights of its expert."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import rule
from dovetail.ir.value import Value


@rule("transformers.grouped_mm_fallback.default", "_grouped_mm.default")
def grouped_product(n: Node, x: Value, weight: Value, offs: Value | None = None) -> Value:
    """Rows up to each offset times the matrix of their group; rows after the last offset are 0."""
    if offs is None or x.rank != 2 or weight.rank != 3:
        raise n.unsupported("groups that are not rows of a matrix with offsets", hint="pass offsets")
    y = ops.grouped_matmul(x, cast(weight, x.dtype), offs)
    return cast(y, n.dtype)
