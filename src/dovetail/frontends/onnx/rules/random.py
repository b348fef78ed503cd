"""Random tensors. The numbers are those of Threefry under a key, the same on every machine and in every run.

The key comes from the seed of the node. A node without one has a key of its own, which its name decides.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.shared.rule import Made
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, DType, bool_, f32, f64, i32
from dovetail.ir.value import Value
from dovetail.ops import build

NO_SEED = 0x646F7665
"""The first half of the keys of nodes without a seed."""


def _key(n: Node, seed: float | None) -> Value:
    if seed is None:
        words = NO_SEED, zlib.crc32(n.name.encode())
    elif isinstance(seed, int):
        words = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    else:
        words = struct.unpack("<I", struct.pack("<f", seed))[0], 0
    return leaf.constant(np.array(words, np.uint32))


@rule("RandomNormal")
def random_normal(
    n: Node,
    *,
    shape: tuple[int, ...],
    dtype: DType = f32,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Value:
    """Numbers of a normal distribution."""
    return ops.random_normal(_key(n, seed), shape=shape, mean=mean, deviation=scale, dtype=_float(n, dtype))


@rule("RandomNormalLike")
def random_normal_like(
    n: Node, x: Value, *, dtype: DType | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Value:
    """Numbers of a normal distribution in the shape of another tensor."""
    of = _float(n, dtype or x.dtype)
    return ops.random_normal(_key(n, seed), shape=x.shape, mean=mean, deviation=scale, dtype=of)


@rule("RandomUniform")
def random_uniform(
    n: Node,
    *,
    shape: tuple[int, ...],
    dtype: DType = f32,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
) -> Value:
    """Numbers of a uniform distribution from low to high."""
    return ops.random_uniform(_key(n, seed), shape=shape, low=low, high=high, dtype=_float(n, dtype))


@rule("RandomUniformLike")
def random_uniform_like(
    n: Node, x: Value, *, dtype: DType | None = None, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Value:
    """Numbers of a uniform distribution from low to high in the shape of another tensor."""
    of = _float(n, dtype or x.dtype)
    return ops.random_uniform(_key(n, seed), shape=x.shape, low=low, high=high, dtype=of)


@rule("Bernoulli")
def bernoulli(n: Node, x: Value, *, dtype: DType | None = None, seed: float | None = None) -> Value:
    """1 with the probability that each element of a tensor is, else 0."""
    drawn = f64 if x.dtype is f64 else f32
    unit = ops.random_uniform(_key(n, seed), shape=x.shape, dtype=drawn)
    return ops.cast(ops.less(unit, ops.cast(x, dtype=drawn)), dtype=dtype or x.dtype)


@rule("Multinomial")
def multinomial(n: Node, x: Value, *, dtype: DType = i32, sample_size: int = 1, seed: float | None = None) -> Value:
    """Classes drawn from rows of unnormalised log probabilities."""
    if x.rank != 2 or sample_size < 1:
        raise n.malformed(f"{sample_size} samples of {x.tensor}", hint="one or more samples of [batch, classes]")
    batch, classes = x.shape
    drawn = f64 if x.dtype is f64 else f32
    unit = ops.random_uniform(_key(n, seed), shape=(batch, sample_size, classes), dtype=drawn)
    # The largest of log probabilities with Gumbel noise is a draw from them.
    noisy = build.expand_dims(ops.cast(x, dtype=drawn), -2) - ops.log(-ops.log(unit))
    return ops.cast(build.squeeze_dims(ops.arg_max(noisy, axis=-1), -1), dtype=dtype)


@rule("Dropout", since=12)
def dropout(
    n: Node, x: Value, ratio: Value | None = None, training_mode: Value | None = None, *, seed: int | None = None
) -> Made:
    """The tensor as it is, and a mask that is true; in training, elements left out by chance and the others scaled."""
    whole = build.full(x.shape, True, bool_)
    flag = None if training_mode is None else n.known(training_mode)
    if training_mode is None or (flag is not None and not flag.item()):
        return x, whole
    share = leaf.scalar(0.5, f32) if ratio is None else build.reshape(ratio, ())
    dropped, mask = ops.dropout(x, _key(n, seed), ratio=share)
    if flag is not None:
        return dropped, mask
    training = build.reshape(training_mode, ())
    return ops.where(training, dropped, x), ops.where(training, mask, whole)


@rule("Dropout", since=10, until=11)
def dropout_of_inference(n: Node, x: Value, *, ratio: float = 0.5) -> Made:
    """The tensor as it is, and a mask that is true."""
    return x, build.full(x.shape, True, bool_)


@rule("Dropout", since=7, until=9)
def dropout_with_numbers(n: Node, x: Value, *, ratio: float = 0.5) -> Made:
    """The tensor as it is, and a mask of ones."""
    return x, build.full_like(x, 1)


@rule("Dropout", until=6)
def dropout_unless_test(
    n: Node,
    x: Value,
    *,
    is_test: bool = False,
    ratio: float = 0.5,
    consumed_inputs: tuple[int, ...] = (),  # where memory may be used again: no matter of values
) -> Made:
    """The tensor as it is in tests; else elements left out by chance and the others scaled, with the mask."""
    if is_test or ratio == 0:
        return x, build.full_like(x, 1)
    dropped, mask = ops.dropout(x, _key(n, None), ratio=leaf.scalar(ratio, f32))
    return dropped, ops.cast(mask, dtype=x.dtype)


def _float(n: Node, dtype: DType) -> DType:
    if dtype not in FLOATS:
        raise n.malformed(f"random numbers of {dtype.name}", hint="they are floats; give dtype")
    return dtype
