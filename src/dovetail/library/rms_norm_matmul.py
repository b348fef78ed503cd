"""rms_norm_matmul: a matmul that normalises its rows as it reads them."""

from __future__ import annotations

from dovetail.declare import Cost, fused_op
from dovetail.declare.cost import flops_of, is_given, type_bytes
from dovetail.ir.dim import floordiv
from dovetail.ir.value import Value
from dovetail.library.norms import Precision
from dovetail.library.rms_norm import rms_norm

PANEL = 128
"""How many columns a kernel makes from one reading of the rows."""


@fused_op(shapes="x[*, m, k] w[k, n] gain[k]")
def rms_norm_matmul(
    x: Value, w: Value, gain: Value | None = None, *, eps: float, precision: Precision = "own"
) -> Value:
    """rms_norm(x) @ w without the normalised rows in memory; every panel of columns normalises them anew."""
    return rms_norm(x, gain, eps=eps, precision=precision) @ w


@rms_norm_matmul.requires(
    reason="the weight is {w.type}; the kernel takes one matrix for the whole batch",
)
def weight_is_a_matrix(w: Value) -> bool:
    return w.rank == 2


@rms_norm_matmul.cost
def once_a_panel(x: Value, w: Value, gain: Value | None, *, eps: float, precision: Precision) -> Cost:
    """The norm's work and the rows' traffic count once for each panel of columns."""
    norm = rms_norm(x, gain, eps=eps, precision=precision)
    product = norm @ w
    panels = floordiv(w.shape[-1] + (PANEL - 1), PANEL)
    traffic = type_bytes(x.type) * panels + type_bytes(w.type) + type_bytes(product.type)
    dense = flops_of(product)
    given = type_bytes(w.type) if is_given(w) else 0
    return Cost(dense + flops_of(norm) * panels, traffic, given, dense, "contract")
