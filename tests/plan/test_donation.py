"""Donated inputs in a plan: what is computed in their memory, what is copied there, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from numpy.typing import NDArray

import dovetail
from dovetail import Graph, Value, ops
from dovetail.dtypes import f32, i64
from dovetail.errors import GraphError, ParseError, VerifyError
from dovetail.ir import leaf
from dovetail.ir.graph import Subgraph
from dovetail.ir.leaf import input, param
from dovetail.ir.text import parse_graph, print_graph
from dovetail.library.linear import linear
from dovetail.ops.region import region
from dovetail.passes.specialize import specialize
from dovetail.plan.arena import Slot
from dovetail.plan.plan import Plan, make_plan
from dovetail.plan.text import parse_plan, print_plan
from dovetail.plan.verify import verify_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.reference.claims import CLAIMS as REFERENCE
from dovetail.targets.reference.planned import PlannedGraph
from tests.strategies import graphs

Array = NDArray[Any]

X, Y = input("x", f32[8, 16]), input("y", f32[8, 16])
ROW, AT = input("row", f32[1, 16]), input("at", i64[1, 1])
APPENDED = ops.scatter_nd(X, AT, ROW)
W, V = param("w", f32[16, 16]), param("v", f32[8, 16])
FROM_WEIGHTS = ops.exp(V)


def planned(outputs: dict[str, Value], donated: dict[str, str]) -> Plan:
    read = Graph.of(outputs)
    graph = Graph.of(outputs, inputs=dict.fromkeys((*read.inputs, X)))
    plan = make_plan(graph.donate(donated), target=CPU)
    verify_plan(plan)
    again = parse_plan(print_plan(plan), (*ops.ALL, linear, region))
    assert again == plan and again.graph.donated == donated
    return plan


def test_an_update_writes_into_the_input() -> None:
    plan = planned({"new": APPENDED, "sum": ops.reduce_sum(APPENDED, axes=(0,))}, {"new": "x"})
    (donation,) = plan.donations
    assert (donation.output, donation.input, donation.copied, donation.reason) == ("new", "x", 0, "")
    update = next(s for s in plan.steps if s.value is APPENDED)
    assert update.over is X and plan.slots[APPENDED] == Slot(0, 8 * 16 * 4, "donated", X)
    assert plan.arena_size == 64, "the sum alone needs memory"


def swapping(first: Value, second: Value) -> tuple[Value, Value]:
    """One kernel of two results, each of which reads what the other is written over."""
    a, b = leaf.argument(0, first.tensor), leaf.argument(1, second.tensor)
    made = region(Subgraph((first.tensor, second.tensor), (a * 0.5 + b, a - b * b)), (first, second))
    return leaf.item(made, 0), leaf.item(made, 1)


def test_several_results_of_one_kernel_write_over_what_all_of_them_read() -> None:
    one, two = swapping(X, Y)
    plan = planned({"one": one, "two": two}, {"one": "x", "two": "y"})
    (step,) = plan.steps
    assert step.overs == (X, Y) and plan.arena_size == 0 and all(not d.copied for d in plan.donations)
    with pytest.raises(VerifyError, match="writes over"):
        verify_plan(replace(plan, steps=(replace(step, overs=()),)))
    for target in ("cpu", "reference"):
        x, y = (np.random.default_rng(i).normal(size=(8, 16)).astype(np.float32) for i in range(2))
        wanted = [x * 0.5 + y, x - y * y]
        dovetail.compile(plan.graph, target=target).run({"x": x, "y": y})
        np.testing.assert_allclose([x, y], wanted, rtol=1e-5, atol=1e-6)


def test_other_readers_run_first() -> None:
    """As written, the sum would come after the update."""
    total = ops.reduce_sum(ops.exp(X), axes=(0,))
    plan = planned({"new": APPENDED, "sum": total}, {"new": "x"})
    names = [s.value.op.name for s in plan.steps]
    assert names.index("exp") < names.index("scatter_nd") and plan.donations[0].copied == 0


def test_several_steps_in_a_row_run_in_one_place() -> None:
    """Two appends, and an elementwise step between them: none of them has memory of its own."""
    second = ops.scatter_nd(ops.tanh(APPENDED), AT, ROW)
    plan = planned({"new": second}, {"new": "x"})
    assert plan.arena_size == 0 and [s.over for s in plan.steps] == [X, *(s.value for s in plan.steps[:-1])]


def test_what_does_not_read_the_input_writes_there_too() -> None:
    plan = planned({"new": linear(Y, W, act="relu")}, {"new": "x"})
    assert plan.slots[plan.steps[0].value].donor is X and plan.steps[0].over is None and plan.arena_size == 0


def test_the_input_itself_needs_nothing() -> None:
    plan = planned({"same": X, "other": ops.exp(X)}, {"same": "x"})
    assert plan.donations[0].copied == 0


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ({"new": linear(X, W, act="relu")}, "linear does not run in place: it reads x after it has begun to write"),
        ({"new": APPENDED, "y": X}, "the output y shows x as it was given"),
        ({"new": ops.permute(ops.permute(ops.exp(X), order=(-1, -2)) * 2.0, order=(-1, -2))}, "not dense"),
        ({"new": FROM_WEIGHTS}, "no step of a run computes a result of exp"),
        ({"new": Y}, "no step of a run computes y"),
        (
            {"new": ops.exp(Y), "late": X + ops.reduce_sum(ops.exp(Y), axes=(0,))},
            "add reads x after exp would have written over it",
        ),
    ],
)
def test_what_cannot_be_computed_there_is_copied_with_a_reason(outputs: dict[str, Value], reason: str) -> None:
    plan = planned(outputs, {"new": "x"})
    (donation,) = plan.donations
    assert reason in donation.reason and donation.copied == 8 * 16 * 4


def test_without_rules_no_update_is_in_place() -> None:
    plan = make_plan(Graph.of({"new": APPENDED}).donate({"new": "x"}), target="any")
    verify_plan(plan)
    assert plan.donations[0].copied == 8 * 16 * 4 and "does not run in place" in plan.donations[0].reason


def test_two_donations_that_wait_for_each_other() -> None:
    """Each new value is made from both old ones: one can be written in place, the other one is late."""
    plan = planned({"a": X + Y, "b": X * Y}, {"a": "x", "b": "y"})
    assert sorted(bool(d.copied) for d in plan.donations) == [False, True]


def test_inputs_that_change_places_are_copied() -> None:
    plan = planned({"a": Y, "b": X}, {"a": "x", "b": "y"})
    assert all(d.copied for d in plan.donations)
    x, y = np.zeros((8, 16), np.float32), np.ones((8, 16), np.float32)
    found = PlannedGraph(plan).bind({}).run({"x": x, "y": y})
    assert found["a"] is x and found["b"] is y and (x == 1).all() and (y == 0).all()


@pytest.mark.parametrize(
    ("donated", "message"),
    [
        ({"missing": "x"}, "'missing' takes the memory of 'x', and is no output"),
        ({"new": "z"}, "the output new takes the memory of 'z', no input"),
        ({"new": "row"}, "is f32\\[8, 16\\], and the input row that it takes the memory of f32\\[1, 16\\]"),
        ({"new": "x", "other": "x"}, "the input x is donated to new and to other"),
    ],
)
def test_donations_that_make_no_sense(donated: dict[str, str], message: str) -> None:
    graph = Graph.of({"new": APPENDED, "other": ops.exp(Y)})
    with pytest.raises(GraphError, match=message):
        graph.donate(donated)


def test_donations_survive_text_and_sizes() -> None:
    n = "n"
    x, at, row = input("x", f32[n, 4]), input("at", i64[1, 1]), input("row", f32[1, 4])
    graph = Graph.of({"into": ops.scatter_nd(x, at, row), "y": ops.exp(x)}).donate({"into": "x"})
    text = print_graph(graph)
    assert "into = %" in text and " into x, y = " in text
    again = parse_graph(text, ops.ALL)
    assert again.donated == {"into": "x"} and print_graph(again) == text
    assert specialize(graph, {n: 3}).donated == {"into": "x"}
    with pytest.raises(ParseError, match="no input"):
        parse_graph(text.replace("into x, y", "into z, y"), ops.ALL)


def test_donations_survive_a_file(tmp_path: Path) -> None:
    graph = Graph.of({"new": APPENDED}).donate({"new": "x"})
    dovetail.save(graph, tmp_path / "append.dovetail")
    assert dovetail.load(tmp_path / "append.dovetail").donated == {"new": "x"}


def test_donations_decide_the_fingerprint() -> None:
    graph = Graph.of({"new": APPENDED})
    marks = {make_plan(g, target=CPU).fingerprint for g in (graph, graph.donate({"new": "x"}), graph.donate({}))}
    assert len(marks) == 2


def test_wrong_plans_are_refused() -> None:
    plan = planned({"new": APPENDED, "sum": ops.reduce_sum(ops.exp(X), axes=(0,))}, {"new": "x"})
    late = replace(plan, steps=tuple(sorted(plan.steps, key=lambda s: s.value is not APPENDED)))
    for wrong, message in (
        (late, "reads .*, which .* was written over"),
        (replace(plan, donations=()), "the donations are not those of the graph"),
        (replace(plan, graph=Graph.of(plan.graph.outputs)), "into memory that is not donated"),
    ):
        with pytest.raises(VerifyError, match=message):
            verify_plan(wrong)


@pytest.mark.heavy
@given(graphs())
def test_any_donation_gives_what_the_graph_gives_without(drawn: tuple[Graph, dict[str, Array]]) -> None:
    """Every output that some input fits takes its memory; plans run in memory that starts as garbage."""
    graph, feeds = drawn
    free = {str(v.attrs["name"]): v for v in graph.inputs}
    donated: dict[str, str] = {}
    for output, value in graph.outputs.items():
        fitting = next((n for n, v in free.items() if v.type == value.type), None)
        if fitting is not None:
            donated[output] = fitting
            del free[fitting]
    assume(donated)
    plan = make_plan(graph.donate(donated), target=REFERENCE)
    verify_plan(plan)
    expected = PlannedGraph(make_plan(graph, target=REFERENCE)).bind(graph.params).run(feeds)
    arrays = {name: array.copy() for name, array in feeds.items()}
    found = PlannedGraph(plan, prove=True).bind(graph.params).run(arrays)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])
        if name in donated:
            assert array is arrays[donated[name]]
