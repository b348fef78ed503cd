"""Operators that move elements, against onnxruntime: sizes that are symbols, older opsets, bounds of all kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.errors import BindError, DovetailError, LoadError, NeedsValueError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import f32, i64
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node

FAR = 2**63 - 1


def x_of(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("shape", [(0, -1), (-1, 0), (0, 2, 3), (0, 3, -1), (2, -1), (-1,), (0, 0, 1)])
def test_reshape_copies_sizes_and_finds_what_is_left(shape: tuple[int, ...]) -> None:
    m = model(["Reshape x s -> y"], {"x": f32["b", 6]}, ["y"], initializers={"s": ints(*shape)})
    assert_like_onnxruntime(m, {"x": x_of(2, 6)}, {"x": x_of(4, 6)}, {"x": x_of(6, 6)})


def test_reshape_to_sizes_of_another_tensor() -> None:
    m = model(
        ["Shape x -> s", "Gather s zero -> b", "Mul b two -> d", "Concat d rest -> t", "Reshape x t -> y"],
        {"x": f32["b", 6]},
        ["y"],
        initializers={"zero": ints(0), "two": ints(2), "rest": ints(3)},
    )
    m.graph.node[3].attribute.append(node("Concat a -> b", axis=0).attribute[0])
    assert_like_onnxruntime(m, {"x": x_of(2, 6)}, {"x": x_of(5, 6)})


def test_reshape_with_zeros_that_are_meant() -> None:
    m = model([node("Reshape x s -> y", allowzero=1)], {"x": f32[0, 3]}, ["y"], initializers={"s": ints(3, 0)})
    assert_like_onnxruntime(m, {"x": x_of(0, 3)})


def test_reshape_that_copies_what_is_not_there_is_refused() -> None:
    with pytest.raises(LoadError, match="behind the 1 axes"):
        import_model(model(["Reshape x s -> y"], {"x": f32[6]}, ["y"], initializers={"s": ints(6, 0)}))


def test_reshape_to_a_shape_that_the_caller_chooses_asks_for_it() -> None:
    m = model(["Reshape x s -> y"], {"x": f32["b", 6], "s": i64[2]}, ["y"])
    with pytest.raises(NeedsValueError):
        import_model(m)
    assert_like_onnxruntime(m, {"x": x_of(2, 6)}, {"x": x_of(4, 6)}, fixed={"s": ints(-1, 3)})


LARGEST = [
    node("ReduceMax x -> top", keepdims=0),
    node("Cast top -> k", to=7),
    node("Unsqueeze k front -> counts"),
]
"""A number that the run finds: the largest element of x."""


def feeds(*tops: int, shape: tuple[int, ...] = (2, 6)) -> list[dict[str, Array]]:
    return [{"x": np.full(shape, top, np.float32) - np.arange(shape[-1], dtype=np.float32)} for top in tops]


def in_run(nodes: list[Any], type: Any = f32["b", 6], **initializers: Array) -> Any:
    return model([*LARGEST, *nodes], {"x": type}, ["y"], opset=18, initializers={"front": ints(0), **initializers})


def test_reshape_to_one_size_that_the_run_computes() -> None:
    m = in_run([node("Concat rest counts -> s", axis=0), "Reshape x s -> y"], rest=ints(4))
    assert_like_onnxruntime(m, *feeds(3), *feeds(6, shape=(4, 6)))


@pytest.mark.slow
def test_reshape_to_several_sizes_that_the_run_computes() -> None:
    m = in_run([node("Concat counts counts rest -> s", axis=0), "Reshape x s -> y"], rest=ints(-1))
    assert_like_onnxruntime(m, *feeds(2), *feeds(1), *feeds(3, shape=(3, 6)))
    (with_five,) = feeds(5)
    with pytest.raises(BindError):
        by_dovetail(m, with_five)


def test_transpose_turns_round_and_by_name() -> None:
    m = model(["Transpose x -> a", node("Transpose x -> b", perm=[1, 2, 0])], {"x": f32["b", 3, "s"]}, ["a", "b"])
    assert_like_onnxruntime(m, {"x": x_of(2, 3, 4)}, {"x": x_of(1, 3, 2)})


def test_squeeze_by_attribute_by_input_and_of_all() -> None:
    old = model([node("Squeeze x -> y", axes=[1])], {"x": f32["b", 1, 3, 1]}, ["y"], opset=11)
    assert_like_onnxruntime(old, {"x": x_of(2, 1, 3, 1)})
    new = model(["Squeeze x a -> y"], {"x": f32["b", 1, 3, 1]}, ["y"], opset=13, initializers={"a": ints(-1, -3)})
    assert_like_onnxruntime(new, {"x": x_of(2, 1, 3, 1)}, {"x": x_of(1, 1, 3, 1)})
    every = model(["Squeeze x -> y"], {"x": f32["b", 1, 3, 1]}, ["y"], opset=13)
    assert_like_onnxruntime(every, {"x": x_of(2, 1, 3, 1)}, {"x": x_of(5, 1, 3, 1)})


def test_squeeze_of_all_refuses_a_symbol_that_turns_out_to_be_one() -> None:
    m = model(["Squeeze x -> y"], {"x": f32["b", 1, 3]}, ["y"], opset=13)
    with pytest.raises(BindError):
        by_dovetail(m, {"x": x_of(1, 1, 3)})


@pytest.mark.parametrize("opset", [11, 13])
def test_unsqueeze(opset: int) -> None:
    if opset < 13:
        m = model([node("Unsqueeze x -> y", axes=[-1, 0, 2])], {"x": f32["b", 3]}, ["y"], opset=opset)
    else:
        m = model(["Unsqueeze x a -> y"], {"x": f32["b", 3]}, ["y"], opset=opset, initializers={"a": ints(-1, 0, 2)})
    assert_like_onnxruntime(m, {"x": x_of(2, 3)}, {"x": x_of(4, 3)})


@pytest.mark.parametrize("axis", [-3, -1, 0, 1, 2, 3])
def test_flatten(axis: int) -> None:
    m = model([node("Flatten x -> y", axis=axis)], {"x": f32["b", 3, "s"]}, ["y"], opset=13)
    assert_like_onnxruntime(m, {"x": x_of(2, 3, 4)}, {"x": x_of(1, 3, 2)})


def test_concat_joins_sizes_that_are_symbols() -> None:
    m = model([node("Concat x z x -> y", axis=-1)], {"x": f32["b", "s"], "z": f32["b", "t"]}, ["y"])
    assert_like_onnxruntime(m, {"x": x_of(2, 3), "z": x_of(2, 1)}, {"x": x_of(1, 2), "z": x_of(1, 5)})


def test_concat_of_old_has_an_axis_by_default() -> None:
    m = model(["Concat x x -> y"], {"x": f32[2, 3]}, ["y"], opset=3)
    (result,) = by_dovetail(m, {"x": x_of(2, 3)})
    assert result["y"].tolist() == [[0, 1, 2, 0, 1, 2], [3, 4, 5, 3, 4, 5]]
    with pytest.raises(LoadError, match="without axis"):
        import_model(model(["Concat x x -> y"], {"x": f32[2, 3]}, ["y"], opset=13))


def test_split_by_sizes_and_into_equal_parts() -> None:
    old = model([node("Split x -> a b", split=[1, 5], axis=1)], {"x": f32["b", 6]}, ["a", "b"], opset=11)
    assert_like_onnxruntime(old, {"x": x_of(2, 6)})
    equal = model([node("Split x -> a b c", axis=0)], {"x": f32["b", 6]}, ["a", "b", "c"], opset=13)
    assert_like_onnxruntime(equal, {"x": x_of(3, 6)}, {"x": x_of(6, 6)})
    given = model(
        [node("Split x s -> a b", axis=-1)], {"x": f32["b", 6]}, ["a", "b"], opset=13, initializers={"s": ints(2, 4)}
    )
    assert_like_onnxruntime(given, {"x": x_of(2, 6)})


def test_split_by_a_count_leaves_a_smaller_part_at_the_end() -> None:
    m = model([node("Split x -> a b c", axis=0, num_outputs=3)], {"x": f32["b", 2]}, ["a", "b", "c"], opset=18)
    assert_like_onnxruntime(m, {"x": x_of(9, 2)}, {"x": x_of(8, 2)}, {"x": x_of(7, 2)})
    fixed = model([node("Split x -> a b", axis=1, num_outputs=2)], {"x": f32["b", 7]}, ["a", "b"], opset=18)
    assert_like_onnxruntime(fixed, {"x": x_of(2, 7)})


@pytest.mark.slow
@pytest.mark.parametrize("opset", [13, 18])
def test_split_into_sizes_that_the_run_computes(opset: int) -> None:
    rest = [node("Sub six counts -> others"), node("Concat counts others -> s", axis=0)]
    m = model(
        [*LARGEST, *rest, node("Split x s -> a b", axis=-1)],
        {"x": f32["b", 6]},
        ["a", "b"],
        opset=opset,
        initializers={"front": ints(0), "six": ints(6)},
    )
    assert_like_onnxruntime(m, *feeds(2), *feeds(6, 0), *feeds(5, shape=(3, 6)))
    three = model(
        [*LARGEST, node("Concat counts counts -> s", axis=0), node("Split x s -> a b c", axis=-1)],
        {"x": f32["b", 6]},
        ["a", "b", "c"],
        opset=18,
        initializers={"front": ints(0)},
    )
    with pytest.raises(LoadError, match="2 pieces for 3 outputs"):
        import_model(three)


@pytest.mark.parametrize(
    ("nodes", "initializers"),
    [
        (["Split x s -> a b"], {"s": ints(2, 3)}),
        (["Split x s -> a b"], {"s": ints(6)}),
        (["Split x s -> a b"], {"s": ints(7, -1)}),
        ([node("Split x -> a b", num_outputs=3)], {}),
    ],
)
def test_split_that_does_not_fit_is_refused(nodes: list[Any], initializers: dict[str, Array]) -> None:
    with pytest.raises(DovetailError):
        import_model(model(nodes, {"x": f32[6]}, ["a", "b"], opset=18, initializers=initializers))


BOUNDS = [
    (1, 3, 1), (0, FAR, 2), (-2, FAR, 1), (0, -1, 1), (5, 0, -1), (FAR, -FAR - 1, -1), (-1, -FAR, -2), (4, 2, 1),
    (-100, 100, 3), (2, 2, 1), (3, -FAR - 1, -1), (100, 1, -1), (-3, -1, 1), (0, 2**31 - 1, 1), (-2, -6, -3),
    (FAR, -FAR - 1, 1), (-FAR - 1, -FAR - 1, -3), (-4, -3, -3), (-2, 7, -2), (3, -3, 1), (5, 7, 1),
]  # fmt: skip


@pytest.mark.parametrize(("start", "end", "step"), BOUNDS)
def test_slice(start: int, end: int, step: int) -> None:
    m = model(
        ["Slice x s e a t -> y"],
        {"x": f32[2, 6]},
        ["y"],
        initializers={"s": ints(start), "e": ints(end), "a": ints(-1), "t": ints(step)},
    )
    assert_like_onnxruntime(m, {"x": x_of(2, 6)})


@pytest.mark.parametrize(("start", "end", "step"), BOUNDS)
def test_slice_of_a_size_that_is_a_symbol(start: int, end: int, step: int) -> None:
    m = model(
        ["Slice x s e a t -> y"],
        {"x": f32[2, "s"]},
        ["y"],
        initializers={"s": ints(start), "e": ints(end), "a": ints(1), "t": ints(step)},
    )
    assert_like_onnxruntime(m, {"x": x_of(2, 6)}, {"x": x_of(2, 7)}, {"x": x_of(2, 4)})


def test_slice_beyond_a_short_axis_takes_what_there_is() -> None:
    m = model(
        ["Slice x s e -> y", "Slice x t e -> z"],
        {"x": f32["s"]},
        ["y", "z"],
        initializers={"s": ints(0), "e": ints(4), "t": ints(-3)},
    )
    assert_like_onnxruntime(m, {"x": x_of(6)}, {"x": x_of(2)}, {"x": x_of(4)})


def test_slice_of_old_by_attributes() -> None:
    m = model([node("Slice x -> y", starts=[1, -2], ends=[FAR, 3], axes=[0, 1])], {"x": f32["b", 4]}, ["y"], opset=9)
    assert_like_onnxruntime(m, {"x": x_of(3, 4)}, {"x": x_of(2, 4)})
    every = model([node("Slice x -> y", starts=[1, 0], ends=[3, 2])], {"x": f32[3, 4]}, ["y"], opset=9)
    assert_like_onnxruntime(every, {"x": x_of(3, 4)})


def test_slice_up_to_a_size_of_another_tensor() -> None:
    m = model(
        [
            "Shape x -> shape", "Gather shape one -> n", "Slice table zero n one -> front",
            "Neg n -> minus", "Slice table minus far one -> back",
        ],
        {"x": f32["b", "s"]},
        ["front", "back"],
        initializers={"table": x_of(2, 8), "zero": ints(0), "one": ints(1), "far": ints(FAR)},
    )  # fmt: skip
    assert_like_onnxruntime(m, {"x": x_of(1, 3)}, {"x": x_of(1, 8)})
    with pytest.raises(BindError):  # -0 is the whole axis to ONNX, and no part of it to a size
        by_dovetail(m, {"x": x_of(1, 0)})


def test_slice_of_one_element_up_to_a_size_of_another_tensor() -> None:
    m = model(
        [
            "Shape x -> shape", "Gather shape one -> n", "Slice table zero n zero -> front",
            "Sub one n -> missing", "Max missing zero -> start", "Slice table start far zero -> back",
        ],
        {"x": f32["b", "s"]},
        ["front", "back"],
        initializers={"table": x_of(1, 8), "zero": ints(0), "one": ints(1), "far": ints(FAR)},
    )  # fmt: skip
    assert_like_onnxruntime(m, {"x": x_of(1, 3)}, {"x": x_of(1, 1)})
    with pytest.raises(BindError):  # nothing is left of it then
        by_dovetail(m, {"x": x_of(1, 0)})


def test_slice_to_behind_the_end_of_a_symbol() -> None:
    m = model(
        ["Shape x -> n", "Add n n -> m", "Sub m n -> k", "Add n one -> more",
         "Slice x zero more -> y", "Slice x k far zero minus -> z"],
        {"x": f32["s"]},
        ["y", "z"],
        initializers={"zero": ints(0), "one": ints(1), "far": ints(-FAR), "minus": ints(-1)},
    )  # fmt: skip
    assert_like_onnxruntime(m, {"x": x_of(3)}, {"x": x_of(5)})


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_slice_by_bounds_that_the_run_computes(step: int) -> None:
    m = in_run(
        ["Neg counts -> minus", "Slice x counts end a t -> up", "Slice x minus end a t -> down", "Concat up down -> y"],
        end=ints(4 if step > 0 else 0),
        a=ints(1),
        t=ints(step),
    )
    m.graph.node[-1].attribute.append(node("Concat a -> b", axis=1).attribute[0])
    assert_like_onnxruntime(m, *feeds(0, 1, 3, 5, 9))


def test_slice_that_is_malformed_is_refused() -> None:
    for nodes, initializers in (
        (["Slice x s s a -> y"], {"s": ints(0, 1), "a": ints(0)}),
        (["Slice x s s a -> y"], {"s": ints(0, 1), "a": ints(1, -1)}),
        (["Slice x s s a a -> y"], {"s": ints(1), "a": ints(0)}),
    ):
        with pytest.raises(LoadError):
            import_model(model(nodes, {"x": f32[3, 4]}, ["y"], initializers=initializers))


@pytest.mark.parametrize("shape", [(1,), (2, 1, 3), (4, 3), (3, 1, 1), (1, 1, 1), (0, 1, 1)])
def test_expand_stretches_both_ways(shape: tuple[int, ...]) -> None:
    fits = {"x": f32["b", 1, 3]} if len(shape) < 3 else {"x": f32[1, "n", 3]}
    m = model(["Expand x s -> y"], fits, ["y"], initializers={"s": ints(*shape)})
    given = [(2, 1, 3), (5, 1, 3)] if len(shape) < 3 else [(1, 2, 3), (1, 4, 3)]
    assert_like_onnxruntime(m, *({"x": x_of(*g)} for g in given))


def test_expand_to_sizes_of_another_tensor() -> None:
    m = model(["Shape z -> s", "Expand x s -> y"], {"x": f32[3, 1], "z": f32["b", 1, "t"]}, ["y"])
    assert_like_onnxruntime(m, {"x": x_of(3, 1), "z": x_of(2, 1, 4)}, {"x": x_of(3, 1), "z": x_of(1, 1, 2)})


@pytest.mark.slow
def test_expand_and_tile_by_numbers_that_the_run_computes() -> None:
    nodes = [node("Concat counts one -> s", axis=0), node("ReduceMin x front -> low"), "Expand low s -> y"]
    assert_like_onnxruntime(in_run(nodes, one=ints(1)), *feeds(1, 3, 0))
    free = in_run([node("Concat counts one one -> s", axis=0), "Expand x s -> y"], one=ints(1))
    assert_like_onnxruntime(free, *feeds(2), *feeds(3, shape=(1, 6)))
    tiled = in_run([node("Concat counts two -> s", axis=0), "Tile x s -> y"], two=ints(2))
    assert_like_onnxruntime(tiled, *feeds(1, 3, 0))


@pytest.mark.slow
def test_tile() -> None:
    m = model(["Tile x r -> y"], {"x": f32["b", 2, 1]}, ["y"], initializers={"r": ints(2, 3, 4)})
    assert_like_onnxruntime(m, {"x": x_of(2, 2, 1)}, {"x": x_of(1, 2, 1)})
    none = model(["Tile x r -> y"], {"x": f32["b", 2]}, ["y"], initializers={"r": ints(0, 1)})
    assert_like_onnxruntime(none, {"x": x_of(2, 2)})
