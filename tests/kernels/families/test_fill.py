"""What is made from sizes, and random bits: the same as their meanings, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import ops
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import FLOATS, INTEGERS, UNSIGNED, DType, u32, u64
from dovetail.ir.leaf import input
from dovetail.ops import build
from tests.kernels.native import compiled, same_bits

SIZES = (0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 100, 5000, 70_000)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_counting_in_every_dtype(dtype: DType) -> None:
    x, n = input("x", f32["n"]), symbol("n")
    runner = compiled(
        {"counted": ops.iota(size=n, dtype=dtype), "size": ops.extent(size=n * 2 + 1, dtype=dtype), "x": x}
    )
    for size in SIZES:
        same_bits(runner, {"x": np.zeros(size, np.float32)})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_random_bits(dtype: DType) -> None:
    x, key = input("x", f32["n"]), input("key", u32[2])
    runner = compiled({"bits": ops.random_bits(key, shape=(symbol("n"), 3), dtype=dtype), "x": x})
    for size in SIZES[:-1]:
        same_bits(runner, {"x": np.zeros(size, np.float32), "key": np.array([size, 2**32 - 1 - size], np.uint32)})


@pytest.mark.slow
def test_a_key_that_lies_backwards() -> None:
    key = ops.flip(input("key", u32[2]), axes=(-1,))
    same_bits(compiled(ops.random_bits(key, shape=(100,), dtype=u64)), {"key": np.array([1, 2], np.uint32)})


@pytest.mark.slow
def test_what_is_made_of_them() -> None:
    rows, columns = symbol("m"), symbol("n")
    x, i = input("x", f32["m", "n"]), input("i", u32["m"])
    made = {
        "eye": ops.eye(rows=rows, columns=columns, offset=1),
        "lower": ops.lower_triangle(rows=rows, columns=columns, offset=-1),
        "upper": build.trilu(x, upper=True),
        "hot": ops.one_hot(i, depth=columns, dtype=f32),
        "full": build.full((rows, 3), 2.5, f32) + 1.0,
        "range": build.arange(2, rows * 3 + 1, 2) + 0,
    }
    runner = compiled(made)
    for m, n in ((1, 1), (3, 7), (17, 16), (100, 33)):
        same_bits(runner, {"x": np.arange(m * n, dtype=np.float32).reshape(m, n), "i": np.arange(m, dtype=np.uint32)})
