"""sink_attention: attention with sinks, scores without a key that take their share of each query's weights."""

from __future__ import annotations

from typing import Annotated

from dovetail import ops
from dovetail.declare import HANDED_ON, Change, fused_op, typed
from dovetail.ir.value import Value
from dovetail.library.attention import attention, heads_divide, leading_axes_agree, masks_broadcast
from dovetail.library.heads import repeated_heads
from dovetail.library.scores import Scaled, scores
from dovetail.library.softmax import softmax
from dovetail.ops.deferred_shape import size_of


@fused_op(shapes="q[b, groups*h, sq, d] k[b, h, sk, d] v[b, h, sk, dv] sinks[b, groups*h, sq, 1] mask[b, 1, sq, sk]")
def sink_attention(
    q: Value,
    k: Value,
    v: Value,
    sinks: Value,
    mask: Value | None = None,
    *,
    scale: float,
    scaled: Annotated[Scaled, HANDED_ON] = "product",
    groups: int | None = None,
) -> Value:
    """softmax of q @ kᵀ * scale + mask and one more column, the sinks; without that column, @ v.

    The scores stay in the kernel. `groups` query heads share one head of k and v.
    """
    found = scores(q, repeated_heads(k, groups), scale=scale, scaled=scaled)
    weights = softmax(ops.concat(found if mask is None else found + mask, sinks, axis=-1))
    return ops.slice_(weights, axis=-1, start=0, stop=size_of(k, -2)) @ repeated_heads(v, groups)


# What attention needs of queries, keys and masks.
sink_attention.guards += [g for g in attention.guards if g.holds in (leading_axes_agree, heads_divide, masks_broadcast)]


@sink_attention.requires(
    reason="the sinks are {sinks.type}; each query has one",
    hint="give the sinks a last axis of size 1",
)
def sinks_are_a_column(sinks: Value) -> bool:
    return sinks.shape[-1:] == (1,)


@sink_attention.remedy(sinks_are_a_column)
def one_sink(sinks: Value) -> Change:
    """Each query has one sink."""
    return {"sinks": typed(sinks, shape=(*sinks.shape[:-1], 1))}
