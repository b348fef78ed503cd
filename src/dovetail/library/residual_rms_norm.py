"""residual_rms_norm: the residual add and the norm that reads it, in one pass."""

from __future__ import annotations

from typing import Literal

from dovetail.declare import fused_op
from dovetail.ir.value import Value
from dovetail.library.norms import Precision
from dovetail.library.residuals import added_by_rows
from dovetail.library.rms_norm import rms_norm


@fused_op(shapes="x[*, n] r[*, n] gain[n] b[n]")
def residual_rms_norm(
    x: Value,
    r: Value,
    gain: Value | None = None,
    b: Value | None = None,
    *,
    eps: float,
    precision: Precision = "own",
    keep_sum: Literal[False, True] = False,
) -> Value | tuple[Value, ...]:
    """rms_norm(x + r), or of x + b + r; the sum is the second result where someone else reads it."""
    total = (x if b is None else x + b) + r
    y = rms_norm(total, gain, eps=eps, precision=precision)
    return (y, total) if keep_sum else y


added_by_rows(residual_rms_norm)
