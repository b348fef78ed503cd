"""Loops and scans against onnxruntime."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from dovetail import ops
from dovetail.errors import BindError, LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import bool_, f32, i64
from dovetail.ir.graph import walk_into
from dovetail.ir.type import TensorType
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, body, by_dovetail, model, node

NUMBER, FLAG = i64[()], bool_[()]


def xs(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def count(made: onnx.ModelProto, name: str) -> int:
    """How many values of an op a model is imported as."""
    return sum(v.op.name == name for v in walk_into(import_model(made).outputs.values()))


# Loop -------------------------------------------------------------------------------------------------------------

STEP = ["Add v x -> w", "Mul w two -> o", "Identity c -> again"]


def looping(
    nodes: Sequence[onnx.NodeProto | str],
    given: str,
    inputs: Mapping[str, TensorType],
    *,
    initializers: Mapping[str, Array] | None = None,
    opset: int = 13,
    shape: tuple[int, ...] = (),
    carried: TensorType = f32["n"],
) -> onnx.ModelProto:
    """A loop that carries `v` from `x` on, and gives `o` in every trip."""
    inside = body(
        nodes, {"i": i64[shape], "c": bool_[shape], "v": carried}, {"again": bool_, "w": carried.dtype, "o": f32}
    )
    return model(
        [node(f"Loop {given} x -> y z", body=inside)],
        inputs,
        ["y", "z"],
        opset=opset,
        initializers={"two": np.array(2, np.float32), **(initializers or {})},
    )


@pytest.mark.parametrize("trips", [1, 5])
@pytest.mark.parametrize("opset", [8, 11, 13, 21])
def test_a_trip_count_that_is_known(trips: int, opset: int) -> None:
    made = looping(STEP, "m t", {"x": f32["n"]}, initializers={"m": np.array(trips), "t": np.array(True)}, opset=opset)
    assert count(made, "scan") == 1
    assert_like_onnxruntime(made, {"x": xs(3)}, {"x": xs(1)})


@pytest.mark.parametrize("known", [True, False])
def test_no_trip_leaves_what_was_there(known: bool) -> None:
    """The sizes of outputs without trips are those that a trip would give; onnxruntime does not know them."""
    zero, flag = {"m": np.array(0)}, {"t": np.array(True)}
    if known:
        (got,) = by_dovetail(looping(STEP, "m t", {"x": f32["n"]}, initializers={**zero, **flag}), {"x": xs(3)})
    else:
        inputs = {"x": f32["n"], "m": NUMBER, "t": FLAG}
        (got,) = by_dovetail(looping(STEP, "m t", inputs), {"x": xs(3), **zero, **flag})
    np.testing.assert_array_equal(got["y"], xs(3))
    assert got["z"].shape == (0, 3)


def test_a_trip_count_that_is_a_size() -> None:
    inside = body(STEP, {"i": NUMBER, "c": FLAG, "v": f32["n"]}, {"again": bool_, "w": f32, "o": f32})
    made = model(
        ["Shape b -> s", "Squeeze s -> m", node("Loop m _ x -> y z", body=inside)],
        {"x": f32["n"], "b": f32["trips"]},
        ["y", "z"],
        initializers={"two": np.array(2, np.float32)},
    )
    assert [str(s) for s in import_model(made).outputs["z"].shape] == ["trips", "n"]
    assert_like_onnxruntime(made, {"x": xs(3), "b": xs(4)}, {"x": xs(2), "b": xs(1)})


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_trip_count_and_a_condition_of_the_run(shape: tuple[int, ...]) -> None:
    made = looping(STEP, "m t", {"x": f32["n"], "m": i64[shape], "t": bool_[shape]}, shape=shape)
    feeds = [
        {"x": xs(3), "m": np.full(shape, m), "t": np.full(shape, t)}
        for m, t in ((4, True), (0, True), (3, False), (-2, True))
    ]
    assert_like_onnxruntime(made, feeds[0])
    for feed, got in zip(feeds[1:], by_dovetail(made, *feeds[1:]), strict=True):
        np.testing.assert_array_equal(got["y"], feed["x"])
        assert got["z"].shape == (0, 3)


@pytest.mark.slow
def test_a_condition_that_ends_it() -> None:
    nodes = ["Add v x -> w", "Mul w two -> o", node("ReduceMax w -> top", keepdims=0), "Less top ten -> again"]
    for given, count in (("_ t", {}), ("m t", {"m": np.array(2**63 - 1)}), ("m t", {"m": np.array(3)})):
        made = looping(
            nodes, given, {"x": f32["n"]}, initializers={"ten": np.array(10, np.float32), "t": np.array(True), **count}
        )
        assert_like_onnxruntime(made, {"x": np.array([1, 2], np.float32)}, {"x": np.array([20.0], np.float32)})


# A condition that counts to a size

FIRST, NEXT = "Less start rows -> t", "Less k2 b -> again"


def counting(
    next_: str = NEXT, first: str = FIRST, *, start: int = 0, grows: str = "Add k one -> k2", bound: str = "b"
) -> onnx.ModelProto:
    """A loop over the rows of `x` as Keras exports a recurrent layer: it goes on while `k` is below their number."""
    steps = [grows, node("Gather x k -> row", axis=0), "Add v row -> w", "Identity w -> o", f"Identity {bound} -> b2"]
    inside = body(
        [*steps, *next_.split("; ")],
        {"i": NUMBER, "c": FLAG, "k": NUMBER, "b": NUMBER, "v": f32[3]},
        {"again": bool_, "k2": i64, "b2": i64, "w": f32, "o": f32},
    )
    sizes = ["Shape x -> s", node("Gather s zero -> rows", axis=0)]
    return model(
        [*sizes, *first.split("; "), node("Loop _ t start rows v -> e f y z", body=inside)],
        {"x": f32["n", 3], "v": f32[3]},
        ["e", "y", "z"],
        initializers={"start": np.array(start), "zero": np.array(0), "one": np.array(1), "two": np.array(2)},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("next_", "first"),
    [
        (NEXT, FIRST),
        ("Greater b k2 -> again", FIRST),
        ("Less k2 rows -> again", FIRST),
        ("Add i one -> j; Less j b -> again", FIRST),
        ("Unsqueeze k2 zero -> j; Less j b -> l; Squeeze l -> again", FIRST),
        (NEXT, "Less zero one -> t"),
        ("Less k two -> again", "Less zero one -> t"),
        # tf.map_fn has two counters.
        ("Add i one -> j; Less j b -> l; Less k2 b -> r; And l r -> again", "Less start rows -> u; And u u -> t"),
        ("Less k2 b -> l; Less k two -> r; And r l -> again", "Less zero one -> t"),
    ],
)
def test_a_condition_that_counts_to_a_size_is_a_scan(next_: str, first: str) -> None:
    made = counting(next_, first)
    assert (count(made, "scan"), count(made, "while")) == (1, 0)
    assert_like_onnxruntime(made, *({"x": xs(rows, 3), "v": xs(3)} for rows in (3, 7)))


def test_counting_from_another_number_than_0() -> None:
    made = counting(start=2)
    assert (count(made, "scan"), count(made, "while")) == (1, 0)
    assert_like_onnxruntime(made, {"x": xs(5, 3), "v": xs(3)}, {"x": xs(3, 3), "v": xs(3)})
    (got,) = by_dovetail(made, {"x": xs(1, 3), "v": xs(3)})
    np.testing.assert_array_equal(got["y"], xs(3))
    assert got["e"] == 2 and got["z"].shape == (0, 3)


@pytest.mark.parametrize(
    "made",
    [
        counting(grows="Add k two -> k2"),
        counting(bound="k2"),
        counting("Less b k2 -> l; Not l -> again"),
        counting(first="Less zero rows -> t", start=1),
        counting("Less k2 b -> l; ReduceMax row -> top; Less top top -> r; And l r -> again"),
        counting("Less k2 b -> l; Less k2 two -> r; And l r -> again"),
    ],
    ids=[
        "steps of 2",
        "a bound that moves",
        "another comparison",
        "another first comparison",
        "a second condition that does not count",
        "a second count that the first condition lacks",
    ],
)
def test_a_condition_that_counts_otherwise_is_tested(made: onnx.ModelProto) -> None:
    assert (count(made, "scan"), count(made, "while")) == (0, 1)


def test_the_number_of_the_trip() -> None:
    nodes = [node("Cast i -> k", to=1), "Add v k -> w", "Identity w -> o", "Identity c -> again"]
    made = looping(nodes, "m t", {"x": f32["n"]}, initializers={"m": np.array(4), "t": np.array(True)})
    assert_like_onnxruntime(made, {"x": xs(2)})


@pytest.mark.slow
def test_a_loop_in_a_loop_reads_from_all_around() -> None:
    inner = body(
        ["Add u w -> p", "Add p x -> q", "Identity c2 -> again2"],
        {"i2": NUMBER, "c2": FLAG, "u": f32["n"]},
        {"again2": bool_, "q": f32},
    )
    nodes = ["Mul v two -> w", node("Loop m2 t w -> o", body=inner), "Identity c -> again"]
    made = looping(
        nodes,
        "m t",
        {"x": f32["n"], "m2": NUMBER},
        initializers={"m": np.array(2), "t": np.array(True)},
    )
    assert_like_onnxruntime(made, {"x": xs(3), "m2": np.array(3)}, {"x": xs(2), "m2": np.array(0)})


@pytest.mark.slow
def test_sizes_that_are_found_in_every_trip() -> None:
    nodes = ["NonZero v -> p", "Shape p -> s", node("Cast s -> o", to=1), "Add v x -> w", "Identity c -> again"]
    made = looping(nodes, "m t", {"x": f32["n"]}, initializers={"m": np.array(3), "t": np.array(True)})
    assert_like_onnxruntime(made, {"x": np.array([0, 1, -1], np.float32)})


def test_no_values_but_the_outputs() -> None:
    inside = body(["Identity x -> o", "Identity c -> again"], {"i": NUMBER, "c": FLAG}, {"again": bool_, "o": f32})
    made = model([node("Loop m _ -> z", body=inside)], {"x": f32["n"], "m": NUMBER}, ["z"])
    assert_like_onnxruntime(made, {"x": xs(2), "m": np.array(3)})


@pytest.mark.slow
def test_a_carried_shape_that_changes() -> None:
    nodes = [node("Concat v x -> w", axis=0), "Identity x -> o", "Identity c -> again"]
    made = looping(nodes, "m t", {"x": f32["n"], "m": NUMBER, "t": FLAG})
    feed = {"x": xs(3), "t": np.array(True)}
    assert_like_onnxruntime(made, *({**feed, "m": np.array(trips)} for trips in (1, 5)))


def test_a_carried_shape_that_may_change_is_checked_in_the_run() -> None:
    nodes = ["Compress v k -> w", "Identity x -> o", "Identity c -> again"]
    made = looping(nodes, "m t", {"x": f32["n"], "k": bool_["n"]}, initializers={"m": np.array(2), "t": np.array(True)})
    feeds = {"x": xs(3), "k": np.ones(3, bool)}
    assert_like_onnxruntime(made, feeds)
    with pytest.raises(BindError):
        by_dovetail(made, {"x": xs(3), "k": np.array([True, False, True])})


def test_a_carried_type_that_changes_is_malformed() -> None:
    nodes = ["Shape v -> w", "Identity x -> o", "Identity c -> again"]
    with pytest.raises(LoadError, match="before a trip"):
        import_model(looping(nodes, "m t", {"x": f32["n"], "m": NUMBER, "t": FLAG}))


@pytest.mark.parametrize(("given", "trips"), [("m t", 2**40), ("_ t", 0), ("_ _", 0)])
def test_a_loop_without_an_end(given: str, trips: int) -> None:
    known: dict[str, Array] = {"t": np.array(True), "m": np.array(trips)}
    made = looping(STEP, given, {"x": f32["n"]}, initializers={k: known[k] for k in given.split() if k != "_"})
    started = time.process_time()
    with pytest.raises(UnsupportedError, match="nothing ends"):
        import_model(made)
    assert time.process_time() - started < 1


def test_a_condition_inside_that_has_none_outside() -> None:
    nodes = ["Add v x -> w", "Identity w -> o", node("ReduceMax w -> top", keepdims=0), "Less top two -> again"]
    made = looping(nodes, "m _", {"x": f32["n"]}, initializers={"m": np.array(3)})
    with pytest.raises(UnsupportedError, match="has none outside"):
        import_model(made)


def test_a_body_of_other_inputs_than_the_node_gives() -> None:
    inside = body(["Identity c -> again"], {"i": NUMBER, "c": FLAG}, {"again": bool_})
    made = model([node("Loop m _ x -> y", body=inside)], {"x": f32["n"], "m": NUMBER}, ["y"])
    with pytest.raises(LoadError, match="a body of 2 inputs"):
        import_model(made)


# Scan -------------------------------------------------------------------------------------------------------------


def scanning(opset: int = 13, **attributes: Any) -> onnx.ModelProto:
    """Running sums of x, with the products of x and w beside them."""
    inside = body(
        ["Add s p -> t", "Mul p q -> o", "Mul t k -> u"],
        {"s": f32["n"], "p": f32["n"], "q": f32["n"]},
        {"t": f32, "o": f32, "u": f32},
    )
    return model(
        [node("Scan h x w -> y z v", body=inside, num_scan_inputs=2, **attributes)],
        {"h": f32["n"], "x": f32["a", "b"], "w": f32["c", "d"], "k": f32["n"]},
        ["y", "z", "v"],
        opset=opset,
    )


@pytest.mark.parametrize("opset", [9, 11, 16, 21])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_input_directions": [0, 1]},
        {"scan_input_directions": [1, 1], "scan_output_directions": [1, 0]},
        {"scan_output_axes": [1, 0]},
        {"scan_output_axes": [1, 1], "scan_output_directions": [0, 1]},
    ],
)
def test_directions_and_axes(opset: int, attributes: dict[str, list[int]]) -> None:
    made = scanning(opset, **attributes)
    feeds = [{"h": xs(n), "x": xs(s, n), "w": xs(s, n), "k": xs(n)} for s, n in ((4, 3), (1, 2))]
    assert_like_onnxruntime(made, *feeds)


@pytest.mark.parametrize("axes", [[1, 0], [-1, 0]])
def test_axes_of_what_is_scanned(axes: list[int]) -> None:
    made = scanning(9 if axes[0] > 0 else 11, scan_input_axes=axes)
    assert_like_onnxruntime(made, {"h": xs(3), "x": xs(3, 4), "w": xs(4, 3), "k": xs(3)})


def batched(lens: bool, **attributes: Any) -> onnx.ModelProto:
    inside = body(["Add s p -> t", "Mul t k -> o"], {"s": f32["n"], "p": f32["n"]}, {"t": f32, "o": f32})
    inputs = {"h": f32["b", "n"], "x": f32["b", "s", "n"], "k": f32["n"]} | ({"l": i64["b"]} if lens else {})
    first = "l" if lens else "_"
    return model(
        [node(f"Scan {first} h x -> y z", body=inside, num_scan_inputs=1, **attributes)], inputs, ["y", "z"], opset=8
    )


@pytest.mark.slow
def test_a_scan_of_every_element_of_a_batch() -> None:
    feeds = {"h": xs(2, 3), "x": xs(2, 4, 3), "k": xs(3)}
    assert_like_onnxruntime(batched(False), feeds)
    assert_like_onnxruntime(batched(False, directions=[1]), feeds)
    assert_like_onnxruntime(batched(True), {**feeds, "l": np.array([4, 2])})
    with pytest.raises(UnsupportedError, match="reversed"):
        import_model(batched(True, directions=[1]))


def test_numbers_of_axes_that_do_not_fit() -> None:
    with pytest.raises(LoadError, match="scan_input_axes for 2"):
        import_model(scanning(scan_input_axes=[0]))


def test_a_loop_is_one_op_however_often_it_runs() -> None:
    made = looping(STEP, "m t", {"x": f32["n"]}, initializers={"m": np.array(100_000), "t": np.array(True)})
    started = time.process_time()
    graph = import_model(made)
    assert time.process_time() - started < 1
    assert sum(v.op is ops.scan_ for v in graph.values) == 1
