"""Branches against onnxruntime."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from dovetail.errors import BindError, DovetailError, LoadError, NeedsValueError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import bool_, f32, i64
from dovetail.ir.graph import walk_into
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, body, by_dovetail, model, node

NUMBER, FLAG = i64[()], bool_[()]


def branches(then: Sequence[onnx.NodeProto | str], otherwise: Sequence[onnx.NodeProto | str]) -> onnx.NodeProto:
    """An If whose branches name their results `a` and `b`."""
    return node("If c -> y", then_branch=body(then, {}, {"a": f32}), else_branch=body(otherwise, {}, {"b": f32}))


def xs(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def count(made: onnx.ModelProto, name: str) -> int:
    """How many values of an op a model is imported as."""
    return sum(v.op.name == name for v in walk_into(import_model(made).outputs.values()))


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("opset", [7, 11, 13, 21])
def test_a_branch_is_chosen_in_the_run(shape: tuple[int, ...], opset: int) -> None:
    made = model([branches(["Add x x -> a"], ["Neg x -> b"])], {"c": bool_[shape], "x": f32["n"]}, ["y"], opset=opset)
    feeds = [{"c": np.full(shape, flag), "x": xs(size)} for flag, size in ((True, 3), (False, 5))]
    assert_like_onnxruntime(made, *feeds)


def test_a_condition_that_is_known_leaves_one_branch() -> None:
    made = model(
        ["Shape x -> s", "Size s -> r", "Equal r two -> c", branches(["Neg x -> a"], ["Relu x -> b"])],
        {"x": f32["n", 2]},
        ["y"],
        initializers={"two": np.array(2)},
    )
    assert count(made, "if") == 0 and count(made, "relu") == 0
    assert_like_onnxruntime(made, {"x": xs(3, 2)})


def test_nodes_of_a_branch_keep_their_own_names() -> None:
    made = model(
        [branches([node("Add x x -> a", name="/encoder/double")], [node("Neg x -> b", name="/encoder/turn")])],
        {"c": FLAG, "x": f32["n"]},
        ["y"],
    )
    graph = import_model(made)
    told = {v.op.name: graph.where(v) for v in walk_into(graph.outputs.values())}
    assert told["add"].startswith("/encoder/double (Add)") and told["neg"].startswith("/encoder/turn (Neg)")
    assert "(If)" in told["if"]


def test_errors_in_a_branch_name_the_node_there() -> None:
    made = model(
        [branches([node("Softmax x -> a", name="inner", axis=7)], ["Neg x -> b"])], {"c": FLAG, "x": f32["n"]}, ["y"]
    )
    with pytest.raises(DovetailError) as raised:
        import_model(made)
    assert "inner" in raised.value.where


@pytest.mark.slow
def test_branches_may_give_different_sizes() -> None:
    made = model(
        [branches([node("Concat x x -> a", axis=0)], ["Neg x -> b"]), "Exp y -> z", "Shape z -> s"],
        {"c": FLAG, "x": f32["n"]},
        ["z", "s"],
    )
    assert_like_onnxruntime(
        made, {"c": np.array(True), "x": xs(3)}, {"c": np.array(False), "x": xs(3)}, {"c": np.array(True), "x": xs(1)}
    )


def test_branches_that_have_one_size_only_sometimes() -> None:
    made = model([branches(["Neg x -> a"], ["Relu w -> b"])], {"c": FLAG, "x": f32["n"], "w": f32["m"]}, ["y"])
    feeds = [
        {"c": np.array(flag), "x": xs(n), "w": xs(m)} for flag, n, m in ((True, 3, 3), (False, 3, 3), (False, 3, 4))
    ]
    assert_like_onnxruntime(made, *feeds)


def test_a_size_that_is_found_inside_a_branch() -> None:
    nodes = ["NonZero x -> p", node("Cast p -> a", to=1)]
    made = model(
        [branches(nodes, ["Unsqueeze x zero -> b"])],
        {"c": FLAG, "x": f32["n"]},
        ["y"],
        initializers={"zero": np.array([0])},
    )
    x = np.array([0, 2, 0, 3], np.float32)
    assert_like_onnxruntime(made, {"c": np.array(True), "x": x}, {"c": np.array(False), "x": x})


def test_constants_of_a_branch() -> None:
    weight = xs(3, 3)
    then = body(["MatMul x w -> a"], {}, {"a": f32}, {"w": weight})
    otherwise = body([node("Constant -> k", value=weight), "Add x k -> b"], {}, {"b": f32})
    made = model([node("If c -> y", then_branch=then, else_branch=otherwise)], {"c": FLAG, "x": f32[3, 3]}, ["y"])
    assert_like_onnxruntime(made, {"c": np.array(True), "x": xs(3, 3)}, {"c": np.array(False), "x": xs(3, 3)})


@pytest.mark.slow
def test_names_from_two_levels_up() -> None:
    inner = branches(["Mul x outer -> a"], ["Add x middle -> b"])
    inner.output[0] = "a"
    made = model(
        ["Neg x -> outer", branches(["Exp x -> middle", inner], ["Sub x outer -> b"])],
        {"c": FLAG, "x": f32["n"]},
        ["y"],
    )
    assert_like_onnxruntime(made, {"c": np.array(True), "x": xs(4)}, {"c": np.array(False), "x": xs(2)})


def squeezing(opset: int = 13) -> onnx.ModelProto:
    """What exporters write for x.squeeze(1) of a size that they do not know."""
    return model(
        [
            "Shape x -> s",
            node("Gather s one -> d", axis=0),
            "Equal d one -> c",
            branches(["Squeeze x one -> a"], ["Identity x -> b"]),
            "Neg y -> z",
        ],
        {"x": f32["n", "m"]},
        ["z"],
        opset=opset,
        initializers={"one": np.array([1])},
    )


@pytest.mark.slow
def test_a_squeeze_of_a_size_that_is_not_known_asks_for_it_to_be_1() -> None:
    made = squeezing()
    assert_like_onnxruntime(made, {"x": xs(3, 1)}, {"x": xs(5, 1)})
    with pytest.raises(BindError, match="squeeze"):
        by_dovetail(made, {"x": xs(3, 2)})


def test_what_a_branch_takes_for_granted_holds_only_there() -> None:
    """Each branch squeezes another size, so that no sizes would fit both."""
    made = model(
        [branches(["Squeeze x zero -> a"], ["Squeeze x one -> b"])],
        {"c": FLAG, "x": f32["n", "m"]},
        ["y"],
        initializers={"zero": np.array([0]), "one": np.array([1])},
    )
    feeds = {"c": np.array(True), "x": xs(1, 4)}, {"c": np.array(False), "x": xs(3, 1)}
    assert_like_onnxruntime(made, *feeds)
    with pytest.raises(BindError, match="squeeze"):
        by_dovetail(made, {"c": np.array(True), "x": xs(3, 1)})
    with pytest.raises(BindError, match="squeeze"):
        by_dovetail(made, {"c": np.array(True), "x": xs(3, 2)})


def test_ranks_that_a_run_would_decide() -> None:
    made = model(
        [branches(["Unsqueeze x zero -> a"], ["Neg x -> b"])],
        {"c": FLAG, "x": f32["n"]},
        ["y"],
        initializers={"zero": np.array([0])},
    )
    with pytest.raises(NeedsValueError, match="different rank") as caught:
        import_model(made)
    assert caught.value.inputs == ("c",)
    assert_like_onnxruntime(made, {"x": xs(3)}, fixed={"c": np.array(True)})
    computed = model(
        [
            "ReduceSum x -> t",
            "Greater t t -> u",
            "Reshape u none -> c",
            branches(["Unsqueeze x zero -> a"], ["Neg x -> b"]),
        ],
        {"x": f32["n"]},
        ["y"],
        initializers={"zero": np.array([0]), "none": np.array([], np.int64)},
    )
    with pytest.raises(UnsupportedError, match="different rank"):
        import_model(computed)


def test_branches_of_different_types_are_malformed() -> None:
    then, otherwise = body(["Neg x -> a"], {}, {"a": f32}), body(["Shape x -> b"], {}, {"b": i64})
    made = model([node("If c -> y", then_branch=then, else_branch=otherwise)], {"c": FLAG, "x": f32["n"]}, ["y"])
    with pytest.raises(LoadError, match="branches that give"):
        import_model(made)


def test_deep_nesting_is_imported_once_a_level() -> None:
    """Each level is traced once; twice would be 2 to the power of the depth."""
    nodes: list[onnx.NodeProto | str] = ["Neg x -> a"]
    for level in range(20):
        inner = node(
            f"If c -> r{level}",
            then_branch=body(nodes, {}, {"a": f32}),
            else_branch=body([node("Unsqueeze x zero -> u"), node("Squeeze u zero -> b")], {}, {"b": f32}),
        )
        nodes = [inner, f"Identity r{level} -> a"]
    made = model(
        [node("If c -> y", then_branch=body(nodes, {}, {"a": f32}), else_branch=body(["Neg x -> b"], {}, {"b": f32}))],
        {"c": FLAG, "x": f32["n"]},
        ["y"],
        initializers={"zero": np.array([0])},
    )
    started = time.process_time()
    import_model(made)
    assert time.process_time() - started < 5


def test_nodes_of_a_branch_that_is_taken_keep_their_names() -> None:
    """Every node of a model with two rates was told as the If around it."""
    named = onnx.helper.make_node("Exp", ["x"], ["a"], name="encoder/exp")
    plain = onnx.helper.make_node("Tanh", ["x"], ["b"], name="decoder/tanh")
    made = model([branches([named], [plain])], {"c": FLAG, "x": f32[3]}, ["y"])
    for flag, name in ((True, "encoder/exp (Exp)"), (False, "decoder/tanh (Tanh)")):
        graph = import_model(made, fixed={"c": np.array(flag)})
        assert graph.where(graph.outputs["y"]) == name
