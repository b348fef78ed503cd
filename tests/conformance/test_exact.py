"""An output that differs from the suite's by roundings is right where it is nearer to float64, and wrong otherwise."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dovetail.ir.literal import Array
from tests.conformance.exact import LastRun, are_nearer

X = np.array([1.0, 3.0, -0.5], np.float32)
EXACT = X.astype(np.float64) / 3


def model() -> onnx.ModelProto:
    """x / 3."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "y"))
    three = helper.make_tensor("three", TensorProto.FLOAT, [], [3.0])
    graph = helper.make_graph([helper.make_node("Div", ["x", "three"], ["y"])], "third", [x], [y], [three])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize(
    ("found", "expected", "right"),
    [
        (EXACT, EXACT + 2e-7, True),
        (EXACT + 2e-7, EXACT, False),
        (EXACT, EXACT + 1e-5, False),
        (EXACT * np.array([1, 1, np.nan]), EXACT + 2e-7, False),
        (EXACT[:2], EXACT + 2e-7, False),
    ],
    ids=["nearer", "farther", "more than roundings", "not a number", "another shape"],
)
def test_the_nearer_one_is_right(found: Array, expected: Array, right: bool) -> None:
    ours, theirs = ([a.astype(np.float32)] for a in (found, expected))
    assert are_nearer(ours, theirs, LastRun(model(), [X])) is right


def test_what_cannot_be_computed_in_float64_stays_wrong() -> None:
    assert not are_nearer([X], [X + 1], LastRun(model(), []))
