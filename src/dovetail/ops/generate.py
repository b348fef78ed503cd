"""Tensors made from nothing but sizes, and random ones from a key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.errors import BindError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import FLOATS, INTEGERS, NUMBERS, UNSIGNED, DType, f32, f64, i64, u32, u64
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops import elementwise, movement
from dovetail.ops.gradient import NO_OPERAND, NOT_FLOAT
from dovetail.ops.primitive import Array, DTypeAttr, Fresh, SizeAttr, Sizes, family, no_flops, primitive
from dovetail.ops.rules import tensor

LARGEST_COUNT = 2**40
"""No axis is longer; a number beyond it is a mistake, and would take all memory."""


def _numbers(facts: Facts, dtype: DType) -> None:
    if dtype not in NUMBERS:
        raise TypeRuleError(f"{facts.op} of {dtype.name}", hint="count in a type of numbers, then compare")


def _iota(facts: Facts, *, size: Size, dtype: DType) -> Type:
    _numbers(facts, dtype)
    facts.at_least(size, 0, "how far to count")
    return TensorType(dtype, (size,))


@primitive(_iota, flops=no_flops, pull=NO_OPERAND)
def iota(*, size: SizeAttr, dtype: DTypeAttr = i64) -> Array:
    """0, 1, 2, … below size."""
    return np.arange(int(size)).astype(dtype.numpy)


def _counting(facts: Facts, n: Type, *, count: Size) -> Type:
    of = tensor(n)
    if of.rank != 0 or of.dtype not in INTEGERS:
        raise TypeRuleError(f"counting up to {of}", hint="count up to one integer: cast and squeeze it")
    return TensorType(i64, (count,))


@primitive(_counting, flops=no_flops, pull=NOT_FLOAT)
def counting(n: Array, *, count: Fresh) -> Array:
    """0, 1, 2, … below a number that the run finds; `count` is how many."""
    stop = int(n)
    if not 0 <= stop <= LARGEST_COUNT:
        raise BindError(f"counting up to {stop}", hint=f"a size that is computed goes from 0 to {LARGEST_COUNT:,}")
    if isinstance(count, int) and stop != count:
        raise BindError(f"counting found {stop} where {count} were promised", hint="bind it to what is computed")
    return np.arange(stop)


def _extent(facts: Facts, *, size: Size, dtype: DType) -> Type:
    _numbers(facts, dtype)
    return TensorType(dtype, ())


@primitive(_extent, flops=no_flops, pull=NO_OPERAND)
def extent(*, size: SizeAttr, dtype: DTypeAttr = i64) -> Array:
    """A size as a number to compute with."""
    return np.array(size).astype(dtype.numpy)


def eye(*, rows: Size, columns: Size, offset: int = 0, dtype: DType = f32) -> Value:
    """1 on a diagonal, the main one or `offset` to the right of it, 0 elsewhere."""
    return elementwise.cast(elementwise.equal(_row(rows) + offset, iota(size=columns)), dtype=dtype)


def lower_triangle(*, rows: Size, columns: Size, offset: int = 0) -> Value:
    """True on and below a diagonal, the main one or `offset` to the right of it."""
    return elementwise.greater_equal(_row(rows) + offset, iota(size=columns))


def _row(rows: Size) -> Value:
    return movement.unsqueeze(iota(size=rows), axes=(-1,))


def _random_bits(facts: Facts, key: Type, *, shape: tuple[Size, ...], dtype: DType) -> Type:
    key_type = tensor(key)
    if key_type.dtype is not u32 or key_type.shape != (2,):
        raise TypeRuleError(f"{facts.op} from a key of {key_type}", hint="a key is u32[2]")
    if dtype not in UNSIGNED:
        raise TypeRuleError(f"{facts.op} of {dtype.name}", hint="bits are u8, u16, u32 or u64")
    for size in shape:
        facts.at_least(size, 0, "a size of random bits")
    return TensorType(dtype, shape)


@primitive(_random_bits, flops=lambda result, operands, attrs: tensor(result).count * 100, pull=NOT_FLOAT)
def random_bits(key: Array, *, shape: Sizes, dtype: DTypeAttr = u32) -> Array:
    """Random bits: element i is the low bits of block i of Threefry-2x32-20 under the key, on every machine."""
    counter = np.arange(math.prod(shape), dtype=np.uint64)
    low, high = threefry(
        (np.uint32(key[0]), np.uint32(key[1])), counter.astype(np.uint32), (counter >> np.uint64(32)).astype(np.uint32)
    )
    block = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
    return block.astype(dtype.numpy).reshape(shape)


ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
THREEFRY_PARITY = 0x1BD11BDA


def threefry(key: tuple[Any, Any], x: Any, y: Any) -> tuple[Any, Any]:
    """Compute the cipher of Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, of u32 in any array library."""
    first, second = key
    keys = (first, second, first ^ second ^ np.uint32(THREEFRY_PARITY))
    x, y = x + keys[0], y + keys[1]
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            x = x + y
            y = ((y << np.uint32(turn)) | (y >> np.uint32(32 - turn))) ^ x
        x, y = x + keys[(group + 1) % 3], y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def random_keys(key: Value, *, count: Size) -> Value:
    """Keys that are independent of each other, one a row."""
    return random_bits(key, shape=(count, 2))


def random_uniform(
    key: Value, *, shape: Sequence[Size], low: float = 0.0, high: float = 1.0, dtype: DType = f32
) -> Value:
    """Numbers spread evenly from low to below high."""
    unit = _unit(key, tuple(shape), dtype)
    return unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low


def _unit(key: Value, shape: tuple[Size, ...], dtype: DType) -> Value:
    """k / 2**p for a random k below 2**p, where p is the precision of the dtype: every one is exact."""
    if dtype not in FLOATS:
        raise TypeRuleError(f"random numbers of {dtype.name}", hint="draw floats, then cast")
    precision = _PRECISION[dtype.name]
    source = u64 if dtype is f64 else u32
    bits = random_bits(key, shape=shape, dtype=source)
    whole = elementwise.shift_right(bits, source.bits - precision)
    return elementwise.cast(whole, dtype=dtype) * 2.0**-precision


_PRECISION = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}


def random_normal(
    key: Value, *, shape: Sequence[Size], mean: float = 0.0, deviation: float = 1.0, dtype: DType = f32
) -> Value:
    """Numbers of a normal distribution, by the method of Box and Muller, computed in f32 or better."""
    computed = f64 if dtype is f64 else f32
    both = _unit(key, (2, *shape), computed)
    axis = -1 - len(shape)
    radius, angle = (movement.squeeze(movement.part(both, axis=axis, index=i, parts=2), axes=(axis,)) for i in (0, 1))
    # 1 - u is in (0, 1], where the logarithm is finite.
    length = elementwise.sqrt(elementwise.log(1.0 - radius) * -2.0)
    normal = length * elementwise.cos(angle * (2 * math.pi))
    if (mean, deviation) != (0.0, 1.0):
        normal = normal * deviation + mean
    return elementwise.cast(normal, dtype=dtype)


def random_bernoulli(key: Value, *, shape: Sequence[Size], probability: float) -> Value:
    """True with a probability, false otherwise."""
    return elementwise.less(random_uniform(key, shape=shape), probability)


def dropout(x: Value, key: Value, *, ratio: float | Value) -> tuple[Value, Value]:
    """x with a share of its elements left out by chance and the others scaled up; and the mask of those that stay."""
    share = leaf.scalar(ratio, f32) if isinstance(ratio, float) else elementwise.cast(ratio, dtype=f32)
    mask = elementwise.greater_equal(random_uniform(key, shape=x.shape), share)
    scaled = x * (1.0 / (1.0 - elementwise.cast(share, dtype=x.dtype)))
    return elementwise.where(mask, scaled, leaf.scalar(0, x.dtype)), mask


FAMILY = family(globals())


__all__ = [
    "counting", "dropout", "extent", "eye", "iota", "lower_triangle", "random_bernoulli", "random_bits",
    "random_keys", "random_normal", "random_uniform",
]  # fmt: skip
