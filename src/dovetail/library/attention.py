"""attention: what each query takes from the values of the keys that it may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from dovetail import ops
from dovetail.declare import HANDED_ON, Change, Cost, UnwrittenError, every, fused_op, part_of_traces, typed
from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.library import masks
from dovetail.library.heads import repeated_heads
from dovetail.library.scores import Scaled, scores, swapped
from dovetail.library.softmax import Empty, Flag, softmax

Filled = Literal["last", "first", "added"]
"""When the fill takes the place of a hidden score: after the mask, before it, or never, for it is added to the score.

They differ where a query sees no key and the fill is finite, so that a fill stays where it was written.
"""


class _Asked(NamedTuple):
    """What the weights of an attention are made from."""

    q: Value
    k: Value
    mask: Value | None
    keep: Value | None
    scale: float | None
    scaled: Scaled
    softcap: float | None
    groups: int | None
    causal: bool
    window: int | None
    fill: float | None
    filled: Filled


@fused_op(
    shapes="q[b, groups*h, sq, d] k[b, h, sk, d] v[b, h, sk, dv] mask[b, 1, sq, sk] keep:bool[b, 1, sq, sk] fill=-inf",
    backward=("q", "k", "v"),
)
def attention(
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    keep: Value | None = None,
    *,
    scale: float | None = None,
    scaled: Annotated[Scaled, HANDED_ON] = "product",
    softcap: float | None = None,
    groups: int | None = None,
    causal: Flag = False,
    window: int | None = None,
    fill: float | None = None,
    filled: Filled = "last",
    zero_unseen: Flag = False,
    empty: Annotated[Empty, HANDED_ON] = "nan",
    wide: Annotated[Flag, HANDED_ON] = False,
) -> Value:
    """softmax(q @ kᵀ * scale + mask) @ v, where keys that are not kept score `fill`: the scores stay in the kernel.

    `scaled` says whether the scale is on the product or before it. `groups` query heads share one head of k and v.
    `softcap` bends scores to softcap * tanh(scores / softcap).
    A causal query sees the keys up to its own position, with a window only the last of them. `filled` says what a
    hidden key scores where there is more than the fill: "last" the fill alone, "first" the fill and the mask, "added"
    the fill and its own score. `zero_unseen` makes 0 of what a query gets that sees no key, because all are hidden or
    have a mask of -inf.
    """
    asked = _Asked(q, k, mask, keep, scale, scaled, softcap, groups, causal, window, fill, filled)
    _refuse(asked, zero_unseen)
    y = _weighted(_masked(asked), v, groups, empty, wide)
    return ops.where(_sees_any(asked), y, 0.0) if zero_unseen else y


@part_of_traces
def _weighted(masked: Value, v: Value, groups: int | None, empty: Empty, wide: Flag) -> Value:
    """What queries get for scores that are capped and masked."""
    return softmax(masked, empty=empty, wide=wide) @ repeated_heads(v, groups)


def _refuse(asked: _Asked, zero_unseen: Flag) -> None:
    """Refuse what does not go together, and what has another name."""
    _window_is_causal(asked.causal, asked.window)
    _scale_is_written(asked.scale, asked.scaled, asked.softcap)
    _hidden_keys_have_a_fill(asked.keep, asked.causal, asked.fill)
    _fill_is_last(asked.mask, asked.causal, asked.fill, asked.filled)
    _some_query_sees_nothing(asked.mask, asked.keep, asked.window, asked.fill, asked.filled, zero_unseen)


@attention.refuses
def _window_is_causal(causal: Flag, window: int | None) -> None:
    if window is not None and not causal:
        raise UnwrittenError("attention with a window that is not causal", hint="pass causal=True")


@attention.refuses
def _scale_is_written(scale: float | None, scaled: Scaled, softcap: float | None) -> None:
    """What is scaled before the product is caught with its scale: one that is not written is late."""
    if scale is None and softcap is not None:
        raise UnwrittenError("attention with a softcap and without a scale", hint="pass scale=1.0")
    if scale is None and scaled in ("queries", "both"):
        raise UnwrittenError(f"attention with its {scaled} scaled", hint="pass scaled='product'")


@attention.refuses
def _hidden_keys_have_a_fill(keep: Value | None, causal: Flag, fill: float | None) -> None:
    if (keep is None and not causal) != (fill is None):
        raise UnwrittenError("attention with hidden keys or a fill, and not both", hint="pass fill=-inf for such keys")


@attention.refuses
def _fill_is_last(mask: Value | None, causal: Flag, fill: float | None, filled: Filled) -> None:
    """Without a mask first is last, and what no position hides is a mask."""
    if filled == "first" and (fill is None or mask is None):
        raise UnwrittenError("attention filled before a mask, without both", hint="pass filled='last'")
    if filled == "added" and (not causal or mask is not None):
        raise UnwrittenError("attention with a fill added, and not by positions alone", hint="pass the sum as mask")


@attention.refuses
def _some_query_sees_nothing(
    mask: Value | None,
    keep: Value | None,
    window: int | None,
    fill: float | None,
    filled: Filled,
    zero_unseen: Flag,
) -> None:
    """A causal query sees at least its own key."""
    if zero_unseen and filled != "last":
        raise UnwrittenError("zero for queries that see nothing, filled before the end", hint="pass filled='last'")
    if zero_unseen and keep is None and mask is None and (window is None or fill is None):
        raise UnwrittenError("attention where each query sees a key", hint="pass a mask, or zero_unseen=False")


@part_of_traces
def _sees_any(asked: _Asked) -> Value:
    """Whether a query sees any key."""
    visible = _visible(asked)
    seen = None if visible is None else visible[0]
    if asked.mask is not None:
        finite = ops.not_equal(asked.mask, float("-inf"))
        seen = finite if seen is None else ops.bit_and(seen, finite)
    assert seen is not None
    return ops.reduce_any(seen, axes=(-1,))


def scores_tell_unseen(call: Mapping[str, Any]) -> bool:
    """Whether scores say which queries see no key, if that is asked: rows of finite fills look like any other."""
    return not call["zero_unseen"] or call["fill"] in (None, float("-inf"))


def zero_where_unseen(y: Value, call: Mapping[str, Any]) -> Value:
    """The result of an attention with these arguments, and 0 for queries that see no key."""
    return ops.where(_sees_any(_Asked(**{name: call[name] for name in _Asked._fields})), y, 0.0)


@part_of_traces
def _masked(asked: _Asked, rank: int = 2) -> Value:
    visible = _visible(asked, rank)
    found = _capped(asked.q, asked.k, asked.scale, asked.scaled, asked.softcap, asked.groups)
    if visible is None:
        return _plus(found, asked.mask)
    match asked.filled:
        case "last":
            return ops.where(visible[0], _plus(found, asked.mask), visible[1])
        case "first":
            return _plus(ops.where(visible[0], found, visible[1]), asked.mask)
        case "added":
            return found + ops.where(visible[0], _like(0.0, asked.q), _like(visible[1], asked.q))


def _plus(found: Value, mask: Value | None) -> Value:
    return found if mask is None else found + mask


@part_of_traces
def _capped(
    q: Value, k: Value, scale: float | None, scaled: Scaled, softcap: float | None, groups: int | None
) -> Value:
    """The scores before any mask."""
    k = repeated_heads(k, groups)
    found = q @ swapped(k) if scale is None else scores(q, k, scale=scale, scaled=scaled)
    return found if softcap is None else ops.tanh(found / softcap) * softcap


def _visible(asked: _Asked, rank: int = 2) -> tuple[Value, float] | None:
    """Whether a query may see a key and what the key scores if not; None where it sees all of them."""
    if asked.fill is None:
        return None
    return _seen(asked.q, asked.k, asked.keep, asked.causal, asked.window, rank), asked.fill


@part_of_traces
def _seen(q: Value, k: Value, keep: Value | None, causal: bool, window: int | None, rank: int) -> Value:
    """Whether a query may see a key, by positions and by what is kept."""
    seen = None
    if window is not None:
        seen = masks.sliding(q, k, window=window, rank=rank)
    elif causal:
        seen = masks.causal(q, k, rank=rank)
    if keep is not None:
        seen = keep if seen is None else ops.bit_and(seen, keep)
    assert seen is not None
    return seen


def _spelling(masked: Callable[[_Asked], Value]) -> Callable[[_Asked], Value]:
    """Declare another way to write what goes into the softmax."""

    def spelling(*operands: Any, **call: Any) -> Value:
        v, empty, wide, zero_unseen = (call.pop(name) for name in ("v", "empty", "wide", "zero_unseen"))
        asked = _Asked(**call)
        _refuse(asked, zero_unseen)
        y = _weighted(masked(asked), v, asked.groups, empty, wide)
        return ops.where(_sees_any(asked), y, 0.0) if zero_unseen else y

    spelling.__name__, spelling.__doc__ = masked.__name__, masked.__doc__
    attention.spelling(spelling)
    return masked


def _no_other_way() -> UnwrittenError:
    return UnwrittenError("options that this spelling does not write in a way of its own", hint="use the body")


@_spelling
def positions_of_rank_4_added(asked: _Asked) -> Value:
    """Positions have axes for the batch and the heads."""
    if asked.filled != "added":
        raise _no_other_way()
    return _masked(asked, 4)


@_spelling
def hidden_instead_of_kept(asked: _Asked) -> Value:
    """The mask says which keys are hidden."""
    if asked.filled != "last" or asked.causal or asked.softcap is not None or asked.groups is not None:
        raise _no_other_way()
    visible = _visible(asked)
    if visible is None:
        raise _no_other_way()
    keep, fill = visible
    found = _capped(asked.q, asked.k, asked.scale, asked.scaled, asked.softcap, asked.groups)
    return ops.where(ops.bit_not(keep), fill, _plus(found, asked.mask))


def _like(number: float, x: Value) -> Value:
    """A number of the dtype of x."""
    return leaf.scalar(number, None if x.known_type is None else x.dtype)


@attention.requires(
    reason="q is {q.type}, k is {k.type} and v is {v.type}; the kernel walks the same batches in all three, one of "
    "k and v for all of q, or one of q for all of k and v",
    hint="give keys and values the leading axes of the queries",
)
def leading_axes_agree(q: Value, k: Value, v: Value) -> bool:
    own, shared = q.shape[:-3], k.shape[:-3]
    agree = own == shared or shared == (1,) or own == (1,)
    return q.rank == k.rank and q.rank == v.rank and agree and shared == v.shape[:-3]


@attention.remedy(leading_axes_agree)
def leading_axes_of_the_queries(q: Value, k: Value, v: Value) -> Change:
    """Keys and values have the leading axes of the queries."""
    return every(lambda x: typed(x, shape=(*q.shape[:-3], *x.shape[-3:])), k=k, v=v)


@attention.requires(
    reason="the heads of q, {q.type}, do not divide into those of k, {k.type}, and of v, {v.type} (groups: {groups})",
    hint="give keys and values equally many heads",
)
def heads_divide(q: Value, k: Value, v: Value, groups: int | None) -> bool:
    own, shared = q.shape[-3:-2], k.shape[-3:-2]
    if q.rank != k.rank or q.rank != v.rank:
        return True
    if groups is not None:
        return shared == v.shape[-3:-2]
    return (own == shared or shared == (1,)) and shared == v.shape[-3:-2]


@attention.remedy(heads_divide)
def values_have_the_heads_of_keys(q: Value, k: Value, v: Value, groups: int | None) -> Change:
    """Keys and values have equally many heads, a head for each query head or for each group of them."""
    heads = k.shape[-3] if groups is not None else q.shape[-3]
    return every(lambda x: typed(x, shape=(*x.shape[:-3], heads, *x.shape[-2:])), k=k, v=v)


@attention.requires(
    reason="the result is {result.type} and q is {q.type}; a mask stretches to [.., heads, queries, keys] by its last "
    "axes, and never stretches these",
    hint="unsqueeze the mask to [batch, 1, 1, keys] or [batch, 1, queries, keys]",
)
def masks_broadcast(q: Value, k: Value, result: Value) -> bool:
    lead = k.shape[:-3] if q.shape[:-3] == (1,) else q.shape[:-3]
    return result.shape[:-3] == lead and result.shape[-3:-1] == q.shape[-3:-1]


@attention.remedy(masks_broadcast)
def queries_with_the_axes_of_the_mask(q: Value, result: Value) -> Change:
    """The queries have all axes that the mask has."""
    return {"q": typed(q, shape=(*result.shape[:-1], q.shape[-1]))}


@attention.requires(
    reason="hidden keys score {fill}, which other scores can fall below",
)
def fill_hides(fill: float | None) -> bool:
    # Models fill with -1e4, or with the lowest number of f16, which may have been divided by the root of a head's size.
    return fill is None or fill <= -4e3


@attention.remedy(fill_hides)
def filled_with_infinity() -> Change:
    """Hidden keys score -inf."""
    return {"fill": float("-inf")}


@attention.cost
def positions_are_free(**call: Any) -> Cost:
    """Keys that positions hide are skipped, not compared."""
    return masks.cost_by_position(attention, call)
