"""The forms of a model for training and for evaluation: dropout, keys of random numbers, batch norm, precision."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dovetail import ops
from dovetail.derive.unfuse import unfuse
from dovetail.errors import OptionError
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, f32, u32
from dovetail.ir.graph import Graph, walk_into
from dovetail.ir.literal import Array
from dovetail.ir.rewrite import rebuild
from dovetail.ir.value import Value
from dovetail.ops import adjoint, build
from dovetail.ops.generate import threefry

KEY = "train.key"
"""The input with the key of a step's random numbers."""
_PLACE = 0x706C6163
"""The first half of the keys of places."""
_PRODUCTS = (ops.matmul, ops.dot, ops.conv, ops.conv_transpose)
_MOVES = (ops.unsqueeze, ops.squeeze, ops.split, ops.merge, ops.expand, ops.sized, ops.cast)


def dropout(x: Value, ratio: float, *, place: str) -> Value:
    """x with a share of its elements left out by chance and the others scaled up, in training alone.

    A trainer draws from its seed, the step and the place: each use in a model has a place of its own.
    """
    if not 0 <= ratio < 1:
        raise OptionError(f"a dropout of {ratio}", hint="pass a share from 0 to below 1")
    key = leaf.constant(np.array([_PLACE, zlib.crc32(place.encode())], np.uint32))
    return ops.dropout(x, key, ratio=float(ratio))[0] if ratio else x


def step_key(seed: int, step: int, part: int) -> Array:
    """Return the key of a step and a micro-batch of it: a block of Threefry under the seed."""
    key = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32 & 0xFFFFFFFF)
    with np.errstate(over="ignore"):
        low, high = threefry(key, np.array([step], np.uint32), np.array([part], np.uint32))
    return np.concatenate([low, high])


def keyed(graph: Graph) -> Graph:
    """Add an input to the graph, the key of a step, which every constant key of random numbers is combined with."""
    key = leaf.input(KEY, u32[2])

    def combined(value: Value, operands: tuple[Value, ...]) -> Value | None:
        if value.op is ops.random_bits and operands[0].op is leaf.CONST:
            return value.with_operands((ops.bit_xor(operands[0], key),))
        return None

    if not any(v.op is ops.random_bits for v in walk_into(graph.outputs.values())):
        return graph
    combined_graph = rebuild(graph, combined, into_subgraphs=False)
    return replace(combined_graph, inputs=(*combined_graph.inputs, key), moved={}, reread=None)


def evaluation_form(graph: Graph) -> Graph:
    """Return the graph without dropout."""

    def whole(value: Value, operands: tuple[Value, ...]) -> Value | None:
        return operands[1].operands[0] if _is_dropout(value) else None

    simplified = rebuild(graph, whole)
    return simplified if simplified is graph else replace(simplified, moved={}, reread=None)


def _is_dropout(value: Value) -> bool:
    """Return whether a value is what `ops.dropout` makes."""
    if value.op is not ops.where or leaf.scalar_of(value.operands[2]) != 0:
        return False
    mask, scaled, _ = value.operands
    if mask.op is not ops.greater_equal or scaled.op is not ops.mul:
        return False
    source = mask.operands[0]
    while source.op in (ops.mul, ops.cast, ops.shift_right):
        source = source.operands[0]
    return source.op is ops.random_bits


class Normed(NamedTuple):
    """A graph whose batch norms use the statistics of their batch, and the stored ones after the step, by name."""

    graph: Graph
    statistics: Mapping[str, Value]


def with_batch_statistics(graph: Graph, momentum: float) -> Normed:
    """Turn batch norms with stored statistics into those of training; the stored ones move by `momentum`.

    A batch norm is (x - mean) * rsqrt(variance + eps) of two parameters that have one number for each channel. The
    stored variance is moved to the unbiased one, as in PyTorch.
    """
    spelled = unfuse(graph, keep=lambda value: value.op.keeps_its_gradient)
    moved: dict[str, Value] = {}

    def trained(value: Value, operands: tuple[Value, ...]) -> Value | None:
        norm = _batch_norm(value)
        if norm is None:
            return None
        x = operands[0].operands[0]
        axes = tuple(a for a in range(-x.rank, 0) if a < -norm.shift.rank or norm.shift.shape[a] == 1 != x.shape[a])
        mean = ops.reduce_mean(x, axes=axes)
        centred = x - mean
        variance = ops.reduce_mean(centred * centred, axes=axes)
        count = adjoint.count([x.shape[a] for a in axes], x.dtype)
        for stored, now in ((norm.mean, mean), (norm.variance, variance * (count / (count - 1.0)))):
            flat = ops.cast(build.reshape(now, stored.shape), dtype=stored.dtype)
            moved[str(stored.attrs["name"])] = stored * (1.0 - momentum) + flat * momentum
        return centred * ops.rsqrt(variance + norm.eps)

    if not any(_batch_norm(v) is not None for v in spelled.values):
        return Normed(graph, {})
    trained_graph = rebuild(spelled, trained, into_subgraphs=False)
    return Normed(graph, {}) if not moved else Normed(replace(trained_graph, moved={}, reread=None), moved)


class _BatchNorm(NamedTuple):
    mean: Value
    variance: Value
    shift: Value
    """The mean as it broadcasts."""
    eps: Value


def _batch_norm(value: Value) -> _BatchNorm | None:
    if value.op is not ops.mul:
        return None
    centred, root = value.operands
    if centred.op is not ops.sub or root.op is not ops.rsqrt or root.operands[0].op is not ops.add:
        return None
    spread, eps = root.operands[0].operands
    mean, variance = _stored(centred.operands[1]), _stored(spread)
    if mean is None or variance is None or mean.type != variance.type or mean is variance:
        return None
    x, shift = centred.operands
    per_channel = x.rank >= 2 and sum(size != 1 for size in shift.shape) <= 1 and shift.rank in (x.rank, x.rank - 1)
    return _BatchNorm(mean, variance, shift, eps) if per_channel and shift.rank + 1 >= x.rank else None


def _stored(value: Value) -> Value | None:
    """Return the parameter that a value only moves."""
    while value.op in _MOVES:
        value = value.operands[0]
    return value if value.op is leaf.PARAM else None


def with_products_in(graph: Graph, dtype: DType) -> Graph:
    """Return the graph whose products of f32 are computed in a narrower dtype; all else, the weights too, stays f32."""
    spelled = unfuse(graph, keep=lambda value: value.op.differentiates_by_row)

    def narrowed(value: Value, operands: tuple[Value, ...]) -> Value | None:
        if value.op not in _PRODUCTS or value.dtype is not f32:
            return None
        narrow = [ops.cast(v, dtype=dtype) for v in operands]
        return ops.cast(value.with_operands(tuple(narrow)), dtype=f32)

    narrowed_graph = rebuild(spelled, narrowed, into_subgraphs=False)
    return replace(narrowed_graph, moved={}, reread=None)


__all__ = [
    "KEY", "Normed", "dropout", "evaluation_form", "keyed", "step_key", "with_batch_statistics", "with_products_in",
]  # fmt: skip
