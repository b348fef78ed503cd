"""Prepared calls: the same results and the same words as a run that looks at everything."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail import Graph, Value, ops
from dovetail.dtypes import f32, i64
from dovetail.errors import BindError, DovetailError
from dovetail.ir import leaf
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.reference.interpreter import evaluate
from dovetail.targets.runtime.arrays.address import address
from dovetail.targets.runtime.calls.prepared_call import MOST_SHAPES, MOST_WORKSPACES, PreparedCalls

Array = NDArray[Any]
RANDOM = np.random.default_rng(2)
X = leaf.input("x", f32["n", 6])


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def prepared(outputs: Value | dict[str, Value]) -> tuple[NativeRunner, PreparedCalls]:
    runner = NativeGraph(make_plan(Graph.of(outputs), target=CPU), threads=2).bind({})
    assert runner.calls is not None
    return runner, runner.calls


H = ops.tanh(X)
GRAPHS: dict[str, dict[str, Value]] = {
    "one": {"y": H},
    "in place": {"y": ops.exp(ops.neg(ops.reduce_sum(H, axes=(-1,))))},
    "read again": {"h": H, "y": ops.permute(H, order=(-1, -2)) @ H},
    "twice": {"a": H, "b": H},
    "another shape": {"y": ops.merge(H, axis=-1, count=2)},
    "turned": {"y": ops.permute(H, order=(-1, -2))},
    "a part": {"y": ops.slice_(H, axis=-1, start=1, stop=4), "z": H},
    "spread": {"y": ops.expand(ops.unsqueeze(H, axes=(-2,)), axis=-2, size=3)},
    "a constant": {"y": H, "c": leaf.constant(np.arange(3.0, dtype=np.float32))},
}


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("rows", [4, 1, 0])
def test_results_are_what_the_graph_means(kind: str, rows: int) -> None:
    runner, calls = prepared(GRAPHS[kind])
    for _ in range(3):
        feeds = {"x": numbers(rows, 6)}
        found, wanted = calls.run(runner, feeds), evaluate(runner.plan.graph, feeds, lift=True)
        assert found is not None and list(found) == list(GRAPHS[kind])
        for name, array in found.items():
            assert array.shape == wanted[name].shape and array.flags.c_contiguous and array.flags.writeable
            np.testing.assert_allclose(array, wanted[name], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("kind", GRAPHS)
def test_results_are_the_callers(kind: str) -> None:
    runner, calls = prepared(GRAPHS[kind])
    feeds = {"x": numbers(4, 6)}
    first = calls.run(runner, feeds)
    assert first is not None
    kept = {name: array.copy() for name, array in first.items()}
    for array in first.values():
        array[...] = 7
    second = calls.run(runner, feeds)
    assert second is not None
    for name, array in second.items():
        assert array.tobytes() == kept[name].tobytes() and (first[name] == 7).all()


@pytest.mark.slow
def test_one_space_serves_many_shapes_and_grows() -> None:
    runner, calls = prepared({"y": ops.permute(H, order=(-1, -2)) @ H})
    for rows in [*range(1, MOST_SHAPES + 9), 500, 2, 1]:
        x = numbers(rows, 6)
        found = calls.run(runner, {"x": x})
        assert found is not None
        np.testing.assert_allclose(found["y"], np.tanh(x).T @ np.tanh(x), rtol=1e-4, atol=1e-5)
        assert len(calls.workspaces) == 1 and len(calls.workspaces[0].calls) <= MOST_SHAPES


def test_what_is_no_plain_array_is_left_to_a_closer_look() -> None:
    program = dovetail.compile(Graph.of({"y": ops.tanh(X) + leaf.input("z", f32[6])}))
    x, z = numbers(4, 6), numbers(6)
    wanted = program.run({"x": x, "z": z})["y"]
    odd: list[dict[str, Any]] = [
        {"z": z, "x": x},
        {"x": np.asfortranarray(x), "z": z},
        {"x": x.astype(">f4"), "z": z},
        {"x": np.repeat(x, 2, axis=0)[::2], "z": z},
        {"x": x.view(np.recarray), "z": z},
    ]
    for feeds in odd:
        assert program.run(feeds)["y"].tobytes() == wanted.tobytes()
    x.flags.writeable = False
    assert program.run({"x": x, "z": z})["y"].tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": numbers(4, 5)}, r"the input x has the shape \[4, 5\]"),
        ({"x": numbers(6)}, "the input x has 1 axes"),
        ({"x": numbers(4, 6).astype(np.float64)}, "the input x has the dtype float64"),
        ({"x": [1.0]}, "the input x is a list"),
        ({"x": None}, "the input x is a NoneType"),
        ({}, "no array for the input x"),
        ({"y": numbers(4, 6)}, "there is no input named 'y'"),
        ({"x": numbers(4, 6), "z": numbers(1)}, "there is no input named 'z'"),
    ],
)
def test_errors_are_the_same_before_and_after_a_run(given: Any, message: str) -> None:
    program = dovetail.compile(Graph.of(H))
    for _ in range(2):
        with pytest.raises(BindError, match=message):
            program.run(given)
        assert program.run({"x": numbers(4, 6)})["y"].shape == (4, 6)


def test_what_a_kernel_refuses_is_said_in_words_and_the_next_run_is_right() -> None:
    table = leaf.constant(np.arange(5.0, dtype=np.float32))
    program = dovetail.compile(Graph.of(ops.gather(table, leaf.input("i", i64["n"]), axis=-1)))
    good = np.array([4, 0], np.int64)
    for _ in range(2):
        assert program.run({"i": good})["y"].tolist() == [4, 0]
        with pytest.raises(DovetailError, match="9"):
            program.run({"i": np.array([1, 9], np.int64)})


@pytest.mark.slow
def test_runs_at_once_have_spaces_of_their_own() -> None:
    runner, calls = prepared({"y": ops.permute(H, order=(-1, -2)) @ H})
    given = [numbers(rows, 6) for rows in (3, 50, 400)]
    wanted = [runner.run({"x": x})["y"].tobytes() for x in given]
    wrong: list[int] = []

    def go() -> None:
        wrong.extend(i for i in range(300) if runner.run({"x": given[i % 3]})["y"].tobytes() != wanted[i % 3])

    threads = [threading.Thread(target=go) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and 1 <= len(calls.workspaces) <= MOST_WORKSPACES


def test_a_view_of_an_input_is_copied() -> None:
    program = dovetail.compile(Graph.of({"y": ops.permute(X, order=(-1, -2)), "x2": X}))
    x = numbers(4, 6)
    found = program.run({"x": x})
    assert not np.shares_memory(found["y"], x) and not np.shares_memory(found["x2"], x)
    np.testing.assert_array_equal(found["y"], x.T)


@pytest.mark.parametrize("array", [np.ones(3), np.ones(9)[4:], np.ones((3, 4)).T[1:], np.ones(0), np.ones(())])
def test_the_address_of_an_array(array: Array) -> None:
    assert address(array) == array.ctypes.data
