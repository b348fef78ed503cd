"""Pools in plain loops, against their meaning."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail import ops
from dovetail.dtypes import bf16, f16, f32, f64, i8, i32, u8
from dovetail.ir.dtype import DType
from dovetail.ir.leaf import input
from tests.kernels.native import bits, compiled, near, numbers, same_bits

WINDOWS: list[dict[str, Any]] = [
    {"window": (2, 2), "strides": (2, 2)},
    {"window": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "ceil": True},
    {"window": (2, 3), "dilations": (3, 2), "strides": (1, 2), "padding": (1, 2, 0, 3)},
]


@pytest.mark.parametrize("attrs", WINDOWS)
@pytest.mark.parametrize("dtype", [i8, u8, i32, f16, f64])
def test_the_largest_is_exact(dtype: DType, attrs: dict[str, Any]) -> None:
    runner = compiled(ops.max_pool(input("x", dtype[2, 3, 8, 9]), **attrs))
    same_bits(runner, {"x": numbers(dtype, 2, 3, 8, 9)})


@pytest.mark.slow
def test_nan_wins() -> None:
    runner = compiled(ops.max_pool(input("x", f16[1, 2, 4, 30]), window=(2, 2)))
    found = runner.run({"x": bits(f16, 1, 2, 4, 30)})
    assert any((y != y).any() for y in found.values())


@pytest.mark.parametrize("count_padding", [False, True])
@pytest.mark.parametrize("attrs", WINDOWS)
@pytest.mark.parametrize("dtype", [f16, bf16, f64])
def test_means(dtype: DType, attrs: dict[str, Any], count_padding: bool) -> None:
    runner = compiled(ops.average_pool(input("x", dtype[2, 3, 8, 9]), **attrs, count_padding=count_padding))
    near(runner, {"x": numbers(dtype, 2, 3, 8, 9)})


@pytest.mark.slow
@pytest.mark.parametrize("pool", [ops.max_pool, ops.average_pool])
def test_three_axes_at_every_size(pool: Any) -> None:
    x = input("x", f32["n", 2, "d", "h", 6])
    runner = compiled(pool(x, window=(2, 3, 2), strides=(2, 1, 2), padding=(0, 1, 1, 1, 1, 0)))
    for n, d, h in ((1, 2, 3), (2, 5, 1), (1, 3, 9)):
        near(runner, {"x": numbers(f32, n, 2, d, h, 6)})
