"""lora_matmul: a matmul plus its low-rank update."""

from __future__ import annotations

from dovetail.declare import fused_op
from dovetail.ir.value import Value


@fused_op(shapes="x[*, m, k] w[k, n] a[k, r] b[r, n]")
def lora_matmul(x: Value, w: Value, a: Value, b: Value, *, scale: float | None = None) -> Value:
    """x @ w + scale * (x @ a) @ b: the narrow product stays in registers."""
    update = (x @ a) @ b
    return x @ w + (update if scale is None else update * scale)


@lora_matmul.spelling
def scaled_early(x: Value, w: Value, a: Value, b: Value, *, scale: float | None = None) -> Value:
    """The narrow product is scaled before it is widened."""
    narrow = x @ a
    return x @ w + (narrow if scale is None else narrow * scale) @ b


@lora_matmul.requires(
    reason="the weights are {w.type}, {a.type} and {b.type}; the kernel takes one matrix of each for the whole batch",
    hint="keep batched products as matmul",
)
def weights_are_matrices(w: Value, a: Value, b: Value) -> bool:
    return w.rank == 2 and a.rank == 2 and b.rank == 2


@lora_matmul.requires(
    reason="the weight is {w.type} and the update ends in {b.type}; both make the same columns",
    hint="widen the narrower one, or leave the add outside",
)
def update_is_as_wide_as_the_weight(w: Value, b: Value) -> bool:
    return w.shape[-1] == b.shape[-1]
