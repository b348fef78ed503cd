"""Indices of extremes and running reductions, against NumPy's meaning."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, bf16, bool_, f16, f64, i8, u64
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from tests.kernels.native import bits, compiled, near, same_bits

SHAPES = [(3, 5, 7), (1, 17, 1), (2, 1, 300)]


def extremes(x: Value, axis: int) -> dict[str, Value]:
    return {
        f"{op.name}{axis}{last}": op(x, axis=axis, last=last)
        for op in (ops.arg_max, ops.arg_min)
        for last in (False, True)
    }


def running(x: Value, axis: int) -> dict[str, Value]:
    return {
        f"{op.name}{axis}{exclusive}{reverse}": op(x, axis=axis, exclusive=exclusive, reverse=reverse)
        for op in (ops.cum_sum, ops.cum_prod, ops.cum_max, ops.cum_min)
        for exclusive, reverse in ((False, False), (True, True), (False, True))
    }


def few(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    """Many equal elements, NaN and infinities among the floats."""
    choices = [0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan] if dtype.is_float else [0, 1, 2, 3]
    return np.random.default_rng([seed, *shape]).choice(choices, shape).astype(dtype.numpy)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [f32, bf16, i8, u64, bool_])
def test_the_index_of_an_extreme(dtype: DType, shape: tuple[int, ...]) -> None:
    x = input("x", dtype[shape])
    outputs = {name: y for axis in (-2, -1) for name, y in extremes(x, axis).items()}
    same_bits(compiled(outputs), {"x": few(shape, dtype)})


@pytest.mark.exhaustive
@pytest.mark.parametrize(("shape", "dtype"), [*((shape, f32) for shape in SHAPES), ((3, 5, 7), f64), ((3, 5, 7), f16)])
def test_running_reductions(shape: tuple[int, ...], dtype: DType) -> None:
    x = input("x", dtype[shape])
    outputs = {name: y for axis in (-3, -1) for name, y in running(x, axis).items()}
    runner = compiled(outputs)
    near(runner, {"x": few(shape, dtype)})
    near(runner, {"x": np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(dtype.numpy)})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [i8, u64])
def test_running_whole_numbers_wrap(dtype: DType) -> None:
    x = input("x", dtype[4, 21])
    outputs = {name: y for axis in (-1, -2) for name, y in running(x, axis).items()}
    same_bits(compiled(outputs), {"x": bits(dtype, 4, 21)})


@pytest.mark.slow
def test_sizes_may_come_later_and_operands_lie_anyhow() -> None:
    m, n = symbol("m"), symbol("n")
    x = input("x", f32[m, n])
    turned = ops.permute(x, order=(-1, -2))
    outputs = {**extremes(turned, -1), **running(turned, -1), **running(x, -1), **extremes(x, -2)}
    runner = compiled({f"y{i}": y for i, y in enumerate(outputs.values())})
    for shape in ((1, 1), (3, 5), (260, 17), (2, 600)):
        near(runner, {"x": np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)})


def test_nothing_to_run_over() -> None:
    x = input("x", f32[3, 0])
    assert compiled(ops.cum_sum(x, axis=-1)).run({"x": np.zeros((3, 0), np.float32)})["y"].shape == (3, 0)
