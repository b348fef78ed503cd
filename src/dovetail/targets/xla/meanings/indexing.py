"""Reading and writing by index. An index out of range is flagged: a traced function cannot raise."""
# pyright: basic, reportPrivateUsage=true
# Arrays of JAX have no types here.

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dovetail.targets.xla.meanings.elementwise import Meaning, in_wide
from dovetail.targets.xla.package import jnp


def _outside(indices: Any, size: Any) -> Any:
    """Whether indices are out of range, for each element of the first axis: it may be split over devices."""
    if jnp.issubdtype(indices.dtype, jnp.unsignedinteger):
        bad = indices.astype(jnp.uint64) >= np.asarray(size, np.uint64)  # a negative size would wrap
    else:
        wide = indices.astype(jnp.int64)
        bad = (wide < -size) | (wide >= size)
    return jnp.any(bad, axis=tuple(range(1, bad.ndim)))


def _rows_outside(x: Any, indices: Any, batch: int = 0) -> Any:
    return _outside(indices, np.asarray(x.shape[batch : batch + indices.shape[-1]]))


def _inside(indices: Any, size: int) -> Any:
    """Indices counted from the start; those out of range are some that are not, since the result is not used."""
    wide = indices.astype(jnp.int64)
    return jnp.clip(jnp.where(wide < 0, wide + size, wide), 0, max(size - 1, 0))


def _gather(x: Any, indices: Any, *, axis: int) -> Any:
    at = axis + x.ndim
    if not x.shape[at]:
        return jnp.zeros((*x.shape[:at], *indices.shape, *x.shape[at + 1 :]), x.dtype)
    return jnp.take(x, _inside(indices, x.shape[at]), axis=at)


def _along(indices: Any, size: int, axis: int) -> tuple[Any, ...]:
    places: list[Any] = list(np.indices(indices.shape, sparse=True))
    places[axis] = _inside(indices, size)
    return tuple(places)


def _gather_elements(x: Any, indices: Any, *, axis: int) -> Any:
    """Axes that are not indexed are batch axes: where one is split over devices, nothing moves."""
    at = axis + x.ndim
    if not x.size or not indices.size:
        return jnp.zeros(indices.shape, x.dtype)
    part = x[tuple(slice(None) if d == at else slice(n) for d, n in enumerate(indices.shape))]
    return jnp.take_along_axis(part, _inside(indices, x.shape[at]), axis=at, mode="promise_in_bounds")


def _rows(x: Any, indices: Any, batch: int) -> tuple[Any, ...]:
    places = list(np.indices(indices.shape[:-1], sparse=True))[:batch]
    named = [_inside(indices[..., d], x.shape[batch + d]) for d in range(indices.shape[-1])]
    return (*places, *named)


def _read(x: Any, places: tuple[Any, ...]) -> Any:
    shape = np.broadcast_shapes(*(p.shape for p in places))
    if not x.size:
        return jnp.zeros((*shape, *x.shape[len(places) :]), x.dtype)
    return x[places]


def _written(x: Any, places: tuple[Any, ...], updates: Any, reduction: str) -> Any:
    if not x.size or not updates.size:
        return x
    if reduction != "none":
        return getattr(x.at[places], reduction if reduction != "mul" else "multiply")(updates)
    # XLA writes equal places in any order. So only the last update of each place is written.
    shape = np.broadcast_shapes(*(p.shape for p in places))
    numbers = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    sizes = x.shape[: len(places)]
    last = jnp.full(sizes, -1, jnp.int64).at[places].max(numbers)
    rest = x.shape[len(places) :]
    rows = updates.reshape((math.prod(shape), *rest))
    chosen = rows[jnp.maximum(last, 0)]
    return jnp.where((last >= 0).reshape((*sizes, *(1,) * len(rest))), chosen, x)


def _scatter_elements(x: Any, indices: Any, updates: Any, *, axis: int, reduction: str) -> Any:
    return _written(x, _along(indices, x.shape[axis], axis), updates, reduction)


def _scatter_nd(x: Any, indices: Any, updates: Any, *, reduction: str) -> Any:
    return _written(x, _rows(x, indices, 0), updates, reduction)


def _wide_updates(function: Meaning) -> Meaning:
    """Sums of narrow floats are rounded once."""

    def meaning(x: Any, indices: Any, updates: Any, **attrs: Any) -> Any:
        return in_wide(lambda a, b: function(a, indices, b, **attrs))(x, updates)

    return meaning


MEANINGS: dict[str, Meaning] = {
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": lambda x, indices, *, batch: _read(x, _rows(x, indices, batch)),
    "scatter_elements": _wide_updates(_scatter_elements),
    "scatter_nd": _wide_updates(_scatter_nd),
}

FLAGS: dict[str, Meaning] = {
    "gather": lambda x, indices, *, axis: _outside(indices, x.shape[axis]),
    "gather_elements": lambda x, indices, *, axis: _outside(indices, x.shape[axis]),
    "gather_nd": lambda x, indices, *, batch: _rows_outside(x, indices, batch),
    "scatter_elements": lambda x, indices, updates, *, axis, reduction: _outside(indices, x.shape[axis]),
    "scatter_nd": lambda x, indices, updates, *, reduction: _rows_outside(x, indices),
}
"""Whether the NumPy meaning raises."""
