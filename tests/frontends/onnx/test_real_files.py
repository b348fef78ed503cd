"""What files of exporters do: nodes in any order, deep branches, states of one batch, growing carries, wrong types."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper

import dovetail
from dovetail.adapters.onnxruntime_peer import Peer
from dovetail.dtypes import bool_, f32, i64
from dovetail.errors import LoadError
from dovetail.frontends.onnx import import_model
from dovetail.frontends.onnx.file.order import in_order
from tests.frontends.onnx.build import assert_like_onnxruntime, body, model, node

Array = NDArray[Any]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.slow
@given(seed=st.integers(0, 10_000))
def test_nodes_may_stand_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    nodes = [node(f"{rng.choice(['Add', 'Mul'])} v{rng.randrange(i + 1)} v{rng.randrange(i + 1)} -> v{i + 1}")
             for i in range(12)]  # fmt: skip
    inner = helper.make_graph([node("Neg v3 -> t")], "t", [], [onnx.ValueInfoProto(name="t")])
    other = helper.make_graph([node("Abs v4 -> e")], "e", [], [onnx.ValueInfoProto(name="e")])
    nodes.append(node("If c -> y", then_branch=inner, else_branch=other))
    inputs = {"v0": f32["b", 4], "c": bool_[()]}
    feeds = {"v0": numbers(3, 4) / 4, "c": np.array(seed % 2 == 0)}
    want = dovetail.evaluate(import_model(model(nodes, inputs, ["v12", "y"])), feeds)
    rng.shuffle(nodes)
    found = dovetail.evaluate(import_model(model(nodes, inputs, ["v12", "y"])), feeds)
    for name, array in want.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_sorted_model_is_not_copied_and_a_cycle_is_named() -> None:
    made = model(["Relu x -> t", "Neg t -> y"], {"x": f32[2]}, ["y"])
    assert in_order(made) is made
    with pytest.raises(LoadError, match="a cycle"):
        import_model(model(["Add x b -> a", "Relu a -> b", "Neg b -> y"], {"x": f32[2]}, ["y"]))


@pytest.mark.exhaustive
def test_branches_nest_30_deep() -> None:
    inner: list[onnx.NodeProto] = [node("Relu x -> o0")]
    for depth in range(1, 31):
        then = helper.make_graph(inner, "t", [], [onnx.ValueInfoProto(name=f"o{depth - 1}")])
        other = helper.make_graph([node(f"Neg x -> e{depth}")], "e", [], [onnx.ValueInfoProto(name=f"e{depth}")])
        inner = [node(f"If c -> o{depth}", then_branch=then, else_branch=other)]
    graph = import_model(model([*inner, "Identity o30 -> y"], {"x": f32["b", 4], "c": bool_[()]}, ["y"]))
    program, x = dovetail.compile(graph, cache="off"), numbers(2, 4)
    np.testing.assert_array_equal(program(x=x, c=np.array(True))["y"], np.maximum(x, 0))
    np.testing.assert_array_equal(program(x=x, c=np.array(False))["y"], -x)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("batch", [1, "k", "constant"])
def test_states_of_one_batch_with_a_symbolic_batch(op: str, gates: int, batch: int | str) -> None:
    weights = {"w": numbers(1, 4 * gates, 3), "r": numbers(1, 4 * gates, 4)}
    inputs: dict[str, Any] = {"x": f32["s", "b", 3]}
    feeds = {"x": numbers(5, 1, 3)}
    if batch == "constant":
        weights["h"] = numbers(1, 1, 4)
    else:
        inputs["h"], feeds["h"] = f32[1, batch, 4], numbers(1, 1, 4)
    made = model([node(f"{op} x w r _ _ h -> y last", hidden_size=4)], inputs, ["y", "last"], initializers=weights)
    assert_like_onnxruntime(made, feeds)
    with pytest.raises(LoadError, match="a first state of"):
        import_model(made, fixed={"x": numbers(5, 2, 3), **({"h": numbers(1, 1, 4)} if "h" in inputs else {})})


@pytest.mark.slow
def test_a_loop_whose_carry_grows() -> None:
    trip = body(["Concat c x -> d", "Identity k -> k2"], {"i": i64[()], "k": bool_[()], "c": f32["n", 4]},
                {"k2": bool_, "d": f32})  # fmt: skip
    trip.node[0].attribute.append(helper.make_attribute("axis", 0))
    given_ = {"n": np.array(3), "go": np.array(True), "start": numbers(1, 4)}
    made = model([node("Loop n go start -> y", body=trip)], {"x": f32["b", 4]}, ["y"], initializers=given_)
    assert_like_onnxruntime(made, {"x": numbers(2, 4)}, {"x": numbers(5, 4)})
    unknown = model([node("Loop n go start -> y", body=trip)], {"x": f32["b", 4], "n": i64[()]}, ["y"],
                    initializers={name: given_[name] for name in ("go", "start")})  # fmt: skip
    assert_like_onnxruntime(unknown, *({"x": numbers(2, 4), "n": np.array(count)} for count in (0, 1, 4)))


@pytest.mark.parametrize(
    ("declared", "said"),
    [(f32[3, 5], r"f32\[3, 5\]"), (i64["b", 4], r"i64\[\?, 4\]"), (f32["b", 4, 1], r"f32\[\?, 4, 1\]")],
)
def test_types_that_contradict_what_is_inferred_are_errors_that_name_both(declared: Any, said: str) -> None:
    with pytest.raises(LoadError, match=f"the output 'y' is declared as {said}, and it is f32\\[b, 4\\]"):
        import_model(model(["Relu x -> y"], {"x": f32["b", 4]}, {"y": declared}))
    inside = model(["Relu x -> t", "Neg t -> y"], {"x": f32["b", 4]}, ["y"])
    inside.graph.value_info.append(model([], {"t": declared}, []).graph.input[0])
    with pytest.raises(LoadError, match=f"the value 't' is declared as {said}"):
        import_model(inside)


def test_types_that_say_less_or_more_than_is_inferred_are_no_contradiction() -> None:
    for declared in (f32[3, 4], f32["q", "r"], f32["b", 4], f32[0, 4]):
        import_model(model(["Relu x -> y"], {"x": f32["b", 4]}, {"y": declared}))


@pytest.mark.parametrize("declared", [f32[4], f32["b"], f32["b", 4], f32[()]])
def test_a_file_may_declare_the_rank_of_another_batch(declared: Any) -> None:
    """torch exports `squeeze` with a batch of 1, and declares the rank that it saw."""
    made = model(["Squeeze x -> t", "Relu t -> y"], {"x": f32["b", 4, 1]}, {"y": declared})
    program = dovetail.compile(import_model(made), cache="off")
    for batch in (1, 3):
        x = numbers(batch, 4, 1)
        np.testing.assert_array_equal(program(x=x)["y"], np.maximum(x.squeeze(), 0))


def test_a_result_may_be_declared_with_sizes_that_no_input_has() -> None:
    """torch writes the names of `dynamic_axes` into a shape that it guesses: [1, seqlen] for rank 3."""
    made = model(["Relu x -> y"], {"x": f32["b", 4, 2]}, {"y": f32[1, "seqlen"]})
    x = numbers(3, 4, 2)
    np.testing.assert_array_equal(dovetail.compile(import_model(made), cache="off")(x=x)["y"], np.maximum(x, 0))


def test_branches_of_different_rank_take_the_rank_that_both_declare() -> None:
    """paddle2onnx gives a flag as [] in one branch and as [1] in the other, and declares [] for both."""
    branches: dict[str, Any] = {
        f"{name}_branch": helper.make_graph([made], name, [], [info])
        for name, made in (("then", node("Greater s zero -> t")), ("else", node("Not flags -> e")))
        for info in [helper.make_tensor_value_info(made.output[0], onnx.TensorProto.BOOL, [])]
    }
    zero = {"zero": np.array(0, np.float32)}
    inputs = {"s": f32[()], "flags": bool_[1], "c": bool_[()]}
    made = model([node("If c -> y", **branches)], inputs, {"y": bool_[()]}, initializers=zero)
    program = dovetail.compile(import_model(made), cache="off")
    for s, flag, c in ((1, True, True), (-1, True, True), (1, True, False), (1, False, False)):
        feeds = {"s": np.array(s, np.float32), "flags": np.array([flag]), "c": np.array(c)}
        assert program.run(feeds)["y"] == (s > 0 if c else not flag)


@pytest.mark.parametrize("placeholder", [np.zeros((), np.float32), np.zeros(1, np.float32)])
def test_a_carry_that_the_body_only_writes_starts_with_a_placeholder(placeholder: Array) -> None:
    """paddle2onnx carries what a loop writes, and starts it with a constant of another rank."""
    trip = body(["Add x count -> out", "Add count one -> next", "Identity k -> k2"],
                {"i": i64[()], "k": bool_[()], "written": f32["b", 4], "count": f32[()]},
                {"k2": bool_, "out": f32, "next": f32})  # fmt: skip
    given_ = {"go": np.array(True), "w": placeholder, "c": np.array(0, np.float32), "one": np.array(1, np.float32)}
    made = model([node("Loop n go w c -> y last", body=trip)], {"x": f32["b", 4], "n": i64[()]}, ["y", "last"],
                 initializers=given_)  # fmt: skip
    program, x = dovetail.compile(import_model(made), cache="off"), numbers(2, 4)
    for trips in (1, 3):
        found = program(x=x, n=np.array(trips))
        np.testing.assert_array_equal(found["y"], x + np.float32(trips - 1))
        assert found["last"] == trips


def test_frames_are_counted_as_tf_signal_counts_them() -> None:
    """max(0, 1 + (n - 400) / 160), as integers: the size of a reshape that follows is known before the run."""
    numbers_ = {name: np.array(v) for name, v in (("length", 6), ("step", 2), ("one", 1), ("zero", 0))}
    shape = {"at": np.array([0]), "tail": np.array([1])}
    nodes = ["Shape x -> s", "Squeeze s at -> n", "Sub n length -> d", "Div d step -> q", "Add q one -> p",
             "Max zero p -> count", "Range zero count one -> r", "Unsqueeze count at -> c",
             node("Concat c tail -> rows", axis=0), "Reshape r rows -> column", "Add column fives -> y"]  # fmt: skip
    given_ = {**numbers_, **shape, "fives": np.arange(5)[None]}
    made = model(nodes, {"x": f32["n"]}, ["y"], initializers=given_)
    assert_like_onnxruntime(made, *({"x": numbers(n)} for n in (0, 3, 4, 5, 6, 7, 20)))


def test_an_initializer_has_the_type_of_its_input() -> None:
    made = model(["MatMul x w -> y"], {"x": f32["b", 4], "w": f32[4, 8]}, ["y"], initializers={"w": numbers(4, 4)})
    with pytest.raises(LoadError, match=r"the initializer 'w' is declared as f32\[4, 8\], and it is f32\[4, 4\]"):
        import_model(made)


def test_onnxruntime_judges_files_of_a_newer_format_version(tmp_path: Path) -> None:
    made = model(["Relu x -> y"], {"x": f32["b", 4]}, ["y"])
    made.ir_version = 14
    path = tmp_path / "new.onnx"
    path.write_bytes(made.SerializeToString())
    x = numbers(2, 4)
    np.testing.assert_array_equal(Peer(path).run({"x": x})["y"], np.maximum(x, 0))
