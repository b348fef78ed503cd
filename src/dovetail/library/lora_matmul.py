"""lora_matmul: a matmul plus its low-rank update."""

from __future__ import annotations

from typing import Literal

from dovetail.declare import Change, UnwrittenError, every, fused_op, typed
from dovetail.ir.value import Value

Scaled = Literal["update", "narrow"]
"""What is multiplied by the scale: all of the update, or x @ a before it is widened. In f16 one can overflow alone."""


@fused_op(shapes="x[*, m, k] w[k, n] a[k, r] b[r, n]")
def lora_matmul(
    x: Value, w: Value, a: Value, b: Value, *, scale: float | None = None, scaled: Scaled = "update"
) -> Value:
    """x @ w + scale * (x @ a) @ b: the narrow product stays in registers."""
    narrow = x @ a
    if scaled == "narrow":
        if scale is None:
            raise UnwrittenError("a narrow product that is scaled by nothing", hint="pass scale, or scaled='update'")
        return x @ w + (narrow * scale) @ b
    update = narrow @ b
    return x @ w + (update if scale is None else update * scale)


@lora_matmul.requires(
    reason="the weights are {w.type}, {a.type} and {b.type}; the kernel takes one matrix of each for the whole batch",
)
def weights_are_matrices(w: Value, a: Value, b: Value) -> bool:
    return w.rank == 2 and a.rank == 2 and b.rank == 2


@lora_matmul.requires(
    reason="the weight is {w.type} and the update ends in {b.type}; both make the same columns",
    hint="widen the narrower weight",
)
def update_is_as_wide_as_the_weight(w: Value, b: Value) -> bool:
    return w.shape[-1] == b.shape[-1]


@lora_matmul.remedy(update_is_as_wide_as_the_weight)
def both_as_wide_as_the_sum(w: Value, b: Value, result: Value) -> Change:
    """The weight and its update have all columns of the sum."""
    return every(lambda matrix: typed(matrix, shape=(matrix.shape[0], result.shape[-1])), w=w, b=b)
