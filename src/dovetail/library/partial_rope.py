"""partial_rope: the first features of each head are rotated, the others are left as they are."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value
from dovetail.library.rope import Form, rope
from dovetail.ops.deferred_shape import size_of


@fused_op(shapes="x[*, s, rotated+rest] cos[s, rotated] sin[s, rotated]", stage="recognise")
def partial_rope(x: Value, cos: Value, sin: Value, *, rotated: int, form: Form = "half") -> Value:
    """rope of the first `rotated` features; the rest passes through: one pass."""
    turned = rope(ops.slice_(x, axis=-1, start=0, stop=rotated), cos, sin, form=form)
    return ops.concat(turned, ops.slice_(x, axis=-1, start=rotated, stop=size_of(x, -1)), axis=-1)
