"""Elementwise steps as one loop, wherever their operands lie."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, Value, compile, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, bf16, f16, f64, i32
from dovetail.ir.graph import Subgraph
from dovetail.ir.leaf import argument, input
from dovetail.ir.literal import Array
from dovetail.kernels.spec import Job
from dovetail.ops.region import region
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.compiler import written
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.loops import tiles_for
from dovetail.targets.cpu.native import NativeGraph
from tests.kernels.native import bits, compiled, near, same_bits


def normal(*shape: int, seed: int = 0, dtype: DType = f32) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype.numpy)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (16,), (17, 33), (3, 1, 5), (4097,), (2, 4099), (0, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    x, y = input("x", f32[shape]), input("y", f32[shape])
    same_bits(compiled((x - y) / (x * x)), {"x": normal(*shape), "y": normal(*shape, seed=1)})


@pytest.mark.slow
def test_operands_broadcast() -> None:
    x, row, column, one = (input(n, f32[s]) for n, s in (("x", (5, 6, 7)), ("r", (7,)), ("c", (6, 1)), ("o", ())))
    y = ops.maximum(x - row, column) / one
    same_bits(compiled(y), {"x": normal(5, 6, 7), "r": normal(7), "c": normal(6, 1), "o": normal()})


@pytest.mark.slow
def test_views_are_read_in_place() -> None:
    x = input("x", f32[6, 20, 18])
    outputs = {
        "turned": ops.exp(ops.permute(x, order=(-1, -3, -2))),
        "part": ops.neg(ops.slice_(x, axis=-1, start=2, stop=17, step=3)),
        "flipped": ops.flip(x, axes=(-1, -3)) - x,
        "split": ops.split(x, axis=-2, parts=5) * ops.split(x, axis=-2, parts=5),
        "repeated": ops.expand(ops.slice_(x, axis=-2, start=3, stop=4), axis=-2, size=20) / x,
    }
    near(compiled(outputs), {"x": normal(6, 20, 18)})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_activations(dtype: DType) -> None:
    x = input("x", dtype[5, 34])
    outputs = {
        "gelu": library.gelu(x),
        "tanh": library.gelu(x, form="tanh"),
        "silu": library.silu(x),
        "gated": library.gated_product(x),
        "other": library.gated_product(x, act="gelu", gate="first"),
    }
    near(compiled(outputs), {"x": normal(5, 34, dtype=dtype)})


@pytest.mark.slow
def test_one_code_serves_every_size() -> None:
    m, n = symbol("m"), symbol("n")
    x, row = input("x", f32[m, n]), input("row", f32[n])
    runner = compiled(ops.tanh(x + row) * ops.permute(input("t", f32[n, m]), order=(-1, -2)))
    for shape in ((1, 1), (3, 5), (2, 9000), (300, 3), (0, 4)):
        near(runner, {"x": normal(*shape), "row": normal(shape[1]), "t": normal(*shape[::-1])})


def test_sizes_that_blocks_divide_share_one_kernel() -> None:
    """The update of every weight is such a map: sizes differ, and code need not."""
    block = tiles_for(host_device().caches.l1).map_elements
    sizes = {"two": 2 * block, "three": 3 * block, "more": 3 * block + 1}
    runner = compiled({name: ops.exp(input(f"x.{name}", f32[size])) for name, size in sizes.items()})
    kernels = {
        step.value.shape[0]: written(job.kernel)[0]
        for part in runner.graph.sections
        for step, job in zip(part.steps, part.jobs, strict=True)
        if isinstance(job, Job)
    }
    names = {name: kernels[size] for name, size in sizes.items()}
    assert names["two"] == names["three"] != names["more"]
    near(runner, {f"x.{name}": normal(size) for name, size in sizes.items()})


def test_regions_of_several_lanes_give_several_results() -> None:
    a, b = argument(0, f32[4, 9]), argument(1, f32[9])
    body = Subgraph((f32[4, 9], f32[9]), (ops.exp(a) + b,))
    x, y, row = input("x", f32[4, 9]), input("y", f32[4, 9]), input("row", f32[9])
    both = region(body, [x, row, y, row], lanes=2)
    near(compiled({"p": both[0], "q": both[1]}), {"x": normal(4, 9), "y": normal(4, 9, seed=1), "row": normal(9)})


def test_results_may_take_the_memory_of_an_operand() -> None:
    """A chain of steps of which each writes over the one before, seen through a view or not."""
    x = input("x", f32[64, 64])
    value: Value = ops.exp(x)
    for _ in range(3):
        value = ops.tanh(value)
        value = ops.split(ops.merge(value, axis=-1), axis=-1, parts=64)
        value = ops.cast(ops.cast(value * 100.0, dtype=i32), dtype=f32)
    graph = Graph.of(value)
    plan = make_plan(graph, target=CPU)
    assert any(step.over is not None for step in plan.steps)
    runner = NativeGraph(plan).bind({})
    whole = compile(graph, target="reference")
    feeds = {"x": normal(64, 64)}
    # A unit in the last place may cross a whole number.
    assert float(np.mean(np.abs(runner.run(feeds)["y"] - whole.run(feeds)["y"]) > 1e-3)) < 0.01


@pytest.mark.slow
def test_long_chains_and_shared_steps_are_linear() -> None:
    """Each step reads the one before twice: printed as a tree it would have 2**200 leaves, and be 2,000 deep."""
    x = input("x", f32[5])
    value: Value = x
    for _ in range(200):
        value = (value + value) * 0.5
    for _ in range(2000):
        value = -value
    program = compile(Graph.of(value), target="cpu", without=["canonicalize"])
    feed = normal(5)
    np.testing.assert_array_equal(program.run({"x": feed})["y"], feed)


@pytest.mark.slow
def test_any_bits_of_whole_numbers() -> None:
    x, y = input("x", i32[1000]), input("y", i32[1000])
    outputs = {"a": x * y + ops.maximum(x, y), "b": ops.where(ops.less(x, y), ops.bit_xor(x, y), x - y)}
    same_bits(compiled(outputs), {"x": bits(i32, 1000), "y": bits(i32, 1000, seed=1)})


@pytest.mark.parametrize("divisor", [2.0**0.5, -3.0])
def test_the_slope_of_erf_has_no_division(divisor: float) -> None:
    """exp(-(x / c)²) beside erf(x / c): both take x * (1 / c), which is computed once."""
    x = argument(0, f32[4099])
    z = x / divisor
    inside = Subgraph((f32[4099],), (ops.exp(-(z * z)) + ops.erf(z),))
    native = NativeGraph(make_plan(Graph.of(region(inside, [input("x", f32[4099])])), target=CPU))
    (job,) = [job for part in native.sections for job in part.jobs]
    assert isinstance(job, Job) and "'div'" not in repr(job.kernel)
    near(native.bind({}), {"x": 3 * normal(4099)})
