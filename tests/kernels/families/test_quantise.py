"""Quantised and back: bit for bit what the meanings say, halves, infinities and NaN included."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, INTEGERS, DType, f32, i8, i16, u8, u16
from dovetail.ir.leaf import input
from tests.kernels.native import bits, compiled, numbers, same_bits

WHOLE = [d for d in INTEGERS if d.bits <= 32]


@pytest.mark.slow
@pytest.mark.parametrize("whole", WHOLE, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_dtype(dtype: DType, whole: DType) -> None:
    x, scale, zero, q = input("x", dtype[5, 33]), input("s", dtype[()]), input("z", whole[()]), input("q", whole[5, 33])
    made = {
        "quantised": ops.quantise(x, scale, zero, dtype=whole),
        "back": ops.dequantise(q, scale, zero, dtype=dtype),
    }
    runner = compiled(made)
    feeds = {"z": np.array(3, whole.numpy), "q": bits(whole, 5, 33)}
    halves = (np.random.default_rng(0).integers(-900, 900, (5, 33)) / 4).astype(dtype.numpy)
    for array in (bits(dtype, 5, 33), halves):
        same_bits(runner, {**feeds, "x": array, "s": np.array(0.5, dtype.numpy)})


@pytest.mark.parametrize("whole", [u8, i8, u16, i16], ids=str)
@pytest.mark.parametrize("scale", [0.5, 0.017, 3.0, 1e-19, 7e19])
def test_a_scale_that_is_known_is_not_divided_by(whole: DType, scale: float) -> None:
    x, known = input("x", f32[6, 700]), leaf.scalar(scale, f32)
    runner = compiled(ops.quantise(x, known, leaf.constant(np.array(7, whole.numpy)), dtype=whole))
    rng = np.random.default_rng(1)
    # Halfway between two steps, beside that, and far out of range.
    halves = np.float32(scale) * (rng.integers(-70_000, 70_000, (6, 700)) + 0.5).astype(np.float32)
    beside = np.nextafter(halves, np.float32(np.inf))
    small = (np.float32(scale) * rng.normal(0, 60, (6, 700))).astype(np.float32)
    for array in (halves, beside, small, bits(f32, 6, 700)):
        same_bits(runner, {"x": array})


@pytest.mark.slow
@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_along_an_axis(axis: int) -> None:
    shape = (4, 7, 17)
    size = shape[axis]
    x, scale, zero = input("x", f32[shape]), input("s", f32[size]), input("z", u8[size])
    turned = ops.flip(scale, axes=(-1,))
    made = {
        "plain": ops.quantise(x, scale, zero, dtype=u8, axis=axis),
        "turned": ops.dequantise(
            ops.quantise(x, turned, zero, dtype=u8, axis=axis), turned, zero, dtype=f32, axis=axis
        ),
    }
    steps = np.linspace(0.1, 2.0, size, dtype=np.float32)
    same_bits(compiled(made), {"x": numbers(f32, *shape), "s": steps, "z": np.arange(size).astype(np.uint8)})


def test_sizes_that_are_known_later() -> None:
    x, scale, zero = input("x", f32["b", "n"]), input("s", f32["n"]), input("z", u8["n"])
    runner = compiled(ops.quantise(x, scale, zero, dtype=u8, axis=-1))
    for b, n in ((0, 3), (1, 1), (3, 100), (17, 5000)):
        feeds = {"s": np.full(n, 0.3, np.float32), "z": np.full(n, 128, np.uint8)}
        same_bits(runner, {**feeds, "x": numbers(f32, b, n)})
