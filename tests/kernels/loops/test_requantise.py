"""Requantisation by products gives the integers of the quotient, bit for bit: halves, bounds, infinities, NaN."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail import Graph, Value, ops
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, bool_, f32, i8, i32, u8
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import Call, Expr, Load, Number, Tensor
from dovetail.kernels.loops.requantise import Requantiser, reciprocal
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.native import bits

SCALES = st.floats(2.0**-60, 2.0**60, width=32)


def quantised(x: Value, scale: float, zero: int, dtype: DType) -> Value:
    low, high = dtype.range
    steps = ops.round_(x / leaf.scalar(scale, f32)) + leaf.scalar(float(zero), f32)
    return ops.cast(ops.clip(steps, float(low), float(high)), dtype=dtype)


def dequantised(q: Value, scale: float, zero: int) -> Value:
    wide = ops.cast(q, dtype=i32)
    return ops.cast(wide if zero == 0 else wide - leaf.scalar(zero, i32), dtype=f32) * leaf.scalar(scale, f32)


def around(scale: float, zero: int) -> Array:
    """Floats near every boundary between two integers, beyond both ends, and those that are no numbers."""
    middle = (np.arange(-400, 401, dtype=np.float32) - np.float32(zero) + np.float32(0.5)) * np.float32(scale)
    near = [middle]
    for toward in (-np.inf, np.inf):
        near += [np.nextafter(near[0], np.float32(toward)), (middle * np.float32(1 + 2e-7)).astype(np.float32)]
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-44], np.float32)
    return np.concatenate([*near, odd, bits(f32, 83)])


def in_one_kernel(y: Value, feed: Array) -> None:
    """Bits of one kernel are those of the steps one by one."""
    graph = Graph.of(y)
    program = dovetail.compile(graph, target="cpu")
    assert len(program.report.kernels) == 1
    with np.errstate(all="ignore"):
        (wanted,) = evaluate(graph, {"x": feed}).values()
    (found,) = program.run({"x": feed}).values()
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [i8, u8], ids=str)
@pytest.mark.parametrize("zero", [0, 7, 127])
@pytest.mark.parametrize("scale", [0.0038751268, 0.5, 0.1, 1.0, 3.0, 0.13183480501174927, 7e18])
def test_integers_are_those_of_the_quotient(scale: float, zero: int, dtype: DType) -> None:
    feed = around(scale, zero)
    x = input("x", f32[feed.size])
    q = quantised(x, scale, zero, dtype)
    in_one_kernel(q, feed)
    in_one_kernel(dequantised(q, scale, zero), feed)
    in_one_kernel(dequantised(q, 0.3, 5), feed)


def test_a_chain_of_two_is_exact() -> None:
    feed = around(0.07, 9)
    x = input("x", f32[feed.size])
    first = dequantised(quantised(x, 0.07, 9, i8), 0.07, 9)
    in_one_kernel(quantised(first + x, 0.11, -128, i8), feed)


@given(scale=SCALES, zero=st.integers(-128, 255))
def test_the_parts_round_as_the_quotient_does(scale: float, zero: int) -> None:
    """Exact rational arithmetic decides, at floats that the search for parts did not see."""
    parts = reciprocal(scale, -zero, 255 - zero)
    assert parts is not None
    main, rest = map(np.float32, parts)
    random = np.random.default_rng([zero % 256])
    steps = random.integers(-zero, 255 - zero, 40) + 0.5
    for x in (steps * scale * (1 + random.normal(0, 1e-7, 40))).astype(np.float32):
        wanted = np.rint(x / np.float32(scale))
        exact = Fraction(float(x)) * Fraction(float(main)) + Fraction(float(np.float32(x * rest)))
        found = round(Fraction(float(_nearest(exact))))
        assert found == wanted


def _nearest(exact: Fraction) -> np.float32:
    """The float next to a fraction, ties to even."""
    guess = np.float32(float(exact))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(near, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.int32)) & 1))


def _steps(x: Expr, *, scale: float = 0.1, low: float = 0.0, high: float = 255.0) -> Expr:
    quotient = Call("div", (x, Number(scale, f32)), f32)
    whole = Call("maximum", (Call("round", (quotient,), f32), Number(low, f32)), f32)
    return Call("minimum", (whole, Number(high, f32)), f32)


X = Load(Tensor("x", f32, ()), ())


def ops_of(expr: Expr) -> set[str]:
    return {expr.op}.union(*map(ops_of, expr.operands)) if isinstance(expr, Call) else set()


def test_a_clipped_quotient_needs_neither_division_nor_range_check() -> None:
    made = Requantiser().rewritten(Call("cast", (_steps(X),), u8))
    assert ops_of(made) == {"low_bits", "anchor", "fma", "mul", "fold_maximum", "fold_minimum"}


def test_a_dequantised_value_stays_a_float() -> None:
    wide = Call("cast", (Call("cast", (_steps(X),), u8),), i32)
    made = Requantiser().rewritten(Call("cast", (Call("sub", (wide, Number(3, i32)), i32),), f32))
    assert not {"cast", "low_bits", "div"} & ops_of(made)


@pytest.mark.parametrize(
    "expr",
    [
        Call("cast", (_steps(X, high=256.0),), u8),
        Call("cast", (_steps(X, low=9.0, high=3.0),), u8),
        Call("cast", (_steps(X, scale=1e-30),), u8),
        Call("cast", (_steps(X, low=0.5),), u8),
        Call("cast", (_steps(X),), i32),
        Call("cast", (Call("round", (Call("div", (X, Number(0.1, f32)), f32),), f32),), u8),
        Call("cast", (_steps(X),), bool_),
        _steps(X),
    ],
    ids=["range", "order", "scale", "bound", "wide", "unclipped", "bool", "float"],
)
def test_other_steps_stay_as_they_are(expr: Expr) -> None:
    assert Requantiser().rewritten(expr) is expr


def test_shared_steps_stay_shared() -> None:
    q = Call("cast", (_steps(X),), u8)
    made = Requantiser().rewritten(Call("add", (q, q), u8))
    assert isinstance(made, Call)
    assert made.operands[0] is made.operands[1]
