"""Models that do not hold together are refused before anything is imported; sound ones pass, however large."""

from __future__ import annotations

import time

import onnx
import pytest
from onnx import TensorProto, helper

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx.file.check import check_model
from dovetail.frontends.onnx.file.wire import check_content
from dovetail.ir.dtype import bool_, f32
from tests.frontends.onnx.build import model, node

X = {"x": f32["n", 4]}


def branch(description: str, result: str) -> onnx.GraphProto:
    return helper.make_graph([node(description)], "branch", [], [onnx.ValueInfoProto(name=result)])


def test_operators_are_counted_with_those_of_bodies() -> None:
    chosen = node("If c -> z", then_branch=branch("Relu y -> r", "r"), else_branch=branch("Neg x -> r", "r"))
    found = check_model(model(["Relu x -> y", chosen], {**X, "c": bool_[()]}, ["z"]))
    assert dict(found.graph.operators) == {("", "Relu", ""): 2, ("", "If", ""): 1, ("", "Neg", ""): 1}
    assert not found.functions


def test_functions_are_surveyed_on_their_own() -> None:
    own = helper.make_function("own", "f", ["a"], ["b"], [node("Relu a -> b")], [helper.make_opsetid("", 21)])
    found = check_model(model([node("f x -> y", domain="own")], X, ["y"], domains={"own": 1}, functions=[own]))
    assert found.functions["own", "f", ""].operators == {("", "Relu", ""): 1}


def test_an_initializer_may_be_the_default_of_an_input() -> None:
    made = model(["Add x w -> y"], {**X, "w": f32[4]}, ["y"])
    made.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [4], [1, 2, 3, 4]))
    check_model(made)


def test_a_body_may_name_a_value_as_one_around_it() -> None:
    same = branch("Relu x -> y", "y")
    check_model(model([node("If c -> z", then_branch=same, else_branch=same)], {**X, "c": bool_[()]}, ["z"]))


@pytest.mark.parametrize("version", [3, 7, 14])
def test_versions_that_are_read(version: int) -> None:
    made = model(["Relu x -> y"], X, ["y"])
    made.ir_version = version
    check_model(made)


@pytest.mark.parametrize("version", [1, 2, 15])
def test_versions_that_are_not_read(version: int) -> None:
    made = model(["Relu x -> y"], X, ["y"])
    made.ir_version = version
    with pytest.raises(UnsupportedError, match="IR version"):
        check_model(made)


def test_what_a_message_says_of_order() -> None:
    with pytest.raises(LoadError, match="cycle"):
        check_model(model(["Add x b -> a", "Add x a -> b"], X, ["b"]))
    with pytest.raises(LoadError, match="behind the node that reads it"):
        check_model(model(["Relu a -> y", "Neg x -> a"], X, ["y"]))
    with pytest.raises(LoadError, match="nothing is named 'a'"):
        check_model(model(["Relu a -> y"], X, ["y"]))


def large(count: int) -> onnx.ModelProto:
    nodes = [node(f"Add v{i} x -> v{i + 1}", name=f"layer/{i}") for i in range(count)]
    return model(nodes, {"v0": f32[4], "x": f32[4]}, [f"v{count}"])


@pytest.mark.exhaustive
def test_checks_take_time_in_proportion() -> None:
    """Eight times the nodes take about eight times as long, and a node a few millionths of a second."""
    times: list[float] = []
    for count in (2_000, 16_000):
        made = large(count)
        content = made.SerializeToString()
        best = 10.0
        for _ in range(3):
            start = time.process_time()
            check_content(content)
            check_model(made)
            best = min(best, time.process_time() - start)
        times.append(best)
    assert times[1] < 24 * max(times[0], 0.002), times
    assert times[1] < 1.0, times
