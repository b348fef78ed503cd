"""How `x + y`, `x @ w` and `value[i]` are spelled in primitives."""

from __future__ import annotations

from typing import Any

from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.ops import contraction, elementwise
from dovetail.ops.primitive import Primitive

_NAMED: dict[str, Primitive] = {p.name: p for p in (*elementwise.FAMILY, *contraction.FAMILY)}


class PrimitiveOperators:
    """The operators of Value, as primitives."""

    def unary(self, name: str, x: Value) -> Value:
        return _NAMED[name](x)

    def binary(self, name: str, x: Any, y: Any) -> Value:
        return _NAMED[name](x, y)

    def item(self, x: Value, index: int) -> Value:
        return leaf.item(x, index)
