"""Narrow types: casts to and from them against tables of all their numbers, and bits read as another type."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import (
    ALL,
    BY_NAME,
    FLOATS,
    INTEGERS,
    NARROW,
    DType,
    bf16,
    bool_,
    c64,
    f4e2m1,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    f64,
    i2,
    i4,
    i8,
    i32,
    i64,
    u2,
    u4,
    u8,
    u16,
)
from dovetail.ir.graph import Builder
from dovetail.targets.reference.interpreter import evaluate
from tests.ops.meaning import meaning, wrapped

NARROW_FLOATS = tuple(d for d in NARROW if d.is_float)
EIGHTS = tuple(d for d in NARROW_FLOATS if d not in (f8e8m0, f4e2m1))
NARROW_WHOLE = (i4, u4, i2, u2)


def every_number(dtype: DType) -> NDArray[np.generic]:
    return np.arange(2**dtype.bits, dtype=np.uint8).view(dtype.numpy)


@cache
def decoded(dtype: DType, code: int) -> float:
    """The number of a code, by the fields that the type's name says."""
    if dtype is f8e8m0:
        return math.nan if code == 255 else 2.0 ** (code - 127)
    exponent_bits, mantissa_bits = {"f8e4": (4, 3), "f8e5": (5, 2), "f4e2": (2, 1)}[dtype.name[:4]]
    unsigned = dtype.name.endswith("uz")
    bias = 2 ** (exponent_bits - 1) - (not unsigned)
    sign = -1.0 if code >> (dtype.bits - 1) else 1.0
    exponent, mantissa = (code >> mantissa_bits) % 2**exponent_bits, code % 2**mantissa_bits
    if unsigned and code == 2 ** (dtype.bits - 1):
        return math.nan
    if dtype is f8e4m3fn and exponent == 15 and mantissa == 7:
        return math.nan
    if dtype is f8e5m2 and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    scaled = mantissa / 2**mantissa_bits
    return sign * (2.0 ** (exponent - bias) * (1 + scaled) if exponent else 2.0 ** (1 - bias) * scaled)


def same(got: float, expected: float) -> bool:
    return got == expected or (math.isnan(got) and math.isnan(expected))


@pytest.mark.parametrize("dtype", NARROW_FLOATS, ids=str)
def test_every_code_is_its_number(dtype: DType) -> None:
    for target in (f16, bf16, f32, f64):
        with np.errstate(over="ignore"):
            got = meaning(ops.cast, every_number(dtype), dtype=target)
            for code, number in enumerate(got.astype(np.float64).tolist()):
                assert same(number, float(np.array(decoded(dtype, code)).astype(target.numpy)))


def nearest(dtype: DType, number: float) -> float:
    """The number of a type that lies nearest, the even code of two; of those that are finite."""
    if math.isnan(number):
        return math.nan
    least, largest = dtype.range
    number = min(max(number, least), largest)
    coded = [(decoded(dtype, code), code) for code in range(2**dtype.bits)]
    return min((abs(n - number), code % 2, n) for n, code in coded if math.isfinite(n))[2]


def hard(dtype: DType) -> list[float]:
    """Halves between neighbours, and what lies next to them in f64 and in f32."""
    numbers = sorted({n for n in (decoded(dtype, c) for c in range(2**dtype.bits)) if math.isfinite(n)})
    halves = [(a + b) / 2 for a, b in pairwise(numbers)]
    beside = [math.nextafter(h, to) for h in halves for to in (-math.inf, math.inf)]
    single = [float(np.nextafter(np.float32(h), np.float32(to))) for h in halves for to in (-math.inf, math.inf)]
    largest = numbers[-1]
    return [*numbers, *halves, *beside, *single, largest * 1.01, -largest * 3, math.inf, -math.inf, 0.3, -0.0]


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [*EIGHTS, f4e2m1], ids=str)
def test_floats_are_rounded_once_and_kept_in_range(dtype: DType) -> None:
    numbers = hard(dtype)
    got = meaning(ops.cast, np.array(numbers), dtype=dtype).astype(np.float64).tolist()
    for number, found in zip(numbers, got, strict=True):
        assert found == nearest(dtype, number), number


@pytest.mark.parametrize("dtype", EIGHTS, ids=str)
def test_beyond_the_range_without_saturation(dtype: DType) -> None:
    largest = dtype.range[1]
    step = largest - nearest(dtype, largest * 0.9)
    x = np.array([largest + step * 0.4, largest + step, math.inf, -math.inf, math.nan, 1.0])
    got = meaning(ops.cast_f8, x, dtype=dtype, saturate=False).astype(np.float64).tolist()
    over = math.inf if dtype is f8e5m2 else math.nan
    for found, expected in zip(got, [largest, over, over, -over, math.nan, 1.0], strict=True):
        assert same(found, expected)
    kept = meaning(ops.cast, x, dtype=dtype).astype(np.float64).tolist()
    assert kept[:4] == [largest, largest, largest, -largest]
    assert math.isnan(kept[4])


POWERS = {
    "up": [1.0, 2.0, 2.0, 2.0, 4.0, 2.0**-127, 2.0**-127],
    "down": [1.0, 1.0, 1.0, 1.0, 2.0, 2.0**-127, 2.0**-127],
    "nearest": [1.0, 1.0, 2.0, 2.0, 2.0, 2.0**-127, 2.0**-127],
}


@pytest.mark.parametrize("rounding", POWERS)
def test_powers_of_two(rounding: str) -> None:
    x = np.array([1.0, 1.2, 1.5, 1.75, 2.5, 2.0**-130, 0.0, 2.0**130, math.inf])
    got = meaning(ops.cast_f8, x, dtype=f8e8m0, rounding=rounding).astype(np.float64).tolist()
    assert got == [*POWERS[rounding], 2.0**127, 2.0**127]
    lost = meaning(ops.cast_f8, x, dtype=f8e8m0, rounding=rounding, saturate=False).astype(np.float64).tolist()
    assert lost[:5] == POWERS[rounding][:5]
    assert all(math.isnan(n) for n in lost[5:])
    outside = meaning(ops.cast_f8, np.array([math.nan, -1.0]), dtype=f8e8m0, rounding=rounding).astype(np.float64)
    assert np.isnan(outside).all()


def test_a_plain_cast_to_powers_of_two_rounds_up() -> None:
    for source in (f16, bf16, f32, f64):
        x = np.array([0.124, 0.25, 1.1, 8.0, 0.0]).astype(source.numpy)
        assert meaning(ops.cast, x, dtype=f8e8m0).astype(np.float64).tolist() == [0.125, 0.25, 2.0, 8.0, 2.0**-127]


@pytest.mark.parametrize("target", NARROW_WHOLE, ids=str)
@pytest.mark.parametrize("source", [*INTEGERS, *NARROW_WHOLE, bool_], ids=str)
def test_whole_numbers_wrap(source: DType, target: DType) -> None:
    numbers = [wrapped(n, source) for n in range(-140, 260)] if source is not bool_ else [False, True]
    x = np.array(numbers, source.numpy)
    assert meaning(ops.cast, x, dtype=target).tolist() == [wrapped(int(n), target) for n in numbers]
    back = meaning(ops.cast, meaning(ops.cast, x, dtype=target), dtype=i64)
    assert back.tolist() == [wrapped(int(n), target) for n in numbers]


@pytest.mark.parametrize("target", NARROW_WHOLE, ids=str)
@pytest.mark.parametrize("source", [*FLOATS, f8e5m2], ids=str)
def test_floats_are_cut_and_wrap_in_less_than_8_bits(source: DType, target: DType) -> None:
    numbers = [-9.0, -3.5, -0.75, 0.0, 1.75, 7.0, 8.0, 15.0, 28.0, math.nan]
    expected = [0 if math.isnan(n) else wrapped(math.trunc(n), target) for n in numbers]
    exact = [float(n) for n in np.array(numbers).astype(source.numpy)]
    if exact[:-1] != numbers[:-1]:
        expected = [0 if math.isnan(n) else wrapped(math.trunc(n), target) for n in exact]
    assert meaning(ops.cast, np.array(numbers).astype(source.numpy), dtype=target).tolist() == expected


def test_negative_narrow_numbers_wrap_as_unsigned_ones() -> None:
    assert meaning(ops.cast, np.array([-1, 7, -8], ml_dtypes.int4), dtype=u8).tolist() == [255, 7, 248]
    assert meaning(ops.cast, np.array([-1.5, 300.0]).astype(ml_dtypes.float8_e5m2), dtype=u8).tolist() == [0, 255]


def test_zero_is_false_and_all_else_true() -> None:
    for dtype in NARROW:
        got = meaning(ops.cast, every_number(dtype), dtype=bool_).tolist()
        codes = [decoded(dtype, c) if dtype.is_float else c for c in range(2**dtype.bits)]
        assert got == [n != 0 for n in codes]


def test_nothing_is_computed_in_narrow_types() -> None:
    for dtype in NARROW:
        x = leaf.constant(every_number(dtype)[:4])
        for op in (ops.add, ops.maximum, ops.equal, ops.matmul, ops.bit_and):
            with pytest.raises(TypeRuleError, match=rf"of {dtype.name}"):
                op(x, x)
        for op in (ops.neg, ops.exp, ops.is_nan, ops.abs_, ops.relu):
            with pytest.raises(TypeRuleError, match=rf"of {dtype.name}"):
                op(x)
        with pytest.raises(TypeRuleError, match=rf"of {dtype.name}"):
            ops.reduce_sum(x, axes=0)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_types_are_moved_and_picked(dtype: DType) -> None:
    x = every_number(dtype)[:4].reshape(2, 2)
    codes = x.view(np.uint8)
    assert meaning(ops.gather, x, np.array([1, 0]), axis=0).view(np.uint8).tolist() == codes[::-1].tolist()
    assert meaning(ops.concat, x, x, axis=1).view(np.uint8).tolist() == np.hstack([codes, codes]).tolist()
    assert meaning(ops.where, np.array([True, False]), x, x[::-1]).dtype == dtype.numpy
    assert meaning(ops.permute, x, order=(-1, -2)).view(np.uint8).tolist() == codes.T.tolist()


def test_cast_f8_makes_floats_of_8_bits() -> None:
    for dtype in (f4e2m1, i4, f16):
        with pytest.raises(TypeRuleError, match=f"to {dtype.name}"):
            ops.cast_f8(leaf.constant(np.ones(2)), dtype=dtype)


def test_bits_are_read_as_another_type() -> None:
    ones = np.array([1.0, -2.0], np.float32)
    got = meaning(ops.bitcast, ones, source="f32", target="i32")
    assert got.tolist() == [0x3F800000, -0x40000000]
    assert meaning(ops.bitcast, got, source="i32", target="f32").tolist() == [1.0, -2.0]
    assert meaning(ops.bitcast, np.array([True, False]), source="bool", target="u8").tolist() == [1, 0]
    assert meaning(ops.bitcast, np.array([2, 0], np.int8), source="i8", target="bool").tolist() == [True, False]
    assert meaning(ops.bitcast, np.array([-1, 3], ml_dtypes.int4), source="i4", target="u4").tolist() == [15, 3]
    for dtype in ALL:
        for other in ALL:
            x = leaf.constant(np.zeros(2, dtype.numpy))
            if other.bits == dtype.bits:
                assert ops.bitcast(x, source=dtype.name, target=other.name).dtype is other
                continue
            with pytest.raises(TypeRuleError, match=f"as {other.name}"):
                ops.bitcast(x, source=dtype.name, target=other.name)
    with pytest.raises(TypeRuleError, match="taken for f32"):
        ops.bitcast(leaf.constant(got), source="f32", target="f32")


def test_bits_and_narrow_numbers_are_those_of_the_declared_types_where_floats_are_computed_wider() -> None:
    builder = Builder("lifted", lines=False)
    x, h = builder.input("x", f32[2]), builder.input("h", bf16[2])
    builder.output("bits", ops.bitcast(x, source="f32", target="i32"))
    builder.output("half", ops.bitcast(ops.bitcast(h, source="bf16", target="u16"), source="u16", target="bf16") * 2)
    builder.output("eight", ops.cast(ops.cast(x, dtype=f8e4m3fn), dtype=f32))
    feeds = {"x": np.array([1.1, 1000.0], np.float32), "h": np.array([1.5, -2.0], ml_dtypes.bfloat16)}
    found = evaluate(builder.graph(), feeds, lift=True)
    assert found["bits"].tolist() == feeds["x"].view(np.int32).tolist()
    assert found["bits"].dtype == i32.numpy
    assert found["half"].tolist() == [3.0, -4.0]
    assert found["half"].dtype == found["eight"].dtype == f64.numpy
    assert found["eight"].tolist() == [1.125, 448.0]


def test_numbers_that_a_narrow_type_does_not_have_are_refused() -> None:
    for dtype, number in (
        (f8e4m3fn, 1000.0),
        (f8e4m3fn, math.inf),
        (f8e4m3fnuz, -300.0),
        (f8e5m2fnuz, math.inf),
        (f4e2m1, 7.0),
        (f4e2m1, math.nan),
        (f8e8m0, 0.0),
        (f8e8m0, -1.0),
        (i4, 8),
        (u4, -1),
        (i2, 2),
        (u2, 4),
    ):
        with pytest.raises(TypeRuleError, match="fit"):
            leaf.scalar(number, dtype)
    for dtype, number in ((f8e5m2, math.inf), (f8e8m0, 4.0), (f4e2m1, -6.0), (i4, -8), (u2, 3), (i2, -2)):
        assert leaf.scalar_of(leaf.scalar(number, dtype)) == number


def test_bits_that_are_not_used_make_no_difference() -> None:
    plain, odd = np.array([0x0F, 0x07], np.uint8), np.array([0xFF, 0x97], np.uint8)
    for dtype in (i4, u4, f4e2m1):
        assert leaf.constant(plain.view(dtype.numpy)) is leaf.constant(odd.view(dtype.numpy))


def test_ranges() -> None:
    assert (i8.range, u16.range, i2.range, u4.range) == ((-128, 127), (0, 65535), (-2, 1), (0, 15))
    assert (f8e4m3fn.range, f4e2m1.range, f16.range) == ((-448.0, 448.0), (-6.0, 6.0), (-65504.0, 65504.0))
    assert c64.range == f32.range
    assert bool_.range == (0, 1)
    assert all(d.itemsize == 1 for d in NARROW)
    assert {d.name for d in NARROW} <= BY_NAME.keys()
