"""Operators that change the element type."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.file.proto import messages
from dovetail.frontends.onnx.file.types import element
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.ir.dtype import DType, f8e5m2, f8e8m0, f32
from dovetail.ir.value import Value
from dovetail.ops.conversion import EIGHT_BIT_FLOATS


def _converted(n: Node, x: Value, to: DType, saturate: bool, round_mode: str) -> Value:
    if round_mode not in ("up", "down", "nearest"):
        raise n.malformed(f"round_mode is {round_mode!r}", hint="it is up, down or nearest")
    if x.dtype is to:
        # Infinity is out of range there as well.
        return x if to is not f8e5m2 or not saturate else ops.cast(ops.cast(x, dtype=f32), dtype=to)
    plain = saturate and (round_mode == "up" or to is not f8e8m0)
    if plain or to not in EIGHT_BIT_FLOATS:
        return ops.cast(x, dtype=to)
    return ops.cast_f8(x, dtype=to, saturate=saturate, rounding=round_mode if to is f8e8m0 else "up")


@rule("Cast", since=6)
def cast(n: Node, x: Value, *, to: DType, saturate: bool = True, round_mode: str = "up") -> Value:
    """The same numbers in another type."""
    return _converted(n, x, to, saturate, round_mode)


@rule("Cast", until=5)
def cast_1(n: Node, x: Value, *, to: str) -> Value:
    """The same numbers in another type, which is written by name."""
    numbers = dict(messages.TensorProto.DataType.items())
    return _converted(n, x, element(numbers.get(to, messages.TensorProto.UNDEFINED), n.where), True, "up")


@rule("CastLike")
def cast_like(n: Node, x: Value, target_type: Value, *, saturate: bool = True, round_mode: str = "up") -> Value:
    """The same numbers in the type of another tensor."""
    return _converted(n, x, target_type.dtype, saturate, round_mode)


@rule("BitCast")
def bit_cast(n: Node, x: Value, *, to: DType) -> Value:
    """The bits of each element read as another type of the same width."""
    if to.bits != x.dtype.bits:
        raise n.malformed(f"the bits of {x.dtype.name} as {to.name}", hint="both types have the same width")
    return ops.bitcast(x, source=x.dtype.name, target=to.name)
