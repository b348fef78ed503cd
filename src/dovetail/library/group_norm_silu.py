"""group_norm_silu: a group norm with silu in its last pass.

It is for inference by construction: a backward pass reads the normalised value, and a value that someone outside
the pattern reads keeps the two apart (`interior_is_private`).
"""

from __future__ import annotations

from dovetail.declare import fused_op
from dovetail.ir.value import Value
from dovetail.library.group_norm import group_norm
from dovetail.library.silu import silu


@fused_op(shapes="x[*, groups*c, h, w] gain[groups*c, 1, 1] bias[groups*c, 1, 1]")
def group_norm_silu(
    x: Value, gain: Value | None = None, bias: Value | None = None, *, groups: int, eps: float
) -> Value:
    """silu(group_norm(x)) in one pass, where nobody reads the normalised value itself."""
    return silu(group_norm(x, gain, bias, groups=groups, eps=eps))
