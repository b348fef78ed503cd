"""Writing by index: updates in the order of their indices, sums rounded once, indices out of range refused."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import ops
from dovetail.dtypes import f32
from dovetail.errors import BindError
from dovetail.ir.dtype import ALL, FLOATS, INTEGERS, DType, i32, i64
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.ops.indexing import Combine
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.native import bits, compiled, near, numbers, same_bits

WAYS: tuple[Combine, ...] = ("none", "add", "mul", "max", "min")


def drawn(size: int, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).integers(-size, size, shape)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype(dtype: DType) -> None:
    x, i, u = input("x", dtype[9, 5]), input("i", i64[4, 5]), input("u", dtype[4, 5])
    rows = input("r", i64[4, 1])
    made = {"elements": ops.scatter_elements(x, i, u, axis=-2), "rows": ops.scatter_nd(x, rows, u)}
    feeds = {"x": bits(dtype, 9, 5), "i": drawn(9, 4, 5), "u": bits(dtype, 4, 5), "r": drawn(9, 4, 1)}
    same_bits(compiled(made), feeds)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_combined_in_every_dtype(dtype: DType, way: Combine) -> None:
    x, i, u = input("x", dtype[6, 5]), input("i", i32[40, 5]), input("u", dtype[40, 5])
    rows = input("r", i32[40, 1])
    made = {
        "elements": ops.scatter_elements(x, i, u, axis=-2, reduction=way),
        "rows": ops.scatter_nd(x, rows, u, reduction=way),
    }
    feeds = {"x": numbers(dtype, 6, 5), "i": drawn(6, 40, 5).astype(np.int32), "u": numbers(dtype, 40, 5)}
    near(compiled(made), {**feeds, "r": drawn(6, 40, 1).astype(np.int32)})


@pytest.mark.slow
@pytest.mark.parametrize("way", ["none", "add"])
@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_fewer_indices_than_lanes(axis: int, way: Combine) -> None:
    shape = (5, 6, 130)
    taken = tuple(n + 9 if a - 3 == axis else n - 1 for a, n in enumerate(shape))
    x, i, u = input("x", f32[shape]), input("i", i64[taken]), input("u", f32[taken])
    turned = ops.flip(x, axes=(-1,))
    made = {n: ops.scatter_elements(v, i, u, axis=axis, reduction=way) for n, v in (("x", x), ("turned", turned))}
    feeds = {"x": numbers(f32, *shape), "i": drawn(shape[axis], *taken), "u": numbers(f32, *taken, seed=1)}
    near(compiled(made), feeds)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["none", "mul"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_rows_of_indices(depth: int, way: Combine) -> None:
    shape = (3, 4, 1500)
    x, i = input("x", f32[shape]), input("i", i64[2, 7, depth])
    u = input("u", f32[2, 7, *shape[depth:]])
    index = np.stack([drawn(shape[d], 2, 7, seed=d) for d in range(depth)], -1)
    feeds = {"x": numbers(f32, *shape), "i": index, "u": numbers(f32, 2, 7, *shape[depth:]) / np.float32(4)}
    near(compiled(ops.scatter_nd(x, i, u, reduction=way)), feeds)


@pytest.mark.slow
def test_sizes_that_are_known_later() -> None:
    x, i, u = input("x", f32["n", "m"]), input("i", i64["k", "m"]), input("u", f32["k", "m"])
    rows = ops.unsqueeze(ops.slice_(i, axis=-1, start=0, stop=1), axes=(-1,))
    made = {way: ops.scatter_elements(x, i, u, axis=-2, reduction=way) for way in WAYS}
    made["rows"] = ops.scatter_nd(x, ops.squeeze(rows, axes=(-2,)), u)
    runner = compiled(made)
    for n, m, k in ((1, 1, 1), (7, 3, 15), (33, 100, 16), (5, 17, 0), (0, 2, 0), (2, 300, 100)):
        feeds = {"x": numbers(f32, n, m), "u": numbers(f32, k, m, seed=1)}
        near(runner, {**feeds, "i": drawn(n, k, m) if k else np.zeros((0, m), np.int64)})


def test_of_equal_places_the_last_one_stays() -> None:
    x, i, u = input("x", f32[3]), input("i", i64[1000]), input("u", f32[1000])
    made = ops.scatter_elements(x, i, u, axis=-1)
    feeds = {"x": np.zeros(3, np.float32), "i": np.arange(1000) % 2, "u": np.arange(1000, dtype=np.float32)}
    assert same_bits(compiled(made), feeds)["y"].tolist() == [998.0, 999.0, 0.0]


def test_a_sum_is_rounded_once() -> None:
    x, i, u = input("x", f32[1]), input("i", i64[300]), input("u", f32[300])
    made = ops.scatter_elements(x, i, u, axis=-1, reduction="add")
    feeds = {"x": np.array([2**24], np.float32), "i": np.zeros(300, np.int64), "u": np.ones(300, np.float32)}
    assert same_bits(compiled(made), feeds)["y"].tolist() == [2**24 + 300]


@pytest.mark.slow
@pytest.mark.parametrize("bad", [5, -6])
def test_an_index_out_of_range_raises(bad: int) -> None:
    x, i, u = input("x", f32[5, 3]), input("i", i64[2, 3]), input("u", f32[2, 3])
    rows = ops.slice_(i, axis=-1, start=0, stop=1)
    index = np.array([[1, 2, 3], [bad, 4, 0]])
    feeds = {"x": bits(f32, 5, 3), "i": index, "u": bits(f32, 2, 3)}
    for made in (ops.scatter_elements(x, i, u, axis=-2), ops.scatter_nd(x, rows, u, reduction="add")):
        runner = compiled(made)
        with pytest.raises(BindError) as expected:
            evaluate(runner.plan.graph, feeds)
        with pytest.raises(BindError) as found:
            runner.run(feeds)
        assert str(found.value) == str(expected.value)
        same_bits(runner, {**feeds, "i": np.abs(index) % 5})
