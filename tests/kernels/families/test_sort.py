"""Sorting: equal elements keep their order, NaN counts as larger than every number."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import ops
from dovetail.dtypes import f32
from dovetail.ir.dim import Size, symbol
from dovetail.ir.dtype import FLOATS, INTEGERS, DType, bool_
from dovetail.ir.leaf import input, item
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from tests.kernels.native import compiled, numbers, same_bits

SIZES = (0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 100, 1000)


def both(pack: Value, name: str = "") -> dict[str, Value]:
    return {f"{name}values": item(pack, 0), f"{name}places": item(pack, 1)}


def odd(dtype: DType, *shape: int) -> Array:
    """Many equal numbers, and where there are floats, NaN, infinities and both zeros."""
    found = numbers(dtype, *shape)
    if dtype.is_float and found.size:
        flat = found.reshape(-1)
        chosen = np.random.default_rng(7).integers(0, 20, flat.size)
        for i, number in enumerate((np.nan, np.inf, -np.inf, -0.0, 1e-7)):
            flat[chosen == i] = number
    return found


@pytest.mark.slow
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, bool_], ids=str)
def test_every_dtype(dtype: DType, descending: bool) -> None:
    x = input("x", dtype[3, 50])
    made = both(ops.sort(x, axis=-1, descending=descending))
    made |= both(ops.top_k(x, k=5, largest=descending), "five_")
    made |= both(ops.top_k(x, k=40, axis=-1, largest=descending, in_order=False), "many_")
    same_bits(compiled(made), {"x": odd(dtype, 3, 50)})


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [-1, -2])
def test_every_length_from_one_code(axis: int, descending: bool) -> None:
    x = input("x", f32["m", "n"])
    runner = compiled(both(ops.sort(x, axis=axis, descending=descending)))
    for size in SIZES:
        shape = (size, 3) if axis == -2 else (3, size)
        same_bits(runner, {"x": odd(f32, *shape)})


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("k", [0, 1, 2, 31, 32, 33, 64, 100])
def test_the_best(k: int, in_order: bool) -> None:
    x = input("x", f32[2, 100, 3])
    made = both(ops.top_k(x, k=k, axis=-2, in_order=in_order))
    same_bits(compiled(made), {"x": odd(f32, 2, 100, 3)})


@pytest.mark.slow
def test_how_many_is_known_later() -> None:
    x, y = input("x", f32["m", "n"]), input("y", f32["k"])
    k: Size = symbol("k")
    runner = compiled({**both(ops.top_k(x, k=k, in_order=False)), **both(ops.top_k(x, k=k), "best_"), "y": y})
    for m, n, count in ((1, 1, 1), (3, 17, 0), (2, 100, 16), (4, 33, 33), (2, 1000, 777)):
        same_bits(runner, {"x": odd(f32, m, n), "y": np.zeros(count, np.float32)})


@pytest.mark.slow
def test_strided_lanes() -> None:
    x = ops.flip(ops.permute(input("x", f32[37, 4]), order=(-1, -2)), axes=(-1,))
    same_bits(compiled({**both(ops.sort(x)), **both(ops.top_k(x, k=3), "best_")}), {"x": odd(f32, 37, 4)})


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [np.arange(300.0), np.arange(300.0)[::-1], np.zeros(300), np.arange(300.0) % 7])
def test_lanes_with_an_order(numbers: Array) -> None:
    x = input("x", f32[300])
    made = {**both(ops.sort(x)), **both(ops.sort(x, descending=True), "down_"), **both(ops.top_k(x, k=9), "best_")}
    same_bits(compiled(made), {"x": numbers.astype(np.float32)})
