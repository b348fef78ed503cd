"""Sizes that come as data are checked before anything of that size is allocated: one typed error, on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.errors import BindError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dim import symbol
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


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("size", [2**61, 2**62])
def test_a_result_of_more_elements_than_numpy_has_is_refused(size: int, target: str) -> None:
    """One number repeated takes four bytes, and its copy takes more than there are: also where no view has so many."""
    for whole in (size, symbol("n") * (size // 4)):
        one = ops.unsqueeze(dovetail.input("x", f32[()]), axes=(-1,))
        graph = Graph.of({"y": ops.expand(one, axis=-1, size=whole), "n": dovetail.input("n", f32["n"])})
        program = dovetail.compile(graph, target=target, cache="off")
        with pytest.raises(BindError, match=f"takes {4 * size:,} bytes"):
            program.run({"x": np.array(1, np.float32), "n": np.ones(4, np.float32)})
