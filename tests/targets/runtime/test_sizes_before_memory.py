"""Sizes that come as data are checked before anything of that size is allocated: one typed error, on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.dtypes import f32
from dovetail.errors import BindError
from dovetail.frontends.onnx import import_model
from tests.frontends.onnx.build import model, node

COUNT: list[Any] = [node("ReduceSum x -> s", keepdims=0), node("Cast s -> n0", to=7), "Reshape n0 one -> n"]
"""n is a number that a run computes."""
ASKING: dict[str, list[Any]] = {
    "ConstantOfShape": ["ConstantOfShape n -> y"],
    "Expand": ["Expand x n -> y"],
    "Tile": ["Tile x n -> y"],
    "Range": ["Range zero n0 step -> y"],
    "Pad": [node("Concat front n -> p", axis=0), "Pad x p -> y"],
    "Resize": ["Resize x _ _ n -> y"],
    "Resize by scales": ["Reshape s one -> s1", "Resize x _ s1 -> y"],
    "OneHot": ["OneHot places n0 two -> y"],
    "reduced": ["ConstantOfShape n -> t", "ReduceSum t -> y"],
    "square": [node("Concat n n -> p", axis=0), "ConstantOfShape p -> t", "ReduceSum t -> y"],
}
GIVEN = {
    "one": np.array([1]),
    "zero": np.array(0),
    "step": np.array(1),
    "front": np.array([0]),
    "places": np.array([0, 1]),
    "two": np.array([0, 1], np.float32),
}


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("name", ASKING)
def test_what_does_not_fit_is_refused_before_it_is_allocated(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.targets.runtime.arrays.memory_limit.available", lambda: 1 << 30)
    graph = import_model(model([*COUNT, *ASKING[name]], {"x": f32[1]}, ["y"], initializers=GIVEN))
    program = dovetail.compile(graph, target=target, cache="off")
    program(x=np.array([3.0], np.float32))
    for power in (28, 30, 36, 39):
        with pytest.raises(BindError, match="are left on this machine"):
            program(x=np.array([2.0**power], np.float32))
    with pytest.raises(BindError, match="counting up to"):
        program(x=np.array([2.0**50], np.float32))
    program(x=np.array([3.0], np.float32))
