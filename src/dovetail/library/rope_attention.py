"""rope_attention: attention that rotates queries and keys as it reads them."""

from __future__ import annotations

from typing import Annotated, Any

from dovetail.declare import HANDED_ON, Cost, fused_op
from dovetail.ir.value import Value
from dovetail.library import masks
from dovetail.library.attention import Filled, attention
from dovetail.library.partial_rope import partial_rope
from dovetail.library.rope import Form, rope
from dovetail.library.scores import Scaled
from dovetail.library.softmax import Empty, Flag


@fused_op(
    shapes="q[b, groups*h, s, 2*n*rotated] k[b, h, s, 2*n*rotated] v[b, h, s, dv] cos[s, 2*n] sin[s, 2*n] "
    "mask[b, 1, s, s] keep:bool[b, 1, s, s] fill=-inf rotated=2*n"
)
def rope_attention(
    q: Value,
    k: Value,
    v: Value,
    cos: Value,
    sin: Value,
    mask: Value | None = None,
    keep: Value | None = None,
    *,
    rotated: int | None = None,
    form: Annotated[Form, HANDED_ON] = "half",
    scale: Annotated[float | None, HANDED_ON] = None,
    scaled: Annotated[Scaled, HANDED_ON] = "product",
    softcap: Annotated[float | None, HANDED_ON] = None,
    groups: Annotated[int | None, HANDED_ON] = None,
    causal: Annotated[Flag, HANDED_ON] = False,
    window: Annotated[int | None, HANDED_ON] = None,
    fill: Annotated[float | None, HANDED_ON] = None,
    filled: Annotated[Filled, HANDED_ON] = "last",
    zero_unseen: Annotated[Flag, HANDED_ON] = False,
    empty: Annotated[Empty, HANDED_ON] = "nan",
    wide: Annotated[Flag, HANDED_ON] = False,
) -> Value:
    """attention of queries and keys that are rotated by the same angles: neither is written in between."""
    if rotated is None:
        q, k = (rope(x, cos, sin, form=form) for x in (q, k))
    else:
        q, k = (partial_rope(x, cos, sin, rotated=rotated, form=form) for x in (q, k))
    return attention(
        q,
        k,
        v,
        mask,
        keep,
        scale=scale,
        scaled=scaled,
        softcap=softcap,
        groups=groups,
        causal=causal,
        window=window,
        fill=fill,
        filled=filled,
        zero_unseen=zero_unseen,
        empty=empty,
        wide=wide,
    )


@rope_attention.cost
def positions_are_free(**call: Any) -> Cost:
    """Keys that positions hide are skipped, not compared."""
    return masks.cost_by_position(rope_attention, call)
