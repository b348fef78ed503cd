"""Operators that make tensors from numbers and sizes."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import Number, rule
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import bool_, f32, f64, i64
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("arange.default")
def arange_to(n: Node, end: Number) -> Value:
    """0, 1, 2, … below end."""
    return _range(n, 0, 1)


@rule("arange.start")
def arange_from(n: Node, start: Number, end: Number) -> Value:
    """start, start + 1, … below end."""
    return _range(n, start, 1)


@rule("arange.start_step")
def arange(n: Node, start: Number, end: Number, step: Number = 1) -> Value:
    """start, start + step, … up to before end."""
    return _range(n, start, step)


def _range(n: Node, start: Number, step: Number) -> Value:
    wide = i64 if not any(isinstance(v, float) for v in (start, step)) else f64
    numbers = ops.iota(size=n.shape[0], dtype=i64)
    if wide is f64:
        numbers = ops.cast(numbers, dtype=f64)
    if step != 1:
        numbers = numbers * n.value(step, wide)
    if start != 0:
        numbers = numbers + n.value(start, wide)
    return cast(numbers, n.dtype)


@rule("full.default", "new_full.default", "full_like.default")
def full(n: Node, *arguments: Any) -> Value:
    """One number everywhere."""
    number = arguments[-1]
    return build.broadcast_to(n.value(number, n.dtype), n.shape)


@rule("scalar_tensor.default")
def scalar_tensor(n: Node, s: Number) -> Value:
    """A number as a tensor."""
    return n.value(s, n.dtype)


@rule(
    "zeros.default",
    "zeros_like.default",
    "new_zeros.default",
    "empty.memory_format",
    "empty_like.default",
    "empty_permuted.default",
    "empty_strided.default",
    "new_empty.default",
    "new_empty_strided.default",
)
def zeros(n: Node, *_: Any) -> Value:
    """Zeros, also where torch leaves the content open."""
    return build.zeros(n.shape, n.dtype)


@rule("ones.default", "ones_like.default", "new_ones.default")
def ones(n: Node, *_: Any) -> Value:
    """Ones."""
    return build.full(n.shape, True if n.dtype is bool_ else 1, n.dtype)


@rule("fill.Scalar", "fill.Tensor")
def fill(n: Node, x: Value, value: Number) -> Value:
    """One number in the shape of another tensor."""
    return build.broadcast_to(n.value(value, n.dtype), n.shape)


@rule("eye.default", "eye.m")
def eye(n: Node, *_: Any) -> Value:
    """The identity matrix."""
    rows, columns = n.shape
    return cast(ops.equal(ops.unsqueeze(ops.iota(size=rows), axes=(-1,)), ops.iota(size=columns)), n.dtype)


@rule("tril_indices.default", "triu_indices.default")
def triangle_indices(n: Node, row: int, col: int, offset: int = 0) -> Value:
    """The indices of a triangle of a matrix."""
    if any(isinstance(s, Dim) for s in (row, col)):
        raise n.unsupported("sizes that are not known", hint="export the model with fixed sizes")
    made = (np.tril_indices if n.op_type.startswith("tril") else np.triu_indices)(row, offset, col)
    return leaf.constant(np.stack(made).astype(n.dtype.numpy))


def _key(n: Node) -> Value:
    return leaf.constant(np.array((0x746F7263, zlib.crc32(n.call.name.encode())), np.uint32))


@rule("rand.default", "rand_like.default")
def rand(n: Node, *_: Any) -> Value:
    """Uniform random numbers; not torch's stream, and the same in every run."""
    return ops.random_uniform(_key(n), shape=n.shape, dtype=n.dtype)


@rule("randn.default", "randn_like.default")
def randn(n: Node, *_: Any) -> Value:
    """Normal random numbers; not torch's stream, and the same in every run."""
    return ops.random_normal(_key(n), shape=n.shape, dtype=n.dtype)


@rule("uniform.default")
def uniform(n: Node, x: Value, low: float = 0.0, high: float = 1.0) -> Value:
    """Uniform random numbers between bounds; not torch's stream."""
    return ops.random_uniform(_key(n), shape=n.shape, low=float(low), high=float(high), dtype=n.dtype)


@rule("normal_functional.default")
def normal(n: Node, x: Value, mean: float = 0.0, std: float = 1.0) -> Value:
    """Normal random numbers; not torch's stream."""
    return ops.random_normal(_key(n), shape=n.shape, mean=float(mean), deviation=float(std), dtype=n.dtype)


@rule("exponential.default")
def exponential(n: Node, x: Value, lambd: float = 1.0) -> Value:
    """Exponential random numbers; not torch's stream."""
    return -ops.log1p(-ops.random_uniform(_key(n), shape=n.shape, dtype=n.dtype)) / float(lambd)


@rule("bernoulli.p", "bernoulli.Tensor")
def bernoulli(n: Node, x: Value, p: Number = 0.5) -> Value:
    """1 with a probability, else 0; not torch's stream."""
    return cast(ops.less(ops.random_uniform(_key(n), shape=n.shape, dtype=f32), n.value(p, f32)), n.dtype)


@rule("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def normal_around(n: Node, mean: Number, std: Number = 1.0) -> Value:
    """Normal random numbers around means; not torch's stream."""
    drawn = ops.random_normal(_key(n), shape=n.shape, dtype=n.dtype)
    return drawn * n.value(std, n.dtype) + n.value(mean, n.dtype)


@rule("normal.float_float")
def normal_sized(n: Node, mean: float, std: float, size: Any) -> Value:
    """Normal random numbers in a shape; not torch's stream."""
    return ops.random_normal(_key(n), shape=n.shape, mean=float(mean), deviation=float(std), dtype=n.dtype)


@rule("linspace.default")
def linspace(n: Node, start: Number, end: Number, steps: Size) -> Value:
    """Numbers at equal distances from start to end."""
    if not n.dtype.is_float or isinstance(start, Value) or isinstance(end, Value):
        raise n.unsupported("bounds that are tensors, or integers", hint="pass floats")
    if not isinstance(steps, int):
        raise n.unsupported("a number of steps that is not known", hint="export the model with a fixed size")
    low, high = _real(start), _real(end)
    step = (high - low) / (steps - 1) if steps > 1 else 0.0
    numbers = [low + step * i if i < (steps + 1) // 2 else high - step * (steps - 1 - i) for i in range(steps)]
    return leaf.constant(np.array(numbers[:1] if steps == 1 else numbers, n.dtype.numpy))


def _real(number: Any) -> float:
    return float(number)
