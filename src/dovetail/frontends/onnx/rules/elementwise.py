"""Operators that work element by element."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.node import Node
from dovetail.frontends.onnx.rule import Made, Rule, collected, rule
from dovetail.ir.dtype import DType
from dovetail.ir.value import Value
from dovetail.ops.primitive import Primitive


def _plain(op_type: str, op: Primitive) -> tuple[Rule, ...]:
    """An operator that is one primitive."""

    def function(n: Node, *xs: Value) -> Made:
        return op(*xs)

    function.__doc__ = op.doc
    return rule(op_type)(function)


@rule("Add", since=7)
def add(n: Node, x: Value, y: Value) -> Value:
    """x + y"""
    return x + y


@rule("Cast", since=6)
def cast(n: Node, x: Value, *, to: DType) -> Value:
    """The same numbers in another type."""
    return ops.cast(x, dtype=to)


RELU = _plain("Relu", ops.relu)

RULES = collected(globals())
