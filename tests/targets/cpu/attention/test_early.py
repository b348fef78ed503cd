"""Functions of attention that are compiled while a graph is lowered: the kernels that are selected call all of them."""

from __future__ import annotations

import pytest

from dovetail import Builder, Graph, Value, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import Size, symbol
from dovetail.ir.leaf import input
from dovetail.library.heads import split_heads
from dovetail.runtime.compile import compilation
from dovetail.runtime.request import make_request
from dovetail.targets.cpu.attention.early import early_functions, early_in_training
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.runtime.building.build import builder_of, kernels_of
from dovetail.train import SGD
from dovetail.train.step import step_graph


def spelled(d: int, *, masked: bool, queries: Size, one_op: bool) -> Graph:
    """An attention in primitives, as a file has it."""
    b, keys = symbol("b"), symbol("keys")
    q, k, v = (input(name, f32[b, 4, size, d]) for name, size in (("q", queries), ("k", keys), ("v", keys)))
    scores: Value = (q @ ops.permute(k, order=(-1, -2))) * 0.125
    if masked:
        scores = scores + input("mask", f32[b, 1, 1, keys])
    weights = library.softmax(scores) if one_op else library.softmax.body(scores)
    return Graph.of(weights @ v)


def shared(graph: Graph) -> set[str]:
    """The functions that the kernels of a graph call."""
    plan = compilation(graph, make_request()).plan
    builder = builder_of(plan, BACKEND)
    jobs = kernels_of([builder.job(step) for step in plan.phase("run")])
    return {module.name for job in jobs for module in BACKEND.code.modules(job) if module.is_shared}


@pytest.mark.parametrize(
    ("d", "masked", "one_op", "queries"),
    [(32, True, False, 0), (20, False, False, 0), (6, True, True, 0), (32, True, False, 16), (6, False, True, 37)],
)
def test_the_kernel_calls_all_that_was_compiled_early(d: int, masked: bool, one_op: bool, queries: int) -> None:
    graph = spelled(d, masked=masked, queries=queries or symbol("s"), one_op=one_op)
    early = {function.name for function in early_functions(graph.values, host_device())}
    assert early and early <= shared(graph)


def test_other_graphs_have_none() -> None:
    x = input("x", f32[symbol("b"), 4, 16, 16])
    few = spelled(32, masked=False, queries=2, one_op=False)
    for graph in (Graph.of(x @ x), Graph.of(ops.exp(x) @ x), Graph.of(library.softmax.body(x)), few):
        assert not early_functions(graph.values, host_device())


def training(*, causal: bool) -> Graph:
    """A step that trains what comes before an attention of three heads, one op of the library."""
    b = Builder("attends")
    x = b.input("x", f32[2, 24, 36])
    q, k, v = (split_heads(x @ b.param(name, f32[36, 36]), 3) for name in ("q", "k", "v"))
    y = library.attention(q, k, v, scale=0.25, causal=causal, fill=float("-inf") if causal else None)
    b.output("loss", ops.reshape(ops.reduce_mean(y * y, axes=(-4, -3, -2, -1)), ()))
    return step_graph(b.graph(), SGD(), loss="loss").graph


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_training_step_calls_what_was_compiled_early_for_both_passes(causal: bool) -> None:
    graph = training(causal=causal)
    early = {function.name for function in early_in_training(graph.values, host_device())}
    called = {name for name in shared(graph) if name.startswith("attend_")}
    assert any(name.startswith("attend_sums_") for name in early), "of the gradients of keys and values"
    assert any(name.startswith("attend_out_") for name in early)
    assert early == called


def test_attentions_without_a_gradient_are_left_to_other_passes() -> None:
    q = input("q", f32[2, 4, 24, 12])
    assert not early_in_training(Graph.of(library.attention(q, q, q, scale=0.25)).values, host_device())
