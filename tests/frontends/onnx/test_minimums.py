"""A batch below the minimum that a graph assumes: compiled for it where the file has a meaning, otherwise refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail.dtypes import f32
from dovetail.errors import SizeError
from dovetail.frontends.onnx import import_model
from tests.frontends.onnx.build import model, node

Array = NDArray[Any]


def rows(count: int) -> Array:
    return np.arange(4 * count, dtype=np.float32).reshape(count, 4)


@pytest.mark.parametrize(("start", "stop"), [(1, 2**31 - 1), (0, 5), (2, 6), (-3, 2**31 - 1), (-5, -2)])
def test_slices_reach_as_far_as_a_batch_does(start: int, stop: int) -> None:
    """`x[2:6]` of a symbolic batch has 4 rows, and of a batch of 3 one, as in NumPy."""
    given = {"start": np.array([start]), "stop": np.array([stop]), "axis": np.array([0])}
    file = model(["Slice x start stop axis -> s", "Relu s -> y"], {"x": f32["n", 4]}, ["y"], initializers=given)
    program = dovetail.compile(import_model(file), target="cpu", cache="off")
    for count in (7, 0, 1, 3, 7):
        assert np.array_equal(program(x=rows(count))["y"], rows(count)[start:stop])


BELOW: dict[str, tuple[list[Any], dict[str, Array], int, str]] = {
    "top_k": ([node("TopK x five -> y i", axis=0)], {"five": np.array([5])}, 5, "how many to keep"),
    "row": ([node("Gather x one -> y", axis=0)], {"one": np.array(1)}, 2, "where a slice ends"),
    "window": (
        [node("Transpose x -> t", perm=[1, 0]), node("Unsqueeze t one -> u"), node("MaxPool u -> y", kernel_shape=[3])],
        {"one": np.array([1])},
        3,
        "the window's reach",
    ),
}


@pytest.mark.parametrize(("nodes", "given", "least", "why"), BELOW.values(), ids=BELOW)
def test_a_batch_that_is_too_small_is_refused_by_name(
    nodes: list[Any], given: dict[str, Array], least: int, why: str
) -> None:
    program = dovetail.compile(
        import_model(model(nodes, {"x": f32["n", 4]}, ["y"], initializers=given)), target="cpu", cache="off"
    )
    assert program(x=rows(least))["y"].size
    for count in (least - 1, 0):
        with pytest.raises(SizeError, match=rf"n at least {least} does not hold: found {count} and {least}") as told:
            program(x=rows(count))
        assert why in str(told.value)


def test_minimums_that_no_batch_meets() -> None:
    """5 rows of a batch that is added to 3 rows: every batch is refused, by the relation that it breaks."""
    nodes = [node("TopK x five -> y i", axis=0), "Add x three -> z"]
    given = {"five": np.array([5]), "three": rows(3)}
    graph = import_model(model(nodes, {"x": f32["n", 4]}, ["y", "z"], initializers=given))
    program = dovetail.compile(graph, target="cpu", cache="off")
    for count, said in ((3, "n at least 5"), (6, "n equals 3"), (1, "n at least 5")):
        with pytest.raises(SizeError, match=f"{said} does not hold"):
            program(x=rows(count))
