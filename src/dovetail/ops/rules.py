"""Type rules shared by several primitives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bool_
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ops.primitive import TypeRule


def tensor(type: Type, what: str = "an operand") -> TensorType:
    if not isinstance(type, TensorType):
        raise TypeRuleError(f"{what} has {len(type.items)} results", hint="take one of them: value[0]")
    return type


def one_dtype(facts: Facts, types: Sequence[TensorType], allowed: Sequence[DType]) -> DType:
    """Return the dtype that all operands share; it must be one that the op takes."""
    dtype = types[0].dtype
    for other in types[1:]:
        if other.dtype is not dtype:
            raise TypeRuleError(
                f"{facts.op} of {dtype.name} and {other.dtype.name}", hint="cast one operand to the dtype of the other"
            )
    if dtype not in allowed:
        raise TypeRuleError(
            f"{facts.op} of {dtype.name}", hint=f"it takes {', '.join(d.name for d in allowed)}; cast first"
        )
    return dtype


def broadcast(facts: Facts, shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    """Return the shape that all shapes stretch to, aligned at the last axis."""
    first = shapes[0]
    if all(s == first for s in shapes[1:]):
        return first
    result: list[Size] = []
    for axis in range(max(map(len, shapes)), 0, -1):
        size: Size = 1
        for shape in shapes:
            if axis <= len(shape):
                size = _stretch(facts, size, shape[-axis])
        result.append(size)
    return tuple(result)


def _stretch(facts: Facts, left: Size, right: Size) -> Size:
    if left == 1 or left == right:
        return right
    return left if right == 1 else facts.equal(left, right, "sizes that meet in a broadcast")


def elementwise(allowed: Sequence[DType], *, result: DType | None = None) -> TypeRule:
    """Operands of one dtype broadcast together."""

    def rule(facts: Facts, *operands: Type, **attrs: Any) -> Type:
        types = [tensor(t) for t in operands]
        dtype = one_dtype(facts, types, allowed)
        dtype = dtype if result is None else result
        shape = broadcast(facts, [t.shape for t in types])
        first = types[0]
        # Values of one type share it: then `is` compares them.
        return first if shape is first.shape and dtype is first.dtype else TensorType(dtype, shape)

    return rule


def comparison(allowed: Sequence[DType]) -> TypeRule:
    """Like elementwise, and the result is bool whatever is compared."""
    return elementwise(allowed, result=bool_)
