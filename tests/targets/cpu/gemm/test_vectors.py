"""Matrix by vector: neither operand is packed where a run computes both, and each is read once."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import Builder, ops
from dovetail.dtypes import f32
from dovetail.ir.literal import Array
from dovetail.runtime.compile import compilation_of

SIZES = {"one vector": 1, "two": 2, "three": 3, "four": 4}
DEPTHS = (16, 64, 100, 257, 600)
COLUMNS = (16, 33, 64, 200, 400, 1000)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def close(found: Array, left: Array, right: Array) -> None:
    wide = left.astype(np.float64) @ right.astype(np.float64)
    limit = np.abs(left).astype(np.float64) @ np.abs(right).astype(np.float64)
    assert np.all(np.abs(found - wide) <= 4e-7 * limit + 1e-30)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("rows", [1, 7, 70, 200])
@pytest.mark.parametrize("bound", [False, True], ids=["input", "parameter"])
def test_a_matrix_by_a_vector(rows: int, depth: int, bound: bool) -> None:
    builder = Builder("vector")
    matrix = (builder.param if bound else builder.input)("a", f32[rows, depth])
    builder.output("y", matrix @ builder.input("v", f32[depth, 1]))
    a, v = drawn(rows, depth), drawn(depth, 1)
    program = dovetail.compile(builder.graph(), params={"a": a} if bound else None)
    close(program.run({"v": v} if bound else {"a": a, "v": v})["y"], a, v)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("rows", SIZES.values(), ids=SIZES.keys())
def test_a_vector_by_a_matrix(rows: int, depth: int, columns: int) -> None:
    """Of any width: the last panel may have part of its columns."""
    builder = Builder("vector")
    builder.output("y", builder.input("v", f32[rows, depth]) @ builder.input("a", f32[depth, columns]))
    v, a = drawn(rows, depth), drawn(depth, columns)
    close(dovetail.compile(builder.graph()).run({"a": a, "v": v})["y"], v, a)


def test_of_each_matrix_of_a_batch_with_steps_after_it() -> None:
    for left, right in (((3, 40, 96), (3, 96, 1)), ((3, 2, 96), (3, 96, 80)), ((5, 1, 64), (64, 48))):
        builder = Builder("batch")
        x, y = builder.input("x", f32[left]), builder.input("y", f32[right])
        z = builder.input("z", f32[right[-1]])
        builder.output("out", ops.relu(x @ y + z))
        feeds = {"x": drawn(*left), "y": drawn(*right), "z": drawn(right[-1])}
        found = dovetail.compile(builder.graph()).run(feeds)["out"]
        wide = feeds["x"].astype(np.float64) @ feeds["y"] + feeds["z"]
        np.testing.assert_allclose(found, np.maximum(wide, 0), rtol=1e-5, atol=1e-5)


def test_columns_that_are_rows_of_another_matrix() -> None:
    """A product by a transposed view of few rows: each of its columns is contiguous."""
    for columns in (1, 2, 5):
        builder = Builder("turned")
        x, w = builder.input("x", f32[50, 130]), builder.input("w", f32[columns, 130])
        builder.output("y", x @ ops.permute(w, order=(-1, -2)))
        a, b = drawn(50, 130), drawn(columns, 130)
        close(dovetail.compile(builder.graph()).run({"x": a, "w": b})["y"], a, b.T)


def test_what_is_beyond_the_last_row_is_not_read_as_a_number() -> None:
    """Infinities after the operands would be NaN in sums that read past the end."""
    whole = np.full(4096, np.inf, np.float32)
    a, v = whole[:300].reshape(3, 100), whole[1024:1124].reshape(100, 1)
    a[:], v[:] = drawn(3, 100), drawn(100, 1)
    builder = Builder("ends")
    builder.output("y", builder.input("a", f32[3, 100]) @ builder.input("v", f32[100, 1]))
    close(dovetail.compile(builder.graph()).run({"a": a, "v": v})["y"], a, v)


@pytest.mark.parametrize(
    ("left", "right", "variant"),
    [((2048, 2048), (2048, 1), "narrow"), ((1, 2048), (2048, 2048), "few_rows")],
)
def test_which_kernel_serves_them(left: tuple[int, int], right: tuple[int, int], variant: str) -> None:
    builder = Builder("vector")
    builder.output("y", builder.input("x", f32[left]) @ builder.input("w", f32[right]))
    made = compilation_of(builder.graph())
    (step,) = made.plan.phase("run")
    assert [row.name for row in made.considered(step) if row.taken] == [variant]
