"""Control flow against the same loops written in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail import ops
from dovetail.errors import BindError, DovetailError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import Size, symbol
from dovetail.ir.dtype import bool_, f32, f64, i32, i64
from dovetail.ir.graph import Builder, Graph, Subgraph
from dovetail.ir.type import TensorType, TupleType
from dovetail.ir.value import Value
from dovetail.ops.primitive import Primitive
from dovetail.ops.tracing import Traced
from dovetail.targets.reference.interpreter import evaluate

Array = NDArray[Any]

FLAG = TensorType(bool_, ())
COUNT = TensorType(i64, ())


def run(outputs: dict[str, Value] | Value, **feeds: Any) -> dict[str, Array]:
    return evaluate(Graph.of(outputs), {k: np.asarray(v) for k, v in feeds.items()})


def count_input(name: str = "n") -> Value:
    return leaf.input(name, COUNT)


# if ---------------------------------------------------------------------------------------------------------------


def test_if_runs_one_branch_with_any_number_of_results() -> None:
    flag, x = leaf.input("flag", FLAG), leaf.input("x", f32[2])
    a, b = ops.cond(flag, lambda x: (x + 1.0, ops.equal(x, x)), lambda x: (x * 10.0, ops.less(x, x)), x)
    ones = np.ones(2, np.float32)
    yes = run({"a": a, "b": b}, flag=True, x=ones)
    no = run({"a": a, "b": b}, flag=False, x=ones)
    assert yes["a"].tolist() == [2, 2] and yes["b"].tolist() == [True, True]
    assert no["a"].tolist() == [10, 10] and no["b"].tolist() == [False, False]


def test_the_other_branch_is_not_run() -> None:
    flag, i = leaf.input("flag", FLAG), leaf.input("i", i64[1])
    table = leaf.constant(np.arange(3))
    (found,) = ops.cond(flag, lambda t, i: ops.gather(t, i, axis=0), lambda t, i: i, table, i)
    assert run(found, flag=False, i=[7])["y"].tolist() == [7]
    with pytest.raises(BindError, match="7"):
        run(found, flag=True, i=[7])


def test_branches_may_differ_in_sizes_that_are_named() -> None:
    flag, x = leaf.input("flag", FLAG), leaf.input("x", f32["n"])
    y, z = ops.cond(
        flag,
        lambda x: (ops.concat(x, x, axis=0), x),
        lambda x: (x, x),
        x,
        sizes=[symbol("k")],
    )
    assert (y.type, z.type) == (f32["k"], f32["n"])
    shape = ops.extent(size=symbol("k"))
    for chosen, found in ((True, 6), (False, 3)):
        got = run({"y": y, "k": shape}, flag=chosen, x=np.ones(3, np.float32))
        assert got["y"].shape == (found,) and got["k"] == found


def test_sizes_that_are_named_without_need() -> None:
    flag, x = leaf.input("flag", FLAG), leaf.input("x", f32["n"])
    with pytest.raises(TypeRuleError, match="1 sizes at the places"):
        ops.cond(flag, lambda x: x, lambda x: x + x, x, sizes=[symbol("k")])
    with pytest.raises(TypeRuleError, match="a result of otherwise"):
        ops.cond(flag, lambda x: ops.concat(x, x, axis=0), lambda x: x, x)


def test_a_refusal_is_an_error_where_it_is_run() -> None:
    flag, x = leaf.input("flag", FLAG), leaf.input("x", f32[2])
    (y,) = ops.cond(flag, lambda x: x, lambda x: ops.refusal(shape=(2,), dtype=f32, message="no", hint="why"), x)
    assert run(y, flag=True, x=np.ones(2, np.float32))["y"].tolist() == [1, 1]
    with pytest.raises(BindError, match="no"):
        run(y, flag=False, x=np.ones(2, np.float32))


def test_if_is_typed_as_a_tuple_and_takes_no_operands_too() -> None:
    flag = leaf.input("flag", FLAG)
    (value,) = ops.cond(flag, lambda: leaf.constant(1.0, f32), lambda: leaf.constant(2.0, f32))
    assert value.operands[0].type == TupleType((TensorType(f32, ()),))
    assert run(value, flag=False)["y"] == 2.0


@pytest.mark.parametrize("predicate", [bool_[1], bool_[3], i64[1], TensorType(i32, ())])
def test_the_predicate_is_one_bool(predicate: TensorType) -> None:
    p, x = leaf.input("p", predicate), leaf.input("x", f32[3])
    with pytest.raises(TypeRuleError, match="predicate"):
        ops.cond(p, lambda x: x, lambda x: x, x)


UNEQUAL: list[tuple[Traced, str]] = [
    (lambda x: ops.cast(x, dtype=f64), "f64"),
    (lambda x: ops.unsqueeze(x, axes=(-1,)), "3, 1"),
    (lambda x: (x, x), "there are 2"),
    (lambda x: (), "there are 0"),
]


@pytest.mark.parametrize(("otherwise", "said"), UNEQUAL)
def test_branches_agree_in_number_dtype_and_shape(otherwise: Traced, said: str) -> None:
    flag, x = leaf.input("flag", FLAG), leaf.input("x", f32[3])
    with pytest.raises(TypeRuleError, match=said):
        ops.cond(flag, lambda x: x, otherwise, x)


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


# Sub-graphs are closed and their signatures exact -------------------------------------------------------------------


def _identity(*types: TensorType) -> Subgraph:
    return Subgraph(types, tuple(leaf.argument(i, t) for i, t in enumerate(types)))


def test_too_many_captures_are_an_error() -> None:
    flag, x = leaf.input("flag", FLAG), leaf.input("x", f32[3])
    one = _identity(f32[3])
    assert ops.if_(flag, x, then=one, otherwise=one).type == TupleType((f32[3],))
    for operands in ((x, x), ()):
        with pytest.raises(TypeRuleError, match="takes 1 arguments"):
            ops.if_(flag, *operands, then=one, otherwise=one)
    condition = Subgraph((COUNT,), (ops.less(leaf.argument(0, COUNT), 3),))
    with pytest.raises(TypeRuleError, match="takes 1 arguments, and 2"):
        ops.while_(count_input(), x, condition=condition, body=_identity(COUNT), carries=1)
    with pytest.raises(TypeRuleError, match="takes 2 arguments, and 3"):
        ops.scan_(count_input(), x, x, body=_identity(COUNT, f32[3]), carries=1, scanned=0, length=3)


def test_arguments_have_the_types_of_the_operands() -> None:
    flag, x = leaf.input("flag", FLAG), leaf.input("x", f32[3])
    with pytest.raises(TypeRuleError, match=r"f32\[4\], and f32\[3\]"):
        ops.if_(flag, x, then=_identity(f32[4]), otherwise=_identity(f32[3]))
    astray = Subgraph((f32[3],), (leaf.argument(1, f32[3]),))
    with pytest.raises(TypeRuleError, match="argument 1"):
        ops.if_(flag, x, then=astray, otherwise=astray)


def test_a_subgraph_reads_nothing_from_outside() -> None:
    flag, x = leaf.input("flag", FLAG), leaf.input("x", f32[3])
    open_ = Subgraph((), (x,))
    with pytest.raises(TypeRuleError, match="from outside"):
        ops.if_(flag, then=open_, otherwise=open_)
    with pytest.raises(DovetailError, match="from outside") as caught:
        ops.cond(flag, lambda: x + 1.0, lambda: x)
    assert "captures" in caught.value.hint


def test_an_argument_of_the_loop_around_is_not_taken_for_one_of_the_loop_inside() -> None:
    """Arguments are interned: argument 0 of both loops would be one object."""

    def outer(i: Value) -> Value:
        inner = ops.while_loop(lambda j: ops.less(j, i), lambda j: j + 1, [leaf.constant(0, i64)])
        return inner.carries[0]

    with pytest.raises(DovetailError, match="from outside"):
        ops.while_loop(lambda i: ops.less(i, 3), outer, [count_input()])


def test_what_is_not_a_value_is_refused() -> None:
    flag = leaf.input("flag", FLAG)
    wrong: Any = lambda: (1.0,)  # noqa: E731
    with pytest.raises(TypeRuleError, match="returned"):
        ops.cond(flag, wrong, wrong)


def test_equal_loops_are_one_value_and_bodies_keep_their_origins() -> None:
    builder = Builder()
    with builder.recording():
        n = builder.input("n", COUNT)
        first = ops.while_loop(lambda n: ops.greater(n, 0), lambda n: n - 1, [n])
        second = ops.while_loop(lambda n: ops.greater(n, 0), lambda n: n - 1, [n])
    assert first.carries[0] is second.carries[0]
    body: Subgraph = first.carries[0].operands[0].attrs["body"]
    assert body.results[0].operands[0] is leaf.argument(0, COUNT)
    assert any("test_control.py" in o.name for o in builder.recorder.origins[body.results[0]])


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
        ops.scan_(count_input(), body=_identity(COUNT), carries=0, scanned=1)


def test_outputs_that_do_not_stack() -> None:
    def body(x: Value) -> Value:
        return ops.nonzero(x, count=symbol("k"))

    _, (places,) = ops.scan(body, [], [leaf.input("x", i64[2, 3])])
    assert run(places, x=[[0, 1, 1], [1, 1, 0]])["y"].tolist() == [[[1, 2]], [[0, 1]]]
    with pytest.raises(BindError, match="shapes"):
        run(places, x=[[0, 1, 1], [1, 0, 0]])


def test_lift_reaches_into_bodies() -> None:
    x = leaf.input("x", f32[1])
    tiny = 2.0**-40
    (total,), _ = ops.scan(lambda c: (c + tiny,), [x], length=4)
    loop = ops.while_loop(lambda c: ops.less(ops.squeeze(c, axes=(0,)), 1.0 + tiny), lambda c: c + tiny, [x], limit=9)
    feeds = {"x": np.ones(1, np.float32)}
    graph = Graph.of({"total": total, "stopped": loop.stopped})
    assert evaluate(graph, feeds)["total"] == 1.0
    lifted = evaluate(graph, feeds, lift=True)
    assert lifted["total"] == 1.0 + 4 * tiny and not lifted["stopped"]


def test_constraints_inside_a_body_are_checked() -> None:
    a, b = leaf.input("a", f32["s"]), leaf.input("b", f32["t"])
    _, (sums,) = ops.scan(lambda a, b: ops.reduce_sum(a + b, axes=(0,)), [], [], [a, b], length=2)
    assert run(sums, a=np.ones(3, np.float32), b=np.ones(3, np.float32))["y"].tolist() == [[6], [6]]
    with pytest.raises(BindError, match="s equals t"):
        run(sums, a=np.ones(3, np.float32), b=np.ones(1, np.float32))


def test_constraints_inside_a_branch_are_checked_where_it_is_run() -> None:
    flag, x = leaf.input("flag", FLAG), leaf.input("x", f32["s", "t"])
    (y,) = ops.cond(
        flag, lambda x: ops.squeeze(x, axes=(0,)), lambda x: ops.squeeze(x, axes=(1,)), x, sizes=[symbol("k")]
    )
    assert not Graph.of(y).constraints
    assert run(y, flag=True, x=np.ones((1, 4), np.float32))["y"].shape == (4,)
    assert run(y, flag=False, x=np.ones((3, 1), np.float32))["y"].shape == (3,)
    with pytest.raises(BindError, match="s equals 1"):
        run(y, flag=True, x=np.ones((3, 1), np.float32))


def test_a_size_that_depends_on_data_is_bound_anew_at_every_trip() -> None:
    def body(x: Value) -> Value:
        pairs = ops.split(ops.nonzero(x, count=symbol("k")), axis=-1, parts=2)
        return ops.reduce_sum(pairs, axes=(-1, -2, -3))

    _, (sums,) = ops.scan(body, [], [leaf.input("x", i64[2, 4])])
    assert run(sums, x=[[0, 1, 1, 0], [1, 1, 1, 1]])["y"].reshape(-1).tolist() == [3, 6]
    with pytest.raises(BindError, match="k multiple of 2"):
        run(sums, x=[[0, 1, 1, 0], [1, 1, 1, 0]])


def test_a_loop_without_an_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops.control, "MOST_TRIPS", 10)
    loop = ops.while_loop(lambda x: leaf.constant(True), lambda x: x + 1.0, [leaf.input("x", f32[2])])
    with pytest.raises(BindError, match="does not end within 10 trips"):
        run(loop.carries[0], x=np.ones(2, np.float32))
    (scanned,), _ = ops.scan(lambda c: (c * 2.0,), [leaf.input("x", f32[2])], length=11)
    with pytest.raises(BindError, match="does not end within 10 trips"):
        run(scanned, x=np.ones(2, np.float32))


# Cost -------------------------------------------------------------------------------------------------------------


def test_flops_count_the_body_once_a_trip() -> None:
    x, flag = leaf.input("x", f32[8]), leaf.input("flag", FLAG)
    (scanned,), _ = ops.scan(lambda c: (c * 2.0 + 1.0,), [x], length=symbol("n"))
    (chosen,) = ops.cond(flag, lambda x: x + 1.0, lambda x: (x + 1.0) * 2.0 + 3.0, x)
    loop = ops.while_loop(lambda x: leaf.constant(True), lambda x: x + 1.0, [x], limit=5)

    def flops(value: Value) -> Size:
        of = value.operands[0]
        assert isinstance(of.op, Primitive)
        return of.op.flops(of.type, tuple(v.type for v in of.operands), of.attrs)

    assert flops(scanned) == 16 * symbol("n")
    assert flops(chosen) == 24
    assert flops(loop.carries[0]) == 40
