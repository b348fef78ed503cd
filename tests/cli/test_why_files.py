"""`dovetail why` of nodes of an ONNX file: those that became several ops, are in a body, or left nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.commands import Shell


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A softmax, a loop whose body has nodes of its own, a copy, and a node that no output needs."""
    float_, int_, bool_ = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    row = helper.make_tensor_value_info("x", float_, [2, 3])
    body = helper.make_graph(
        [
            helper.make_node("Tanh", ["s"], ["s2"], name="inner"),
            helper.make_node("Identity", ["c"], ["c2"], name="goes on"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", int_, []),
            helper.make_tensor_value_info("c", bool_, []),
            helper.make_tensor_value_info("s", float_, [2, 3]),
        ],
        [helper.make_tensor_value_info("c2", bool_, []), helper.make_tensor_value_info("s2", float_, [2, 3])],
    )
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"], name="parts"),
        helper.make_node("Loop", ["trips", "true", "p"], ["l"], name="loop", body=body),
        helper.make_node("Identity", ["l"], ["y"], name="copy"),
        helper.make_node("Exp", ["x"], ["unread"], name="dead"),
    ]
    known = [numpy_helper.from_array(np.array(a), n) for n, a in (("trips", np.int64(3)), ("true", True))]
    made = helper.make_tensor_value_info("y", float_, [2, 3])
    graph = helper.make_graph(nodes, "nodes", [row], [made], known)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "nodes.onnx"
    path.write_bytes(model.SerializeToString())
    return str(path)


@pytest.mark.slow
def test_a_node_that_became_several_ops_is_found_by_its_name(shell: Shell, file: str) -> None:
    told = shell("why", file, "parts", "--json").data
    assert told["kernel"]["op"] == "softmax" and len(told["parts"]) > 1
    assert "ops that the node became" in shell("why", file, "parts").out


@pytest.mark.slow
def test_a_node_in_a_body_is_told_with_the_node_that_has_the_body(shell: Shell, file: str) -> None:
    told = shell("why", file, "inner", "--json").data
    assert (told["op"], told["inside"]) == ("scan", "the Tanh node 'inner'")
    assert "the Tanh node 'inner' is in a body" in shell("why", file, "inner").out


@pytest.mark.parametrize("name", ["copy", "dead"])
def test_a_node_that_leaves_nothing_is_computed_by_no_kernel(shell: Shell, file: str, name: str) -> None:
    assert f"node '{name}' is computed by no kernel" in shell.fails(1, "why", file, name)


def test_a_node_that_the_file_has_not_is_unknown(shell: Shell, file: str) -> None:
    assert "no node is named 'other'" in shell.fails(1, "why", file, "other")
