"""Primitives that move elements and compute nothing, and tensors computed from sizes."""
# pyright: basic, reportPrivateUsage=true
# Arrays of JAX have no types here.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dovetail.ir.dtype import DType
from dovetail.ops.generate import threefry
from dovetail.targets.xla.package import jnp, lax


def _split(x: Any, *, axis: int, parts: int | None, size: int | None) -> Any:
    at = axis + x.ndim
    outer = parts if parts is not None else x.shape[at] // size
    inner = size if size is not None else x.shape[at] // parts
    return x.reshape((*x.shape[:at], outer, inner, *x.shape[at + 1 :]))


def _merge(x: Any, *, axis: int, count: int) -> Any:
    first = axis + x.ndim - count + 1
    return x.reshape((*x.shape[:first], math.prod(x.shape[first : first + count]), *x.shape[first + count :]))


def _permute(x: Any, *, order: tuple[int, ...]) -> Any:
    kept = x.ndim - len(order)
    return jnp.transpose(x, (*range(kept), *(a + x.ndim for a in order)))


def _slice(x: Any, *, axis: int, start: int, stop: int, step: int) -> Any:
    index: list[slice] = [slice(None)] * x.ndim
    index[axis] = slice(start, stop, step)
    return x[tuple(index)]


def _part(x: Any, *, axis: int, index: int, parts: int) -> Any:
    size = x.shape[axis] // parts
    return lax.slice_in_dim(x, index * size, (index + 1) * size, axis=axis + x.ndim)


def _expand(x: Any, *, axis: int, size: int) -> Any:
    at = axis + x.ndim
    return jnp.broadcast_to(x, (*x.shape[:at], size, *x.shape[at + 1 :]))


def _pad(x: Any, value: Any, *, axis: int, before: int, after: int) -> Any:
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (before, after, 0)
    return lax.pad(x, value, config)


def _random_bits(key: Any, *, shape: tuple[int, ...], dtype: DType) -> Any:
    counter = jnp.arange(math.prod(shape), dtype=jnp.uint64)
    low, high = threefry((key[0], key[1]), counter.astype(jnp.uint32), (counter >> 32).astype(jnp.uint32))
    block = low.astype(jnp.uint64) | (high.astype(jnp.uint64) << 32)
    return block.astype(dtype.numpy).reshape(shape)


MEANINGS: dict[str, Callable[..., Any]] = {
    "split": _split,
    "merge": _merge,
    "permute": _permute,
    "slice": _slice,
    "part": _part,
    "expand": _expand,
    "pad": _pad,
    "unsqueeze": lambda x, *, axes: jnp.expand_dims(x, axes),
    "squeeze": lambda x, *, axes: jnp.squeeze(x, axes),
    "concat": lambda *xs, axis: jnp.concatenate(xs, axis),
    "flip": lambda x, *, axes: jnp.flip(x, axes),
    "sized": lambda x, *, axis, size: x,
    "again": lambda x: lax.optimization_barrier(x),
    "stop_gradient": lambda x: x,
    "iota": lambda *, size, dtype: jnp.arange(size).astype(dtype.numpy),
    "extent": lambda *, size, dtype: jnp.asarray(size).astype(dtype.numpy),
    "random_bits": _random_bits,
}
