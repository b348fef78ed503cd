"""Reductions, running reductions and orders along an axis."""
# pyright: basic, reportPrivateUsage=true
# Arrays of JAX have no types here.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dovetail.ops.special import highest, lowest
from dovetail.targets.xla.meanings.elementwise import Meaning, in_wide
from dovetail.targets.xla.package import jnp, lax


def _reduced(function: Meaning) -> Meaning:
    def meaning(x: Any, *, axes: tuple[int, ...]) -> Any:
        return function(x, axis=axes, keepdims=True).astype(x.dtype)

    return meaning


def _extreme(function: Meaning, nothing: Callable[[np.dtype[Any]], Any]) -> Meaning:
    def meaning(x: Any, *, axes: tuple[int, ...]) -> Any:
        return function(x, axis=axes, keepdims=True, initial=np.asarray(nothing(np.dtype(x.dtype)), x.dtype))

    return meaning


def _index_of(function: Meaning) -> Meaning:
    def meaning(x: Any, *, axis: int, last: bool) -> Any:
        if not last:
            return function(x, axis=axis, keepdims=True).astype(jnp.int64)
        return x.shape[axis] - 1 - function(jnp.flip(x, axis), axis=axis, keepdims=True).astype(jnp.int64)

    return meaning


def _running(function: Meaning, start: Callable[[np.dtype[Any]], Any]) -> Meaning:
    def meaning(x: Any, *, axis: int, exclusive: bool, reverse: bool) -> Any:
        if not x.shape[axis]:
            return x
        if exclusive:  # each element moves one place on, and the start moves in
            kept = lax.slice_in_dim(x, int(reverse), x.shape[axis] - int(not reverse), axis=axis + x.ndim)
            front = jnp.full_like(lax.slice_in_dim(x, 0, 1, axis=axis + x.ndim), start(np.dtype(x.dtype)))
            x = jnp.concatenate([kept, front] if reverse else [front, kept], axis)
        return function(x, axis=axis + x.ndim, reverse=reverse).astype(x.dtype)

    return in_wide(meaning)


def order(x: Any, axis: int, descending: bool) -> Any:
    """The indices that sort along an axis; equal elements keep their order, NaN is larger than every number."""
    if not descending:
        return jnp.argsort(x, axis=axis, stable=True).astype(jnp.int64)
    back = jnp.argsort(jnp.flip(x, axis), axis=axis, stable=True)
    return (x.shape[axis] - 1 - jnp.flip(back, axis)).astype(jnp.int64)


def _sort(x: Any, *, axis: int, descending: bool) -> tuple[Any, Any]:
    indices = order(x, axis, descending)
    return jnp.take_along_axis(x, indices, axis), indices


def _top_k(x: Any, *, k: int, axis: int, largest: bool, in_order: bool) -> tuple[Any, Any]:
    indices = lax.slice_in_dim(order(x, axis, largest), 0, k, axis=axis + x.ndim)
    indices = indices if in_order else jnp.sort(indices, axis)
    return jnp.take_along_axis(x, indices, axis), indices


MEANINGS: dict[str, Meaning] = {
    "reduce_sum": _reduced(jnp.sum),
    "reduce_mean": _reduced(jnp.mean),
    "reduce_prod": _reduced(jnp.prod),
    "reduce_any": _reduced(jnp.any),
    "reduce_all": _reduced(jnp.all),
    "reduce_max": _extreme(jnp.max, lowest),
    "reduce_min": _extreme(jnp.min, highest),
    "arg_max": _index_of(jnp.argmax),
    "arg_min": _index_of(jnp.argmin),
    "cum_sum": _running(lax.cumsum, lambda dtype: 0),
    "cum_prod": _running(lax.cumprod, lambda dtype: 1),
    "cum_max": _running(lax.cummax, lowest),
    "cum_min": _running(lax.cummin, highest),
    "sort": _sort,
    "top_k": _top_k,
}
