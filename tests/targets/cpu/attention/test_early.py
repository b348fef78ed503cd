"""Functions of attention that are compiled while a graph is lowered: the kernels that are selected call all of them."""

from __future__ import annotations

import pytest

from dovetail import Graph, Value, f32, library, ops
from dovetail.ir.dim import Size, symbol
from dovetail.ir.leaf import input
from dovetail.runtime.compile import compilation
from dovetail.runtime.request import make_request
from dovetail.targets.cpu.attention.early import early_functions
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.runtime.build import builder_of, kernels_of


def spelled(d: int, *, masked: bool, queries: Size, one_op: bool) -> Graph:
    """An attention in primitives, as a file has it."""
    b, keys = symbol("b"), symbol("keys")
    q, k, v = (input(name, f32[b, 4, size, d]) for name, size in (("q", queries), ("k", keys), ("v", keys)))
    scores: Value = (q @ ops.permute(k, order=(-1, -2))) * 0.125
    if masked:
        scores = scores + input("mask", f32[b, 1, 1, keys])
    weights = library.softmax(scores) if one_op else library.softmax.body(scores)
    return Graph.of(weights @ v)


@pytest.mark.parametrize(
    ("d", "masked", "one_op", "queries"),
    [(32, True, False, 0), (20, False, False, 0), (6, True, True, 0), (32, True, False, 16), (6, False, True, 37)],
)
def test_the_kernel_calls_all_that_was_compiled_early(d: int, masked: bool, one_op: bool, queries: int) -> None:
    graph = spelled(d, masked=masked, queries=queries or symbol("s"), one_op=one_op)
    early = {function.name for function in early_functions(graph.values, host_device())}
    plan = compilation(graph, make_request()).plan
    builder = builder_of(plan, BACKEND)
    jobs = kernels_of([builder.job(step) for step in plan.phase("run")])
    called = {module.name for job in jobs for module in BACKEND.code.modules(job) if module.is_shared}
    assert early and early <= called


def test_other_graphs_have_none() -> None:
    x = input("x", f32[symbol("b"), 4, 16, 16])
    few = spelled(32, masked=False, queries=2, one_op=False)
    for graph in (Graph.of(x @ x), Graph.of(ops.exp(x) @ x), Graph.of(library.softmax.body(x)), few):
        assert not early_functions(graph.values, host_device())
