"""Bodies with reductions as one kernel, against their meaning in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from dovetail import Graph, Value, library, ops
from dovetail.declare import fused_op
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, bf16, bool_, f16, f64, i8, i32, u16, u64
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import Kernel, Loop, Statement
from dovetail.kernels.spec import Job
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.runtime.building.build import builder_of
from tests.kernels.native import bits, compiled, near

LENGTHS = (1, 2, 7, 16, 17, 33, 100, 2049)
EPS = 1e-5


def normal(*shape: int, seed: int = 0, dtype: DType = f32) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype.numpy)


def x_of(*shape: int, dtype: DType = f32) -> Value:
    return input("x", dtype[shape])


def vector(name: str, n: int, dtype: DType = f32) -> Value:
    return input(name, dtype[n])


@pytest.mark.slow
@pytest.mark.parametrize("columns", [385, 2048, 2500])
def test_columns_of_what_memory_holds_are_summed_like_those_of_a_cache(columns: int) -> None:
    """A bundle is then as wide as the rows of the matrix, which changes no sum."""
    rows, few = 1000, 130
    x = normal(rows, columns)
    assert x.nbytes > host_device().caches.l2_room > x[:, :few].nbytes

    def of(x: Value) -> dict[str, Value]:
        return {"sum": ops.reduce_sum(x, axes=(-2,)), "softmax": library.softmax(x, axis=-2)}

    wide = compiled(of(x_of(rows, columns)))
    near(wide, {"x": x})
    found = wide.run({"x": x})
    for first in (0, columns - few):
        part = np.ascontiguousarray(x[:, first : first + few])
        for name, expected in compiled(of(x_of(rows, few))).run({"x": part}).items():
            assert np.array_equal(found[name][..., first : first + few], expected), name


@pytest.mark.slow
@pytest.mark.parametrize("n", LENGTHS)
def test_rows_of_any_length(n: int) -> None:
    x, r, gain, bias = x_of(5, n), input("r", f32[5, n]), vector("gain", n), vector("bias", n)
    kept = library.residual_rms_norm(x, r, gain, bias, eps=EPS, keep_sum=True)
    outputs = {
        "softmax": library.softmax(x),
        "guarded": library.softmax(x, empty="zero"),
        "log_softmax": library.log_softmax(x),
        "layer_norm": library.layer_norm(x, gain, bias, eps=EPS),
        "rms_norm": library.rms_norm(x, gain, eps=EPS),
        "residual": library.residual_layer_norm(x, r, gain, bias, bias, eps=EPS),
        "kept": kept[0],
        "sum": kept[1],
    }
    feeds = {"x": normal(5, n), "r": normal(5, n, seed=1), "gain": normal(n), "bias": normal(n, seed=2)}
    near(compiled(outputs), feeds)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_softmax_along_every_axis(axis: int) -> None:
    x = x_of(3, 17, 300)
    near(
        compiled({"a": library.softmax(x, axis=axis), "b": library.log_softmax(x, axis=axis)}),
        {"x": normal(3, 17, 300)},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "shape"), [(1, (2, 4, 3, 5)), (3, (2, 12, 5, 7)), (12, (1, 12, 16, 17)), (2, (6, 1, 1))]
)
def test_group_norms(groups: int, shape: tuple[int, ...]) -> None:
    channels = shape[-3]
    x, gain, bias = x_of(*shape), input("gain", f32[channels, 1, 1]), input("bias", f32[channels, 1, 1])
    outputs = {
        "plain": library.group_norm(x, groups=groups, eps=EPS),
        "affine": library.group_norm(x, gain, bias, groups=groups, eps=EPS),
        "silu": library.group_norm_silu(x, gain, bias, groups=groups, eps=EPS),
    }
    feeds = {"x": normal(*shape), "gain": normal(channels, 1, 1), "bias": normal(channels, 1, 1, seed=1)}
    near(compiled(outputs), feeds)


@pytest.mark.parametrize("pixels", [(28, 28), ("h", "w")], ids=["known", "symbolic"])
def test_pixels_of_a_group_are_one_loop(pixels: tuple[int | str, int | str]) -> None:
    """Rows of pixels follow each other in memory: the innermost loop goes through all pixels of a channel."""
    x, gain = input("x", f32[1, 12, *pixels]), input("gain", f32[12, 1, 1])
    graph = Graph.of({"y": library.group_norm(x, gain, groups=3, eps=EPS)})
    plan = make_plan(graph, target=CPU)
    job = builder_of(plan, BACKEND).job(plan.phase("run")[-1])
    assert isinstance(job, Job) and isinstance(job.kernel, Kernel)
    assert _depth(job.kernel.body) == 2, "channels of a group, and pixels"


def _depth(body: tuple[Statement, ...]) -> int:
    """Loops inside each other, those over blocks of one axis left out."""
    inner = [(_depth(s.body), s.variable != "block") for s in body if isinstance(s, Loop)]
    return max((depth + counts for depth, counts in inner), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, bf16, f64])
def test_other_floats(dtype: DType) -> None:
    x, gain = x_of(4, 33, dtype=dtype), vector("gain", 33, dtype)
    outputs = {
        "softmax": library.softmax(x),
        "norm": library.layer_norm(x, gain, eps=EPS),
        "rms": library.rms_norm(x, gain, eps=EPS),
        "mean": ops.reduce_mean(x, axes=(-2,)),
    }
    if dtype is not f64:
        outputs["wide"] = library.layer_norm(x, gain, eps=EPS, precision="f32")
        outputs["affine"] = library.rms_norm(x, vector("wide", 33), eps=EPS, precision="f32_affine")
    feeds = {"x": normal(4, 33, dtype=dtype), "gain": normal(33, dtype=dtype)}
    near(compiled(outputs), feeds if dtype is f64 else {**feeds, "wide": normal(33)})


@pytest.mark.slow
def test_one_code_serves_every_size() -> None:
    rows, n = symbol("rows"), symbol("n")
    x, gain = input("x", f32[rows, n]), input("gain", f32[n])
    outputs = {
        "softmax": library.softmax(x),
        "across": library.softmax(x, axis=-2),
        "norm": library.layer_norm(x, gain, eps=EPS),
        "sum": ops.reduce_sum(x, axes=(-2, -1)),
    }
    runner = compiled(outputs)
    for shape in ((1, 1), (3, 5), (17, 100), (2, 5000), (300, 3)):
        near(runner, {"x": normal(*shape), "gain": normal(shape[1])})


AXES = [axes for k in (1, 2, 3) for axes in itertools.combinations((-3, -2, -1), k)]


@pytest.mark.slow
@pytest.mark.parametrize("axes", AXES)
def test_every_reduction_over_any_axes(axes: tuple[int, ...]) -> None:
    x = x_of(3, 5, 37)
    reductions = (ops.reduce_sum, ops.reduce_mean, ops.reduce_max, ops.reduce_min, ops.reduce_prod)
    near(compiled({op.name: op(x, axes=axes) for op in reductions}), {"x": normal(3, 5, 37)})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [i8, u16, i32, u64])
def test_whole_numbers_wrap_and_order(dtype: DType) -> None:
    x = x_of(7, 33, dtype=dtype)
    outputs = {
        f"{op.name}{axis}": op(x, axes=(axis,))
        for op in (ops.reduce_sum, ops.reduce_prod, ops.reduce_max, ops.reduce_min)
        for axis in (-1, -2)
    }
    near(compiled(outputs), {"x": bits(dtype, 7, 33)})


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 300)])
def test_any_and_all(shape: tuple[int, int]) -> None:
    x = x_of(*shape, dtype=bool_)
    ways = (ops.reduce_any, ops.reduce_all, ops.reduce_max, ops.reduce_min)
    runner = compiled({f"{op.name}{axis}": op(x, axes=(axis,)) for op in ways for axis in (-1, -2)})
    for seed in range(3):
        near(runner, {"x": np.random.default_rng(seed).random(shape) < (0.5, 0.02, 0.98)[seed]})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f32, f64, f16])
def test_nan_and_infinities(dtype: DType) -> None:
    x = x_of(9, 40, dtype=dtype)
    found = normal(9, 40, dtype=dtype)
    found[0, 3], found[1, 39], found[2, 0], found[3, :], found[4, :] = np.nan, np.inf, -np.inf, -np.inf, np.inf
    found[5, 7], found[5, 8], found[6, :] = np.inf, np.nan, np.nan
    outputs = {
        "max": ops.reduce_max(x, axes=(-1,)),
        "min": ops.reduce_min(x, axes=(-1,)),
        "sum": ops.reduce_sum(x, axes=(-1,)),
        "down": ops.reduce_max(x, axes=(-2,)),
        "softmax": library.softmax(x),
        "zero": library.softmax(x, empty="zero"),
    }
    near(compiled(outputs), {"x": found})


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "axes"), [((3, 0), (-1,)), ((0, 3), (-1,)), ((0, 3), (-2,)), ((2, 0, 3), (-2,))])
def test_nothing_to_reduce(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = x_of(*shape)
    reductions = (ops.reduce_sum, ops.reduce_mean, ops.reduce_max, ops.reduce_min, ops.reduce_prod)
    near(compiled({op.name: op(x, axes=axes) for op in reductions}), {"x": normal(*shape)})


@pytest.mark.slow
def test_operands_are_read_where_they_lie() -> None:
    x = x_of(6, 20, 18)
    turned = ops.permute(x, order=(-1, -3, -2))
    part = ops.slice_(x, axis=-1, start=2, stop=17, step=3)
    flipped = ops.flip(x, axes=(-1,))
    repeated = ops.expand(ops.slice_(x, axis=-2, start=3, stop=4), axis=-2, size=20)
    gain = ops.slice_(input("gain", f32[40]), axis=-1, start=1, stop=40, step=2)
    outputs = {
        "turned": library.layer_norm(turned, gain, eps=EPS),
        "part": library.softmax(part),
        "flipped": ops.reduce_sum(flipped, axes=(-2,)),
        "repeated": library.softmax(repeated + x),
        "sum": ops.reduce_sum(turned, axes=(-3,)),
    }
    near(compiled(outputs), {"x": normal(6, 20, 18), "gain": normal(40)})


def test_long_sums_stay_near() -> None:
    """A sum in f32 of a million numbers around 1 would be off by far more than the tolerance in one running sum.

    Each lane of a vector sums its share of a block in f32, so that the error grows as lanes become fewer.
    """
    x = x_of(1_000_003)
    near = 1e-6 * max(1, 16 // host_device().lanes)
    got = compiled(ops.reduce_sum(x, axes=(-1,))).run({"x": np.full(1_000_003, 0.1, np.float32)})["y"]
    assert abs(float(got[0]) / (1_000_003 * float(np.float32(0.1))) - 1) < near
    tall = input("x", f32[200_000, 3])
    got = compiled(ops.reduce_mean(tall, axes=(-2,))).run({"x": np.full((200_000, 3), 0.1, np.float32)})["y"]
    np.testing.assert_allclose(got, np.float32(0.1), rtol=near)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [-1e9, float(np.finfo(np.float32).min), -np.inf, -95.0])
def test_masked_rows(hidden: float) -> None:
    """Weights that are nothing, or nearly so, beside one that is not."""
    x = x_of(3, 50)
    found = np.full((3, 50), hidden, np.float32)
    found[:, 7] = 1.0
    found[1, 8] = 0.5
    near(compiled({"p": library.softmax(x), "l": library.log_softmax(x)}), {"x": found})


@pytest.mark.slow
def test_threads_change_no_bit() -> None:
    x = x_of(100, 999)
    outputs = {"a": library.softmax(x), "b": ops.reduce_sum(x, axes=(-2,)), "c": ops.reduce_sum(x, axes=(-2, -1))}
    feeds = {"x": normal(100, 999)}
    alone, many = compiled(outputs, threads=1).run(feeds), compiled(outputs, threads=3).run(feeds)
    assert all(alone[name].tobytes() == many[name].tobytes() for name in outputs)


@fused_op(shapes="x[*, n]")
def spread(x: Value) -> Value:
    """Two reductions that wait for nobody, a third that waits for both, and steps around them."""
    low, high = ops.reduce_min(x, axes=(-1,)), ops.reduce_max(x, axes=(-1,))
    scaled = ops.tanh((x - low) / (high - low + 1.0))
    return scaled * ops.rsqrt(ops.reduce_mean(scaled * scaled, axes=(-1,)) + 1e-3) + ops.exp(x - high)


@fused_op(shapes="x[*, m, n]")
def two_ways(x: Value) -> Value:
    """Reductions over different axes, which one row does not hold."""
    return ops.reduce_sum(ops.reduce_max(x, axes=(-1,)), axes=(-2,)) + ops.reduce_sum(x, axes=(-1,))


@fused_op(shapes="x[n, n]")
def diagonal(x: Value) -> Value:
    """A computed value beside its own transpose: one loop cannot run over both."""
    twice = ops.exp(x)
    return ops.reduce_sum(twice + ops.permute(twice, order=(-1, -2)), axes=(-1,))


@pytest.mark.parametrize("shape", [(3, 17), (2, 5, 33)])
def test_ops_of_the_users_own(shape: tuple[int, ...]) -> None:
    near(compiled(spread(x_of(*shape))), {"x": normal(*shape)})


@pytest.mark.parametrize(("op", "shape"), [(two_ways, (3, 4, 5)), (diagonal, (4, 4))])
def test_what_does_not_fit_a_row_is_left_alone(op: Callable[[Value], Value], shape: tuple[int, ...]) -> None:
    native = NativeGraph(make_plan(Graph.of(op(x_of(*shape))), target=CPU))
    assert len(native.on_host) == 1


@fused_op(shapes="x[*, n]")
def narrow_weights(x: Value) -> Value:
    """A softmax in f32 whose result is narrower than the weights that are needed twice."""
    raised = ops.exp(x - ops.reduce_max(x, axes=(-1,)))
    return ops.cast(raised / ops.reduce_sum(raised, axes=(-1,)), dtype=f16)


def test_what_is_needed_again_is_kept_beside_the_result_where_it_does_not_fit() -> None:
    runner = compiled(narrow_weights(x_of(5, 300)))
    assert _scratch(runner) >= 300 * 4
    near(runner, {"x": normal(5, 300)})
    assert _scratch(compiled(library.softmax(x_of(5, 300)))) == 0


def _scratch(runner: NativeRunner) -> int:
    (job,) = (job for part in runner.graph.sections for job in part.jobs if isinstance(job, Job))
    assert isinstance(job.scratch, int)
    return job.scratch
