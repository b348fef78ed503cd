"""hard_swish from a product with a clip."""

from __future__ import annotations

import pytest

from dovetail import ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input
from dovetail.ir.value import Value
from dovetail.library.hard_swish import hard_swish
from tests.library import judge
from tests.library.judge import fused, near, numbers, run

X, Z = input("x", f32[3, 50]), input("z", f32[3, 50])
SPELLED: dict[str, Value] = {
    "times a line that is clipped": X * ops.hard_sigmoid(X, alpha=1 / 6),
    "times a clip over six": (ops.clip(X + 3.0, 0.0, 6.0) / 6.0) * X,
    "product over six": X * ops.clip(X + 3.0, 0.0, 6.0) / 6.0,
    "product times a sixth": (ops.relu6(3.0 + X) * X) * (1 / 6),
}


@pytest.mark.parametrize("spelled", SPELLED.values(), ids=SPELLED)
def test_every_spelling_is_the_same_value(spelled: Value) -> None:
    result = fused(spelled)
    assert result.graph.outputs["y"] is hard_swish(X)
    arrays = {"x": 4 * numbers(result.graph)["x"]}
    near(run(result.graph, arrays)["y"], judge.hard_swish(arrays["x"]))


def test_a_clip_of_another_value_is_none() -> None:
    assert fused(X * ops.hard_sigmoid(Z, alpha=1 / 6)).graph.count(hard_swish) == 0
