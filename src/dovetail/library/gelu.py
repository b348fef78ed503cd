"""gelu in its two forms."""

from __future__ import annotations

from typing import Literal

from dovetail import ops
from dovetail.declare import fused_op
from dovetail.ir.value import Value


@fused_op(shapes="x[*]", stage="recognise")
def gelu(x: Value, *, form: Literal["erf", "tanh"] = "erf") -> Value:
    """Gaussian error linear unit, exact or by tanh, in one pass."""
    if form == "erf":
        return x * (0.5 * (ops.erf(x / 1.4142135623730951) + 1.0))
    inner = 0.7978845608028654 * (x + 0.044715 * (x * x * x))
    return (0.5 * x) * (ops.tanh(inner) + 1.0)
