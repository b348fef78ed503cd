"""Regions as epilogues and prologues: what joins which kernel, what does not and why, and random ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail import Graph, Program, Value, library, ops
from dovetail.declare.cost import flops_of, kernel_cost
from dovetail.derive.unfuse import unfuse
from dovetail.dtypes import bf16, f16, f32, f64, i32
from dovetail.graphs import TensorType
from dovetail.ir import leaf
from dovetail.ir.inline import outline
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.ir.text import print_graph
from dovetail.ir.walk import walk
from dovetail.ops.region import anchor_of, region
from dovetail.passes.batch import batch_regions
from dovetail.passes.epilogues import EPILOGUE, PROLOGUE, fuse_epilogues
from dovetail.passes.regions import mark_regions
from dovetail.runtime.load import parse
from dovetail.targets.cpu import anchors
from dovetail.targets.cpu.claims import CLAIMS
from dovetail.targets.cuda.claims import CLAIMS as CUDA
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close

PASS = "fuse_epilogues"
X, W, B = input("x", f32[24, 136]), param("w", f32[136, 52]), param("b", f32[52])
Z, SCALE, COLUMN = input("z", f32[24, 52]), param("scale", f32[52]), input("column", f32[24, 1])
IMAGE, FILTERS, CHANNEL = (
    input("image", f32[2, 6, 11, 9]),
    param("filters", f32[10, 6, 3, 3]),
    param("c", f32[10, 1, 1]),
)


def linear() -> Value:
    return X @ W + B


def convolution() -> Value:
    return ops.conv(IMAGE, FILTERS, padding=(1, 1, 1, 1)) + CHANNEL


def norm(x: Value) -> Value:
    return library.layer_norm(x, param("gain", f32[x.shape[-1]]), param("bias", f32[x.shape[-1]]), eps=1e-5)


def quick_gelu(y: Value) -> Value:
    return y * ops.sigmoid(1.702 * y)


def arrays(values: tuple[Value, ...], sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for v in values:
        shape = tuple(sizes[str(n)] if not isinstance(n, int) else n for n in v.shape)
        drawn = rng.normal(size=shape) if v.dtype.is_float else rng.integers(-9, 9, shape)
        found[v.attrs["name"]] = drawn.astype(v.dtype.numpy)
    return found


def check(
    outputs: Value | dict[str, Value], kernels: int, *, sizes: Mapping[str, int] | None = None, **options: Any
) -> Program:
    """A graph that takes so many kernels gives what float64 gives, and with another number of threads the same bits."""
    graph = Graph.of(outputs)
    program = dt.compile(graph, threads=1, **options)
    run_kernels = [k for k in program.report.kernels if k.phase == "run"]
    assert len(run_kernels) == kernels, program.report
    assert not any(k.on_host for k in run_kernels)
    params, feeds = arrays(graph.parameters, sizes or {}), arrays(graph.inputs, sizes or {}, 1)
    got = program.bind(params).run(feeds)
    wide = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in {**params, **feeds}.items()}
    wanted = evaluate(
        graph, {n: wide[n] for n in feeds}, params={n: wide[n] for n in params}, lift=True, sizes=dict(sizes or {})
    )
    again = dt.compile(graph, threads=3, **options).bind(params).run(feeds)
    for name, value in graph.outputs.items():
        assert_close(got[name], wanted[name], value.dtype, scale=20.0)
        assert got[name].tobytes() == again[name].tobytes()
    return program


EPILOGUES: dict[str, Callable[[Value, Value, Value], Value]] = {
    "leaky_relu": lambda y, scale, full: ops.leaky_relu(y, slope=0.1),
    "quick_gelu": lambda y, scale, full: quick_gelu(y),
    "cast": lambda y, scale, full: ops.cast(y, dtype=f16),
    "layer scale": lambda y, scale, full: y * scale + full,
    "product": lambda y, scale, full: y * full,
    "square": lambda y, scale, full: y * y,
    "compare and choose": lambda y, scale, full: ops.where(ops.less(y, full), y * scale, ops.exp(ops.minimum(y, 1.0))),
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["greedy", "egraph"])
@pytest.mark.parametrize("name", EPILOGUES)
def test_any_steps_after_a_matmul_are_its_epilogue(name: str, engine: str) -> None:
    value = EPILOGUES[name](linear(), SCALE, Z)
    program = check(value, 1, engine=engine)
    (entry,) = program.report.fused
    assert entry.chain[-1] == EPILOGUE
    # Every node of the user is told.
    assert len(entry.nodes) == len([v for v in walk([value]) if v.op not in leaf.LEAVES])


@pytest.mark.slow
@pytest.mark.parametrize("name", EPILOGUES)
def test_steps_after_a_convolution_are_its_epilogue(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "STREAMED_TAPS", 9)
    y = convolution()
    full = input("full", f32[2, 10, 11, 9])
    check(EPILOGUES[name](y, CHANNEL, full), 1)
    check(EPILOGUES[name](y + input("r", f32[2, 10, 11, 9]), CHANNEL, full), 1)
    check(EPILOGUES[name](y, CHANNEL, y), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image", "filters", "options"),
    [
        (f32[1, 16, 20, 20], f32[16, 16, 3, 3], {"padding": (1, 1, 1, 1)}),
        (f32[1, 64, 20, 20], f32[48, 64, 1, 1], {}),
        (f32[2, 24, 17, 13], f32[24, 1, 3, 3], {"padding": (1, 1, 1, 1), "groups": 24}),
        (f32[1, 96, 7, 7], f32[40, 96, 1, 1], {}),
        (f32[1, 32, 14, 14], f32[32, 32, 3, 3], {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
        (f32[1, 3, 33, 29], f32[8, 3, 5, 5], {"padding": (2, 2, 2, 2)}),
        (f32[1, 8, 50], f32[24, 8, 3], {"padding": (1, 1)}),
    ],
)
def test_every_variant_of_a_convolution_takes_steps(
    image: TensorType, filters: TensorType, options: dict[str, Any]
) -> None:
    y = ops.conv(input("x", image), param("w", filters), **options)
    y = y + param("b", f32[(filters.shape[0], *(1,) * (len(filters.shape) - 2))])
    y = y * 1.25 + 0.1
    check((y * ops.relu6(y + 3.0) / 6.0) * 0.75 - 0.2, 1)
    check(ops.tanh(y) * y + ops.erf(y), 1)


@pytest.mark.slow
def test_the_transpose_of_a_convolution_takes_steps() -> None:
    """A convolution makes the phases of the stride; the steps are one kernel with the shuffle of its pixels."""
    y = ops.conv_transpose(IMAGE, param("w", f32[6, 4, 2, 2]), strides=(2, 2))
    check(ops.sigmoid(y + 0.5), 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", EPILOGUES)
def test_steps_after_a_norm_join_it(name: str) -> None:
    check(EPILOGUES[name](norm(Z), SCALE, input("full", f32[24, 52])), 1)


@pytest.mark.slow
def test_steps_before_a_norm_or_a_reduction_join_it() -> None:
    assert check(norm(ops.exp(Z) * SCALE), 1).report.count(PROLOGUE) == 1
    check(library.softmax(Z * 0.3 + COLUMN), 1)
    check(ops.reduce_sum(Z * Z, axes=(-1,)), 1)
    check(ops.sqrt(ops.reduce_sum(Z * Z, axes=(-1,)) + 1.0), 1)
    check(ops.reduce_max(ops.exp(IMAGE) + 1.0, axes=(-2, -1)), 1)


def test_a_reduction_and_what_reads_it_beside_its_operand_are_one_kernel() -> None:
    check(Z / ops.sqrt(ops.reduce_sum(Z * Z, axes=(-1,)) + 1e-6), 1)


@pytest.mark.slow
def test_operands_broadcast() -> None:
    for other in (COLUMN, param("row", f32[1, 52]), param("one", f32[1]), input("all", f32[1, 1])):
        check(linear() * other, 1)


@pytest.mark.slow
def test_batched_matmuls_take_steps() -> None:
    a, b = input("a", f32[3, 5, 7, 9]), input("b", f32[3, 1, 9, 13])
    check(ops.leaky_relu(a @ b, slope=0.2) * input("row", f32[5, 1, 13]), 1)


@pytest.mark.slow
def test_views_between_commute_with_steps() -> None:
    check(ops.leaky_relu(ops.split(linear(), axis=-2, parts=2), slope=0.1), 1)
    check(ops.split(linear(), axis=-2, parts=2) * input("zz", f32[2, 12, 52]) + SCALE, 1)
    check(quick_gelu(ops.merge(input("x3", f32[2, 12, 136]) @ W, axis=-2, count=2)), 1)
    check(ops.cast(ops.unsqueeze(linear(), axes=(-3,)), dtype=f16), 1)


@pytest.mark.slow
def test_an_inner_value_that_others_read_is_written_too() -> None:
    y = linear()
    program = check({"y": ops.leaky_relu(y, slope=0.1), "inner": y}, 1)
    assert [f.rule for f in program.report.fused] == ["linear"]
    check({"y": ops.exp(norm(Z)) * Z, "inner": norm(Z)}, 1)
    check({"y": quick_gelu(y), "sum": ops.reduce_max(y, axes=(-1,))}, 2)


@pytest.mark.slow
def test_an_inner_value_that_an_operand_needs_stays_apart() -> None:
    y = linear()
    other = ops.cast(ops.cum_sum(y, axis=-1), dtype=f32)
    check(ops.leaky_relu(y, slope=0.1) * other, 3)


@pytest.mark.slow
def test_integers_take_steps() -> None:
    a, b = input("a", i32[9, 5]), input("b", i32[5, 7])
    check(ops.cast(ops.maximum(a @ b, leaf.constant(0, i32)), dtype=f32) * 0.5, 1)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"m": 1}, {"m": 7}, {"m": 33}, {"m": 0}])
def test_symbolic_sizes(sizes: dict[str, int]) -> None:
    x, z = input("x", f32["m", 136]), input("z", f32["m", 52])
    check(quick_gelu(x @ W + B) * z, 1, sizes=sizes)
    check(norm(ops.exp(z)) * SCALE, 1, sizes=sizes)
    image = input("image", f32[1, 6, "m", 9])
    if sizes["m"] > 2:
        check(quick_gelu(ops.conv(image, FILTERS) + CHANNEL), 1, sizes=sizes)


def test_strict_programs_have_epilogues() -> None:
    check(ops.leaky_relu(linear(), slope=0.1), 1, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (convolution() * input("full", f32[2, 10, 11, 9]), "full_operands_follow_small_windows"),
        (convolution() * input("line", f32[11, 1]), "operands_have_all_pixels_or_one"),
        (
            ops.cast(ops.conv(input("d", f64[1, 6, 9, 9]), param("v", f64[4, 6, 3, 3])), dtype=f32),
            "convolution_is_f32",
        ),
        (input("p", f32[24, 40]) @ param("q", f32[40, 52]) * Z, "sum_hides_the_operands"),
        (ops.exp(linear() + input("more", f32[3, 24, 52])), "result_has_the_shape_of_the_anchor"),
        (ops.reduce_sum(ops.exp(input("long", f32[512, 512])), axes=(-2, -1)), "reduction_has_rows_to_share"),
    ],
)
def test_what_does_not_join_says_why(value: Value, reason: str) -> None:
    program = check(value, 2)
    assert reason in {m.reason for m in program.report.missed if m.rule in (EPILOGUE, PROLOGUE)}
    # Nothing that the user could change: no loss.
    assert not any(m.rule in (EPILOGUE, PROLOGUE) for m in program.report.lost)


@pytest.mark.slow
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("queries", [1, 3, 16, 37])
def test_steps_after_attention_are_its_epilogue(name: str, queries: int) -> None:
    q, (k, v) = input("q", f32[2, 4, queries, 12]), (input(n, f32[2, 2, 29, 12]) for n in "kv")
    y = library.attention(q, k, v, scale=0.25, groups=2)
    full = input("full", f32[2, 4, queries, 12])
    check(EPILOGUES[name](y, param("scale", f32[12]), full), 1)
    check(EPILOGUES[name](y, param("heads", f32[4, 1, 1]), full), 1)


@pytest.mark.parametrize("causal", [False, True])
def test_steps_add_their_own_work_to_that_of_attention(causal: bool) -> None:
    """A region counts its anchor as the anchor declares it."""
    q, k, v = (input(n, f32[1, 4, 21, 16]) for n in "qkv")
    y = library.attention(q, k, v, scale=0.25, causal=causal, fill=float("-inf") if causal else None)
    alone, followed = kernel_cost(y), kernel_cost(region(outline([ops.relu(y)], (q, k, v)), (q, k, v)))
    assert (followed.kind, followed.dense) == (alone.kind, alone.dense)
    assert followed.flops == alone.flops + flops_of(ops.relu(y))


@pytest.mark.slow
@pytest.mark.parametrize("queries", [2, 37])
@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3)])
def test_steps_after_attention_of_any_rank_are_its_epilogue(lead: tuple[int, ...], queries: int) -> None:
    """Without an axis of heads there is one head."""
    q, (k, v) = input("q", f32[*lead, queries, 16]), (input(n, f32[*lead, 29, 16]) for n in "kv")
    y = library.attention(q, k, v, scale=0.25) * input("row", f32[queries, 1])
    check(ops.cast(y + input("full", f32[*lead, queries, 16]), dtype=f16), 1)


@pytest.mark.slow
def test_attention_with_steps_is_written_where_it_is_read_permuted() -> None:
    q, k, v = (input(n, f32[1, 4, 16, 8]) for n in "qkv")
    y = ops.merge(ops.permute(library.attention(q, k, v, scale=0.25), order=(-2, -3, -1)), axis=-1, count=2)
    gate = ops.sigmoid(input("gate", f32[1, 16, 32]))
    check((y * gate) @ param("w", f32[32, 24]), 3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, bf16])
def test_steps_after_attention_of_narrow_floats(dtype: Any) -> None:
    q, k, v = (input(n, dtype[1, 2, 19, 16]) for n in "qkv")
    y = library.attention(q, k, v, scale=0.25)
    check({"y": ops.relu(y) * input("z", dtype[1, 2, 19, 16]), "inner": y}, 1)


@pytest.mark.slow
def test_rotated_attention_takes_steps() -> None:
    q, k, v = (input(n, f32[1, 4, 21, 16]) for n in "qkv")
    cos, sin = (input(n, f32[21, 16]) for n in ("cos", "sin"))
    y = library.rope_attention(q, k, v, cos, sin, scale=0.25, causal=True, fill=float("-inf"))
    check(ops.cast(y * input("z", f32[1, 4, 21, 16]), dtype=f16), 1)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"s": 1, "n": 9}, {"s": 3, "n": 40}, {"s": 50, "n": 50}])
def test_attention_of_symbolic_sizes_takes_steps(sizes: dict[str, int]) -> None:
    q, (k, v) = input("q", f32[1, 2, "s", 16]), (input(n, f32[1, 2, "n", 16]) for n in "kv")
    check(library.attention(q, k, v, scale=0.25) * input("z", f32[1, 2, "s", 16]), 1, sizes=sizes)


@pytest.mark.slow
def test_results_are_those_of_the_program_apart() -> None:
    """The same scalar steps on the same f32 results: bit for bit."""
    for value in (
        ops.leaky_relu(linear(), slope=0.1),
        quick_gelu(linear()),
        ops.cast(linear(), dtype=f16),
        linear() * Z,
        ops.leaky_relu(convolution(), slope=0.1),
        norm(Z) * SCALE,
    ):
        one, two = _with_and_without(value)
        assert one.tobytes() == two.tobytes()


@pytest.mark.slow
def test_a_sigmoid_after_a_convolution_is_near_that_apart() -> None:
    """Kernels of convolutions have vector code for sigmoid, loops that of LLVM's vectorizer: last bits differ."""
    one, two = _with_and_without(quick_gelu(convolution()))
    np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)


def _with_and_without(value: Value) -> tuple[Array, Array]:
    """Return the results of a program with epilogues, and of one without."""
    graph = Graph.of(value)
    params, feeds = arrays(graph.parameters, {}), arrays(graph.inputs, {}, 1)
    one, two = (dt.compile(graph, without=without).bind(params).run(feeds)["y"] for without in ([], [PASS]))
    return one, two


def test_unfusing_gives_back_the_same_values() -> None:
    graph = mark_regions(Graph.of({"y": quick_gelu(X @ W) * Z, "n": norm(ops.exp(Z))})).graph
    fused = fuse_epilogues(graph, CLAIMS).graph
    assert all(v.op is region and anchor_of(v.attrs["body"]) is not None for v in fused.outputs.values())
    assert {n: v for n, v in unfuse(fused).outputs.items()} == {n: v for n, v in unfuse(graph).outputs.items()}


def test_regions_around_an_anchor_have_a_text_form() -> None:
    y = X @ W
    graph = mark_regions(Graph.of({"y": ops.leaky_relu(y, slope=0.1), "inner": y})).graph
    fused = fuse_epilogues(graph, CLAIMS).graph
    assert fused.count(region) == 1
    text = print_graph(fused)
    assert print_graph(parse(text)) == text


def test_a_target_without_anchors_keeps_its_regions() -> None:
    graph = mark_regions(Graph.of(quick_gelu(X @ W))).graph
    assert fuse_epilogues(graph, CUDA).graph is graph


def test_regions_around_an_anchor_are_not_batched() -> None:
    graph = Graph.of({n: ops.leaky_relu(input(n, f32[24, 136]) @ W, slope=0.1) for n in "pq"})
    fused = fuse_epilogues(mark_regions(graph).graph, CLAIMS).graph
    assert fused.count(region) == 2
    assert batch_regions(fused).graph is fused


ONE: tuple[Callable[[Value], Value], ...] = (
    ops.tanh,
    ops.abs_,
    ops.sigmoid,
    ops.neg,
    ops.relu,
    lambda x: ops.exp(ops.minimum(x, 1.0)),
    lambda x: x * 0.5 + 1.0,
    lambda x: ops.leaky_relu(x, slope=0.3),
)
TWO = (ops.add, ops.sub, ops.mul, ops.maximum, ops.minimum)


def drawn(y: Value, draw: random.Random, others: list[Value]) -> Value:
    """Random steps on a value that read it and some of the others."""
    values = [y, *others]
    for _ in range(draw.randint(2, 8)):
        x = draw.choice(values)
        values.append(draw.choice(ONE)(x) if draw.random() < 0.5 else draw.choice(TWO)(x, draw.choice(values)))
    return ops.add(values[-1], y)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_random_epilogues(seed: int) -> None:
    draw = random.Random(seed)
    m, n = (draw.choice((1, 2, 5, 16, 31, 64)) for _ in range(2))
    k = draw.choice((1, 5, 31, 130, 200))
    x, w = input("x", f32[m, k]), param("w", f32[k, n])
    kind = draw.choice(("matmul", "linear", "conv", "norm", "reduce"))
    if kind == "conv":
        side, window = draw.choice((5, 9, 16)), draw.choice((1, 3))
        y = ops.conv(input("i", f32[1, k, side, side]), param("f", f32[n, k, window, window]))
        others: list[Value] = []
    elif kind == "norm":
        y = norm(input("r", f32[m, n]))
        others = [input("full", f32[m, n]), param("row", f32[n]), input("col", f32[m, 1])]
    elif kind == "reduce":
        y = ops.reduce_sum(input("r", f32[m, k, n]), axes=(-1,))
        others = [input("full", f32[m, k, 1]), param("row", f32[k, 1])]
    else:
        y = x @ w if kind == "matmul" else x @ w + param("b", f32[n])
        others = [input("full", f32[m, n]), param("row", f32[n]), input("col", f32[m, 1])]
    result = drawn(y, draw, draw.sample(others, draw.randint(0, len(others))))
    graph = Graph.of(result)
    program = check(result, len(program_kernels(graph)))
    assert program.report.count(EPILOGUE) <= 1


def program_kernels(graph: Graph) -> list[str]:
    """As many as the report says: random steps may hold what a kernel does not take in."""
    return [k.name for k in dt.explain(graph).kernels if k.phase == "run"]


@pytest.mark.slow
def test_half_precision_sums_are_kept_in_f32() -> None:
    x, w = input("x", f16[24, 40]), param("w", f16[40, 52])
    check(ops.leaky_relu(x @ w, slope=0.25), 1)
