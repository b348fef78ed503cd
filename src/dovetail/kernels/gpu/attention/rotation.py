"""Rotary positions of an attention on GPUs: features of queries and keys, rotated as they are loaded."""

from __future__ import annotations

from dovetail.ir.dtype import DType, bool_, f32, i64
from dovetail.kernels.gpu.gemm.fragments import less, remainder
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import ZERO, Call, Expr, Extent, Load, Tensor, add, minimum
from dovetail.kernels.problems.attention import Attention


def rotated(a: Attention, dtype: DType, tensor: Tensor, name: str, at: tuple[Expr, ...]) -> Expr:
    """A feature of a query or key with its rotation."""
    turned = a.rotated or 0
    k = at[-1]
    own, half = cast_to(Load(tensor, at), f32), turned // 2
    if a.form == "half":
        low = less(k, Extent(half))
        other = Call("where", (low, add(k, Extent(half)), Call("sub", (k, Extent(half)), i64)), i64)
    else:
        low = Call("equal", (remainder(k, 2), ZERO), bool_)
        other = Call("bit_xor", (k, Extent(1)), i64)
    other = minimum(other, Extent(a.d - 1))
    pair = cast_to(Load(tensor, (*at[:-1], Call("maximum", (other, ZERO), i64))), f32)
    pair = Call("where", (low, Call("neg", (pair,), f32), pair), f32)
    turn = minimum(k, Extent(turned - 1))
    cos, sin = [
        cast_to(Load(Tensor(n, dtype, a.strides[f"{n}_{name}"]), (*at[:-1], turn)), f32) for n in ("cos", "sin")
    ]
    found = Call("add", (Call("mul", (own, cos), f32), Call("mul", (pair, sin), f32)), f32)
    if turned < a.d:
        found = Call("where", (less(k, Extent(turned)), found, own), f32)
    return cast_to(found, dtype)


__all__ = ["rotated"]
