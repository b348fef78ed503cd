"""Products of what was quantised to bytes, against their meaning in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from dovetail import Graph, Value, f32, library, ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size, symbol
from dovetail.ir.dtype import DType, i8, u8
from dovetail.ir.literal import Array
from dovetail.kernels.spec import Job
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.native import native_of
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif(not host_device().has("vnni"), reason="this machine does not sum up products of bytes")


def numbers(dtype: DType, *shape: int, seed: int = 0) -> Array:
    """Bytes, the smallest and the largest among them."""
    low, high = (-128, 128) if dtype is i8 else (0, 256)
    found = np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype.numpy)
    found.reshape(-1)[:1], found.reshape(-1)[-1:] = low, high - 1
    return found


def scales(count: int) -> Array:
    return np.random.default_rng(count).uniform(0.001, 0.03, count).astype(np.float32)


def left(shape: tuple[Size, ...], dtype: DType = u8, scale: float = 0.017, zero: int = 7) -> Value:
    x = leaf.input("x", dtype[shape])
    return ops.dequantise(x, leaf.scalar(scale, f32), leaf.constant(np.array(zero, dtype.numpy)), dtype=f32)


def right(k: int, n: int, dtype: DType = i8, *, name: str = "w", whole: bool = False, zeros: bool = False) -> Value:
    """Weights with a scale for each column, or one for all."""
    shape = () if whole else (n,)
    steps = leaf.param(f"{name}.scale", f32[shape])
    zero = leaf.param(f"{name}.zero", dtype[shape]) if zeros else leaf.constant(np.zeros(shape, dtype.numpy))
    return ops.dequantise(leaf.param(name, dtype[k, n]), steps, zero, dtype=f32, axis=None if whole else -1)


def params_of(graph: Graph) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for value in graph.parameters:
        shape = tuple(s for s in value.shape if isinstance(s, int))
        whole = numbers(value.dtype, *shape, seed=1) if value.dtype in (i8, u8) else None
        found[value.attrs["name"]] = scales(int(np.prod(shape))).reshape(shape) if whole is None else whole
    return found


def compiled(graph: Graph, threads: int | None = None) -> NativeRunner:
    return native_of(graph, threads, kernel="int8_", served=()).bind(params_of(graph))


def check(y: Value, *feeds: Mapping[str, Array], threads: int | None = None) -> list[Array]:
    graph = Graph.of(y)
    runner = compiled(graph, threads)
    found: list[Array] = []
    for feed in feeds:
        (got,) = runner.run(feed).values()
        (expected,) = evaluate(graph, feed, params=params_of(graph), lift=True).values()
        # Sums are exact; only scales are rounded.
        assert_close(got / 64, expected / 64, f32)
        found.append(got)
    return found


@pytest.mark.parametrize("k", [1, 3, 4, 33, 384])
@pytest.mark.parametrize("n", [1, 15, 48, 49, 100])
def test_every_number_of_rows_of_one_compilation(k: int, n: int) -> None:
    y = left((symbol("m"), k)) @ right(k, n)
    check(y, *({"x": numbers(u8, m, k)} for m in (1, 2, 7, 8, 9, 64, 65, 130, 0)))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("of_weights", [i8, u8])
@pytest.mark.parametrize(("dtype", "zero"), [(u8, 0), (u8, 255), (u8, 128), (i8, 0), (i8, -128), (i8, 127)])
def test_signs_and_zero_points(whole: bool, zeros: bool, of_weights: DType, dtype: DType, zero: int) -> None:
    y = left((5, 21), dtype, zero=zero) @ right(21, 19, of_weights, whole=whole, zeros=zeros)
    check(y, {"x": numbers(dtype, 5, 21)})


def test_the_farthest_sums_are_whole_numbers_still() -> None:
    k = 16_384
    y = left((2, k), u8, scale=1.0, zero=0) @ right(k, 3, i8, whole=True)
    graph = Graph.of(y)
    params = {"w": np.full((k, 3), -128, np.int8), "w.scale": np.array(1.0, np.float32)}
    (got,) = NativeGraph(make_plan(graph, target=CPU)).bind(params).run({"x": np.full((2, k), 255, np.uint8)}).values()
    assert (got == -128.0 * 255 * k).all()


def test_weights_side_by_side_and_axes_in_front() -> None:
    w = ops.concat(right(24, 8, name="q"), right(24, 8, u8, name="k", zeros=True), right(24, 40, name="v"), axis=-1)
    check(left((symbol("b"), 3, 24)) @ w, *({"x": numbers(u8, b, 3, 24)} for b in (1, 5, 30)))


def test_bias_activation_and_a_summand_in_the_epilogue() -> None:
    b, d = leaf.param("b", f32[56]), leaf.input("d", f32[9, 56])
    x, w = left((9, 32)), right(32, 56)
    feed = {"x": numbers(u8, 9, 32)}
    check(library.linear(x, w, b, act="gelu"), feed)
    feed["d"] = np.random.default_rng(0).normal(size=(9, 56)).astype(np.float32)
    check(library.matmul_add(x, w, d), feed)
    # The second one is written over.
    check(library.matmul_add(x, w, ops.exp(d)), feed)


def test_bits_do_not_depend_on_threads() -> None:
    y = left((symbol("m"), 96)) @ right(96, 200)
    feeds = [{"x": numbers(u8, m, 96)} for m in (3, 300)]
    found = [[a.tobytes() for a in check(y, *feeds, threads=threads)] for threads in (1, 2, 3)]
    assert found[0] == found[1] == found[2]


def test_what_was_not_bytes_is_left_to_other_code() -> None:
    x = leaf.input("x", f32[4, 8])
    for y in (x @ right(8, 16), left((4, 8)) @ leaf.param("w", f32[8, 16])):
        native = NativeGraph(make_plan(Graph.of(y), target=CPU))
        names = [job.kernel.name for part in native.sections for job in part.jobs if isinstance(job, Job)]
        assert not any(name.startswith("bytes_") for name in names)
