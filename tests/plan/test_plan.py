"""Whole plans: memory that is shared, views that cost nothing, and graphs of any size."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Graph, Value, ops
from dovetail.declare.cost import is_free
from dovetail.dtypes import f32
from dovetail.errors import OptionError, VerifyError
from dovetail.ir import leaf
from dovetail.ir.dim import evaluate, symbol
from dovetail.library.linear import linear
from dovetail.passes.memory_rules import NO_RULES
from dovetail.plan.plan import Plan, make_plan, step_by_step, with_launches
from dovetail.plan.verify import verify_plan
from dovetail.targets.reference.claims import CLAIMS as REFERENCE
from tests.strategies import graphs

X, W = leaf.input("x", f32[8, 16]), leaf.param("w", f32[16, 16])


def plan_of(outputs: Value | dict[str, Value]) -> Plan:
    plan = make_plan(Graph.of(outputs), target=REFERENCE)
    verify_plan(plan)
    return plan


def test_every_value_that_is_computed_is_one_step() -> None:
    heads = ops.permute(ops.split(X @ W, axis=-1, parts=4), order=(-2, -3, -1))
    scores = heads @ ops.permute(heads, order=(-1, -2))
    joined = ops.merge(ops.permute(scores @ heads, order=(-2, -3, -1)), axis=-1)
    plan = plan_of(linear(joined, W, act="relu"))
    assert [s.name for s in plan.steps] == ["matmul_0", "matmul_1", "matmul_2", "merge_3", "linear_4"]
    assert {s.phase for s in plan.steps} == {"run"}
    assert plan.steps[1].operands == scores.operands and plan.steps[1].results == (scores,)


@pytest.mark.slow
@given(graphs(empty=True))
def test_random_plans_keep_their_promises(drawn: tuple[Graph, dict[str, Any]]) -> None:
    graph, _ = drawn
    plan = make_plan(graph, target=REFERENCE)
    assert isinstance(plan.arena_size, int) and isinstance(plan.peak, int) and isinstance(plan.unshared_bytes, int)
    assert plan.peak <= plan.arena_size <= plan.unshared_bytes
    assert plan.bytes_saved == plan.unshared_bytes - plan.arena_size <= plan.unshared_bytes
    for value in graph.values:
        held = [value in plan.slots, value in plan.aliases, value.op in leaf.LEAVES]
        assert sum(held) == 1, value
        assert is_free(value) or value in plan.slots
        if value in plan.aliases:
            assert plan.aliases[value].root not in plan.aliases
    assert all(slot.offset % 64 == 0 for slot in plan.slots.values())


@pytest.mark.slow
@given(graphs(empty=True), st.data())
def test_memory_for_launches_that_hold_more_is_right_for_steps_one_by_one(
    drawn: tuple[Graph, dict[str, Any]], data: st.DataObject
) -> None:
    plan = make_plan(drawn[0], target=REFERENCE)
    steps = plan.phase("run")
    made = [v for step in steps for v in step.results]
    more = [data.draw(st.sets(st.sampled_from(made), max_size=3)) for _ in steps]
    placed = with_launches(plan, [{*s.operands, *s.results, *m} for s, m in zip(steps, more, strict=True)])
    assert placed is not None and placed.steps == plan.steps
    verify_plan(placed)
    assert step_by_step(placed) == step_by_step(plan) == plan


def test_a_launch_holds_what_its_steps_read_and_nothing_between_them() -> None:
    plan = plan_of(X @ W @ W @ W)
    steps = plan.phase("run")
    first, second, last = [step.results[0] for step in steps]
    assert plan.slots[first] == plan.slots[last], "one by one, the third product takes the memory of the first"
    placed = with_launches(plan, [{first}, (), {first, last}])
    assert placed is not None and placed.steps == plan.steps and second not in placed.slots
    assert placed.slots[first] != placed.slots[last] and placed.arena_size == plan.arena_size
    assert step_by_step(placed) == plan


def test_plans_are_the_same_every_time() -> None:
    y = linear(X, W) + ops.tanh(X) * ops.reduce_max(X @ W, axes=(1,))
    first, second = plan_of(y), plan_of(y)
    assert first == second and first.steps == second.steps and list(first.slots) == list(second.slots)


def test_reshape_between_a_norm_and_a_matmul_costs_nothing() -> None:
    x = leaf.input("x", f32[1, 8, 16])
    normed = ops.rsqrt(x)
    plan = plan_of(ops.merge(normed, axis=-2) @ W)
    assert [s.value.op for s in plan.steps] == [ops.rsqrt, ops.matmul]


def test_chain_runs_in_one_place() -> None:
    y = X @ W
    for _ in range(10):
        y = ops.tanh(y)
    plan = plan_of(y)
    assert plan.arena_size == 8 * 16 * 4 and plan.unshared_bytes == 11 * 8 * 16 * 4
    assert [s.over for s in plan.steps[1:]] == [s.value for s in plan.steps[:-1]]


@pytest.mark.parametrize(
    "outputs",
    [
        {"y": ops.tanh(X)},
        {"y": ops.tanh(W)},
        {"y": ops.tanh(leaf.constant(np.ones(4), f32))},
        {"y": ops.tanh(ops.permute(X, order=(-1, -2)))},
        {"y": ops.exp(X), "z": ops.tanh(ops.exp(X))},
        {"y": ops.permute(ops.exp(X), order=(-1, -2)), "z": ops.tanh(ops.exp(X))},
        {"y": ops.tanh(ops.exp(X)) @ ops.permute(ops.exp(X), order=(-1, -2))},
        {"y": ops.tanh(ops.exp(W)), "z": X @ ops.exp(W)},
    ],
)
def test_memory_of_others_is_not_written_over(outputs: dict[str, Value]) -> None:
    """Inputs, parameters, constants, outputs, views of outputs, and what someone reads later."""
    assert [s.over for s in plan_of(outputs).steps if s.value.op is ops.tanh] == [None]


def test_temporaries_of_the_bind_phase_are_not_kept() -> None:
    joined = ops.concat(ops.neg(W), ops.exp(W), axis=-1)
    plan = plan_of(X @ joined)
    assert plan.bound_size == 16 * 32 * 4 and plan.scratch_size == 2 * 16 * 16 * 4
    assert plan.arena_size == 8 * 32 * 4


def test_symbols_get_no_empty_slots() -> None:
    """Trap: an unbound symbol counted as 0, and every slot was empty."""
    x = leaf.input("x", f32["b", "s", 16])
    plan = plan_of(linear(ops.tanh(x @ W), W) + x)
    s, b = symbol("s"), symbol("b")
    assert plan.symbols == ("b", "s")
    assert {slot.size for slot in plan.slots.values()} == {b * s * 64}
    assert plan.arena_size == plan.peak == 2 * b * s * 64
    assert evaluate(plan.bytes_saved, {"b": 2, "s": 3}) == 2 * 2 * 3 * 64


@pytest.mark.parametrize("alignment", [0, -64, 3, 96])
def test_alignment_is_a_power_of_two(alignment: int) -> None:
    with pytest.raises(OptionError, match=f"the alignment is {alignment}"):
        make_plan(Graph.of(X), target=REFERENCE, alignment=alignment)


def test_other_alignments() -> None:
    plan = make_plan(Graph.of({"a": ops.exp(X), "b": ops.tanh(X)}), target=REFERENCE, alignment=4096)
    verify_plan(plan)
    assert {slot.offset for slot in plan.slots.values()} == {0, 4096} and plan.arena_size == 8192


def long_chain(count: int) -> Graph:
    """Residual blocks as deep as asked: a chain, with a value that skips every block."""
    x = leaf.input("x", f32[4, 16])
    for i in range(count // 5):
        hidden = ops.tanh(x @ W) * float(i % 7)
        x = x + ops.flip(hidden, axes=(1,))
    return Graph.of(x)


@pytest.mark.slow
def test_deep_graphs_do_not_recurse() -> None:
    """Trap: recursion that dies on a chain of 200 layers."""
    plan = make_plan(long_chain(10_000), target=REFERENCE)
    assert plan.arena_size == 2 * 256 and len(plan.steps) == 8_000
    verify_plan(plan)


@pytest.mark.exhaustive
def test_time_grows_with_the_graph_and_no_faster() -> None:
    graphs = [long_chain(n) for n in (2_000, 8_000)]
    seconds: list[float] = []
    for graph in graphs:
        best = float("inf")
        for _ in range(3):
            started = time.process_time()
            make_plan(graph, target=REFERENCE)
            best = min(best, time.process_time() - started)
        seconds.append(best)
    assert seconds[1] < 4 * 4 * seconds[0]


def test_without_rules_a_plan_is_right_for_any_kernel() -> None:
    """A name brings no rules: nothing is written over what a step reads, and every result is dense."""
    value = ops.tanh(ops.exp(X) + 1.0)
    bare, ruled = make_plan(Graph.of(value), target="reference"), make_plan(Graph.of(value), target=REFERENCE)
    assert all(s.over is None for s in bare.steps) and any(s.over is not None for s in ruled.steps)
    assert bare.target == ruled.target == "reference"
    verify_plan(bare)
    verify_plan(ruled)
    with pytest.raises(VerifyError, match="may not write over"):
        verify_plan(replace(ruled, rules=NO_RULES))
