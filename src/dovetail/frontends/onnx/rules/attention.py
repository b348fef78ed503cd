"""Attention and rotary embeddings."""

from __future__ import annotations

from dovetail import library, ops
from dovetail.dataclass import dataclass
from dovetail.frontends.onnx.importing.node import Body, Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.shared.rule import Made
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import DType, bool_, f32, f64
from dovetail.ir.value import Value
from dovetail.library import masks
from dovetail.library.heads import merge_heads, split_heads
from dovetail.ops import build

_HIDDEN = float("-inf")


@rule("Attention", since=23)
def attention(
    n: Node,
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    nonpad_kv_seqlen: Value | None = None,
    *,
    is_causal: bool = False,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: DType | None = None,
) -> Made:
    """softmax(q @ kᵀ * scale + mask) @ v over heads, with keys and values of the past in front."""
    packed = q.rank == 3
    if packed:
        if not q_num_heads or not kv_num_heads:
            raise n.malformed("q_num_heads or kv_num_heads is missing", hint="inputs of rank 3 need both")
        q, k, v = split_heads(q, q_num_heads), split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
    _check(n, q, k, v)
    if (past_key is None) != (past_value is None) or (past_key is not None and nonpad_kv_seqlen is not None):
        raise n.malformed("a past that is not one of keys and values alone", hint="give both, or nonpad_kv_seqlen")
    if past_key is not None and past_value is not None:
        k, v = ops.concat(past_key, k, axis=-2), ops.concat(past_value, v, axis=-2)
    if not 0 <= qk_matmul_output_mode <= 3:
        raise n.malformed(f"qk_matmul_output_mode {qk_matmul_output_mode}", hint="it is 0 to 3")
    window = _Window(is_causal, left_window_size, right_window_size)
    raw = _scores(n, q, _widened(n, k, q), scale)
    capped = raw if softcap == 0.0 else ops.tanh(raw / softcap) * softcap
    mask, keep = _masks(n, attn_mask, k)
    biased = capped if mask is None else capped + cast(mask, capped.dtype)
    visible = _visible(window, keep, q, k, None if past_key is None else past_key.shape[-2], nonpad_kv_seqlen)
    if visible is not None:
        biased = ops.where(visible, biased, _HIDDEN)
    weights = cast(library.softmax.body(cast(biased, softmax_precision or q.dtype)), q.dtype)
    y = weights @ _widened(n, v, q)
    sees = _sees_any(window, mask, keep, visible, nonpad_kv_seqlen)
    if sees is not None:
        # What no key is visible to is zero, and not the NaN of an empty softmax; any other NaN stays.
        y = ops.where(sees, y, 0.0)
        weights = ops.where(sees, weights, 0.0) if n.makes(3) else weights
    shown = (raw, capped, biased, weights)[qk_matmul_output_mode]
    return merge_heads(y) if packed else y, k, v, shown


@dataclass(frozen=True, slots=True)
class _Window:
    """Which keys positions hide: those behind the query, and those too far on either side."""

    causal: bool
    left: int
    right: int

    @property
    def ends_at_the_query(self) -> bool:
        return self.causal or self.right == 0


def _check(n: Node, q: Value, k: Value, v: Value) -> None:
    if not q.rank == k.rank == v.rank == 4:
        raise n.malformed(f"{q.type}, {k.type} and {v.type}", hint="they are [batch, heads, sequence, features]")
    if not q.dtype is k.dtype is v.dtype:
        raise n.unsupported(f"{q.dtype}, {k.dtype} and {v.dtype} together", hint="cast them to one type")


def _scores(n: Node, q: Value, k: Value, scale: float | None) -> Value:
    """q @ kᵀ, scaled. Narrow types scale both sides before, so that nothing overflows in between."""
    size = q.shape[-1]
    if isinstance(size, Dim):
        raise n.unsupported("heads whose size is not known", hint="export the model with the size of a head")
    factor = size**-0.5 if scale is None else scale
    keys = ops.permute(k, order=(-1, -2))
    if q.dtype.bits < 32 and factor > 0.0:
        root = factor**0.5
        return (q * root) @ (keys * root)
    return (q @ keys) * factor


def _widened(n: Node, x: Value, q: Value) -> Value:
    """Each head once for every query head that shares it; a single one stretches by itself."""
    own, heads = x.shape[-3], q.shape[-3]
    if own in (heads, 1):
        return x
    if not (isinstance(own, int) and isinstance(heads, int) and heads % own == 0):
        raise n.malformed(f"{heads} heads of queries for {own} of keys and values")
    return build.repeat(x, heads // own, axis=-3)


def _masks(n: Node, mask: Value | None, k: Value) -> tuple[Value | None, Value | None]:
    """The mask as what is added and what is kept, one of them; keys behind its end are hidden."""
    if mask is None:
        return None, None
    if mask.dtype is not bool_ and not mask.dtype.is_float:
        raise n.unsupported(f"a mask of {mask.dtype}", hint="use bool or floats")
    total, given = k.shape[-2], mask.shape[-1]
    if given != total and not (given == 1 and n.version < 24):
        mask = ops.pad(mask, mask.dtype is not bool_ and _HIDDEN, axis=-1, after=total - given)
    return (None, mask) if mask.dtype is bool_ else (mask, None)


def _visible(
    window: _Window, keep: Value | None, q: Value, k: Value, past: Size | None, valid: Value | None
) -> Value | None:
    """Whether a query may see a key, by positions, by a mask and by how many keys are valid."""
    seen = [s for s in (_by_position(window, q, k, past, valid), keep) if s is not None]
    if valid is not None:
        seen.append(ops.less(ops.iota(size=k.shape[-2]), ops.unsqueeze(valid, axes=(-3, -2, -1))))
    found: Value | None = None
    for one in seen:
        found = one if found is None else ops.bit_and(found, one)
    return found


def _by_position(window: _Window, q: Value, k: Value, past: Size | None, valid: Value | None) -> Value | None:
    if past is None and valid is None and window.ends_at_the_query:
        # Positions from the first key on, in the form that the library knows.
        return masks.causal(q, k) if window.left < 0 else masks.sliding(q, k, window=window.left + 1)
    if not window.causal and window.left < 0 and window.right < 0:
        return None
    keys, queries = ops.iota(size=k.shape[-2]), ops.unsqueeze(ops.iota(size=q.shape[-2]), axes=(-1,))
    if past is not None:
        queries = queries + (ops.extent(size=past) if isinstance(past, Dim) else past)
    elif valid is not None:
        queries = queries + ops.unsqueeze(valid - _number(q.shape[-2]), axes=(-3, -2, -1))
    seen: list[Value] = []
    if window.left >= 0:
        seen.append(ops.less(queries - (window.left + 1), keys))
    if window.ends_at_the_query:
        seen.append(ops.less_equal(keys, queries))
    elif window.right >= 0:
        seen.append(ops.less_equal(keys, queries + window.right))
    return seen[0] if len(seen) == 1 else ops.bit_and(*seen)


def _number(size: Size) -> Value | int:
    return ops.extent(size=size) if isinstance(size, Dim) else size


def _sees_any(
    window: _Window, mask: Value | None, keep: Value | None, visible: Value | None, valid: Value | None
) -> Value | None:
    """Whether a query sees any key; None where each one does."""
    sees = None
    if keep is not None or valid is not None or window.left >= 0 or window.right >= 0:
        sees = visible
    if mask is not None:
        finite = ops.not_equal(mask, _HIDDEN)
        sees = finite if visible is None else ops.bit_and(visible, finite)
    return None if sees is None else ops.reduce_any(sees, axes=(-1,))


@rule("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    n: Node,
    q: Value,
    k: Value,
    v: Value,
    *,
    prob_mod: Body | None = None,
    scale: float | None = None,
    score_mod: Body | None = None,
    softmax_precision: DType | None = None,
) -> Value:
    """Attention with graphs of the model's own that change the scores and the weights."""
    _check(n, q, k, v)
    wide = softmax_precision or (f64 if q.dtype is f64 else f32)
    scores = cast(_scores(n, q, _widened(n, k, q), scale), wide)
    if score_mod is not None:
        (scores,) = score_mod(scores)
    weights = library.softmax.body(scores)
    if prob_mod is not None:
        (weights,) = prob_mod(weights)
    return cast(weights, q.dtype) @ _widened(n, v, q)


@rule("RotaryEmbedding", since=23)
def rotary_embedding(
    n: Node,
    x: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value | None = None,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Value:
    """Pairs of features rotated by angles that tell the position."""
    packed = x.rank == 3
    if packed and not num_heads:
        raise n.malformed("num_heads is missing", hint="an input of rank 3 needs it")
    heads = split_heads(x, num_heads) if packed else x
    cos, sin = (_angles(c, position_ids, interleaved) for c in (cos_cache, sin_cache))
    form = "interleaved" if interleaved else "half"
    whole = heads.shape[-1]
    if rotary_embedding_dim in (0, whole):
        turned = library.rope.body(heads, cos, sin, form=form)
    else:
        first = ops.slice_(heads, axis=-1, start=0, stop=rotary_embedding_dim)
        rest = ops.slice_(heads, axis=-1, start=rotary_embedding_dim, stop=whole)
        turned = ops.concat(library.rope.body(first, cos, sin, form=form), rest, axis=-1)
    return merge_heads(turned) if packed else turned


def _angles(cache: Value, positions: Value | None, interleaved: bool) -> Value:
    """One row of a cache for each position, each angle at both features of its pair: [batch, 1, sequence, features]."""
    rows = cache if positions is None else ops.gather(cache, positions, axis=0)
    wide = build.repeat(rows, 2, axis=-1) if interleaved else ops.concat(rows, rows, axis=-1)
    return ops.unsqueeze(wide, axes=(-3,))
