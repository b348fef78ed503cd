"""rope: positions told by rotating pairs of features."""

from __future__ import annotations

from typing import Literal

from dovetail import ops
from dovetail.declare import Change, UnwrittenError, every, fused_op, typed
from dovetail.ir.value import Value

Form = Literal["half", "interleaved"]
"""Feature i is paired with the one half an axis on, or with its neighbour."""


@fused_op(shapes="x[*, s, 2*n] cos[s, 2*n] sin[s, 2*n]", stage="recognise")
def rope(x: Value, cos: Value, sin: Value, *, form: Form = "half") -> Value:
    """x * cos + turned(x) * sin, where turned takes (a, b) to (-b, a) in every pair: one pass.

    cos and sin are as wide as x: each angle stands at both features of its pair.
    """
    return x * cos + _turned(x, form) * sin


def _turned(x: Value, form: Form) -> Value:
    if form == "half":
        first, second = (ops.part(x, axis=-1, index=index, parts=2) for index in (0, 1))
        return ops.concat(-second, first, axis=-1)
    even, odd = _neighbours(x)
    return ops.merge(ops.concat(-odd, even, axis=-1), axis=-1)


def _neighbours(x: Value) -> list[Value]:
    """Every other feature from the first and from the second, with an axis of size 1 behind."""
    pairs = ops.split(x, axis=-1, size=2)
    return [ops.part(pairs, axis=-1, index=index, parts=2) for index in (0, 1)]


@rope.spelling
def neighbours_taken_out(x: Value, cos: Value, sin: Value, *, form: Form = "half") -> Value:
    """Every other feature is an axis of its own while it is negated."""
    if form == "half":
        raise UnwrittenError("halves, which stay where they are", hint="use the body")
    even, odd = _neighbours(x)
    negative = ops.unsqueeze(-ops.squeeze(odd, axes=(-1,)), axes=(-1,))
    return x * cos + ops.merge(ops.concat(negative, even, axis=-1), axis=-1) * sin


@rope.requires(
    reason="x is {x.type} and the result is {result.type}; an angle stretches to x, never x to the angles",
    hint="give x the axes of the angles",
)
def angles_broadcast(x: Value, result: Value) -> bool:
    return result.shape == x.shape


@rope.remedy(angles_broadcast)
def x_with_the_axes_of_the_angles(x: Value, result: Value) -> Change:
    """x has all axes that the angles have."""
    return {"x": typed(x, shape=result.shape)}


@rope.requires(
    reason="the angles are {cos.type} and {sin.type}, and x is {x.type}; there is one angle for each feature",
    hint="give cos and sin an angle for each feature",
)
def angles_are_as_wide_as_x(x: Value, cos: Value, sin: Value) -> bool:
    return cos.shape[-1:] == x.shape[-1:] and sin.shape[-1:] == x.shape[-1:]


@rope.remedy(angles_are_as_wide_as_x)
def angles_as_wide_as_x(x: Value, cos: Value, sin: Value) -> Change:
    """There is one angle for each feature."""
    return every(lambda angle: typed(angle, shape=(*angle.shape[:-1], x.shape[-1])), cos=cos, sin=sin)
