"""Plans in real memory give the numbers of the plain interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from dovetail import Graph, Value, ops
from dovetail.dtypes import bool_, f32, i32
from dovetail.errors import BindError
from dovetail.graphs import TensorType
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import FLOATS
from dovetail.ir.graph import Subgraph
from dovetail.library.linear import linear
from dovetail.passes.regions import mark_regions
from dovetail.passes.specialize import specialize
from dovetail.plan.plan import Plan, make_plan
from dovetail.plan.text import parse_plan, print_plan
from dovetail.plan.verify import verify_plan
from dovetail.targets.reference.claims import CLAIMS as REFERENCE
from dovetail.targets.reference.interpreter import evaluate
from dovetail.targets.reference.planned import PlannedGraph
from tests.strategies import binding_of, graphs
from tests.tolerances import assert_close

Array = NDArray[Any]
Drawn = tuple[Graph, dict[str, Array]]
RANDOM = np.random.default_rng(5)


def run(plan: Plan, feeds: dict[str, Array], params: dict[str, Array] | None = None) -> dict[str, Array]:
    """Memory starts as garbage: a byte that is read and never written shows."""
    given = {**plan.graph.params, **(params or {})}
    return PlannedGraph(plan, prove=True).bind(given).run(feeds)


def check(graph: Graph, feeds: dict[str, Array], judged: Graph | None = None) -> Plan:
    """The plan holds together, reads back, and gives what the judged graph gives in float64."""
    plan = make_plan(graph, target=REFERENCE)
    verify_plan(plan)
    found = run(plan, feeds)
    expected = evaluate(judged or graph, feeds, lift=True)
    assert list(found) == list(graph.outputs)
    for name, value in graph.outputs.items():
        assert_close(found[name], expected[name], value.dtype)
    return plan


def array(type: TensorType) -> Array:
    shape = tuple(s for s in type.shape if isinstance(s, int))
    return (RANDOM.integers(-64, 64, shape) / 32).astype(type.dtype.numpy)


def filled(outputs: dict[str, Value]) -> Drawn:
    """A graph with arrays for its inputs and parameters."""
    graph = Graph.of(outputs)
    params = {v.attrs["name"]: array(v.tensor) for v in graph.parameters}
    return replace(graph, params=params), {v.attrs["name"]: array(v.tensor) for v in graph.inputs}


@pytest.mark.slow
@given(graphs(empty=True))
def test_random_graphs(drawn: Drawn) -> None:
    check(*drawn)


@pytest.mark.slow
@given(graphs(among=FLOATS))
def test_random_graphs_of_narrow_types(drawn: Drawn) -> None:
    check(*drawn)


@pytest.mark.heavy
@given(graphs(empty=True, nodes=(20, 60)))
def test_random_graphs_with_regions(drawn: Drawn) -> None:
    graph, feeds = drawn
    check(mark_regions(graph).graph, feeds, graph)


@pytest.mark.slow
@given(graphs(symbolic=True))
def test_symbolic_plans_run_as_they_are(drawn: Drawn) -> None:
    graph, feeds = drawn
    plan = check(graph, feeds)
    assert all(slot.size != 0 for value, slot in plan.slots.items() if value.tensor.count != 0)


@pytest.mark.slow
@given(graphs(symbolic=True))
def test_symbolic_graphs_are_specialised(drawn: Drawn) -> None:
    graph, feeds = drawn
    unread = {str(v.attrs["name"]): v for v in graph.inputs}
    special = specialize(graph, binding_of(graph, {n: feeds[n] for n in unread}))
    plan = check(special, feeds, graph)
    assert plan.symbols == () and isinstance(plan.arena_size, int)


@pytest.mark.slow
@given(graphs(empty=True))
def test_plans_read_back(drawn: Drawn) -> None:
    plan = make_plan(drawn[0], target=REFERENCE, options={"tiles": (8, 12), "fast": True})
    assert parse_plan(print_plan(plan), ops.ALL) == plan


X, W = leaf.input("x", f32[6, 4]), leaf.param("w", f32[4, 4])
HIDDEN = ops.tanh(X @ W)


@pytest.mark.parametrize(
    "outputs",
    [
        {"x": X},
        {"w": W},
        {"c": leaf.constant(np.arange(4.0), f32)},
        {"turned": ops.permute(X, order=(-1, -2)), "same": X},
        {"a": HIDDEN, "b": HIDDEN, "view": ops.flip(HIDDEN, axes=(0,))},
        {"copied": ops.merge(ops.permute(X, order=(-1, -2)), axis=-1)},
        {"bound": ops.concat(W, ops.permute(W, order=(-1, -2)), axis=0)},
        {"early": ops.neg(ops.neg(W)), "late": X @ ops.neg(ops.neg(W))},
        {"empty": ops.slice_(X, axis=0, start=6, stop=6) @ W},
        {"sum": ops.reduce_sum(ops.slice_(X, axis=0, start=2, stop=2) @ W, axes=(0,))},
        {"x + turned": HIDDEN + ops.flip(HIDDEN, axes=(0, 1))},
        {"inner": HIDDEN + 1.0, "outer": ops.exp(HIDDEN + 1.0)},
        {"fused": linear(X, W, act="relu"), "twice": linear(linear(X, W), W)},
        {"scalar": ops.squeeze(ops.reduce_sum(X, axes=(0, 1)), axes=(0, 1))},
    ],
    ids=lambda outputs: "-".join(outputs),
)
def test_outputs_of_every_kind(outputs: dict[str, Value]) -> None:
    check(*filled(outputs))


def test_caller_owns_what_comes_out() -> None:
    graph, feeds = filled({"x": X, "again": X, "w": W, "turned": ops.flip(X, axes=(0,))})
    bound = PlannedGraph(make_plan(graph, target=REFERENCE)).bind(graph.params)
    kept = feeds["x"].copy()
    out = bound.run(feeds)
    for found in out.values():
        assert found.flags.owndata and found.flags.writeable and found.flags.c_contiguous
        found[...] = 99
    np.testing.assert_array_equal(feeds["x"], kept)
    np.testing.assert_array_equal(bound.run(feeds)["w"], graph.params["w"])


def test_layout_of_what_is_given_does_not_matter() -> None:
    graph, feeds = filled({"y": ops.permute(X, order=(-1, -2)) + 1.0})
    turned = {"x": np.asfortranarray(feeds["x"])}
    plan = make_plan(graph, target=REFERENCE)
    np.testing.assert_array_equal(run(plan, turned)["y"], feeds["x"].T + np.float32(1))


def test_several_results_have_a_slot_each() -> None:
    several = ops.top_k(X @ W, k=2, axis=-1)
    graph, feeds = filled({"largest": several[0] * 2.0, "at": several[1]})
    plan = check(graph, feeds)
    (step,) = [s for s in plan.steps if s.value is several]
    first, second = (plan.slots[r] for r in step.results)
    assert (first.size, second.size) == (48, 96)
    product = feeds["x"].astype(np.float64) @ graph.params["w"]
    np.testing.assert_allclose(run(plan, feeds)["largest"], -np.sort(-product, axis=1)[:, :2] * 2, rtol=1e-5)


def test_result_that_nobody_reads_has_a_slot_too() -> None:
    several = ops.top_k(X, k=2, axis=-1)
    graph, feeds = filled({"at": several[1]})
    assert leaf.item(several, 0) in check(graph, feeds).slots


def body(*results: Value, arguments: tuple[TensorType, ...]) -> Subgraph:
    return Subgraph(arguments, results)


def test_branches() -> None:
    flag, types = leaf.input("flag", bool_[()]), (f32[6, 4],)
    a = leaf.argument(0, types[0])
    chosen = ops.if_(flag, ops.neg(X), then=body(a * 2.0, arguments=types), otherwise=body(a - 1.0, arguments=types))
    graph = Graph.of({"y": chosen[0] + X})
    x = array(f32[6, 4])
    plan = make_plan(graph, target=REFERENCE)
    verify_plan(plan)
    np.testing.assert_array_equal(run(plan, {"x": x, "flag": np.array(True)})["y"], -x * 2 + x)
    np.testing.assert_array_equal(run(plan, {"x": x, "flag": np.array(False)})["y"], -x - 1 + x)


def test_loops() -> None:
    total, one = leaf.argument(0, f32[4]), leaf.argument(1, f32[4])
    summing = body(total + one, total * one, arguments=(f32[4], f32[4]))
    start = ops.reduce_sum(W, axes=(0,))
    scanned = ops.scan_(ops.squeeze(start, axes=(0,)), ops.exp(X), body=summing, carries=1, scanned=1)
    graph, feeds = filled({"last": scanned[0], "all": scanned[1]})
    plan = check(graph, feeds)
    assert [s.phase for s in plan.steps if s.value.op is ops.reduce_sum] == ["bind"]
    carry = graph.params["w"].sum(0)
    for row in np.exp(feeds["x"]):
        carry = carry + row
    np.testing.assert_allclose(run(plan, feeds)["last"], carry, rtol=1e-5)


def test_sizes_that_depend_on_data() -> None:
    x = leaf.input("x", i32[8])
    places = ops.nonzero(x, count=symbol("n"))
    rows = ops.squeeze(places, axes=(0,))
    doubled = rows * 2
    # The size is used where the value that finds it is not read.
    ones = ops.expand(leaf.constant(np.ones(1), f32), axis=0, size=symbol("n")) * 3.0
    for outputs in ({"ones": ones, "rows": doubled}, {"rows": doubled, "ones": ones}):
        graph = Graph.of(outputs)
        plan = make_plan(graph, target=REFERENCE)
        verify_plan(plan)
        assert plan.symbols == ("n",)
        assert {plan.slots[v].pool for v in (places, doubled, ones)} == {"heap"}
        bound = PlannedGraph(plan, prove=True).bind({})
        for numbers in ([0, 3, 0, 0, 5, 7, 0, 0], [0] * 8, [1] * 8):
            found = bound.run({"x": np.array(numbers, np.int32)})
            expected = [2 * i for i, number in enumerate(numbers) if number]
            np.testing.assert_array_equal(found["rows"], expected)
            np.testing.assert_array_equal(found["ones"], [3.0] * len(expected))


def test_constraint_that_fails_in_a_run() -> None:
    x = leaf.input("x", f32["s"])
    plan = make_plan(Graph.of(ops.slice_(x, axis=0, start=0, stop=3)), target=REFERENCE)
    assert run(plan, {"x": np.arange(4, dtype=np.float32)})["y"].tolist() == [0, 1, 2]
    with pytest.raises(BindError, match="s at least 3 does not hold"):
        run(plan, {"x": np.arange(2, dtype=np.float32)})


def test_step_in_place_that_reads_what_it_overwrites_is_found_out() -> None:
    """The executor would hide such a plan if it computed a whole result before it writes."""
    hidden = ops.exp(X)
    value = hidden + ops.flip(hidden, axes=(0,))
    graph, feeds = filled({"y": value})
    plan = make_plan(graph, target=REFERENCE)
    assert [s.over for s in plan.steps] == [None, None]
    broken = replace(
        plan,
        steps=(plan.steps[0], replace(plan.steps[1], overs=(hidden,))),
        slots={**plan.slots, value: plan.slots[hidden]},
    )
    expected = evaluate(graph, feeds)["y"]
    np.testing.assert_array_equal(run(plan, feeds)["y"], expected)
    assert not np.array_equal(run(broken, feeds)["y"], expected)


def test_parameters_are_bound_again() -> None:
    joined = ops.concat(W, ops.neg(W), axis=-1)
    graph, feeds = filled({"y": X @ joined})
    plan = make_plan(graph, target=REFERENCE)
    assert [(s.value, s.phase) for s in plan.steps][:2] == [(ops.neg(W), "bind"), (joined, "bind")]
    planned = PlannedGraph(plan)
    first, second = array(f32[4, 4]), array(f32[4, 4])
    one, other = planned.bind({"w": first}), planned.bind({"w": second})
    for bound, w in ((one, first), (other, second), (one, first)):
        np.testing.assert_allclose(bound.run(feeds)["y"], feeds["x"] @ np.concatenate([w, -w], 1), rtol=1e-5, atol=1e-5)
