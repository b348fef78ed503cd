"""Legalisation: expansions, lowerings, dispatch policies, and the one error that lists all that is left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.dtypes import bool_, c64, f32, i32
from dovetail.errors import UnsupportedError
from dovetail.ir import leaf
from dovetail.ir.graph import Builder
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.ir.origin import scope
from dovetail.library.linear import linear
from dovetail.library.silu import silu
from dovetail.ops.tracing import cond, scan, while_loop
from dovetail.passes.claims import Claims
from dovetail.passes.legalize import legalize
from dovetail.passes.lowerings import LOWERINGS
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cuda.claims import CLAIMS as CUDA
from dovetail.targets.reference.interpreter import evaluate

X = input("x", f32[2, 3])
NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)


def without(claims: Claims, *names: str) -> Claims:
    return replace(claims, native={k: v for k, v in claims.native.items() if k not in names})


def legal(graph: Graph, claims: Claims) -> Graph:
    return legalize(graph, claims, lowerings=LOWERINGS).graph


def ops_of(graph: Graph) -> set[str]:
    return {v.op.name for v in graph.values}


def test_a_fused_op_is_expanded_until_only_native_ops_remain() -> None:
    w, b = input("w", f32[3, 4]), input("b", f32[4])
    graph = Graph.of(linear(X, w, b, act="silu"))
    assert ops_of(legal(graph, CPU)) == {"input", "linear"}
    assert ops_of(legal(graph, without(CPU, "linear"))) == {"input", "matmul", "add", "silu"}
    assert ops_of(legal(graph, without(CPU, "linear", "silu"))) == {"input", "matmul", "add", "mul", "sigmoid"}


def test_everything_that_is_left_is_listed_in_one_error_with_where_it_stands() -> None:
    builder = Builder(lines=False)
    with builder.recording():
        z = builder.input("z", c64[2])
        with scope("first"):
            y = z + z
        with scope("second"):
            y = y * z
        builder.output("y", y)
    with pytest.raises(UnsupportedError) as raised:
        legal(builder.graph(), CUDA)
    message = str(raised.value)
    assert "2 values have no kernel on cuda" in message
    assert "add c64[2] at first" in message
    assert "mul c64[2] at second" in message
    assert "does not compute in c64" in message


def test_dispatch_policies() -> None:
    graph = Graph.of(silu(X))
    forced = legalize(graph, CPU, policy={"silu": "force_common"}, lowerings=LOWERINGS)
    assert ops_of(forced.graph) == {"input", "sigmoid", "mul"}
    assert [(r.op, r.outcome) for r in forced.dispatch] == [
        ("mul", "native"),
        ("sigmoid", "native"),
        ("silu", "common"),
    ]
    with pytest.raises(UnsupportedError, match="silu"):
        legalize(graph, without(CPU, "silu"), policy={"*": "force_native"}, lowerings=LOWERINGS)


def test_dispatch_report_tells_how_each_op_is_run() -> None:
    y = input("y", f32[4, 3])
    graph = Graph.of(ops.dot(X, y, left=(-1,), right=(-1,)) + 1.0)
    rows = {r.op: (r.outcome, r.reason) for r in legalize(graph, CPU, lowerings=LOWERINGS).dispatch}
    assert rows["add"] == ("native", "")
    assert rows["dot"] == ("rewritten", "cpu has no kernel for dot")


@pytest.mark.parametrize(
    ("left_shape", "right_shape", "axes", "einsum"),
    [
        ((2, 3), (4, 3), {"left": (-1,), "right": (-1,)}, "ik,jk->ij"),
        (
            (5, 2, 3),
            (5, 4, 3),
            {"left": (-1,), "right": (-1,), "left_batch": (-3,), "right_batch": (-3,)},
            "bik,bjk->bij",
        ),
        ((3, 2, 4), (4, 3, 5), {"left": (-3, -1), "right": (-2, -3)}, "kil,lkj->ij"),
        ((2, 5), (3, 5, 4), {"left": (), "right": (), "left_batch": (-1,), "right_batch": (-2,)}, "ib,jbl->bijl"),
        ((3,), (3,), {"left": (-1,), "right": (-1,)}, "k,k->"),
        ((0, 3), (3, 2), {"left": (-1,), "right": (-2,)}, "ik,kj->ij"),
        ((2, 0), (0, 4), {"left": (-1,), "right": (-2,)}, "ik,kj->ij"),
    ],
)
def test_general_dot_becomes_a_matmul(
    left_shape: tuple[int, ...], right_shape: tuple[int, ...], axes: dict[str, tuple[int, ...]], einsum: str
) -> None:
    a, b = input("a", f32[left_shape]), input("b", f32[right_shape])
    lowered = legal(Graph.of(ops.dot(a, b, **axes)), CPU)
    assert "dot" not in ops_of(lowered) and "matmul" in ops_of(lowered)
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=s).astype(np.float32) for s in (left_shape, right_shape))
    got = evaluate(lowered, {"a": x, "b": y}, lift=True)["y"]
    np.testing.assert_allclose(got, np.einsum(einsum, x.astype(np.float64), y.astype(np.float64)), rtol=1e-12)


def test_if_runs_both_branches_and_selects() -> None:
    flag = input("flag", f32[1])
    predicate = ops.squeeze(ops.greater(flag, 0.0), axes=(-1,))
    first, second = cond(predicate, lambda x: (x + 1.0, x * 2.0), lambda x: (x - 1.0, x), X)
    graph = Graph.of({"first": first, "second": second})
    lowered = legal(graph, CUDA)
    assert "if" not in ops_of(lowered)
    for sign, a, b in ((1, NUMBERS + 1, NUMBERS * 2), (-1, NUMBERS - 1, NUMBERS)):
        got = evaluate(lowered, {"flag": np.array([sign], np.float32), "x": NUMBERS})
        np.testing.assert_array_equal(got["first"], a)
        np.testing.assert_array_equal(got["second"], b)


def looped(limit: int) -> Graph:
    """Double x and count, until the count reaches n."""
    n = input("n", i32[()])
    count = leaf.constant(0, i32)
    done = while_loop(lambda x, i, n: ops.less(i, n), lambda x, i, n: (x * 2.0, i + 1), (X, count), (n,), limit=limit)
    return Graph.of({"x": done.carries[0], "count": done.carries[1], "stopped": done.stopped})


@pytest.mark.parametrize("trips", [0, 1, 3, 5, 9])
def test_while_is_unrolled_with_early_freeze(trips: int) -> None:
    lowered = legal(looped(limit=5), CUDA)
    assert "while" not in ops_of(lowered)
    got = evaluate(lowered, {"x": NUMBERS, "n": np.array(trips, np.int32)})
    ran = min(trips, 5)
    np.testing.assert_array_equal(got["x"], NUMBERS * 2**ran)
    assert int(got["count"]) == ran
    assert bool(got["stopped"]) is (trips > 5)


def test_a_loop_without_a_bound_is_refused_where_loops_do_not_run() -> None:
    with pytest.raises(UnsupportedError, match="cuda has no kernel for while"):
        legal(looped(limit=10_000), without(CUDA, "while"))
    assert "while" in ops_of(legal(looped(limit=10_000), CUDA)), "it runs on the host"


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_scan_is_unrolled(length: int, reverse: bool) -> None:
    xs, start = input("xs", f32[length, 2]), input("start", f32[2])
    found = scan(lambda total, x: (total + x, total * x), (start,), (xs,), reverse=reverse)
    graph = Graph.of({"total": found.carries[0], "steps": found.outputs[0]})
    lowered = legal(graph, CUDA)
    assert "scan" not in ops_of(lowered)
    rows = np.arange(1, 1 + 2 * length, dtype=np.float32).reshape(length, 2)
    total, steps = np.ones(2, np.float32), np.zeros((length, 2), np.float32)
    for at in range(length)[:: -1 if reverse else 1]:
        steps[at] = total * rows[at]
        total = total + rows[at]
    got = evaluate(lowered, {"xs": rows, "start": np.ones(2, np.float32)})
    np.testing.assert_array_equal(got["total"], total)
    np.testing.assert_array_equal(got["steps"], steps)


def test_nested_bodies_are_legalised_too() -> None:
    def inner(x: Value) -> Value:
        return cond(ops.squeeze(ops.reduce_any(ops.greater(x, 3.0), axes=(-2, -1)), axes=(-2, -1)), silu, ops.exp, x)[0]

    done = while_loop(lambda x: leaf.constant(True, bool_), inner, (X,), limit=2)
    graph = Graph.of(done.carries[0])
    lowered = legal(graph, without(CPU, "silu", "if"))
    (loop,) = [v for v in lowered.values if v.op.name == "while"]
    inside = {v.op.name for v in loop.attrs["body"].values}
    assert "silu" not in inside and "if" not in inside and "sigmoid" in inside
    # No number is above 3 at first, so that the first trip raises them; the second finds one that is.
    raised = np.exp(NUMBERS.astype(np.float64) / 4)
    assert 1.25 < 3 < raised.max()
    got = evaluate(lowered, {"x": NUMBERS / 4}, lift=True)["y"]
    np.testing.assert_allclose(got, raised / (1 + np.exp(-raised)), rtol=1e-12)


def test_broadcasts_are_spelled_out_where_kernels_need_equal_shapes() -> None:
    row, column = input("row", f32[3]), input("column", f32[2, 1])
    lowered = legal(Graph.of(X * row + column), CUDA)
    for value in lowered.values:
        if value.op.elementwise:
            assert all(v.shape == value.shape for v in value.operands)
    arrays: dict[str, Array] = {
        "x": NUMBERS,
        "row": np.array([1, 2, 3], np.float32),
        "column": np.array([[10], [20]], np.float32),
    }
    np.testing.assert_array_equal(evaluate(lowered, arrays)["y"], NUMBERS * [1, 2, 3] + [[10], [20]])
