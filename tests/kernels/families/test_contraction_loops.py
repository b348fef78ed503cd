"""Sums of products in plain loops, against their meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import library, ops
from dovetail.dtypes import bf16, f16, f32, f64, i8, i32, i64, u8
from dovetail.ir.dtype import DType
from dovetail.ir.leaf import input
from tests.kernels.native import compiled, near, numbers, same_bits

WINDOWS: list[dict[str, Any]] = [
    {},
    {"strides": (2, 3), "padding": (1, 2, 0, 1)},
    {"dilations": (2, 1), "padding": (2, 0, 3, 4)},
    {"strides": (1, 2), "dilations": (1, 3), "padding": (0, 7, 0, 7)},
]
"""The last one has taps that see nothing but padding."""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [i8, u8, i32, i64])
@pytest.mark.parametrize("attrs", WINDOWS)
def test_convolutions_of_whole_numbers_are_exact(dtype: DType, attrs: dict[str, Any]) -> None:
    x, w = input("x", dtype[2, 10, 7, 9]), input("w", dtype[6, 5, 3, 2])
    runner = compiled(ops.conv(x, w, groups=2, **attrs))
    same_bits(runner, {"x": numbers(dtype, 2, 10, 7, 9), "w": numbers(dtype, 6, 5, 3, 2, seed=1)})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_convolutions_over_three_axes(dtype: DType) -> None:
    x, w, b = input("x", dtype["n", 3, "d", 5, 6]), input("w", dtype[4, 3, 2, 3, 3]), input("b", dtype[4, 1, 1, 1])
    shape: dict[str, Any] = {"strides": (1, 2, 1), "padding": (1, 1, 1, 0, 1, 1), "dilations": (1, 1, 1), "groups": 1}
    runner = compiled(library.conv_bias_act(x, w, b, act="relu", **shape))
    for n, d in ((1, 4), (2, 1), (3, 6)):
        feeds = {"x": numbers(dtype, n, 3, d, 5, 6), "w": numbers(dtype, 4, 3, 2, 3, 3, seed=1)}
        near(runner, feeds | {"b": numbers(dtype, 4, 1, 1, 1, seed=2)})


@pytest.mark.parametrize("dtype", [f16, f64])
def test_convolutions_that_no_template_takes(dtype: DType) -> None:
    x, w = input("x", dtype[2, 4, 9]), input("w", dtype[4, 1, 3])
    runner = compiled(ops.conv(x, w, groups=4, padding=(1, 1), strides=(2,)))
    near(runner, {"x": numbers(dtype, 2, 4, 9), "w": numbers(dtype, 4, 1, 3)})


@pytest.mark.parametrize("dtype", [i8, i32, f64])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 512, 3), (9, 513, 7), (3, 0, 2), (17, 40, 0)])
def test_matrix_products(dtype: DType, sizes: tuple[int, int, int]) -> None:
    rows, columns, depth = sizes
    x, y = input("x", dtype[2, rows, depth]), input("y", dtype[depth, columns])
    runner = compiled(ops.matmul(x, y))
    feeds = {"x": numbers(dtype, 2, rows, depth), "y": numbers(dtype, depth, columns, seed=1)}
    same_bits(runner, feeds)


def test_sums_wrap_as_whole_numbers_do() -> None:
    x, y = input("x", i8[3, 40]), input("y", i8[40, 5])
    full = np.full((3, 40), 127, np.int8)
    same_bits(compiled(ops.matmul(x, y)), {"x": full, "y": full.reshape(40, 3)[:, [0, 1, 2, 0, 1]].copy()})


def test_batches_are_stretched_and_views_read_where_they_lie() -> None:
    x, y = input("x", i32["b", 1, 5, 6]), input("y", i32[3, 7, 5])
    runner = compiled(ops.matmul(ops.permute(x, order=(-1, -2)), ops.permute(y, order=(-1, -2))))
    for b in (1, 4):
        same_bits(runner, {"x": numbers(i32, b, 1, 5, 6), "y": numbers(i32, 3, 7, 5, seed=1)})


def test_what_stands_behind_a_integer_product_numbers() -> None:
    x, w, b = input("x", i32["n", 6]), input("w", i32[6, 10]), input("b", i32[10])
    runner = compiled(library.linear(x, w, b))
    for n in (1, 20):
        same_bits(runner, {"x": numbers(i32, n, 6), "w": numbers(i32, 6, 10, seed=1), "b": numbers(i32, 10, seed=2)})
