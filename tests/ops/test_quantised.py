"""Quantisation against exact fractions, rounded by Python."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, INTEGERS, DType, f16, f32, f64, i8, i32, i64, u8
from tests.ops.meaning import array, meaning
from tests.tolerances import assert_close

NARROW = [d for d in INTEGERS if d.bits <= 32]


def _rounded(x: float, scale: float, zero: int, dtype: DType) -> int:
    """The exact quotient, halves to even, saturated."""
    limits = np.iinfo(dtype.numpy)
    if math.isnan(x):
        return 0
    if math.isinf(x):
        return int(limits.max if x > 0 else limits.min)
    return min(max(round(Fraction(x) / Fraction(scale)) + zero, int(limits.min)), int(limits.max))


NUMBERS = [
    0.0,
    -0.0,
    0.25,
    0.75,
    1.25,
    -0.25,
    -0.75,
    10.0,
    -10.0,
    63.5,
    -64.25,
    1e4,
    -1e4,
    math.inf,
    -math.inf,
    math.nan,
]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("zero", [0, 3, 100])
def test_quantise_one_scale(source: DType, dtype: DType, zero: int) -> None:
    # Halves of 0.5 are exact in every float type, so that ties are ties.
    x = array(source, NUMBERS)
    got = meaning(ops.quantise, x, array(source, 0.5), array(dtype, zero), dtype=dtype)
    assert got.tolist() == [_rounded(float(n), 0.5, zero, dtype) for n in x]


@pytest.mark.parametrize("axis", [-3, -2, -1])
def test_quantise_along_an_axis(axis: int) -> None:
    x = np.random.default_rng(8).normal(size=(3, 3, 3)).astype(np.float32) * 8
    scale, zero = np.array([0.5, 0.125, 2], np.float32), np.array([-3, 0, 7], np.int8)
    got = meaning(ops.quantise, x, scale, zero, dtype=i8, axis=axis)
    for place in np.ndindex(3, 3, 3):
        i = place[axis]
        assert got[place] == _rounded(float(x[place]), float(scale[i]), int(zero[i]), i8)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_dequantise_one_scale(target: DType, dtype: DType) -> None:
    limits = np.iinfo(dtype.numpy)
    q = np.array([limits.min, 0, 1, 5, limits.max], dtype.numpy)
    got = meaning(ops.dequantise, q, array(target, 0.25), array(dtype, 7), dtype=target)
    assert_close(got, np.array([(int(n) - 7) * 0.25 for n in q]), target)


@pytest.mark.parametrize("axis", [-3, -2, -1])
def test_dequantise_along_an_axis(axis: int) -> None:
    q = np.arange(27, dtype=np.uint8).reshape(3, 3, 3) * 9
    scale, zero = np.array([0.5, 0.125, 2], np.float32), np.array([255, 0, 7], np.uint8)
    got = meaning(ops.dequantise, q, scale, zero, dtype=f32, axis=axis)
    for place in np.ndindex(3, 3, 3):
        i = place[axis]
        assert got[place] == (int(q[place]) - int(zero[i])) * float(scale[i])


def test_dequantise_rounds_once() -> None:
    """A narrow scale, or a narrow result, does not make the whole numbers narrow."""
    tiny = np.array(1e-8, np.float32)
    got = meaning(ops.dequantise, np.array([2**30], np.int32), tiny, np.array(0, np.int32), dtype=f16)
    assert_close(got, np.array([10.73741824]), f16, scale=0.1)
    got = meaning(ops.dequantise, np.array([65535], np.uint16), array(f16, 0.25), np.array(0, np.uint16), dtype=f32)
    assert got.tolist() == [16383.75]


def test_there_and_back() -> None:
    q = np.arange(-128, 128).astype(np.int8)
    scale, zero = np.array(0.1, np.float32), np.array(-5, np.int8)
    x = meaning(ops.dequantise, q, scale, zero, dtype=f32)
    assert meaning(ops.quantise, x, scale, zero, dtype=i8).tolist() == q.tolist()


def test_nothing_to_quantise() -> None:
    scale, zero = np.ones(3, np.float32), np.zeros(3, np.int8)
    assert meaning(ops.quantise, np.zeros((0, 3), np.float32), scale, zero, dtype=i8, axis=1).shape == (0, 3)
    assert meaning(ops.quantise, np.array(2.0, np.float32), scale[0], zero[0], dtype=i8) == 2


def test_what_does_not_fit_is_refused() -> None:
    x, s, z = leaf.input("x", f32[2, "n"]), leaf.input("s", f32[3]), leaf.input("z", u8[3])
    assert [str(c) for c in ops.quantise(x, s, z, dtype=u8, axis=1).constraints] == ["3 equals n"] * 2
    with pytest.raises(TypeRuleError, match="3 and 2"):
        ops.quantise(x, s, z, dtype=u8, axis=0)
    with pytest.raises(TypeRuleError, match="a scale of"):
        ops.quantise(x, s, z, dtype=u8)
    with pytest.raises(TypeRuleError, match="zero point of u8"):
        ops.quantise(x, s, z, dtype=i8, axis=1)
    with pytest.raises(TypeRuleError, match="to i64"):
        ops.quantise(x, s, leaf.input("w", i64[3]), dtype=i64, axis=1)
    with pytest.raises(TypeRuleError, match="f32 and f64"):
        ops.quantise(x, leaf.input("t", f64[3]), z, dtype=u8, axis=1)
    with pytest.raises(TypeRuleError, match="dequantise to i32"):
        ops.dequantise(leaf.input("q", u8[2, 3]), s, z, dtype=i32, axis=1)
