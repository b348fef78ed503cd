"""Elementwise primitives against Python's own whole numbers and mathematics."""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import (
    ALL,
    FLOATS,
    INTEGERS,
    NARROW,
    SIGNED,
    DType,
    bf16,
    bool_,
    c64,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    u8,
    u64,
)
from dovetail.ops import elementwise
from dovetail.ops.primitive import Primitive
from tests.ops.meaning import array, meaning, nasty, run, same, wrapped
from tests.tolerances import assert_close

COMPUTED = tuple(d for d in ALL if d not in NARROW)
EVERYTHING = [op for op in elementwise.FAMILY if op not in (ops.cast, ops.cast_f8, ops.bitcast, ops.where)]


def _takes(op: Primitive, dtype: DType) -> bool:
    try:
        op(*[leaf.constant(nasty(dtype))] * (op.arity or 0))
    except TypeRuleError:
        return False
    return True


@pytest.mark.parametrize("op", EVERYTHING, ids=str)
def test_the_meaning_keeps_the_type_rule_and_warns_of_nothing(op: Primitive) -> None:
    for dtype in (d for d in ALL if _takes(op, d)):
        x = nasty(dtype)
        for operands in ((x.reshape(-1, 1), x.reshape(1, -1)), (x, x[:1]), (x[:0], x[:1]), (x[:1].reshape(()),) * 2):
            meaning(op, *operands[: op.arity])


@pytest.mark.slow
def test_every_dtype_is_taken_where_it_should_be() -> None:
    taken = {op.name: {d for d in ALL if _takes(op, d)} for op in EVERYTHING}
    numbers = set(COMPUTED) - {bool_}
    assert taken["add"] == taken["pow"] == taken["abs"] == numbers
    assert taken["maximum"] == taken["sign"] == numbers - {c64}
    assert taken["exp"] == {*FLOATS, c64}
    assert taken["tanh"] == taken["round"] == set(FLOATS)
    assert taken["bit_xor"] == {*INTEGERS, bool_}
    assert taken["equal"] == set(COMPUTED)
    assert taken["less"] == set(COMPUTED) - {c64}


def _quotient(x: int, y: int) -> int:
    return 0 if y == 0 else abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1)


def _power(x: int, y: int) -> int:
    if y >= 0:
        return x**y
    return x ** (y % 2) if abs(x) == 1 else 0


def _shift(x: int, y: int, bits: int, left: bool) -> int:
    if not 0 <= y < bits:
        return 0 if left or x >= 0 else -1
    return x << y if left else x >> y


WHOLE: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda x, y, bits: x + y,
    "sub": lambda x, y, bits: x - y,
    "mul": lambda x, y, bits: x * y,
    "div": lambda x, y, bits: _quotient(x, y),
    "mod": lambda x, y, bits: x % y if y else 0,
    "rem": lambda x, y, bits: x - _quotient(x, y) * y if y else 0,
    "maximum": lambda x, y, bits: max(x, y),
    "minimum": lambda x, y, bits: min(x, y),
    "bit_and": lambda x, y, bits: x & y,
    "bit_or": lambda x, y, bits: x | y,
    "bit_xor": lambda x, y, bits: x ^ y,
    "shift_left": lambda x, y, bits: _shift(x, y, bits, left=True),
    "shift_right": lambda x, y, bits: _shift(x, y, bits, left=False),
}
NAMED = {op.name: op for op in elementwise.FAMILY}


def _integers(dtype: DType) -> list[int]:
    limits = np.iinfo(dtype.numpy)
    found = {0, 1, 2, 3, 5, 7, 8, dtype.bits - 1, dtype.bits, limits.max, limits.max - 1, limits.min, limits.min + 1}
    if dtype in SIGNED:
        found |= {-1, -2, -3, -7, -8}
    return sorted(int(n) for n in found)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_wrap_as_python_counts(name: str, dtype: DType) -> None:
    pairs = list(itertools.product(_integers(dtype), repeat=2))
    x, y = (np.array([p[i] for p in pairs], dtype.numpy) for i in (0, 1))
    expected = [wrapped(WHOLE[name](a, b, dtype.bits), dtype) for a, b in pairs]
    assert meaning(NAMED[name], x, y).tolist() == expected


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_powers_of_whole_numbers_wrap(dtype: DType) -> None:
    pairs = [(x, y) for x in _integers(dtype) for y in (0, 1, 2, 3, 9, 65, *((-1, -2, -3) if dtype in SIGNED else ()))]
    x, y = (np.array([p[i] for p in pairs], dtype.numpy) for i in (0, 1))
    assert meaning(ops.pow_, x, y).tolist() == [wrapped(_power(a, b), dtype) for a, b in pairs]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_signs_of_whole_numbers(dtype: DType) -> None:
    numbers = _integers(dtype)
    x = np.array(numbers, dtype.numpy)
    assert meaning(ops.neg, x).tolist() == [wrapped(-n, dtype) for n in numbers]
    assert meaning(ops.abs_, x).tolist() == [wrapped(abs(n), dtype) for n in numbers]
    assert meaning(ops.sign, x).tolist() == [(n > 0) - (n < 0) for n in numbers]
    assert meaning(ops.relu, x).tolist() == [max(n, 0) for n in numbers]
    assert meaning(ops.bit_not, x).tolist() == [wrapped(~n, dtype) for n in numbers]


def test_rank_0_whole_numbers_wrap_too() -> None:
    """NumPy warns of overflow for scalars where it is silent for arrays."""
    assert meaning(ops.add, np.array(127, np.int8), np.array(1, np.int8)) == -128
    assert meaning(ops.div, np.array(-128, np.int8), np.array(-1, np.int8)) == -128
    assert meaning(ops.mod, np.array(5, np.int64), np.array(0, np.int64)) == 0


CURVES: list[tuple[Primitive, Callable[[float], float], tuple[float, ...]]] = [
    (ops.exp, math.exp, (-5.0, -0.5, 0.0, 1.0, 4.0)),
    (ops.expm1, math.expm1, (-3.0, -(2.0**-10), 0.0, 2.0**-10, 3.0)),
    (ops.log, math.log, (0.25, 1.0, 7.0)),
    (ops.log1p, math.log1p, (-0.5, 2.0**-10, 0.0, 7.0)),
    (ops.sqrt, math.sqrt, (0.0, 2.0, 9.0)),
    (ops.rsqrt, lambda x: 1 / math.sqrt(x), (0.25, 2.0, 9.0)),
    (ops.reciprocal, lambda x: 1 / x, (-4.0, 0.125, 3.0)),
    (ops.sin, math.sin, (-2.0, 0.0, 1.0)),
    (ops.cos, math.cos, (-2.0, 0.0, 1.0)),
    (ops.tan, math.tan, (-1.0, 0.0, 1.25)),
    (ops.asin, math.asin, (-1.0, 0.5)),
    (ops.acos, math.acos, (-1.0, 0.5)),
    (ops.atan, math.atan, (-20.0, 0.5)),
    (ops.sinh, math.sinh, (-2.0, 0.5)),
    (ops.cosh, math.cosh, (-2.0, 0.5)),
    (ops.tanh, math.tanh, (-2.0, 0.5, 9.0)),
    (ops.asinh, math.asinh, (-2.0, 0.5)),
    (ops.acosh, math.acosh, (1.0, 2.5)),
    (ops.atanh, math.atanh, (-0.5, 0.75)),
    (ops.erf, math.erf, (-3.0, -0.5, 0.0, 0.25, 2.0)),
    (ops.sigmoid, lambda x: 1 / (1 + math.exp(-x)), (-9.0, -1.0, 0.0, 3.0, 20.0)),
    (ops.softplus, lambda x: math.log1p(math.exp(x)), (-9.0, -1.0, 0.0, 3.0, 20.0)),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("op", "function", "points"), CURVES, ids=[c[0].name for c in CURVES])
def test_curves(op: Primitive, function: Callable[[float], float], points: tuple[float, ...], dtype: DType) -> None:
    got = meaning(op, array(dtype, points))
    expected = np.array([function(float(p)) for p in points])
    # One rounding of the exact result and a little for the function itself: tighter than the table.
    unit = {f16: 2.0**-10, bf16: 2.0**-7, f32: 2.0**-22, f64: 2.0**-50}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=unit, atol=unit * 2.0**-10)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_round_once(dtype: DType) -> None:
    x = array(dtype, [1.5, -1.5, 2.5, -2.5, 0.5, -0.5, 3.0])
    assert meaning(ops.floor, x).tolist() == [1, -2, 2, -3, 0, -1, 3]
    assert meaning(ops.ceil, x).tolist() == [2, -1, 3, -2, 1, 0, 3]
    assert meaning(ops.trunc, x).tolist() == [1, -1, 2, -2, 0, 0, 3]
    assert meaning(ops.round_, x).tolist() == [2, -2, 2, -2, 0, 0, 3]
    assert meaning(ops.mod, x, array(dtype, 2.0)).tolist() == [1.5, 0.5, 0.5, 1.5, 0.5, 1.5, 1.0]
    assert meaning(ops.rem, x, array(dtype, 2.0)).tolist() == [1.5, -1.5, 0.5, -0.5, 0.5, -0.5, 1.0]
    assert meaning(ops.pow_, x[[2, 6]], array(dtype, 2.0)).tolist() == [6.25, 9]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_infinities_nan_and_signed_zeros(dtype: DType) -> None:
    inf, nan = math.inf, math.nan
    x = array(dtype, [0.0, -0.0, inf, -inf, nan])
    one, zero = array(dtype, 1.0), array(dtype, 0.0)
    same(meaning(ops.div, one, x), [inf, -inf, 0.0, -0.0, nan])
    same(meaning(ops.div, x, zero), [nan, nan, inf, -inf, nan])
    same(meaning(ops.reciprocal, x), [inf, -inf, 0.0, -0.0, nan])
    same(meaning(ops.rsqrt, x), [inf, -inf, 0.0, nan, nan])
    same(meaning(ops.sqrt, x), [0.0, -0.0, inf, nan, nan])
    same(meaning(ops.log, x), [-inf, -inf, inf, nan, nan])
    same(meaning(ops.exp, x), [1.0, 1.0, inf, 0.0, nan])
    same(meaning(ops.neg, x), [-0.0, 0.0, -inf, inf, nan])
    same(meaning(ops.abs_, x), [0.0, 0.0, inf, inf, nan])
    same(meaning(ops.sign, x), [0.0, 0.0, 1.0, -1.0, nan])
    same(meaning(ops.tanh, x), [0.0, -0.0, 1.0, -1.0, nan])
    same(meaning(ops.erf, x), [0.0, -0.0, 1.0, -1.0, nan])
    same(meaning(ops.sigmoid, x), [0.5, 0.5, 1.0, 0.0, nan])
    same(meaning(ops.softplus, x)[2:], [inf, 0.0, nan])
    same(meaning(ops.relu, x)[2:], [inf, 0.0, nan])
    same(meaning(ops.sub, x[2:], x[2:]), [nan, nan, nan])
    same(meaning(ops.maximum, x[2:], one), [inf, 1.0, nan])
    same(meaning(ops.minimum, one, x[2:]), [1.0, -inf, nan])
    same(meaning(ops.round_, x), [0.0, -0.0, inf, -inf, nan])
    assert meaning(ops.is_nan, x).tolist() == [False, False, False, False, True]
    assert meaning(ops.is_inf, x).tolist() == [False, False, True, True, False]


def test_narrow_floats_overflow_to_infinity() -> None:
    assert meaning(ops.exp, array(f16, 12.0)) == np.inf
    assert meaning(ops.add, array(f16, 65504.0), array(f16, 65504.0)) == np.inf
    assert meaning(ops.mul, array(f32, 1e30), array(f32, 1e30)) == np.inf
    assert meaning(ops.exp, array(bf16, 80.0)) < np.inf


COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
}


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
@pytest.mark.parametrize("name", COMPARED)
def test_comparison_is_bool_everywhere(name: str, dtype: DType) -> None:
    if dtype is c64 and "equal" != name != "not_equal":
        return
    pairs = list(itertools.product(nasty(dtype).tolist(), repeat=2))
    x, y = (array(dtype, [p[i] for p in pairs]) for i in (0, 1))
    got = meaning(NAMED[name], x, y)
    assert got.dtype == np.bool_
    assert got.tolist() == [COMPARED[name](float(a) if dtype is bf16 else a, b) for a, b in pairs]


def test_bool_has_logic() -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert meaning(ops.bit_and, x, y).tolist() == [False, False, False, True]
    assert meaning(ops.bit_or, x, y).tolist() == [False, True, True, True]
    assert meaning(ops.bit_xor, x, y).tolist() == [False, True, True, False]
    assert meaning(ops.bit_not, x).tolist() == [True, True, False, False]
    with pytest.raises(TypeRuleError, match="add of bool"):
        ops.add(leaf.constant(x), leaf.constant(y))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_where_keeps_the_dtype_and_broadcasts_all_three(dtype: DType) -> None:
    x, y = nasty(dtype)[:2], nasty(dtype)[:1]
    got = meaning(ops.where, np.array([[True], [False]]), x, y)
    assert got.shape == (2, 2)
    assert got.tobytes() == x.tobytes() + np.repeat(y, 2).tobytes()


def test_where_asks_for_a_bool_condition() -> None:
    x = leaf.constant(np.ones(3, np.float32))
    with pytest.raises(TypeRuleError, match="where of f32"):
        ops.where(x, x, x)


def _cast(x: Any, source: DType, target: DType) -> Any:
    """A number in another dtype, by Python's numbers."""
    if target is bool_:
        return x != 0
    number = x.real if source is c64 and target is not c64 else x
    if not target.is_integer:
        return number
    if not source.is_inexact:
        return wrapped(int(number), target)
    limits = np.iinfo(target.numpy)
    if math.isnan(number):
        return 0
    return int(limits.min) if number <= limits.min else int(limits.max) if number >= limits.max else int(number)


@pytest.mark.parametrize("source", COMPUTED, ids=str)
@pytest.mark.parametrize("target", COMPUTED, ids=str)
def test_cast(source: DType, target: DType) -> None:
    x = nasty(source)
    got = meaning(ops.cast, x, dtype=target)
    numbers = [complex(n) if source is c64 else float(n) if source.is_float else n for n in x.tolist()]
    expected = [_cast(n, source, target) for n in numbers]
    if target.is_inexact:
        assert_close(got, np.array(expected, np.complex128 if target is c64 else np.float64), target)
    else:
        assert got.tolist() == expected


def test_floats_out_of_range_saturate() -> None:
    x = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, -1.9, 255.9])
    assert meaning(ops.cast, x, dtype=u8).tolist() == [255, 0, 255, 0, 0, 0, 255]
    assert meaning(ops.cast, x, dtype=i8).tolist() == [127, -128, 127, -128, 0, -1, 127]
    assert meaning(ops.cast, x, dtype=i64).tolist() == [2**63 - 1, -(2**63), 2**63 - 1, -(2**63), 0, -1, 255]
    assert meaning(ops.cast, np.array([2.0**63, 2.0**64, -1.0]), dtype=u64).tolist() == [2**63, 2**64 - 1, 0]


def test_an_imaginary_number_is_true() -> None:
    assert meaning(ops.cast, np.array([1j, 0j], np.complex64), dtype=bool_).tolist() == [True, False]


COMPLEX = [1 + 2j, -0.5 + 0.25j, 3 - 1j]


def test_complex_numbers() -> None:
    x, y = array(c64, COMPLEX), array(c64, COMPLEX[::-1])
    pairs = list(zip(COMPLEX, COMPLEX[::-1], strict=True))
    assert_close(meaning(ops.add, x, y), np.array([a + b for a, b in pairs]), c64)
    assert_close(meaning(ops.mul, x, y), np.array([a * b for a, b in pairs]), c64)
    assert_close(meaning(ops.div, x, y), np.array([a / b for a, b in pairs]), c64)
    assert_close(meaning(ops.pow_, x, y), np.array([a**b for a, b in pairs]), c64)
    for op, function in ((ops.exp, cmath.exp), (ops.log, cmath.log), (ops.sqrt, cmath.sqrt)):
        assert_close(meaning(op, x), np.array([function(a) for a in COMPLEX]), c64)
    assert_close(meaning(ops.rsqrt, x), np.array([1 / cmath.sqrt(a) for a in COMPLEX]), c64)
    assert_close(meaning(ops.abs_, x), np.array([abs(a) for a in COMPLEX]), f32)
    assert meaning(ops.real, x).tolist() == [1, -0.5, 3]
    assert meaning(ops.imag, x).tolist() == [2, 0.25, -1]


def test_complex_from_parts_keeps_infinity() -> None:
    got = meaning(ops.complex_, array(f32, [[1.0], [2.0]]), array(f32, [np.inf, -0.0]))
    assert got.shape == (2, 2)
    assert np.real(got).tolist() == [[1, 1], [2, 2]]
    assert np.imag(got).tolist() == [[np.inf, 0], [np.inf, 0]]
    assert np.signbit(np.imag(got)).tolist() == [[False, True], [False, True]]


def test_broadcast_is_by_axis() -> None:
    """Trap 15: never by the number of elements."""
    column, channels = np.arange(4, dtype=np.float32).reshape(4, 1), np.arange(3, dtype=np.float32).reshape(1, 3, 1, 1)
    got = meaning(ops.add, column, np.zeros((4, 4), np.float32))
    assert got.tolist() == [[i] * 4 for i in range(4)]
    got = meaning(ops.mul, channels, np.ones((2, 3, 2, 3), np.float32))
    assert all(got[b, c, h, w] == c for b, c, h, w in np.ndindex(2, 3, 2, 3))


def test_a_long_chain_of_broadcast_inputs() -> None:
    """Trap 17."""
    total, expected = leaf.constant(np.zeros((5, 4, 3), np.int32)), np.zeros((5, 4, 3), int)
    for i, shape in enumerate([(5, 1, 1), (1, 4, 1), (1, 1, 3), (3,), (4, 3)] * 4):
        part = np.arange(math.prod(shape), dtype=np.int32).reshape(shape) * (i + 1)
        total = total + leaf.constant(part)
        for place in np.ndindex(5, 4, 3):
            own = place[3 - len(shape) :]
            expected[place] += part[tuple(min(p, n - 1) for p, n in zip(own, shape, strict=True))]
    assert run(total).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [d for d in COMPUTED if d is not bool_], ids=str)
def test_a_number_takes_the_dtype_of_its_partner(dtype: DType) -> None:
    """Trap 20."""
    x = leaf.constant(array(dtype, [1, 2]))
    assert (x + 3).dtype is dtype
    assert run(x * 2).tolist() == [2, 4]
    assert ops.where(ops.equal(x, 1), x, 0).dtype is dtype


def test_a_number_that_the_dtype_does_not_have_is_refused() -> None:
    x = leaf.constant(np.array([1], np.int8))
    with pytest.raises(TypeRuleError, match="fit"):
        ops.add(x, 1000)
    with pytest.raises(TypeRuleError, match=r"1\.5"):
        ops.add(x, 1.5)


def test_mixed_dtypes_are_refused() -> None:
    x, y = leaf.constant(np.ones(2, np.float32)), leaf.constant(np.ones(2, np.float16))
    with pytest.raises(TypeRuleError, match="f32 and f16"):
        ops.add(x, y)


def test_a_symbolic_size_that_meets_a_known_one_is_recorded() -> None:
    x, y = leaf.input("x", f32["s"]), leaf.input("y", f32[4])
    assert [str(c) for c in (x + y).constraints] == ["s equals 4"]
    assert (x + y).shape == (4,)
    with pytest.raises(TypeRuleError, match="3 and 4"):
        ops.add(leaf.input("z", f32[3]), y)


def test_flops_count_the_work() -> None:
    x = leaf.input("x", i32[3, "s"])
    assert str(ops.add.flops((x + x).type, (x.type, x.type), {})) == "3*s"
