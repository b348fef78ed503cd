"""What a square matrix amounts to."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.ir.value import Value


@rule("Det")
def det(n: Node, x: Value) -> Value:
    """Determinant of each matrix of the last two axes."""
    return ops.det(x)
