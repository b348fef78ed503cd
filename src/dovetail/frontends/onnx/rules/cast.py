"""Operators that change the element type."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.node import Node
from dovetail.frontends.onnx.rule import collected, rule
from dovetail.ir.dtype import DType
from dovetail.ir.value import Value


@rule("Cast", since=6)
def cast(n: Node, x: Value, *, to: DType, saturate: bool = True, round_mode: str = "up") -> Value:
    """The same numbers in another type."""
    return ops.cast(x, dtype=to)


@rule("CastLike")
def cast_like(n: Node, x: Value, target_type: Value, *, saturate: bool = True, round_mode: str = "up") -> Value:
    """The same numbers in the type of another tensor."""
    return ops.cast(x, dtype=target_type.dtype)


RULES = collected(globals())
