"""hard_sigmoid from a line and a clip."""

from __future__ import annotations

import pytest

from dovetail import ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input
from dovetail.ir.value import Value
from dovetail.library.hard_sigmoid import hard_sigmoid
from tests.library import judge
from tests.library.judge import fused, near, numbers, run

X = input("x", f32[3, 50])
SPELLED: dict[str, Value] = {
    "line, then clip": ops.clip(X * (1 / 6) + 0.5, 0.0, 1.0),
    "over six, then clip": ops.clip(0.5 + X / 6.0, 0.0, 1.0),
    "clip, over six": ops.clip(X + 3.0, 0.0, 6.0) / 6.0,
    "clip by relu6, times a sixth": ops.relu6(3.0 + X) * (1 / 6),
}


@pytest.mark.parametrize("spelled", SPELLED.values(), ids=SPELLED)
def test_every_spelling_is_the_same_value(spelled: Value) -> None:
    result = fused(spelled)
    assert result.graph.outputs["y"] is hard_sigmoid(X)
    arrays = {"x": 4 * numbers(result.graph)["x"]}
    near(run(result.graph, arrays)["y"], judge.hard_sigmoid(arrays["x"]))


def test_another_slope_is_none() -> None:
    assert fused(ops.hard_sigmoid(X, alpha=0.2)).graph.count(hard_sigmoid) == 0
