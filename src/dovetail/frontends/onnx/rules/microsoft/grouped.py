"""Rotated positions, and attention whose heads share keys in a cache."""

from __future__ import annotations

from dovetail import library, ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.rules.microsoft.activations import MICROSOFT
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.shared.rule import Made
from dovetail.ir.dim import Dim, Size, largest
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.library.heads import merge_heads, split_heads
from dovetail.ops import build


@rule("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(
    n: Node,
    x: Value,
    position_ids: Value,
    cos_cache: Value,
    sin_cache: Value,
    *,
    interleaved: bool = False,
    is_packed_batching: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:
    """Pairs of features rotated by angles that tell the position."""
    if is_packed_batching or scale != 1.0:
        raise n.unsupported("packed batches, or another scale than 1", hint="export the model without them")
    if x.rank not in (3, 4) or (rotary_embedding_dim and x.rank == 3 and not num_heads):
        raise n.malformed(f"an input of {x.type} with {num_heads} heads")
    turned = rotary_embedding_dim or cos_cache.shape[-1] * 2
    heads = x
    if x.rank == 3:
        heads = split_heads(x, num_heads) if num_heads else _split_by_size(n, x, turned)
    positions = position_ids
    if position_ids.rank == 1:
        # Where the first row stands; the others follow it.
        positions = ops.unsqueeze(position_ids + ops.iota(size=heads.shape[-2]), axes=(-2,))
    y = rotated(n, heads, positions, cos_cache, sin_cache, interleaved)
    return merge_heads(y) if x.rank == 3 else y


def _split_by_size(n: Node, x: Value, size: Size) -> Value:
    if isinstance(size, Dim):
        raise n.unsupported("heads whose size is not known", hint="export the model with num_heads")
    return ops.permute(ops.split(x, axis=-1, size=size), order=(-2, -3, -1))


def rotated(n: Node, x: Value, positions: Value, cos_cache: Value, sin_cache: Value, interleaved: bool) -> Value:
    """[batch, heads, sequence, features] rotated by the rows of the caches at the positions [batch, sequence]."""
    cos, sin = (_angles(c, positions, interleaved) for c in (cos_cache, sin_cache))
    form = "interleaved" if interleaved else "half"
    if cos.shape[-1] == x.shape[-1]:
        return library.rope.body(x, cos, sin, form=form)
    turned = cos.shape[-1]
    if isinstance(turned, Dim):
        raise n.unsupported("caches whose width is not known", hint="export the model with their sizes")
    first, rest = build.cut(x, -1, 0, turned), build.cut(x, -1, turned, x.shape[-1])
    return ops.concat(library.rope.body(first, cos, sin, form=form), rest, axis=-1)


def _angles(cache: Value, positions: Value, interleaved: bool) -> Value:
    """One row of a cache for each position, each angle at both features of its pair: [batch, 1, sequence, features]."""
    rows = ops.gather(cache, positions, axis=0)
    wide = build.repeat(rows, 2, axis=-1) if interleaved else ops.concat(rows, rows, axis=-1)
    return ops.unsqueeze(wide, axes=(-3,))


@rule("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(
    n: Node,
    query: Value,
    key: Value | None,
    value: Value | None,
    past_key: Value | None,
    past_value: Value | None,
    seqlens_k: Value,
    total_sequence_length: Value,
    cos_cache: Value | None = None,
    sin_cache: Value | None = None,
    position_ids: Value | None = None,
    attention_bias: Value | None = None,
    *,
    causal: bool = True,
    do_rotary: bool = False,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,  # of a quantised cache, which is refused
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_output: int = 0,
    rotary_interleaved: bool = False,
    scale: float | None = None,
    sliding_window_cache: bool = False,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> Made:
    """Attention of new positions to all up to them, with keys and values that groups of heads share in a cache."""
    if smooth_softmax > 0 or sliding_window_cache or qk_output or (k_quant_type, v_quant_type) != ("NONE", "NONE"):
        raise n.unsupported("a smooth softmax, scores as an output, or a cache of another form")
    if not causal or kv_num_heads < 1 or num_heads % kv_num_heads:
        raise n.unsupported(f"{num_heads} heads that share {kv_num_heads}, causal: {causal}")
    q, k, v = _split(n, query, key, value, num_heads, kv_num_heads)
    rows, size = q.shape[-2], q.shape[-1]
    if isinstance(size, Dim):
        raise n.unsupported("heads whose size is not known", hint="export the model with the size of a head")
    # Rows of a batch may be of different lengths: how many positions stand in front of the new ones.
    ends = build.reshape(ops.cast(seqlens_k, dtype=i64), (q.shape[0],)) + 1
    before = ops.maximum(ends - size_value(rows), 0)
    queries = ops.unsqueeze(before, axes=(-1,)) + ops.iota(size=rows)
    if do_rotary:
        if cos_cache is None or sin_cache is None or position_ids is not None:
            raise n.unsupported("rotation without its caches, or by position_ids", hint="use cos_cache and sin_cache")
        q, k = (rotated(n, x, queries, cos_cache, sin_cache, rotary_interleaved) for x in (q, k))
    if past_key is not None and past_value is not None:
        length = n.sizes(total_sequence_length)
        if length is None:
            raise n.needs(total_sequence_length, "total_sequence_length")
        total = largest(past_key.shape[-2], length[0])
        k, v = (_cached(old, new, before, total) for old, new in ((past_key, k), (past_value, v)))
    keys, rank4 = ops.iota(size=k.shape[-2]), ops.unsqueeze(queries, axes=(-3, -1))
    keep = ops.less_equal(keys, rank4)
    if local_window_size > 0:
        keep = ops.bit_and(keep, ops.less(rank4 - local_window_size, keys))
    y = library.attention.body(
        q,
        k,
        v,
        attention_bias,
        keep,
        scale=scale or float(size**-0.5),
        softcap=softcap or None,
        groups=None if kv_num_heads in (1, num_heads) else num_heads // kv_num_heads,
        fill=float("-inf"),
    )
    return merge_heads(y), k, v


def _split(
    n: Node, query: Value, key: Value | None, value: Value | None, heads: int, shared: int
) -> tuple[Value, Value, Value]:
    """Queries, keys and values over their heads; without keys they stand side by side in the queries."""
    if key is not None and value is not None:
        return split_heads(query, heads), split_heads(key, shared), split_heads(value, shared)
    if key is not None or value is not None:
        raise n.malformed("keys or values alone")
    packed = split_heads(query, heads + 2 * shared)
    q, k, v = build.split_axis(packed, (heads, shared, shared), axis=-3)
    return q, k, v


def _cached(old: Value, new: Value, before: Value, total: Size) -> Value:
    """The cache with the new positions behind those that count in each row, and zeros up to its end."""
    places = ops.iota(size=total)
    count = ops.unsqueeze(before, axes=(-1,))
    behind = places - count
    last = size_value(new.shape[-2])
    source = ops.where(ops.less(places, count), places, size_value(old.shape[-2]) + ops.clip(behind, 0, last - 1))
    shape = (*new.shape[:-2], total, new.shape[-1])
    indices = build.broadcast_to(ops.unsqueeze(source, axes=(-3, -1)), shape)
    found = ops.gather_elements(ops.concat(old, new, axis=-2), indices, axis=-2)
    return ops.where(ops.unsqueeze(ops.less(behind, last), axes=(-3, -1)), found, 0.0)
