"""Scaled dot-product attention, written as the library's body so that it fuses."""

from __future__ import annotations

from typing import Any

from dovetail import library, ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import rule
from dovetail.ir import leaf
from dovetail.ir.dim import Dim
from dovetail.ir.dtype import bool_
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.view import VIEW_OPS


@rule("scaled_dot_product_attention.default")
def attention(
    n: Node,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """softmax(q @ kᵀ * scale + mask) @ v; a query that a mask lets see nothing gets 0."""
    if dropout_p:
        raise n.unsupported(f"dropout_p = {dropout_p}", hint="call module.eval() before it is exported")
    return _attention(n, query, key, value, attn_mask, is_causal, scale, enable_gqa)


@rule("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    n: Node,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> Made:
    """softmax(q @ kᵀ * scale + mask) @ v"""
    if dropout_p:
        raise n.unsupported(f"dropout_p = {dropout_p}", hint="call module.eval() before it is exported")
    return _attention(n, query, key, value, attn_mask, is_causal, scale, False), None


def _attention(
    n: Node, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float | None, grouped: bool
) -> Value:
    options: dict[str, Any] = {"scale": _scale(n, q) if scale is None else float(scale)}
    if options["scale"] == 1.0 and (written := _scaled_queries(q)) is not None:
        # The layer of the queries then has the form of those of keys and values, and is joined with them.
        q, options["scale"] = written
        options["scaled"] = "queries"
    if q.rank < 4:
        lead = 4 - q.rank
        q, k, v = (build.expand_dims(x, range(lead)) for x in (q, k, v))
        mask = mask if mask is None or mask.rank < 3 else build.expand_dims(mask, range(4 - mask.rank))
    one_k, one_v = _one_head(k), _one_head(v)
    if one_k is not None and one_v is not None:
        k, v = one_k, one_v
    elif grouped and q.shape[-3] != k.shape[-3] != 1:
        options["groups"] = q.shape[-3] // k.shape[-3]
    if causal:
        options |= {"causal": True, "fill": float("-inf")}
    lead_axes = _lead(q, k, v)
    q, k, v = (_led(x, lead_axes) for x in (q, k, v))
    if mask is None:
        y = library.attention.body(q, k, v, **options)
    elif mask.dtype is bool_:
        options["fill"] = float("-inf")
        y = library.attention.body(q, k, v, keep=mask, zero_unseen=True, **options)
    else:
        y = library.attention.body(q, k, v, cast(mask, q.dtype), zero_unseen=True, **options)
    return build.reshape(y, n.shape) if y.rank != len(n.shape) else y


def _scaled_queries(q: Value) -> tuple[Value, float] | None:
    """Queries before they were multiplied by a number and seen by heads, and the number: no bit changes by it."""
    views: list[Value] = []
    while q.op in VIEW_OPS:
        views.append(q)
        (q,) = q.operands
    if q.op is not ops.mul or q.operands[1].rank:
        return None
    found, number = q.operands[0], leaf.scalar_of(q.operands[1])
    if not isinstance(number, float) or found.type != q.type:
        return None
    for view in reversed(views):
        found = view.with_operands((found,))
    return found, number


def _one_head(x: Value) -> Value | None:
    """The head that keys or values repeat for all heads of the queries; the product stretches it."""
    if x.op is not ops.squeeze or x.attrs["axes"] != (-4,):
        return None
    (repeated,) = x.operands
    if repeated.op is not ops.expand or repeated.attrs["axis"] != -3:
        return None
    return x.with_operands(repeated.operands)


def _scale(n: Node, q: Value) -> float:
    size = q.shape[-1]
    if isinstance(size, Dim):
        raise n.unsupported("heads whose size is not known", hint="export the model with the size of a head")
    return float(size) ** -0.5


def _lead(*xs: Value) -> tuple[Any, ...]:
    """The axes before heads, which broadcast."""
    return max((x.shape[:-3] for x in xs), key=lambda s: sum(size != 1 for size in s))


def _led(x: Value, lead: tuple[Any, ...]) -> Value:
    return x if x.shape[:-3] == lead else build.broadcast_to(x, (*lead, *x.shape[-3:]))
