"""Reading by index: every form of it keeps every bit, and an index out of range raises what the meaning raises."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.errors import BindError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import ALL, INTEGERS, DType, i32, i64, u64
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.native import bits, compiled, same_bits


def drawn(size: int, *shape: int, dtype: DType = i64, seed: int = 0) -> Array:
    """Indices into an axis, counted from either end where the dtype has negative numbers."""
    least = 0 if dtype.kind == "uint" else -size
    return np.random.default_rng([seed, *shape]).integers(least, size, shape).astype(dtype.numpy)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_rows_of_every_dtype(dtype: DType) -> None:
    x, i = input("x", dtype[9, 5]), input("i", i64[2, 3])
    made = {"rows": ops.gather(x, i, axis=-2), "columns": ops.gather(ops.permute(x, order=(-1, -2)), i, axis=-1)}
    same_bits(compiled(made), {"x": bits(dtype, 9, 5), "i": drawn(9, 2, 3)})


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_indices_of_every_dtype(dtype: DType) -> None:
    x, i = input("x", f32[100]), input("i", dtype[37])
    same_bits(compiled(ops.gather(x, i, axis=-1)), {"x": bits(f32, 100), "i": drawn(100, 37, dtype=dtype)})


@pytest.mark.parametrize("axis", [-1, -2, -3])
@pytest.mark.parametrize("shape", [(), (1,), (17,), (3, 5)])
def test_axes(axis: int, shape: tuple[int, ...]) -> None:
    x, i = input("x", f32[4, 7, 33]), input("i", i32[shape])
    size = (4, 7, 33)[axis]
    same_bits(compiled(ops.gather(x, i, axis=axis)), {"x": bits(f32, 4, 7, 33), "i": drawn(size, *shape, dtype=i32)})


def test_embeddings_of_every_length_from_one_code() -> None:
    table, i = input("table", f32["v", 384]), input("i", i64["b", "s"])
    runner = compiled(ops.gather(table, i, axis=-2))
    for v, b, s in ((1, 1, 1), (100, 2, 7), (1000, 1, 100), (10, 3, 0), (0, 2, 0), (50, 8, 128)):
        same_bits(runner, {"table": bits(f32, v, 384), "i": drawn(v, b, s) if b * s else np.zeros((b, s), np.int64)})


@pytest.mark.slow
@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_elements(axis: int) -> None:
    shape = (5, 6, 19)
    taken = tuple(n + 4 if a - 3 == axis else n - 1 for a, n in enumerate(shape))
    x, i = input("x", f32[shape]), input("i", i64[taken])
    turned = ops.gather_elements(ops.flip(x, axes=(-1,)), i, axis=axis)
    made = {"plain": ops.gather_elements(x, i, axis=axis), "turned": turned}
    same_bits(compiled(made), {"x": bits(f32, *shape), "i": drawn(shape[axis], *taken)})


@pytest.mark.parametrize(("depth", "batch"), [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2)])
def test_rows_of_indices(depth: int, batch: int) -> None:
    shape = (3, 4, 5)
    lead: tuple[Size, ...] = (*shape[:batch], 7)
    x, i = input("x", f32[shape]), input("i", i64[*lead, depth])
    columns = [drawn(shape[batch + d], *(*shape[:batch], 7), seed=d) for d in range(depth)]
    runner = compiled(ops.gather_nd(x, i, batch=batch))
    same_bits(runner, {"x": bits(f32, *shape), "i": np.stack(columns, -1)})


def refused(made: Value, feeds: dict[str, Array], threads: int = 2) -> None:
    """The compiled step raises what its meaning raises, word for word."""
    runner = compiled(made, threads=threads)
    with pytest.raises(BindError) as expected:
        evaluate(runner.plan.graph, feeds)
    with pytest.raises(BindError) as found:
        runner.run(feeds)
    assert str(found.value) == str(expected.value)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [5, -6, 2**40, -(2**63)])
def test_an_index_out_of_range_raises(bad: int) -> None:
    x, i = input("x", f32[5, 3]), input("i", i64[4])
    wide = input("i", i64[4, 3])
    many = np.array([0, -5, bad, 4])
    feeds = {"x": bits(f32, 5, 3), "i": many}
    refused(ops.gather(x, i, axis=-2) + 1.0, feeds)
    refused(ops.gather_elements(x, wide, axis=-2), {**feeds, "i": np.repeat(many[:, None], 3, 1)})
    refused(ops.gather_nd(x, ops.unsqueeze(i, axes=(-1,))), feeds)


def test_the_largest_unsigned_index_is_out_of_range() -> None:
    refused(
        ops.gather(input("x", f32[5]), input("i", u64[1]), axis=-1),
        {"x": bits(f32, 5), "i": np.array([2**64 - 1], np.uint64)},
    )


def test_an_empty_axis_has_no_element() -> None:
    feeds = {"x": np.zeros((0, 3), np.float32), "i": np.array([0])}
    refused(ops.gather(input("x", f32[0, 3]), input("i", i64[1]), axis=-2), feeds)
    refused(ops.gather(input("x", f32["n", 3]), input("i", i64[1]), axis=-2), feeds)


def test_a_run_after_a_refused_one_is_right() -> None:
    x, i = input("x", f32["n", 300]), input("i", i64["m"])
    runner = compiled(ops.gather(x, i, axis=-2))
    table = bits(f32, 50, 300)
    for _ in range(3):
        with pytest.raises(BindError, match="index 50 into an axis of size 50"):
            runner.run({"x": table, "i": np.arange(1, 51)})
        same_bits(runner, {"x": table, "i": np.arange(-50, 50)})
