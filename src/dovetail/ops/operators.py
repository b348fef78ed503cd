"""How `x + y`, `x @ w`, `x < y`, `x[0:1]` and `value[i]` are spelled in primitives."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import Dim
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops import build, contraction, elementwise
from dovetail.ops.primitive import Primitive
from dovetail.ops.reshaping import reshape

_NAMED: dict[str, Primitive] = {p.name: p for p in (*elementwise.FAMILY, *contraction.FAMILY)}


class PrimitiveOperators:
    """The operators of Value, as primitives."""

    def unary(self, name: str, x: Value) -> Value:
        return _NAMED[name](x)

    def binary(self, name: str, x: Any, y: Any) -> Value:
        return _NAMED[name](x, y)

    def item(self, x: Value, index: Any) -> Value:
        return indexed(x, index) if isinstance(x.known_type, TensorType) else leaf.item(x, index)

    def reshape(self, x: Value, shape: tuple[Any, ...]) -> Value:
        return reshape(x, shape)

    def transpose(self, x: Value) -> Value:
        return build.transpose(x)


def indexed(x: Value, index: Any) -> Value:
    """x[index] as NumPy has it, for integers, slices, `...` and None."""
    listed: list[Any] = list(cast("tuple[Any, ...]", index)) if isinstance(index, tuple) else [index]
    taken = sum(i is not None and i is not Ellipsis for i in listed)
    if taken > x.rank or sum(i is Ellipsis for i in listed) > 1:
        raise TypeRuleError(f"{taken} indices for {x.tensor}", hint="give at most one for each axis, and `...` once")
    at = next((k for k, i in enumerate(listed) if i is Ellipsis), len(listed))
    x = _along(x, listed[:at], 0)
    after = listed[at + 1 :]
    return _along(x, after, x.rank - sum(i is not None for i in after))


def _along(x: Value, listed: list[Any], axis: int) -> Value:
    """x indexed along axes from one on."""
    for i in listed:
        if i is None:
            x, axis = build.expand_dims(x, axis), axis + 1
        elif isinstance(i, slice):
            part = cast("slice[Any, Any, Any]", i)
            step = 1 if part.step is None else part.step
            x, axis = build.slice_axis(x, axis=axis, start=part.start, stop=part.stop, step=step), axis + 1
        elif isinstance(i, Dim):
            x = build.select(x, axis=axis, index=i)
        elif isinstance(i, int | np.integer) and not isinstance(i, bool):
            x = build.select(x, axis=axis, index=int(cast(int, i)))
        else:
            raise TypeRuleError(
                f"an index that is a {type(i).__name__}", hint="use integers, slices, `...` and None, or ops.gather"
            )
    return x
