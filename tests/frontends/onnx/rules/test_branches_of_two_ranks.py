"""An `If` whose branches differ in rank by data, beside onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from dovetail.dtypes import bool_, f32, i64
from dovetail.errors import NeedsValueError
from dovetail.frontends.onnx import import_model
from dovetail.ir.type import TensorType
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, body, model, node

CONSTANTS = {"zero": np.array(0, np.float32), "first": np.array([0]), "flat": np.array([-1])}


def xs(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def either(then: str, otherwise: str, y: str = "y", c: str = "c") -> onnx.NodeProto:
    """y is the result of one of two nodes, chosen by the flag c."""
    sides = [body([node(f"{made} -> r")], {}, {"r": f32}) for made in (then, otherwise)]
    return node(f"If {c} -> {y}", then_branch=sides[0], else_branch=sides[1])


ASKED = [node("ReduceSum x -> s", keepdims=0), node("Greater s zero -> c")]
"""Whether the numbers of x are positive on the whole."""


def both(*shape: int) -> list[dict[str, Array]]:
    return [{"x": np.abs(xs(*shape))}, {"x": -np.abs(xs(*shape))}]


def made(nodes: list[onnx.NodeProto], type: TensorType, outputs: list[str], **more: Array) -> onnx.ModelProto:
    return model(nodes, {"x": type}, outputs, initializers={**CONSTANTS, **more})


@pytest.mark.slow
def test_the_ranks_agree_at_the_end() -> None:
    nodes = [*ASKED, either("Squeeze x first", "Relu x"), node("Exp y -> e"), node("Reshape e flat -> z")]
    assert_like_onnxruntime(made(nodes, f32[1, 4], ["z", "s"]), *both(1, 4))


@pytest.mark.slow
def test_what_follows_differs_and_sizes_too() -> None:
    """One side gathers rows, the other columns; how many numbers are left depends on the side and on the data."""
    nodes = [
        *ASKED,
        either("Squeeze x first", "Identity x"),
        node("Gather y first -> g", axis=0),
        node("Greater g zero -> m"),
        node("Reshape m flat -> m2"),
        node("Compress g m2 -> k"),
        node("NonZero m2 -> n"),
    ]
    assert_like_onnxruntime(made(nodes, f32[1, 4, 3], ["k", "n"]), *both(1, 4, 3), {"x": xs(1, 4, 3) + 1})


@pytest.mark.slow
def test_weights_that_one_side_reads() -> None:
    """Sides of rank 1 and 2, each with a large weight of its own."""
    nodes = [
        *ASKED,
        node("MatMul x shared -> h"),
        either("Reshape h flat", "MatMul h own"),
        node("Mul y y -> q"),
        node("ReduceMean q -> z", keepdims=0),
    ]
    built = made(nodes, f32["b", 70], ["z", "h"], shared=xs(70, 80), own=xs(80, 90))
    assert_like_onnxruntime(built, *both(3, 70), *both(1, 70), scale=64)


@pytest.mark.slow
def test_several_one_after_the_other() -> None:
    nodes = [
        *ASKED,
        either("Squeeze x first", "Relu x"),
        node("ReduceMax y -> t", keepdims=0),
        node("Greater t one -> d"),
        either("Unsqueeze y first", "Identity y", y="w", c="d"),
        node("Reshape w flat -> z"),
    ]
    built = made(nodes, f32[1, 4], ["z"], one=np.array(1, np.float32))
    assert_like_onnxruntime(built, *both(1, 4), *({"x": 3 * f["x"]} for f in both(1, 4)))


@pytest.mark.slow
def test_inside_a_loop() -> None:
    inside = body(
        [
            node("ReduceSum v -> s", keepdims=0),
            node("Greater s zero -> c"),
            either("Squeeze v first", "Neg v"),
            node("Reshape y shape -> r"),
            node("Add r x -> w"),
            node("Identity go -> again"),
        ],
        {"i": i64[()], "go": bool_[()], "v": f32[1, 4]},
        {"again": bool_, "w": f32},
    )
    built = model([node("Loop n t x -> z", body=inside)], {"x": f32[1, 4], "n": i64[()]}, ["z"],
                  initializers={**CONSTANTS, "t": np.array(True), "shape": np.array([1, 4])})  # fmt: skip
    assert_like_onnxruntime(built, *({**feed, "n": np.array(n)} for feed in both(1, 4) for n in (0, 1, 5)))


def test_outputs_of_two_ranks_are_refused_in_words() -> None:
    built = made([*ASKED, either("Squeeze x first", "Relu x")], f32[1, 4], ["y"])
    with pytest.raises(NeedsValueError, match=r"f32\[4\] and f32\[1, 4\]") as refused:
        import_model(built)
    assert "one rank" in refused.value.hint
