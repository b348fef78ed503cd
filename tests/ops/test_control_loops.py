"""Loops and scans against the same loops written in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail import Graph, ops
from dovetail.errors import BindError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bool_, f32, i32, i64
from dovetail.ir.text_parse import parse_graph
from dovetail.ir.text_print import print_graph
from dovetail.ir.value import Value
from dovetail.ops.tracing import Traced
from tests.ops.flow import COUNT, count_input, identity, run

Array = NDArray[Any]


# while ------------------------------------------------------------------------------------------------------------


def collatz(n: int) -> tuple[int, int]:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return n, steps


def collatz_graph(limit: int | None = None) -> ops.Looped:
    """A branch inside a loop."""

    def body(n: Value, steps: Value) -> tuple[Value, Value]:
        even = ops.equal(ops.mod(n, 2), 0)
        (after,) = ops.cond(even, lambda n: n / 2, lambda n: n * 3 + 1, n)
        return after, steps + 1

    return ops.while_loop(
        lambda n, steps: ops.not_equal(n, 1), body, [count_input(), leaf.constant(0, i64)], limit=limit
    )


@pytest.mark.parametrize("n", [1, 2, 6, 27])
def test_a_branch_in_a_loop(n: int) -> None:
    loop = collatz_graph()
    found = run({"n": loop.carries[0], "steps": loop.carries[1], "stopped": loop.stopped}, n=n)
    assert (int(found["n"]), int(found["steps"])) == collatz(n)
    assert not found["stopped"]


def test_a_hit_limit_is_reported() -> None:
    enough, short = collatz_graph(limit=8), collatz_graph(limit=7)
    done = run({"steps": enough.carries[1], "stopped": enough.stopped}, n=6)
    cut = run({"n": short.carries[0], "steps": short.carries[1], "stopped": short.stopped}, n=6)
    # 6 takes 8 steps: a limit of exactly 8 did not stop anything.
    assert int(done["steps"]) == 8 and not done["stopped"]
    assert int(cut["steps"]) == 7 and int(cut["n"]) == 2 and cut["stopped"]
    never = collatz_graph(limit=0)
    kept = run({"n": never.carries[0], "stopped": never.stopped}, n=6)
    assert int(kept["n"]) == 6 and kept["stopped"]
    assert not run(never.stopped, n=1)["y"]


def test_every_carry_comes_back_whatever_its_dtype_and_shape() -> None:
    x = leaf.input("x", f32["s", 2])

    def body(i: Value, total: Value, seen: Value, step: Value) -> tuple[Value, ...]:
        return i + 1, total + step, ops.bit_or(seen, ops.greater(total, 4.0))

    seen = leaf.input("seen", bool_["s", 2])
    loop = ops.while_loop(
        lambda i, total, seen, step: ops.less(i, 3), body, [leaf.constant(0, i32), x, seen], captures=[x]
    )
    start = np.array([[1, 2], [0, -1]], np.float32)
    i, total_out, seen_out = loop.carries
    found = run({"i": i, "total": total_out, "seen": seen_out}, x=start, seen=np.zeros((2, 2), np.bool_))
    total, flags = start.copy(), np.zeros((2, 2), np.bool_)
    for _ in range(3):
        flags |= total > 4
        total = total + start
    assert found["i"].dtype == np.int32 and found["i"] == 3
    assert found["total"].tolist() == total.tolist()
    assert found["seen"].tolist() == flags.tolist() and flags.any() and not flags.all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_carry_may_change_its_shape(target: str) -> None:
    """The symbol is the size of the moment inside, and the last one outside. Text keeps it."""
    grown = f32[symbol("rows"), 2]

    def body(v: Value, n: Value, x: Value) -> tuple[Value, ...]:
        return ops.concat(v, x * ops.cast(n, dtype=f32), axis=0), n - 1

    loop = ops.while_loop(
        lambda v, n, x: ops.greater(n, 0), body, [leaf.input("v", f32[1, 2]), count_input()],
        captures=[leaf.input("x", f32[1, 2])], growing=[grown, COUNT],
    )  # fmt: skip
    assert loop.carries[0].tensor == grown
    graph = Graph.of(ops.mul(loop.carries[0], 2.0))
    again = parse_graph(print_graph(graph), ops.ALL)
    x = np.array([[1, -1]], np.float32)
    for made in (graph, again):
        program = dovetail.compile(made, target=target)
        for n in (3, 0, 9):
            (found,) = program.run({"v": x, "x": x, "n": np.array(n)}).values()
            assert np.array_equal(found, 2 * np.concatenate([x, *(x * i for i in range(n, 0, -1))]))


def test_a_carry_that_changes_its_shape_needs_a_name_for_it() -> None:
    with pytest.raises(TypeRuleError, match=r"f32\[2, 2\], and f32\[1, 2\] is wanted"):
        ops.while_loop(
            lambda v: ops.greater(ops.reduce_sum(v, axes=(-2, -1))[0, 0], 0),
            lambda v: ops.concat(v, v, axis=0),
            [leaf.input("v", f32[1, 2])],
        )


def test_no_trips_give_the_carries_back() -> None:
    loop = ops.while_loop(lambda n: ops.less(n, 0), lambda n: n - 1, [count_input()])
    found = run({"n": loop.carries[0], "stopped": loop.stopped}, n=5)
    assert int(found["n"]) == 5 and not found["stopped"]


def test_a_loop_in_a_loop_in_a_branch() -> None:
    def triangle(n: Value) -> Value:
        """1 + 2 + … + n, adding one at a time."""

        def outer(i: Value, total: Value, n: Value) -> tuple[Value, Value]:
            inner = ops.while_loop(
                lambda j, t, i: ops.less(j, i), lambda j, t, i: (j + 1, t + 1), [leaf.constant(0, i64), total], [i]
            )
            return i + 1, inner.carries[1]

        loop = ops.while_loop(
            lambda i, total, n: ops.less_equal(i, n), outer, [leaf.constant(1, i64), leaf.constant(0, i64)], [n]
        )
        return loop.carries[1]

    n = count_input()
    (found,) = ops.cond(ops.greater(n, 0), triangle, lambda n: -n, n)
    assert [int(run(found, n=n)["y"]) for n in (1, 4, 10, -3)] == [1, 10, 55, 3]


def test_outputs_of_every_trip_are_stacked_to_a_size_that_the_run_binds() -> None:
    trips = symbol("trips")
    loop = ops.while_loop(lambda n: ops.greater(n, 0), lambda n: (n - 1, n * n), [count_input()], limit=10, trips=trips)
    outputs = {"squares": loop.outputs[0], "places": ops.iota(size=trips)}
    assert loop.outputs[0].shape == (trips,)
    assert run(outputs, n=4)["squares"].tolist() == [16, 9, 4, 1]
    assert run(outputs, n=4)["places"].tolist() == [0, 1, 2, 3]
    assert len(run(outputs, n=20)["squares"]) == 10
    empty = run(outputs, n=0)["squares"]
    assert empty.shape == (0,) and empty.dtype == np.int64
    with pytest.raises(TypeRuleError, match="trips"):
        ops.while_loop(lambda n: ops.greater(n, 0), lambda n: (n - 1, n * n), [count_input()])


NO_FLAG: list[tuple[Traced, str]] = [
    (lambda x: ops.greater(x, 0.0), "condition is bool"),
    (lambda x: ops.reduce_sum(x, axes=(0,)), "condition is f32"),
    (lambda x: (leaf.constant(True), leaf.constant(True)), "2 results"),
]


@pytest.mark.parametrize(("condition", "said"), NO_FLAG)
def test_a_condition_is_one_bool(condition: Traced, said: str) -> None:
    with pytest.raises(TypeRuleError, match=said):
        ops.while_loop(condition, lambda x: x, [leaf.input("x", f32[3])])


OTHER_CARRIES: list[tuple[Traced, str]] = [
    (lambda i, x: i + 1, "1 results for 2 carries"),
    (lambda i, x: (x, i), "number 0 is f32"),
    (lambda i, x: (i, ops.concat(x, x, axis=0)), r"number 1 is f32\[6\]"),
]


@pytest.mark.parametrize(("body", "said"), OTHER_CARRIES)
def test_a_body_keeps_the_types_of_the_carries(body: Traced, said: str) -> None:
    with pytest.raises(TypeRuleError, match=said):
        ops.while_loop(lambda i, x: ops.less(i, 3), body, [leaf.constant(0, i64), leaf.input("x", f32[3])])


# scan ---------------------------------------------------------------------------------------------------------------


def test_scan_carries_and_stacks() -> None:
    x = leaf.input("x", f32["t", 2])
    start = leaf.input("start", f32[2])
    gain = leaf.input("gain", f32[2])

    def body(total: Value, count: Value, x: Value, gain: Value) -> tuple[Value, ...]:
        total = total * gain + x
        return total, count + 1, total, ops.greater(x, 2.0)

    (total, count), (totals, flags) = ops.scan(body, [start, leaf.constant(0, i32)], [x], [gain])
    xs = np.array([[1, 2], [3, 4], [5, -6]], np.float32)
    outputs = {"total": total, "count": count, "totals": totals, "flags": flags}
    found = run(outputs, x=xs, start=np.zeros(2, np.float32), gain=np.array([10, 0], np.float32))
    assert found["total"].tolist() == [135, -6] and int(found["count"]) == 3
    assert found["totals"].tolist() == [[1, 2], [13, 4], [135, -6]]
    assert found["flags"].tolist() == [[False, False], [True, True], [True, False]]
    assert totals.shape == (symbol("t"), 2)


def test_a_reversed_scan_starts_at_the_end_and_stacks_in_place() -> None:
    x = leaf.input("x", f32[4])
    (total,), (sums,) = ops.scan(lambda c, x: (c + x, c + x), [leaf.constant(0.0, f32)], [x], reverse=True)
    found = run({"total": total, "sums": sums}, x=np.array([1, 2, 3, 4], np.float32))
    assert found["sums"].tolist() == [10, 9, 7, 4] and found["total"] == 10


def test_scan_along_another_axis() -> None:
    x = leaf.input("x", f32[2, 3])
    (last,), (sums,) = ops.scan(
        lambda c, x: (c + x, c + x), [leaf.constant(np.zeros(2, np.float32))], [x], axis=-1, stack_axis=1
    )
    xs = np.array([[1, 2, 3], [10, 20, 30]], np.float32)
    found = run({"last": last, "sums": sums}, x=xs)
    assert found["sums"].tolist() == [[1, 3, 6], [10, 30, 60]] and found["last"].tolist() == [6, 60]


def test_a_scan_of_a_length_alone_and_of_none() -> None:
    n = symbol("n")
    x = leaf.input("x", f32["n"])
    (power,), (powers,) = ops.scan(lambda c: (c * 2.0, c), [leaf.constant(1.0, f32)], length=n)
    outputs = {"power": power, "powers": powers, "x": x * 2.0}
    found = run(outputs, x=np.ones(5, np.float32))
    assert found["power"] == 32 and found["powers"].tolist() == [1, 2, 4, 8, 16]
    empty = run(outputs, x=np.ones(0, np.float32))
    assert empty["power"] == 1 and empty["powers"].shape == (0,) and empty["powers"].dtype == np.float32
    with pytest.raises(TypeRuleError, match="how long"):
        ops.scan(lambda c: (c,), [leaf.constant(1.0, f32)])


def test_several_scanned_operands_have_one_length() -> None:
    a, b = leaf.input("a", f32["s"]), leaf.input("b", f32["t", 3])
    _, (products,) = ops.scan(lambda a, b: b * a, [], [a, b])
    found = run(products, a=np.array([2, 3], np.float32), b=np.ones((2, 3), np.float32))
    assert found["y"].tolist() == [[2, 2, 2], [3, 3, 3]]
    with pytest.raises(BindError, match=r"s equals t|t equals s"):
        run(products, a=np.ones(2, np.float32), b=np.ones((3, 3), np.float32))
    with pytest.raises(TypeRuleError, match="lengths"):
        ops.scan(lambda a, b: a, [], [leaf.input("a", f32[2]), leaf.input("b", f32[3])])
    with pytest.raises(TypeRuleError, match="a scanned operand"):
        ops.scan_(count_input(), body=identity(COUNT), carries=0, scanned=1)


def test_outputs_that_do_not_stack() -> None:
    def body(x: Value) -> Value:
        return ops.nonzero(x, count=symbol("k"))

    _, (places,) = ops.scan(body, [], [leaf.input("x", i64[2, 3])])
    assert run(places, x=[[0, 1, 1], [1, 1, 0]])["y"].tolist() == [[[1, 2]], [[0, 1]]]
    with pytest.raises(BindError, match="shapes"):
        run(places, x=[[0, 1, 1], [1, 0, 0]])
