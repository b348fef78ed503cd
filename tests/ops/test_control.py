"""Branches, bodies and what they cost, against the same written in Python."""

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
from tests.ops.flow import COUNT, FLAG, count_input, identity, run

Array = NDArray[Any]


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


# Sub-graphs are closed and their signatures exact -------------------------------------------------------------------


def test_too_many_captures_are_an_error() -> None:
    flag, x = leaf.input("flag", FLAG), leaf.input("x", f32[3])
    one = identity(f32[3])
    assert ops.if_(flag, x, then=one, otherwise=one).type == TupleType((f32[3],))
    for operands in ((x, x), ()):
        with pytest.raises(TypeRuleError, match="takes 1 arguments"):
            ops.if_(flag, *operands, then=one, otherwise=one)
    condition = Subgraph((COUNT,), (ops.less(leaf.argument(0, COUNT), 3),))
    with pytest.raises(TypeRuleError, match="takes 1 arguments, and 2"):
        ops.while_(count_input(), x, condition=condition, body=identity(COUNT), carries=1)
    with pytest.raises(TypeRuleError, match="takes 2 arguments, and 3"):
        ops.scan_(count_input(), x, x, body=identity(COUNT, f32[3]), carries=1, scanned=0, length=3)


def test_arguments_have_the_types_of_the_operands() -> None:
    flag, x = leaf.input("flag", FLAG), leaf.input("x", f32[3])
    with pytest.raises(TypeRuleError, match=r"f32\[4\], and f32\[3\]"):
        ops.if_(flag, x, then=identity(f32[4]), otherwise=identity(f32[3]))
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


# What is inside bodies -----------------------------------------------------------------------------------------------


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
