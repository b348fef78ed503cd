"""What every report says is so: properties over random graphs, and the graphs that once broke them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

import dovetail
from dovetail import fused_op, library, ops
from dovetail.declare.cost import Cost, is_free
from dovetail.dtypes import f16, f32
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.text import local_names
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops import build
from dovetail.runtime.compile import compilation
from dovetail.runtime.request import make_request
from tests.strategies import graphs

Drawn = tuple[Graph, dict[str, NDArray[Any]]]
EXPORTERS = Path(__file__).parents[1] / "data" / "exporters"


def test_a_missing_kernel_is_blamed_only_where_the_op_fits() -> None:
    """No target has a kernel for a whole layer; two products with a relu each are none."""
    x, w, u = ops_input("x", 64, 128), ops_input("w", 128, 256), ops_input("u", 256, 128)
    for y, target in ((ops.relu(ops.relu(x @ w) @ u), "cpu"), ((x @ w) * ops_input("s", 64, 256), "cuda")):
        report = dovetail.explain(Graph.of(y), target=target)
        assert report.boundaries and all(b.reason != "no_kernel" for b in report.boundaries)


def ops_input(name: str, *shape: int) -> Value:
    return leaf.input(name, f32[shape])


LEAKY = """graph g(x: f32[5, 5]) {
  %0 = const f32[] -1.0
  %1 = add(x, x) : f32[5, 5]
  %2 = unsqueeze(%1) {axes=(-3,)} : f32[1, 5, 5]
  %3 = add(%1, x) : f32[5, 5]
  %4 = greater(%2, %3) : bool[1, 5, 5]
  %5 = const f32[] 0.5
  %6 = mul(%3, %5) : f32[5, 5]
  %7 = where(%4, %2, %6) : f32[1, 5, 5]
  %8 = sub(%0, %7) : f32[1, 5, 5]
  return c = %8, d = %3
}
"""


def _computes(written: Graph, final: Graph) -> list[Value]:
    """The nodes of outputs that a kernel computes; a double negation of an input needs none."""
    wanted = [written.outputs[name] for name, value in final.outputs.items() if not _is_given(value)]
    return [v for v in walk(wanted) if v.op not in leaf.LEAVES]


def _is_given(value: Value) -> bool:
    while is_free(value) and len(value.operands) == 1:
        (value,) = value.operands
    return value.op in leaf.LEAVES


def _check_nodes(graph: Graph, target: str) -> None:
    made = compilation(graph, make_request(target=target))
    report, written = made.report(), made.lowered.written
    names = local_names(written, written.values)
    homes = [n.name for k in report.kernels for n in (*k.nodes, *k.absorbed)]
    assert all(entry.nodes for entry in report.fused)
    assert len(homes) == len(set(homes))
    assert not [names[v] for v in _computes(written, made.plan.graph) if names[v] not in homes]


@pytest.mark.slow
@given(graphs())
def test_every_node_has_a_kernel_and_every_fused_kernel_has_nodes(drawn: Drawn) -> None:
    _check_nodes(drawn[0], "cpu")


@pytest.mark.parametrize("target", ["cpu", "cuda", "reference"])
def test_a_view_that_rewriting_puts_on_top_hides_no_node(target: str) -> None:
    _check_nodes(dovetail.graphs.parse(LEAKY), target)
    report = dovetail.explain(dovetail.graphs.parse(LEAKY))
    (entry,) = report.fused
    assert [n.op for n in entry.nodes] == ["greater", "mul", "where", "sub"]


def _graph(write: Callable[[dovetail.Builder], Value]) -> Graph:
    builder = dovetail.Builder("g", lines=False)
    builder.output("y", write(builder))
    return builder.graph()


def _other_angles(b: dovetail.Builder) -> Value:
    q, k, v = (b.input(n, f32[2, 4, 16, 32]) for n in "qkv")
    cos, sin, other = (b.input(n, f32[16, 32]) for n in ("cos", "sin", "other"))
    made = library.attention.body(library.rope.body(q, cos, sin), library.rope.body(k, other, sin), v, scale=0.2)
    assert isinstance(made, Value)
    return made


def _reshaped(b: dovetail.Builder) -> Value:
    product = build.reshape(b.input("x", f32[32, 128]) @ b.param("w", f32[128, 128]), (4, 8, 128))
    return ops.relu(product + b.param("c", f32[128]))


def _cast(b: dovetail.Builder) -> Value:
    product = ops.cast(b.input("x", f16[64, 128]) @ b.param("w", f16[128, 128]), dtype=f32)
    return ops.relu(product + b.param("c", f32[128]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "target", "rule", "reason", "words"),
    [
        (_other_angles, "cpu", "rope_attention", "operands_differ", "the same cos as before"),
        (_reshaped, "cuda", "linear", "op_between", "split stands in between"),
        (_cast, "cuda", "linear", "op_between", "cast stands in between"),
    ],
)
def test_kernels_that_a_declared_op_has_say_what_keeps_it_away(
    write: Callable[[dovetail.Builder], Value], target: str, rule: str, reason: str, words: str
) -> None:
    report = dovetail.explain(_graph(write), target=target)
    assert report.boundaries
    for boundary in report.boundaries:
        assert (boundary.rule, boundary.reason) == (rule, reason) and words in boundary.message


def _check_no_rule(graph: Graph) -> None:
    """Judged by the patterns themselves: two primitives that are kernels of their own."""
    for target in ("cpu", "cuda"):
        report = dovetail.explain(graph, target=target)
        ops_of = {k.name: k.op for k in report.kernels}
        for boundary in report.boundaries:
            if boundary.reason == "no_rule":
                pair = (ops_of[boundary.producer], ops_of[boundary.consumer])
                assert pair not in PAIRS, boundary


@pytest.mark.exhaustive
@given(graphs())
def test_no_rule_is_said_only_where_no_declared_op_has_both(drawn: Drawn) -> None:
    _check_no_rule(drawn[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["lstm__ts17__static", "multihead__dynamo18__dynamic", "llama_step__dynamo18__sdpa__dynamic"]
)
def test_reports_of_files_of_exporters_are_true(name: str) -> None:
    """Files have what random graphs lack: a merge that is a copy stands between two ops of a declared block."""
    graph = dovetail.load(EXPORTERS / f"{name}.onnx")
    _check_no_rule(graph)
    _check_nodes(graph, "cpu")
    for boundary in dovetail.explain(graph, target="cpu").boundaries:
        assert boundary.reason and boundary.message, boundary


@pytest.mark.slow
def test_products_in_another_form_are_told() -> None:
    """A declared op has a product and relu; a product that contracts other axes is one only when it is lowered."""
    builder = dovetail.Builder("g", lines=False)
    x, y = builder.input("x", f32[8, 8]), builder.input("y", f32[8, 8])
    builder.output("z", ops.relu(ops.dot(x, y, left=(-2,), right=(-2,), left_batch=(), right_batch=())))
    graph = builder.graph()
    _check_no_rule(graph)
    without = ["fuse_epilogues", "mark_regions"]
    (told,) = [b.message for b in dovetail.explain(graph, target="cpu", without=without).boundaries]
    assert "has matmul and relu; here they are written as dot and relu" in told


@pytest.mark.slow
def test_a_view_that_is_a_copy_is_told() -> None:
    report = dovetail.explain(dovetail.load(EXPORTERS / "lstm__ts17__static.onnx"), target="cpu")
    ops_of = {k.name: k.op for k in report.kernels}
    around = [b for b in report.boundaries if "merge" in (ops_of[b.producer], ops_of[b.consumer])]
    assert around and {b.reason for b in around} == {"op_between"}
    assert all("stands in between: no view has its layout" in b.message for b in around)


def _pairs() -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for op in library.ALL:
        for variant in op.variants:
            for value in walk(variant.results):
                found.update((v.op.name, value.op.name) for v in value.operands if v.operands)
    return {(a, b) for a, b in found if "region" not in (a, b)}


PAIRS = _pairs()


@pytest.mark.exhaustive
@given(graphs())
def test_every_gap_has_one_price_and_misses_have_the_price_of_their_gaps(drawn: Drawn) -> None:
    for engine in ("greedy", "egraph"):
        report = dovetail.explain(drawn[0], target="cuda", engine=engine)
        gaps = sum(b.seconds for b in report.boundaries)
        assert sum(m.seconds for m in report.missed) <= gaps * (1 + 1e-9)
        bound = {k.name for k in report.kernels if k.phase == "bind"}
        for miss in report.missed:
            assert not bound.issuperset(miss.kernels) and len(miss.kernels) > 1
            assert not (miss.hint and miss.gain_seconds <= 0)


@pytest.mark.exhaustive
@given(graphs())
def test_what_is_fused_is_not_missed(drawn: Drawn) -> None:
    for engine in ("greedy", "egraph"):
        for target in ("cpu", "cuda"):
            report = dovetail.explain(drawn[0], target=target, engine=engine)
            made = {(rule, n.name) for f in report.fused for n in f.nodes[-1:] for rule in (f.rule, *f.chain)}
            assert not made.intersection((m.rule, m.node.name) for m in (*report.missed, *report.near))
            assert all(m.reason != "near_miss" for m in report.missed)


@pytest.mark.parametrize("engine", ["greedy", "egraph"])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_gated_product_whose_half_is_read_twice(engine: str, target: str) -> None:
    builder = dovetail.Builder("g", lines=False)
    both = builder.input("both", f32[60, 4096])
    up, gate = build.slice_axis(both, axis=1, stop=2048), build.slice_axis(both, axis=1, start=2048)
    builder.output("y", up * library.silu.body(gate))
    builder.output("z", ops.relu(up))
    report = dovetail.explain(builder.graph(), engine=engine, target=target)
    assert report.count("gated_product") == 1 and report.is_clean
    assert not report.missed and not report.near


@pytest.mark.parametrize("engine", ["greedy", "egraph"])
@pytest.mark.parametrize("dear", [True, False])
def test_what_cost_declines_is_a_miss_with_both_prices(engine: str, dear: bool) -> None:
    @fused_op(shapes="x[m, k] w[k, n]")
    def product_and_relu(x: Value, w: Value) -> Value:
        """relu(x @ w)."""
        return ops.relu(x @ w)

    if dear:

        @product_and_relu.cost
        def grows(x: Value, w: Value) -> Cost:  # pyright: ignore[reportUnusedFunction]
            return Cost(x.shape[0] * 1_000_000_000, 0)

    def product(b: dovetail.Builder) -> Value:
        return ops.relu(b.input("x", f32[64, 128]) @ b.param("w", f32[128, 128]))

    without = ["linear", "fuse_epilogues"]
    report = dovetail.explain(_graph(product), ops=[product_and_relu], without=without, engine=engine)
    assert (report.count("product_and_relu"), len(report.missed)) == ((0, 1) if dear else (1, 0))
    for miss in report.missed:
        prices = re.fullmatch(r"with it (\S+) µs, without it (\S+) µs by the machine model", miss.message)
        assert miss.reason == "cost" and prices is not None and float(prices[1]) > float(prices[2]) > 0


def _swish(h: Value) -> Value:
    return h / (1.0 + ops.exp(-h))


def _narrow(h: Value) -> Value:
    return ops.cast(h, dtype=f16)


@pytest.mark.parametrize(
    "write",
    [_swish, _narrow, ops.softplus, ops.floor, ops.sinh],
)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_near_miss_fails_no_gate_and_gives_no_hint(write: Callable[[Value], Value], target: str) -> None:
    def product(b: dovetail.Builder) -> Value:
        return write(b.input("x", f32[64, 128]) @ b.param("w", f32[128, 128]) + b.param("c", f32[128]))

    report = dovetail.explain(_graph(product), target=target, require_clean=True)
    assert report.is_clean and not any(m.hint for m in (*report.missed, *report.near))


def test_what_parameters_alone_decide_is_no_miss() -> None:
    builder = dovetail.Builder("g", lines=False)
    weight = builder.param("t", f32[64, 16]) @ builder.param("w", f32[16, 32]) + builder.param("c", f32[64, 32])
    builder.output("y", builder.input("x", f32[64, 32]) + ops.relu(weight))
    for target in ("cpu", "cuda"):
        assert not dovetail.explain(builder.graph(), target=target).missed


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 128), (1, 1, 128), (1, 1, 1, 128)])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_row_with_axes_of_size_1_in_front_is_a_bias(shape: tuple[int, ...], target: str, batch: int) -> None:
    def layer(b: dovetail.Builder) -> Value:
        x = b.input("x", f32[batch, 2, 64, 128])
        hidden = ops.relu(x @ b.param("w", f32[128, 128]) + b.param("c", f32[shape]))
        made = library.layer_norm.body(hidden, b.param("gain", f32[shape]), b.param("bias", f32[shape]), eps=1e-5)
        assert isinstance(made, Value)
        return made

    report = dovetail.explain(_graph(layer), target=target)
    assert [f.rule for f in report.fused] == ["linear", "layer_norm"] and not report.missed


@pytest.mark.parametrize("equal", [True, False])
def test_a_parameter_that_repeats_one_row_has_a_hint(equal: bool) -> None:
    rng = np.random.default_rng(0)
    bias = np.tile(rng.normal(size=512).astype(np.float32), (128, 1))
    bias[-1, -1] += 0.0 if equal else 1.0
    builder = dovetail.Builder("g", lines=False)
    product = builder.input("x", f32[128, 256]) @ builder.param("w", f32[256, 512], np.ones((256, 512), np.float32))
    builder.output("y", ops.relu(product + builder.param("b", f32[128, 512], bias)))
    report = dovetail.explain(builder.graph(), without=["fuse_epilogues"])
    (miss,) = [m for m in report.missed if m.rule == "linear"]
    assert dict(miss.changes) == ({"b": "f32[512]"} if equal else {})
    assert bool(miss.hint) == equal == (miss.gain_seconds > 0)
