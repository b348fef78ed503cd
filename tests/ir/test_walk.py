"""Long graphs: nothing recurses, everything is linear, and letting go does not crash."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Graph
from dovetail.ir.rewrite import rebuild
from dovetail.ir.text import parse_graph, print_graph
from dovetail.ir.value import Value, make
from dovetail.ir.verify import verify
from dovetail.ir.walk import walk

X, W = leaf.input("x", f32[4]), leaf.param("w", f32[4])


def chain(length: int) -> Value:
    value = X
    for _ in range(length):
        value = make(ops.relu, (value,))
    return value


def test_operands_come_before_users_and_each_once() -> None:
    shared = ops.relu(X)
    outputs = [ops.neg(shared) + shared, shared, X]
    order = walk(outputs)
    assert len(order) == len(set(order)) == 4
    for value in order:
        assert all(order.index(v) < order.index(value) for v in value.operands)
    assert walk([]) == []


def test_the_order_follows_the_operands() -> None:
    left, right = ops.exp(X), ops.neg(W)
    assert walk([left * right]) == [X, left, W, right, left * right]


def test_a_walk_may_stop() -> None:
    inner = ops.relu(X)
    assert walk([ops.neg(inner)], until={inner}) == [inner, ops.neg(inner)]


def test_sharing_does_not_multiply() -> None:
    value = X
    for _ in range(200):
        value = value + value
    assert len(walk([value])) == 201


@pytest.mark.exhaustive
def test_many_thousand_values_in_a_chain() -> None:
    """What recurses fails far below 20 000 values; the test of freeing has 200 000, which exhaust the stack of C."""
    length = 20_000
    graph = Graph.of(chain(length) * W)
    assert len(graph.values) == length + 3
    assert rebuild(graph, lambda value, operands: None) is graph
    text = print_graph(graph)
    assert text.count("\n") == length + 5
    assert parse_graph(text, ops.ALL).outputs["y"] is graph.outputs["y"]
    verify(graph)


@pytest.mark.slow
def test_a_long_chain_is_rebuilt_and_let_go() -> None:
    graph = Graph.of(chain(20_000))
    after = rebuild(graph, lambda value, operands: ops.neg(operands[0]) if value.op is ops.relu else None)
    assert after.settled().count(ops.neg) == 20_000
    assert after.count(ops.relu) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("length", [50_000, pytest.param(200_000, marks=pytest.mark.exhaustive)])
def test_a_long_chain_is_freed_without_a_crash(length: int) -> None:
    """In a process of its own, with the small stack of a thread: a crash would take this one with it."""
    program = """
import gc, sys, threading
from dovetail import ops
from dovetail.ir import leaf, value
from dovetail.ir.dtype import f32

def build():
    last = leaf.input("x", f32[4])
    for _ in range(int(sys.argv[1])):
        last = value.make(ops.relu, (last,))
    del last
    gc.collect()

threading.stack_size(256 * 1024)
thread = threading.Thread(target=build)
thread.start()
thread.join()
print(sum(isinstance(o, value.Value) and o.op is ops.relu for o in gc.get_objects()))
"""
    done = subprocess.run([sys.executable, "-c", program, str(length)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
