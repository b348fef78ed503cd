"""Contractions by kernel: products, their epilogues, and operands that lie in every way, against float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import numpy as np
import pytest

from dovetail import Graph, Value, fused_op, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, bf16, f16, f64, i32
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.spec import Job
from dovetail.library.activation import Activation, Gate
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels import native
from tests.kernels.native import native_of
from tests.tolerances import assert_close

SERVED = ("matmul", "linear", "matmul_add", "swiglu", "wide_swiglu")


def compiled(graph: Graph, threads: int | None = None) -> NativeGraph:
    """The graph with its contractions in kernels."""
    return native_of(graph, threads, served=SERVED)


def check(graph: Graph, *every: Mapping[str, Array], params: Mapping[str, Array] | None = None) -> None:
    """One compiled graph with several inputs."""
    native.check(graph, *every, params=params, served=SERVED)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng(seed + sum(shape)).normal(size=shape)).astype(np.float32)


ROWS = (0, 1, 2, 3, 7, 12, 13, 14, 15, 16, 17, 28, 29, 31, 33, 100, 300)


@pytest.mark.parametrize(
    ("k", "n"), [(1, 1), (2, 3), (3, 16), (7, 31), (16, 32), (33, 33), (100, 65), (384, 96), (801, 40)]
)
def test_every_number_of_rows_from_one_code(k: int, n: int) -> None:
    graph = Graph.of(input("x", f32[symbol("m"), k]) @ param("w", f32[k, n]))
    w = normal(k, n, scale=k**-0.5)
    check(graph, *({"x": normal(m, k)} for m in ROWS), params={"w": w})


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 200])
def test_rows_a_page_apart_are_copied_where_they_are_many(columns: int) -> None:
    graph = Graph.of(input("x", f32[symbol("b"), symbol("m"), 1024]) @ param("w", f32[1024, columns]))
    w = normal(1024, columns, scale=1 / 32)
    check(graph, *({"x": normal(b, m, 1024)} for b, m in ((1, 3), (1, 100), (2, 150), (1, 700))), params={"w": w})
    batched = Graph.of(input("x", f32[3, 100, 1024]) @ input("w", f32[3, 1024, 33]))
    check(batched, {"x": normal(3, 100, 1024), "w": normal(3, 1024, 33, scale=1 / 32)})


def test_no_columns_and_nothing_to_sum() -> None:
    check(Graph.of(input("x", f32[5, 3]) @ param("w", f32[3, 0])), {"x": normal(5, 3)}, params={"w": normal(3, 0)})
    empty = Graph.of(library.linear(input("x", f32[5, 0]), param("w", f32[0, 7]), param("b", f32[7])))
    check(empty, {"x": normal(5, 0)}, params={"w": normal(0, 7), "b": normal(7)})


@pytest.mark.parametrize("act", get_args(Activation))
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("n", [31, 64])
def test_linear(act: Activation, bias: bool, n: int) -> None:
    x = input("x", f32[symbol("b"), symbol("m"), 20])
    b = param("b", f32[n]) if bias else None
    params = {"w": normal(20, n), **({"b": normal(n)} if bias else {})}
    graph = Graph.of(library.linear(x, param("w", f32[20, n]), b, act=act))
    check(graph, {"x": normal(1, 1, 20)}, {"x": normal(2, 17, 20)}, {"x": normal(3, 1, 20)}, params=params)


@pytest.mark.slow
def test_activations_meet_what_is_no_number() -> None:
    x = np.array([[np.nan, 1.0], [np.inf, 0.0], [-30.0, 0.0], [3e38, 3e38], [1e-40, 0.0], [-0.0, -0.0]], np.float32)
    w = np.array([[1.0], [1.0]], np.float32)
    for act in get_args(Activation):
        graph = Graph.of(library.linear(input("x", f32[6, 2]), param("w", f32[2, 1]), act=act))
        with np.errstate(all="ignore"):
            check(graph, {"x": x}, params={"w": w})


@pytest.mark.slow
@pytest.mark.parametrize("act", get_args(Gate))
@pytest.mark.parametrize("n", [5, 16, 50])
def test_gated_products(act: Gate, n: int) -> None:
    x = input("x", f32[symbol("m"), 24])
    up, gate, wide = param("up", f32[24, n]), param("gate", f32[24, n]), param("wide", f32[24, 2 * n])
    apart = {"up": normal(24, n, scale=0.2), "gate": normal(24, n, seed=1, scale=0.2)}
    check(Graph.of(library.swiglu(x, up, gate, act=act)), {"x": normal(1, 24)}, {"x": normal(19, 24)}, params=apart)
    for half in ("first", "second"):
        plain = Graph.of(library.wide_swiglu(x, wide, act=act, gate=half))
        check(plain, {"x": normal(3, 24)}, params={"wide": normal(24, 2 * n, scale=0.2)})
        graph = Graph.of(library.wide_swiglu(x, wide, param("b", f32[2 * n]), act=act, gate=half))
        check(graph, {"x": normal(17, 24)}, params={"wide": normal(24, 2 * n, scale=0.2), "b": normal(2 * n)})


@pytest.mark.parametrize("transpose_x", [False, True])
@pytest.mark.parametrize("transpose_w", [False, True])
@pytest.mark.parametrize("bound", [False, True])
def test_matmul_add(transpose_x: bool, transpose_w: bool, bound: bool) -> None:
    x_shape = (9, 21) if transpose_x else (21, 9)
    w_shape = (35, 9) if transpose_w else (9, 35)
    x, w = input("x", f32[x_shape]), (param if bound else input)("w", f32[w_shape])
    d = input("d", f32[21, 35])
    graph = Graph.of(library.matmul_add(x, w, d, transpose_x=transpose_x, transpose_w=transpose_w))
    feeds = {"x": normal(*x_shape), "d": normal(21, 35)}
    weight = {"w": normal(*w_shape)}
    check(graph, feeds if bound else {**feeds, **weight}, params=weight if bound else None)


@pytest.mark.parametrize("dtype", [f32, f16, f64])
@pytest.mark.parametrize("shape", [(21, 9, 35), (150, 700, 96)])
def test_a_sum_lies_where_its_summand_lay(dtype: DType, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, w, d = input("x", dtype[m, k]), param("w", dtype[k, n]), input("d", dtype[m, n])
    graph = Graph.of(library.matmul_add(x, w, ops.exp(d)))
    native = compiled(graph, threads=2)
    assert native.plan.steps[-1].over is native.plan.steps[0].value
    feeds, params = (
        {"x": normal(m, k).astype(dtype.numpy), "d": normal(m, n).astype(dtype.numpy)},
        {"w": normal(k, n, scale=k**-0.5).astype(dtype.numpy)},
    )
    (got,) = native.bind(params).run(feeds).values()
    (expected,) = evaluate(graph, feeds, lift=True, params=params).values()
    assert_close(got, expected, dtype)


BATCHES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3), (2, 3)), ((2, 3), ()), ((), (2, 3)), ((2, 1), (1, 3)), ((1,), (4,)), ((4,), (1,)), ((2, 1, 3), (5, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), BATCHES)
@pytest.mark.parametrize("bound", [False, True])
def test_batches_broadcast(left: tuple[int, ...], right: tuple[int, ...], bound: bool) -> None:
    for m, k, n in ((1, 5, 40), (17, 3, 7)):
        x = input("x", f32[(*left, m, k)])
        w = (param if bound else input)("w", f32[(*right, k, n)])
        weight = {"w": normal(*right, k, n)}
        feeds = {"x": normal(*left, m, k)}
        check(Graph.of(x @ w), feeds if bound else {**feeds, **weight}, params=weight if bound else None)


def test_both_operands_and_every_size_are_known_late() -> None:
    b, m, k, n = map(symbol, "bmkn")
    graph = Graph.of(input("x", f32[b, m, k]) @ input("y", f32[b, k, n]))
    sizes = [(1, 1, 1, 1), (2, 3, 7, 15), (3, 17, 16, 33), (1, 31, 385, 64), (0, 3, 2, 2), (2, 0, 2, 2), (2, 2, 0, 2)]
    check(graph, *({"x": normal(i, j, p), "y": normal(i, p, q, scale=max(1, p) ** -0.5)} for i, j, p, q in sizes))


@pytest.mark.slow
def test_views_are_read_where_they_lie() -> None:
    x, y = input("x", f32[4, 10, 6, 9]), input("y", f32[4, 12, 6, 9])
    swapped = ops.permute(x, order=(-2, -3, -1))
    turned = ops.permute(ops.permute(y, order=(-2, -3, -1)), order=(-1, -2))
    feeds = {"x": normal(4, 10, 6, 9), "y": normal(4, 12, 6, 9)}
    check(Graph.of(swapped @ turned), feeds)
    columns = ops.slice_(x, axis=-1, start=1, stop=8, step=2)
    check(Graph.of(columns @ param("w", f32[4, 33])), {"x": feeds["x"]}, params={"w": normal(4, 33)})
    flipped = ops.flip(x, axes=(-1, -2))
    check(Graph.of(flipped @ param("w", f32[9, 33])), {"x": feeds["x"]}, params={"w": normal(9, 33)})
    repeated = ops.expand(ops.slice_(x, axis=-1, start=2, stop=3), axis=-1, size=5)
    check(Graph.of(repeated @ param("w", f32[5, 3])), {"x": feeds["x"]}, params={"w": normal(5, 3)})


def test_weights_that_are_views_are_packed_too() -> None:
    w = param("w", f32[50, 40])
    graph = Graph.of(input("x", f32[3, 20]) @ ops.permute(ops.slice_(w, axis=-1, start=10, stop=30), order=(-1, -2)))
    check(graph, {"x": normal(3, 20)}, params={"w": normal(50, 40)})


def test_threads_change_no_bit() -> None:
    x = input("x", f32[symbol("m"), 500])
    graph = Graph.of(library.linear(x, param("w", f32[500, 300]), param("b", f32[300]), act="gelu"))
    params = {"w": normal(500, 300), "b": normal(300)}
    one, two = (compiled(graph, threads).bind(params) for threads in (1, 2))
    for m in (1, 5, 40, 333):
        feeds = {"x": normal(m, 500)}
        (alone,), (together,) = one.run(feeds).values(), two.run(feeds).values()
        assert np.array_equal(alone, together)


@pytest.mark.parametrize("k", [400, 1101])
def test_rows_do_not_depend_on_the_rows_beside_them(k: int) -> None:
    graph = Graph.of(input("x", f32[symbol("m"), k]) @ param("w", f32[k, 70]))
    w = normal(k, 70) * np.float32(k**-0.5)
    runner = compiled(graph).bind({"w": w})
    x = normal(190, k)
    (whole,) = runner.run({"x": x}).values()
    assert_close(whole, x.astype(np.float64) @ w.astype(np.float64), f32)
    # Few rows, a tile or two, and as many as have panels fetched ahead.
    for m in (1, 3, 12, 20, 37, 55, 56, 57, 64, 110, 127, 136):
        (some,) = runner.run({"x": x[:m]}).values()
        assert np.array_equal(some, whole[:m])


def test_layers_of_any_shape_share_one_code() -> None:
    def layer(x: Value, k: int, n: int, name: str) -> Value:
        return library.linear(x, param(f"w{name}", f32[k, n]), param(f"b{name}", f32[n]), act="relu")

    x = layer(layer(input("x", f32[symbol("m"), 8]), 8, 50, "0"), 50, 30, "1")
    native = compiled(Graph.of(x))
    assert len({part.entries for part in native.sections}) == 1
    assert len(set(native.sections[0].entries)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("bound", [False, True])
def test_narrow_floats_are_summed_in_f32(dtype: DType, bound: bool) -> None:
    weight = param if bound else input
    x, w, b = input("x", dtype[symbol("m"), 40]), weight("w", dtype[40, 33]), weight("b", dtype[33])
    params = {"w": normal(40, 33, scale=0.2).astype(dtype.numpy), "b": normal(33).astype(dtype.numpy)}
    for y in (x @ w, library.linear(x, w, b, act="gelu"), library.swiglu(x, w, w)):
        graph = Graph.of(y)
        names = {v.attrs["name"] for v in (*graph.parameters, *graph.inputs)}
        mine = {name: a for name, a in params.items() if name in names}
        runner = compiled(graph).bind(mine if bound else {})
        for m in (1, 5, 20):
            feeds = {"x": normal(m, 40).astype(dtype.numpy), **({} if bound else mine)}
            (got,) = runner.run(feeds).values()
            (expected,) = evaluate(graph, feeds, lift=True, params=mine if bound else None).values()
            assert_close(got, expected, dtype)


@pytest.mark.slow
def test_other_types_have_a_kernel_without_tiles() -> None:
    for dtype in (f64, i32):
        graph = Graph.of(input("x", dtype[3, 4]) @ input("y", dtype[4, 5]))
        x, y = (np.arange(n, dtype=dtype.numpy).reshape(4 if n == 20 else 3, -1) for n in (12, 20))
        native = NativeGraph(make_plan(graph, target=CPU))
        assert not native.on_host
        (found,) = native.bind({}).run({"x": x, "y": y}).values()
        np.testing.assert_array_equal(found, x @ y)


@fused_op
def gated(x: Value, w: Value, v: Value, b: Value, c: Value) -> Value:
    """Two products of one input, one of them behind a gate, scaled by a vector."""
    return ops.tanh(x @ w + b) * ops.sigmoid(x @ v) * c + 1.0


@pytest.mark.slow
def test_a_declared_op_of_ones_own_is_a_contraction_too() -> None:
    rng = np.random.default_rng(0)
    graph = Graph.of(
        gated(
            input("x", f32["m", 20]),
            param("w", f32[20, 37]),
            param("v", f32[20, 37]),
            param("b", f32[37]),
            param("c", f32[37]),
        )
    )
    native = NativeGraph(make_plan(graph, target=CPU))
    assert not native.on_host
    shapes = {"w": (20, 37), "v": (20, 37), "b": (37,), "c": (37,)}
    params = {name: (rng.normal(size=shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}
    runner = native.bind(params)
    for m in (1, 5, 9, 40):
        x = rng.normal(size=(m, 20)).astype(np.float32)
        w, v, b, c = (params[n].astype(np.float64) for n in "wvbc")
        wanted = np.tanh(x @ w + b) / (1 + np.exp(-(x @ v))) * c + 1
        assert_close(runner.run({"x": x})["y"], wanted, f32)


def test_rows_of_a_product_with_few_columns_are_shared() -> None:
    graph = Graph.of(library.linear(input("x", f32[128, 64]), param("w", f32[64, 10])))
    (job,) = [j for part in NativeGraph(make_plan(graph, target=CPU)).sections for j in part.jobs]
    assert isinstance(job, Job) and job.tiled.tiles != 1
