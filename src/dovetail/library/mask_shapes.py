"""Masks of every shape that models come with, brought to the axes that attention has: batch, heads, queries, keys.

Two masks of one rank can mean different things, so that each rule is asked for by its name and checks what it is given.
A mask that keeps keys is bool, one that is added is of floats; neither passes for the other.
"""

from __future__ import annotations

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bool_
from dovetail.ir.value import Value


def mask_of_keys(mask: Value, q: Value, k: Value) -> Value:
    """[batch, keys], one row for all queries and heads, as [batch, 1, 1, keys]."""
    _fits(mask, "mask_of_keys", (_batch(q), k.shape[-2]))
    return ops.unsqueeze(mask, axes=(-3, -2))


def mask_of_queries(mask: Value, q: Value, k: Value) -> Value:
    """[queries, keys], the same in every batch and head, as [1, 1, queries, keys]."""
    _fits(mask, "mask_of_queries", (q.shape[-2], k.shape[-2]))
    return ops.unsqueeze(mask, axes=(-4, -3))


def mask_of_batches(mask: Value, q: Value, k: Value) -> Value:
    """[batch, queries, keys], one for all heads, as [batch, 1, queries, keys]."""
    _fits(mask, "mask_of_batches", (_batch(q), q.shape[-2], k.shape[-2]))
    return ops.unsqueeze(mask, axes=(-3,))


def mask_of_heads(mask: Value, q: Value, k: Value) -> Value:
    """[batch, heads, queries, keys], or 1 in place of any of them, as it is."""
    _fits(mask, "mask_of_heads", (_batch(q), q.shape[-3], q.shape[-2], k.shape[-2]))
    return mask


def kept(mask: Value) -> Value:
    """Which keys stay, from bool or from whole numbers that are 0 where a key is hidden."""
    if mask.dtype is bool_:
        return mask
    if mask.dtype.is_integer:
        return ops.not_equal(mask, 0)
    raise TypeRuleError(
        f"a mask of {mask.dtype.name} where one that keeps keys is wanted", hint="a mask of floats is added to scores"
    )


def added(mask: Value, dtype: DType, *, fill: float = float("-inf")) -> Value:
    """What is added to scores, in their dtype: a mask of floats, or 0 for the keys that a bool mask keeps."""
    if mask.dtype is bool_:
        return ops.where(mask, leaf.scalar(0.0, dtype), leaf.scalar(fill, dtype))
    if mask.dtype.is_float:
        return mask if mask.dtype is dtype else ops.cast(mask, dtype=dtype)
    raise TypeRuleError(
        f"a mask of {mask.dtype.name} where one that is added is wanted",
        hint="make it bool if it keeps keys, or cast it to floats if it is a bias",
    )


def _batch(q: Value) -> Size:
    if q.rank != 4:
        raise TypeRuleError(f"a mask for queries of {q.type}", hint="bring them to [batch, heads, queries, features]")
    return q.shape[0]


def _fits(mask: Value, rule: str, wanted: tuple[Size, ...]) -> None:
    """Every axis is the one that the rule says, or 1."""
    if mask.rank == len(wanted) and all(size in (1, own) for size, own in zip(mask.shape, wanted, strict=True)):
        return
    expected = ", ".join(map(str, wanted))
    raise TypeRuleError(
        f"{rule} of {mask.type}, where [{expected}] is wanted", hint="use the rule that is named after the mask's axes"
    )
