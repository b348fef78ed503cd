"""Orders of steps, judged by a plain count of the bytes that are held."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.errors import GraphError
from dovetail.ir import leaf
from dovetail.plan.alias import find_aliases
from dovetail.plan.liveness import Flow, Measure, make_flow
from dovetail.plan.schedule import (
    as_written,
    freeing_first,
    heaviest_first,
    just_in_time,
    last_first,
    peak_of,
    schedule,
    shrinking_early,
)

X = leaf.input("x", f32[16, 16])


def flow_of(outputs: list[Value]) -> Flow:
    graph = Graph.of({str(i): v for i, v in enumerate(outputs)})
    aliases = find_aliases(graph.values)
    steps = [v for v in graph.values if v.op not in leaf.LEAVES and v not in aliases]
    return make_flow(steps, aliases, set(outputs), {}, Measure(64))


@st.composite
def flows(draw: DrawFn, most: int = 7) -> Flow:
    """Steps that read a few of those before them, with sizes and chances to write in place."""
    count = draw(st.integers(1, most))
    weights = draw(st.lists(st.sampled_from([64, 128, 640]), min_size=count, max_size=count))
    reads = [
        tuple(sorted(draw(st.sets(st.integers(0, step - 1), max_size=3)))) if step else () for step in range(count)
    ]
    held = draw(st.sets(st.integers(0, count - 1), max_size=2))
    over = tuple(tuple(t for t in r if weights[t] == weights[s] and draw(st.booleans())) for s, r in enumerate(reads))
    readers = tuple(sum(t in r for r in reads) + (t in held) for t in range(count))
    makes = tuple((t,) for t in range(count))
    return Flow((), tuple(weights), tuple(weights), makes, tuple(reads), over, tuple(reads), readers, True)


def held_at_most(flow: Flow, order: list[int]) -> int:
    """The peak, counted anew at every step from who is still to be read."""
    peak = 0
    for at, step in enumerate(order):
        before, later = order[: at + 1], order[at + 1 :]
        alive = {t for s in before for t in flow.makes[s]}
        needed = {t for s in (*later, step) for t in flow.reads[s]} | set(flow.makes[step])
        needed |= {t for t in alive if sum(t in r for r in flow.reads) < flow.readers[t]}
        dead_after = {t for t in flow.over[step] if not any(t in flow.reads[s] for s in later)}
        dead_after -= {t for t in alive if sum(t in r for r in flow.reads) < flow.readers[t]}
        saved = max((flow.weights[t] for t in dead_after), default=0)
        peak = max(peak, sum(flow.weights[t] for t in alive & needed) - saved)
    return peak


def valid(flow: Flow, order: list[int] | tuple[int, ...]) -> bool:
    place = {step: i for i, step in enumerate(order)}
    return all(place[b] < place[s] for s, before in enumerate(flow.after) for b in before)


@given(flows())
def test_peak_is_counted_right(flow: Flow) -> None:
    order = list(range(len(flow.reads)))
    assert peak_of(flow, order) == held_at_most(flow, order)


@pytest.mark.slow
@given(flows(6))
def test_no_order_is_worse_than_written_nor_better_than_the_best(flow: Flow) -> None:
    order = schedule(flow)
    assert sorted(order) == list(range(len(flow.reads))) and valid(flow, order)
    best = min(peak_of(flow, o) for o in permutations(order) if valid(flow, o))
    assert best <= peak_of(flow, order) <= peak_of(flow, as_written(flow))


@given(flows(12))
def test_every_order_respects_what_goes_before(flow: Flow) -> None:
    for find in (as_written, heaviest_first, freeing_first, last_first):
        late = just_in_time(flow, find(flow))
        for order in (find(flow), late, shrinking_early(flow, late)):
            assert sorted(order) == list(range(len(flow.reads))) and valid(flow, order)


def small(x: Value) -> Value:
    return ops.reduce_sum(x, axes=(0, 1))


def test_large_values_that_shrink_are_not_held_together() -> None:
    """Written breadth first, eight tensors of 1024 bytes live at once; two are enough."""
    wide = [X @ leaf.constant(np.full((16, 16), i), f32) for i in range(8)]
    flow = flow_of([ops.concat(*map(small, wide), axis=0)])
    first = [i for i, v in enumerate(flow.tensors) if v in wide]
    rest = [i for i in range(len(flow.tensors)) if i not in first]
    assert peak_of(flow, [*first, *rest]) >= 8 * 1024
    assert peak_of(flow, schedule(flow)) <= 1024 + 9 * 64


def test_a_large_value_does_not_wait_for_a_sum_that_is_needed_last() -> None:
    """The gradient of a bias is read at the end of the step; the tensor that it sums up need not live till then."""
    x, sums = X, list[Value]()
    for _ in range(6):
        x = x @ X
        sums.append(small(x))
    flow = flow_of([x, ops.concat(*sums, axis=0)])
    assert peak_of(flow, shrinking_early(flow, last_first(flow))) <= 2 * 1024 + 7 * 64
    assert peak_of(flow, schedule(flow)) <= 2 * 1024 + 7 * 64


def test_heavier_branch_goes_first() -> None:
    """Written first is the branch that leaves much and needs little: its result waits beside the other's peak."""
    leaves_much = ops.exp(X)
    needs_much = small((X @ X) @ (ops.tanh(X) @ X))
    flow = flow_of([leaves_much * needs_much])
    assert flow.tensors[0] is leaves_much
    written, better = peak_of(flow, as_written(flow)), peak_of(flow, schedule(flow))
    assert (written, better) == (4 * 1024, 3 * 1024)


def test_written_order_is_kept_where_nothing_is_lower() -> None:
    flow = flow_of([ops.tanh(ops.exp(X)) + ops.sin(X)])
    assert schedule(flow) == [0, 1, 2, 3] == as_written(flow)


def test_a_size_is_found_before_it_is_needed() -> None:
    a, b = ops.exp(X), ops.tanh(X)
    late = make_flow([a, b], {}, {a, b}, {a: [b]}, Measure(64))
    assert not late.ordered and schedule(late) == [1, 0]
    with pytest.raises(GraphError, match="a size is needed before the step that finds it"):
        schedule(make_flow([a, b], {}, {a, b}, {a: [b], b: [a]}, Measure(64)))


def test_nothing_to_schedule() -> None:
    assert schedule(make_flow([], {}, set(), {}, Measure(64))) == []


@pytest.mark.slow
def test_many_operands_and_readers_stay_linear() -> None:
    """A join of 3,000 and a value with 3,000 readers: neither is scanned once per reader."""
    rows = [ops.exp(X) * float(i) for i in range(3000)]
    flow = flow_of([ops.concat(*rows, axis=0)])
    assert valid(flow, schedule(flow))
