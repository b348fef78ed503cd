"""Results that are laid out in the order of axes in which they are read."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, Value, library, ops
from dovetail.dtypes import DType, f32, f64
from dovetail.ir.dim import symbol
from dovetail.ir.leaf import input
from dovetail.library.heads import merge_heads, split_heads
from dovetail.plan.plan import make_plan
from dovetail.plan.result_layout import permuted_results
from dovetail.plan.text import parse_plan, print_plan
from dovetail.plan.verify import verify_plan
from dovetail.targets.cpu.claims import CLAIMS
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close


def attended(dtype: DType = f32) -> Value:
    b, s = symbol("b"), symbol("s")
    return library.attention(*(split_heads(input(n, dtype[b, s, 24]), 3) for n in "qkv"), scale=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f32, f64])
def test_heads_are_written_where_they_are_merged(dtype: DType) -> None:
    """By a kernel, and on the host where there is none for a type."""
    graph = Graph.of(ops.neg(merge_heads(attended(dtype))))
    plan = make_plan(graph, target=CLAIMS)
    verify_plan(plan)
    assert [s.value.op.name for s in plan.steps] == ["attention", "neg"]
    value = plan.steps[0].value
    assert plan.locate(value).root is value
    assert parse_plan(print_plan(plan), (*ops.ALL, library.attention)) == plan
    runner = NativeGraph(plan).bind({})
    for b, s in [(1, 1), (2, 5), (1, 40), (3, 33)]:
        rng = np.random.default_rng(s)
        feeds = {n: rng.normal(size=(b, s, 24)).astype(dtype.numpy) for n in "qkv"}
        (got,) = runner.run(feeds).values()
        (expected,) = evaluate(graph, feeds, lift=True).values()
        assert_close(got, expected, dtype)


def permuted(graph: Graph) -> list[Value]:
    return list(permuted_results(graph, CLAIMS.memory.strided_results))


def test_what_others_read_too_stays_as_it_is() -> None:
    value = attended()
    merged = merge_heads(value)
    assert permuted(Graph.of(merged)) == [value]
    assert not permuted(Graph.of({"merged": merged, "heads": value}))
    assert not permuted(Graph.of({"merged": merged, "sum": ops.neg(value)}))
    other = ops.permute(value, order=(-3, -2, -4, -1))
    assert not permuted(Graph.of({"merged": merged, "other": other}))
    assert not permuted(Graph.of(ops.permute(value, order=(-1, -2))))
    assert not permuted_results(Graph.of(merged), ())
    assert not permuted(Graph.of(ops.permute(ops.neg(value), order=(-2, -3, -1))))


@pytest.mark.slow
def test_a_second_reader_that_moves_the_last_axis_changes_nothing() -> None:
    """The gradient of a weight reads the heads of the forward pass again, transposed: neither copies them."""
    value = attended()
    merged = merge_heads(value)
    turned = ops.permute(ops.again(value), order=(-3, -1, -4, -2))
    product = ops.merge(ops.merge(turned, axis=-1, count=2), axis=-2, count=2) @ ops.merge(merged, axis=-2, count=2)
    graph = Graph.of({"product": product, "merged": ops.neg(merged)})
    assert permuted(graph) == [value]
    assert not permuted(Graph.of({"merged": ops.neg(merged), "heads": ops.again(value)}))
    assert not permuted(Graph.of({"merged": merged, "sum": ops.neg(ops.again(value))}))
    plan = make_plan(graph, target=CLAIMS)
    verify_plan(plan)
    assert sorted(s.value.op.name for s in plan.steps) == ["attention", "matmul", "neg"]
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=(2, 5, 24)).astype(np.float32) for n in "qkv"}
    expected = evaluate(graph, feeds, lift=True)
    for name, got in NativeGraph(plan).bind({}).run(feeds).items():
        assert_close(got, expected[name], f32)
