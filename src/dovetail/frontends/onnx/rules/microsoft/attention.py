"""Attention as optimised encoders and decoders have it: with its projection, its masks and its past."""

from __future__ import annotations

from dovetail import library, ops
from dovetail.dataclass import dataclass
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.rules.microsoft.activations import MICROSOFT
from dovetail.frontends.onnx.rules.microsoft.quantised import scaled_product
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.shared.rule import Made
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.library.heads import merge_heads, split_heads
from dovetail.ops import build

_FILTER = -10000.0
_HIDDEN = float("-inf")


@dataclass(frozen=True, slots=True)
class Past:
    """Keys and values of positions in front of those that are computed, [batch, heads, sequence, features]."""

    key: Value
    value: Value


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of an attention beside its operands."""

    scale: float | None
    causal: bool
    filtered: float | None
    """What is added to the scores of keys that the mask leaves out."""


def attended(
    n: Node,
    q: Value,
    k: Value,
    v: Value,
    asked: Asked,
    *,
    mask_index: Value | None = None,
    bias: Value | None = None,
    past: Past | None = None,
) -> tuple[Value, Value, Value]:
    """softmax(q @ kᵀ * scale + masks) @ v with heads merged, and all keys and values."""
    before: Size = 0
    if past is not None:
        before = past.key.shape[-2]
        k, v = ops.concat(past.key, k, axis=-2), ops.concat(past.value, v, axis=-2)
    mask = None if mask_index is None else _added(n, mask_index, q, k, asked)
    if bias is not None:
        mask = bias if mask is None else mask + bias
    keep = None
    causal = asked.causal and q.shape[-2] != 1
    if causal and before != 0:
        keep, causal = _up_to_the_query(q, k, before), False
    hides = causal or keep is not None
    y = library.attention.body(
        q, k, v, mask, keep, scale=_scale(n, q, asked.scale), causal=causal, fill=_HIDDEN if hides else None
    )
    return merge_heads(y), k, v


def _scale(n: Node, q: Value, scale: float | None) -> float:
    if scale:
        return scale
    size = q.shape[-1]
    if isinstance(size, Dim):
        raise n.unsupported("heads whose size is not known", hint="export the model with the size of a head")
    return float(size**-0.5)


def _up_to_the_query(q: Value, k: Value, before: Size) -> Value:
    """Which keys a query sees that stands behind a past: bool[queries, keys]."""
    rows = ops.unsqueeze(ops.iota(size=q.shape[-2]), axes=(-1,))
    return ops.less_equal(ops.iota(size=k.shape[-2]), rows + size_value(before))


def _added(n: Node, mask: Value, q: Value, k: Value, asked: Asked) -> Value:
    """What is added to scores: 0 for keys that count, a low number for the others."""
    batch, rows, total = q.shape[0], q.shape[-2], k.shape[-2]
    if mask.rank == 1:
        kept = _within(n, mask, batch, total)
    elif mask.rank == 2 and mask.shape[-1] == total:
        kept = ops.unsqueeze(ops.greater(mask, 0), axes=(-3, -2))
    elif mask.rank == 3 and mask.shape[-2:] == (rows, total):
        kept = ops.unsqueeze(ops.greater(mask, 0), axes=(-3,))
    else:
        raise n.unsupported(
            f"a mask of {mask.type} for {total} keys", hint="use [batch, keys], [batch, queries, keys] or [batch]"
        )
    low = _FILTER if asked.filtered is None else asked.filtered
    return ops.where(kept, leaf.scalar(0.0, q.dtype), leaf.scalar(low, q.dtype))


def _within(n: Node, mask: Value, batch: Size, total: Size) -> Value:
    """Keys in front of where each row ends and, where that is given, from where it starts."""
    keys = ops.iota(size=total)
    if mask.shape[0] == batch:
        return ops.less(keys, _per_batch(mask))
    if mask.shape[0] != batch * 2:
        raise n.unsupported(f"a mask of {mask.type} for {batch} rows", hint="use [batch] or [2 * batch]")
    ends, starts = (ops.part(mask, axis=-1, index=i, parts=2) for i in (0, 1))
    return ops.bit_and(ops.less(keys, _per_batch(ends)), ops.greater_equal(keys, _per_batch(starts)))


def _per_batch(x: Value) -> Value:
    return ops.unsqueeze(ops.cast(x, dtype=i64), axes=(-3, -2, -1))


def _projected(
    n: Node,
    y: Value,
    heads: int,
    sizes: tuple[int, ...],
    asked: Asked,
    mask: Value | None,
    past: Value | None,
    bias: Value | None,
) -> Made:
    """Attention of what a projection made of its input: queries, keys and values side by side."""
    if not sizes:
        whole = y.shape[-1]
        if not isinstance(whole, int) or whole % 3:
            raise n.malformed(f"a projection to {whole} features")
        sizes = (whole // 3,) * 3
    q, k, v = (split_heads(part, heads) for part in build.split_axis(y, sizes, axis=-1))
    before = None if past is None else Past(*(build.select(past, axis=0, index=i) for i in (0, 1)))
    found, keys, values = attended(n, q, k, v, asked, mask_index=mask, bias=bias, past=before)
    return (found, build.stack([keys, values])) if n.makes(1) else found


@rule("Attention", domain=MICROSOFT)
def attention(
    n: Node,
    x: Value,
    weights: Value,
    bias: Value | None = None,
    mask_index: Value | None = None,
    past: Value | None = None,
    attention_bias: Value | None = None,
    past_sequence_length: Value | None = None,
    *,
    do_rotary: bool = False,
    mask_filter_value: float | None = None,
    num_heads: int,
    past_present_share_buffer: bool = False,
    qkv_hidden_sizes: tuple[int, ...] = (),
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: bool = False,
) -> Made:
    """Queries, keys and values from one projection, and their attention over heads."""
    if do_rotary or past_present_share_buffer or past_sequence_length is not None:
        raise n.unsupported("rotated or shared keys", hint="export it as RotaryEmbedding and MultiHeadAttention")
    y = x @ weights
    asked = Asked(scale, unidirectional, mask_filter_value)
    return _projected(
        n, y if bias is None else y + bias, num_heads, qkv_hidden_sizes, asked, mask_index, past, attention_bias
    )


@rule("QAttention", domain=MICROSOFT)
def q_attention(
    n: Node,
    x: Value,
    weight: Value,
    bias: Value,
    input_scale: Value,
    weight_scale: Value,
    mask_index: Value | None = None,
    input_zero_point: Value | None = None,
    weight_zero_point: Value | None = None,
    past: Value | None = None,
    *,
    do_rotary: bool = False,
    mask_filter_value: float | None = None,
    num_heads: int,
    past_present_share_buffer: bool = False,
    scale: float | None = None,
    unidirectional: bool = False,
) -> Made:
    """Attention whose projection is a product of quantised matrices."""
    if do_rotary or past_present_share_buffer:
        raise n.unsupported("rotated or shared keys", hint="export it without do_rotary and past_present_share_buffer")
    y = scaled_product(n, x, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
    return _projected(n, y, num_heads, (), Asked(scale, unidirectional, mask_filter_value), mask_index, past, None)


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    n: Node,
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    bias: Value | None = None,
    key_padding_mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_sequence_length: Value | None = None,
    cache_indirection: Value | None = None,
    *,
    mask_filter_value: float | None = None,
    num_heads: int,
    scale: float | None = None,
    unidirectional: bool = False,
) -> Made:
    """Attention over heads of queries, keys and values that are projected already."""
    if past_sequence_length is not None or cache_indirection is not None:
        raise n.unsupported("keys in a shared buffer", hint="export it with past_key and past_value alone")
    if n.makes(3):
        raise n.unsupported("scores as an output", hint="export the model without them")
    if (past_key is None) != (past_value is None):
        raise n.malformed("a past of keys or of values alone")
    q, k, v = _heads(n, query, key, value, bias, num_heads)
    if unidirectional and q.shape[-2] != k.shape[-2]:
        raise n.unsupported("unidirectional attention to another sequence", hint="write the mask")
    past = None if past_key is None or past_value is None else Past(past_key, past_value)
    asked = Asked(scale, unidirectional, mask_filter_value)
    return attended(n, q, k, v, asked, mask_index=key_padding_mask, bias=attention_bias, past=past)


def _heads(
    n: Node, query: Value, key: Value | None, value: Value | None, bias: Value | None, heads: int
) -> tuple[Value, ...]:
    """Queries, keys and values as [batch, heads, sequence, features], from any of the forms they are packed in."""
    if query.rank == 5 and key is None and value is None and bias is None:
        return tuple(_unpacked(query, i) for i in range(3))
    if query.rank != 3 or key is None:
        raise n.unsupported(f"queries of {query.type}", hint="use [batch, sequence, features]")
    if key.rank == 5 and value is None and bias is None:
        return split_heads(query, heads), _unpacked(key, 0), _unpacked(key, 1)
    if value is None:
        raise n.unsupported(f"keys of {key.type} without values", hint="pass the values")
    if key.rank == 4 and value.rank == 4 and bias is None:
        return split_heads(query, heads), key, value
    if key.rank != 3 or value.rank != 3:
        raise n.unsupported(f"keys of {key.type} with values of {value.type}", hint="use [batch, sequence, features]")
    parts = [query, key, value]
    if bias is not None:
        added = build.split_axis(bias, [p.shape[-1] for p in parts], axis=-1)
        parts = [p + b for p, b in zip(parts, added, strict=True)]
    return tuple(split_heads(p, heads) for p in parts)


def _unpacked(x: Value, index: int) -> Value:
    """One of those that stand side by side in [batch, sequence, heads, n, features]."""
    return ops.permute(build.select(x, axis=-2, index=index), order=(-2, -3, -1))
