"""How many calls of NumPy a step on the host is, and what the report of a GPU predicts of it."""

from __future__ import annotations

import pytest

import dovetail
from dovetail import Graph, Value, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import evaluate
from dovetail.ir.dtype import bool_, i64
from dovetail.ir.leaf import constant, input
from dovetail.report.host_calls import host_calls

X = input("x", f32[8])


def _scanned(length: int | str) -> Value:
    """Three steps in each trip."""
    found = ops.scan(lambda h, x: (ops.tanh(h * 0.5 + x),), [X], [input("xs", f32[length, 8])])
    return found.carries[0]


def _loop(value: Value) -> Value:
    """What gives several results, of which this is one."""
    return value.operands[0]


def test_a_plain_step_is_one_call_and_a_leaf_is_none() -> None:
    assert host_calls(ops.tanh(X)) == 1
    assert host_calls(X) == host_calls(constant(0.0, f32)) == 0


def test_a_fused_op_is_its_steps() -> None:
    assert evaluate(host_calls(library.softmax(X)), {}) > 3


def test_a_scan_is_its_body_for_each_trip() -> None:
    assert host_calls(_loop(_scanned(100))) == 300
    assert evaluate(host_calls(_loop(_scanned("n"))), {"n": 70}) == 210


@pytest.mark.parametrize(("limit", "trips"), [(9, 9), (None, 1)])
def test_a_loop_counts_as_often_as_it_may_run(limit: int | None, trips: int) -> None:
    carries = [constant(0, i64), X]
    loop = ops.while_loop(lambda i, x: ops.less(i, 3), lambda i, x: (i + 1, ops.tanh(x)), carries, limit=limit)
    assert host_calls(_loop(loop.carries[1])) == 3 * trips


def test_a_branch_is_the_longer_one() -> None:
    (y,) = ops.cond(input("flag", bool_[()]), lambda x: x + 1.0, lambda x: ops.exp(ops.tanh(x) + 2.0), X)
    assert host_calls(_loop(y)) == 3


def test_a_long_loop_on_the_host_is_priced_by_its_trips() -> None:
    """A call of NumPy takes tens of microseconds, however few elements it has."""
    seconds: list[float] = []
    for length in (100, 200):
        report = dovetail.compile(Graph.of({"y": _scanned(length)}), target="cuda", cache="off").report
        (kernel,) = [k for k in report.kernels if k.on_host]
        seconds.append(kernel.seconds)
    assert seconds[0] > 3e-3 and seconds[1] == pytest.approx(2 * seconds[0], rel=0.05)
