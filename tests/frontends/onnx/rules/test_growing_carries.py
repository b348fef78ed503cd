"""Loops whose carried values change their shapes, with trips that only the run counts, beside onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from dovetail.dtypes import bool_, f32, i64
from dovetail.errors import UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.type import TensorType
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, body, model, node

INSIDE: dict[str, TensorType] = {"i": i64[()], "c": bool_[()], "v": f32["g", 3]}


def xs(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def grown(nodes: list[onnx.NodeProto], *, start: int = 0, outputs: str = "y") -> onnx.ModelProto:
    """A loop of n trips over v, which starts with some rows."""
    listed = [node("Concat v x -> w", axis=0), *nodes, node("Identity c -> d")]
    given = {"d": bool_, "w": f32, **({"o": f32} if "z" in outputs else {})}
    inside = body(listed, INSIDE, given)
    return model(
        [node(f"Loop n t v0 -> {outputs}", body=inside)],
        {"x": f32[1, 3], "n": i64[()]},
        outputs.split(),
        initializers={"t": np.array(True), "v0": xs(start, 3)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 2])
def test_rows_are_appended(start: int) -> None:
    made = grown([], start=start)
    assert_like_onnxruntime(made, *({"x": xs(1, 3), "n": np.array(n)} for n in (0, 1, 7, 80)))


def test_what_a_trip_reads_of_it_and_gives_beside_it() -> None:
    """Every trip sums the rows that are there so far: the body is compiled for any number of them."""
    made = grown([node("ReduceSum v -> o", keepdims=0)], outputs="y z")
    assert_like_onnxruntime(made, *({"x": xs(1, 3), "n": np.array(n)} for n in (1, 2, 9)))


@pytest.mark.slow
def test_a_condition_ends_it() -> None:
    """As a decoder is exported: tokens are appended until one says stop."""
    inside = body(
        [
            node("Gather table last -> row", axis=0),
            node("Concat v row -> w", axis=0),
            node("Shape w -> s"),
            node("Less s most -> f"),
            node("Squeeze f -> d"),
            node("Add last one -> next"),
        ],
        {"i": i64[()], "c": bool_[()], "v": f32["g"], "last": i64[1]},
        {"d": bool_, "w": f32, "next": i64},
    )
    made = model(
        [node("Loop _ t v0 first -> y l", body=inside), node("Mul y y -> z")],
        {"table": f32[9], "first": i64[1], "most": i64[1]},
        ["y", "l", "z"],
        initializers={"t": np.array(True), "v0": xs(0), "one": np.array([1])},
    )
    feed = {"table": xs(9), "first": np.array([2])}
    assert_like_onnxruntime(made, *({**feed, "most": np.array([most])} for most in (1, 4, 6)))


@pytest.mark.slow
def test_several_axes_and_values_change() -> None:
    """One grows along an axis of batches, one doubles, one shrinks."""
    inside = body(
        [
            node("Concat a x -> a2", axis=1),
            node("Concat b b -> b2", axis=0),
            node("Slice s one far -> s2"),
            node("Identity c -> d"),
        ],
        {"i": i64[()], "c": bool_[()], "a": f32["b", "g"], "b": f32["h"], "s": f32["k"]},
        {"d": bool_, "a2": f32, "b2": f32, "s2": f32},
    )
    made = model(
        [node("Loop n t a0 b0 s0 -> a9 b9 s9", body=inside)],
        {"x": f32["b", 1], "a0": f32["b", 2], "b0": f32[3], "s0": f32[8], "n": i64[()]},
        ["a9", "b9", "s9"],
        initializers={"t": np.array(True), "one": np.array([1]), "far": np.array([100])},
    )
    for batch in (1, 4):
        feed = {"x": xs(batch, 1), "a0": xs(batch, 2), "b0": xs(3), "s0": xs(8)}
        assert_like_onnxruntime(made, *({**feed, "n": np.array(n)} for n in (0, 1, 3, 5)))


def test_a_rank_that_changes_is_refused() -> None:
    inside = body([node("Unsqueeze v zero -> w"), node("Identity c -> d")], INSIDE, {"d": bool_, "w": f32})
    made = model(
        [node("Loop n t x -> y", body=inside)],
        {"x": f32[1, 3], "n": i64[()]},
        ["y"],
        initializers={"t": np.array(True), "zero": np.array([0])},
    )
    with pytest.raises(UnsupportedError, match="before a trip"):
        import_model(made)
