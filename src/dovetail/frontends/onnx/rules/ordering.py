"""Sorting and what it tells, and running sums."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.node import Node
from dovetail.frontends.onnx.rule import Ints, collected, rule
from dovetail.ir.value import Value


@rule("CumSum")
def cum_sum(n: Node, x: Value, axis: Ints, *, exclusive: bool = False, reverse: bool = False) -> Value:
    """Running sum along an axis."""
    return ops.cum_sum(x, axis=axis[0], exclusive=exclusive, reverse=reverse)


@rule("CumProd")
def cum_prod(n: Node, x: Value, axis: Ints, *, exclusive: bool = False, reverse: bool = False) -> Value:
    """Running product along an axis."""
    return ops.cum_prod(x, axis=axis[0], exclusive=exclusive, reverse=reverse)


RULES = collected(globals())
