"""Nodes whose attributes and inputs ask for what cannot be: confused types, absurd numbers, giant results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from dovetail.ir.dtype import f32, i64
from tests.frontends.onnx.build import model, node
from tests.hostile.case import collected, hostile, variants

X = {"x": f32["n", 4]}
IMAGE = {"x": f32[1, 4, 8, 8]}
MALFORMED = (
    "LoadError",
    "TypeRuleError",
    "UnsupportedError",
    "GraphError",
    "BindError",
    "NeedsValueError",
)
"""What a node that cannot be may end in; which of them is the operator's business."""
HUGE = 2**40


def attribute(folder: Path, made: AttributeProto) -> onnx.ModelProto:
    """An attribute that is not what its operator takes:"""
    found = model(["Softmax x -> y"], X, ["y"])
    found.graph.node[0].attribute.append(made)
    return found


attributes = variants(
    attribute,
    {
        "float_for_an_int": (helper.make_attribute("axis", 1.0),),
        "text_for_an_int": (helper.make_attribute("axis", "1"),),
        "list_for_an_int": (helper.make_attribute("axis", [1]),),
        "tensor_for_an_int": (AttributeProto(name="axis", type=AttributeProto.TENSOR),),
        "graph_for_an_int": (AttributeProto(name="axis", type=AttributeProto.GRAPH),),
        "int_that_is_a_float": (AttributeProto(name="axis", type=AttributeProto.INT, f=1.0),),
        "int_that_is_missing": (AttributeProto(name="axis", type=AttributeProto.INT),),
        "no_type": (AttributeProto(name="axis", i=1),),
        "unknown": (helper.make_attribute("axes", [1]),),
        "axis_out_of_range": (helper.make_attribute("axis", 2),),
        "axis_far_out_of_range": (helper.make_attribute("axis", 2**62),),
        "axis_far_below": (helper.make_attribute("axis", -(2**63)),),
    },
    *MALFORMED,
)


def convolution(folder: Path, given: dict[str, Any]) -> onnx.ModelProto:
    """A convolution with"""
    w = np.ones((4, 4, 3, 3), np.float32)
    return model([node("Conv x w -> y", **given)], IMAGE, ["y"], initializers={"w": w})


convolutions = variants(
    convolution,
    {
        "no_groups": ({"group": 0},),
        "negative_groups": ({"group": -1},),
        "too_many_groups": ({"group": 3},),
        "endless_groups": ({"group": 2**62},),
        "strides_of_zero": ({"strides": [0, 0]},),
        "negative_strides": ({"strides": [-1, 1]},),
        "dilations_of_zero": ({"dilations": [0, 1]},),
        "negative_dilations": ({"dilations": [1, -1]},),
        "endless_dilations": ({"dilations": [2**62, 2**62]},),
        "kernels_of_zero": ({"kernel_shape": [0, 0]},),
        "kernels_of_another_shape": ({"kernel_shape": [5, 5]},),
        "kernels_of_another_rank": ({"kernel_shape": [3]},),
        "pads_of_another_rank": ({"pads": [1]},),
        "negative_pads": ({"pads": [-9, -9, -9, -9]},),
        "unknown_padding": ({"auto_pad": "SOMEHOW"},),
        "strides_of_another_rank": ({"strides": [1, 1, 1]},),
    },
    *MALFORMED,
    stage="compile",
)


def pool(folder: Path, kind: str, given: dict[str, Any]) -> onnx.ModelProto:
    """A pooling with"""
    return model([node(f"{kind} x -> y", **given)], IMAGE, ["y"])


pools = variants(
    pool,
    {
        "no_kernel": ("MaxPool", {}),
        "a_kernel_of_zero": ("MaxPool", {"kernel_shape": [0, 2]}),
        "a_negative_kernel": ("AveragePool", {"kernel_shape": [-2, 2]}),
        "strides_of_zero": ("MaxPool", {"kernel_shape": [2, 2], "strides": [0, 1]}),
        "dilations_of_zero": ("MaxPool", {"kernel_shape": [2, 2], "dilations": [0, 1]}),
        "an_endless_kernel": ("MaxPool", {"kernel_shape": [2**62, 2**62]}),
    },
    *MALFORMED,
    stage="compile",
)


def shaping(folder: Path, made: onnx.NodeProto, kept: dict[str, Any]) -> onnx.ModelProto:
    """Movement that cannot be:"""
    return model([made], {"x": f32[2, 3, 4]}, list(made.output), initializers=kept)


def ints(*numbers: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


shapings = variants(
    shaping,
    {
        "axes_twice": (node("Transpose x -> y", perm=[0, 1, 1]), {}),
        "axes_out_of_range": (node("Transpose x -> y", perm=[0, 1, 3]), {}),
        "axes_missing": (node("Transpose x -> y", perm=[1, 0]), {}),
        "reshape_to_more": (node("Reshape x s -> y"), {"s": ints(5, 5)}),
        "reshape_to_minus_two": (node("Reshape x s -> y"), {"s": ints(-2, 12)}),
        "reshape_to_two_unknowns": (node("Reshape x s -> y"), {"s": ints(-1, -1)}),
        "reshape_that_copies_beyond": (node("Reshape x s -> y"), {"s": ints(2, 3, 4, 0)}),
        "reshape_to_endless": (node("Reshape x s -> y"), {"s": ints(2**62, 2**62)}),
        "reshape_that_wraps": (node("Reshape x s -> y"), {"s": ints(2**32, 2**32, 24)}),
        "reshape_to_a_matrix_of_sizes": (node("Reshape x s -> y"), {"s": np.ones((2, 2), np.int64)}),
        "reshape_to_floats": (node("Reshape x s -> y"), {"s": np.array([np.nan, 2.0], np.float32)}),
        "split_that_does_not_add_up": (node("Split x s -> y z", axis=1), {"s": ints(1, 1)}),
        "split_that_is_negative": (node("Split x s -> y z", axis=1), {"s": ints(-1, 4)}),
        "split_on_no_axis": (node("Split x s -> y z", axis=5), {"s": ints(1, 2)}),
        "split_into_none": (node("Split x -> y", axis=1, num_outputs=0), {}),
        "split_into_billions": (node("Split x -> y", axis=1, num_outputs=2**62), {}),
        "squeeze_of_more_than_one": (node("Squeeze x a -> y"), {"a": ints(0)}),
        "squeeze_on_no_axis": (node("Squeeze x a -> y"), {"a": ints(7)}),
        "unsqueeze_on_no_axis": (node("Unsqueeze x a -> y"), {"a": ints(2**62)}),
        "unsqueeze_twice_on_one": (node("Unsqueeze x a -> y"), {"a": ints(1, 1)}),
        "concat_on_no_axis": (node("Concat x x -> y", axis=9), {}),
        "concat_of_nothing": (node("Concat -> y", axis=0), {}),
        "slice_of_step_zero": (
            node("Slice x a b c d -> y"),
            {"a": ints(0), "b": ints(1), "c": ints(0), "d": ints(0)},
        ),
        "slice_on_no_axis": (node("Slice x a b c -> y"), {"a": ints(0), "b": ints(1), "c": ints(3)}),
        "slice_of_unequal_lists": (node("Slice x a b -> y"), {"a": ints(0, 0), "b": ints(1)}),
        "gather_on_no_axis": (node("Gather x i -> y", axis=3), {"i": ints(0)}),
        "expand_to_negative": (node("Expand x s -> y"), {"s": ints(-5, 3, 4)}),
        "tile_by_negative": (node("Tile x s -> y"), {"s": ints(-1, 1, 1)}),
        "tile_of_another_rank": (node("Tile x s -> y"), {"s": ints(2)}),
        "pad_of_another_rank": (node("Pad x s -> y"), {"s": ints(1, 1)}),
        "pad_to_negative": (node("Pad x s -> y"), {"s": ints(-9, 0, 0, 0, 0, 0)}),
        "constant_of_negative_shape": (node("ConstantOfShape s -> y"), {"s": ints(-1)}),
        "range_of_step_zero": (
            node("Range a b c -> y"),
            {"a": np.array(0, np.int64), "b": np.array(9, np.int64), "c": np.array(0, np.int64)},
        ),
        "blocks_of_zero": (node("DepthToSpace i -> y", blocksize=0), {"i": np.ones((1, 4, 2, 2), np.float32)}),
        "one_hot_of_negative_depth": (
            node("OneHot i d v -> y"),
            {"i": ints(0, 1), "d": np.array(-3, np.int64), "v": np.array([0, 1], np.float32)},
        ),
        "top_of_more_than_there_are": (node("TopK x k -> y i"), {"k": ints(9)}),
        "top_of_negative": (node("TopK x k -> y i"), {"k": ints(-1)}),
        "einsum_of_other_letters": (node("Einsum x -> y", equation="ab->c"), {}),
        "einsum_of_megabytes": (node("Einsum x -> y", equation="a" * (1 << 20)), {}),
        "cast_to_nothing": (node("Cast x -> y", to=0), {}),
        "cast_to_beyond": (node("Cast x -> y", to=2**40), {}),
        "too_few_inputs": (node("Gemm x -> y"), {}),
        "too_many_inputs": (node("Relu x x x -> y"), {}),
        "too_many_outputs": (node("Relu x -> y z"), {}),
    },
    *MALFORMED,
    stage="compile",
)


def resizing(folder: Path, scales: Any, sizes: Any) -> onnx.ModelProto:
    """An image resized by"""
    kept = {"s": np.array(scales, np.float32)} if scales is not None else {"t": np.array(sizes, np.int64)}
    read = "Resize x _ s -> y" if scales is not None else "Resize x _ _ t -> y"
    return model([node(read)], IMAGE, ["y"], initializers=kept)


resizings = variants(
    resizing,
    {
        "nan": ([1, 1, np.nan, 1], None),
        "infinity": ([1, 1, np.inf, 1], None),
        "negative": ([1, 1, -1, 1], None),
        "zero": ([1, 1, 0, 1], None),
        "too_few_scales": ([2, 2], None),
        "to_negative_sizes": (None, [1, 4, -8, 8]),
        "to_sizes_of_another_rank": (None, [8, 8]),
    },
    *MALFORMED,
    stage="compile",
)


def giant(folder: Path, made: onnx.NodeProto, kept: dict[str, Any]) -> onnx.ModelProto:
    """A result of terabytes from a few bytes:"""
    return model([made], {"x": f32[1, 1, 2, 2]}, ["y"], initializers=kept)


_GIANT: dict[str, tuple[Any, ...]] = {
    "constant_of_shape": (node("ConstantOfShape s -> y"), {"s": ints(2**20, 2**20)}),
    "expand": (node("Expand x s -> y"), {"s": ints(2**20, 2**20, 2, 2)}),
    "tile": (node("Tile x s -> y"), {"s": ints(2**20, 2**20, 1, 1)}),
    "range": (
        node("Range a b c -> y"),
        {"a": np.array(0, np.int64), "b": np.array(HUGE, np.int64), "c": np.array(1, np.int64)},
    ),
    "pad": (node("Pad x s -> y"), {"s": ints(0, 0, 2**20, 2**20, 0, 0, 0, 0)}),
    "one_hot": (
        node("OneHot i d v -> y"),
        {"i": ints(0, 1), "d": np.array(HUGE, np.int64), "v": np.array([0, 1], np.float32)},
    ),
    "resize": (node("Resize x _ _ t -> y"), {"t": ints(1, 1, 2**20, 2**20)}),
    "random": (node("RandomUniform -> y", shape=[2**20, 2**20]), {}),
}
giants_compiled = variants(giant, {f"{k}_compiled": v for k, v in _GIANT.items() if k != "random"}, stage="compile")
giants_run = variants(
    giant, {f"{k}_run": v for k, v in _GIANT.items()}, "BindError", "UnsupportedError", "LoadError", stage="run"
)


@hostile(stage="compile")
def giant_eye(folder: Path) -> onnx.ModelProto:
    """A diagonal of a matrix that fits no machine, made from one that is never there."""
    nodes = [node("ConstantOfShape s -> m"), node("EyeLike m -> y")]
    return model(nodes, {}, ["y"], initializers={"s": ints(2**20, 2**20)})


@hostile("BindError", says="bytes", stage="run")
def giant_eye_run(folder: Path) -> onnx.ModelProto:
    """The same diagonal, run."""
    nodes = [node("ConstantOfShape s -> m"), node("EyeLike m -> y")]
    return model(nodes, {}, ["y"], initializers={"s": ints(2**20, 2**20)})


@hostile("BindError", says="bytes", stage="run")
def giant_between_small_ones(folder: Path) -> onnx.ModelProto:
    """A result of one number, through one of terabytes."""
    nodes = [node("Range a b c -> r"), node("Cast r -> f", to=TensorProto.FLOAT), node("Sin f -> s")]
    nodes.append(node("ReduceSum s -> y", keepdims=0))
    return model(
        nodes,
        {},
        ["y"],
        initializers={"a": np.array(0, np.int64), "b": np.array(HUGE, np.int64), "c": np.array(1, np.int64)},
    )


def endless(folder: Path, limit: float) -> onnx.ModelProto:
    """A range up to"""
    kept = {"a": np.array(0, np.float32), "b": np.array(limit, np.float32), "c": np.array(1, np.float32)}
    return model([node("Range a b c -> y")], {}, ["y"], initializers=kept)


endless_ranges = variants(endless, {"nan": (np.nan,), "infinity": (np.inf,)}, *MALFORMED, stage="run")


@hostile(*MALFORMED, stage="run")
def giant_that_the_run_finds(folder: Path) -> onnx.ModelProto:
    """A size of terabytes that is computed from an input while it runs."""
    nodes = [node("Mul n k -> s"), node("ConstantOfShape s -> y")]
    return model(nodes, {"n": i64[1]}, ["y"], initializers={"k": ints(2**39)})


@hostile(*MALFORMED, stage="run")
def negative_size_that_the_run_finds(folder: Path) -> onnx.ModelProto:
    """A size that comes out negative while it runs."""
    nodes = [node("Sub n k -> s"), node("ConstantOfShape s -> y")]
    return model(nodes, {"n": i64[1]}, ["y"], initializers={"k": ints(100)})


def padding(folder: Path, amount: int) -> onnx.ModelProto:
    """A pooling of a constant whose result is small and whose padding is of"""
    image = np.ones((1, 1, 4, 4), np.int8)
    given: dict[str, Any] = {"kernel_shape": [amount, 1], "strides": [amount, 1], "pads": [amount - 1, 0, 0, 0]}
    return model([node("MaxPool w -> y", **given)], {}, ["y"], opset=12, initializers={"w": image})


paddings = variants(padding, {"gigabytes": (2**32,), "terabytes": (2**40,)}, stage="compile")
paddings_run = variants(padding, {"terabytes_run": (2**40,)}, "BindError", stage="run")


@hostile()
def shapes_that_square(folder: Path) -> onnx.ModelProto:
    """A size that is squared forty times over."""
    nodes = [node("Shape x -> s0"), node("Add s0 one -> t0")]
    nodes += [node(f"Mul t{i} t{i} -> t{i + 1}") for i in range(40)]
    nodes.append(node("ConstantOfShape t40 -> y"))
    return model(nodes, {"x": f32["a", "b"]}, ["y"], initializers={"one": ints(1)})


@hostile()
def long_chain(folder: Path) -> onnx.ModelProto:
    """Three thousand nodes in a row, deeper than any stack of calls."""
    nodes = [node(f"Add v{i} x -> v{i + 1}") for i in range(3000)]
    return model(nodes, {"v0": f32[4], "x": f32[4]}, ["v3000"])


@hostile()
def thousands_of_inputs(folder: Path) -> onnx.ModelProto:
    """A sum of two thousand inputs."""
    names = [f"x{i}" for i in range(2000)]
    return model([helper.make_node("Sum", names, ["y"])], {n: f32[4] for n in names}, ["y"])


@hostile("UnsupportedError")
def sequence_and_strings(folder: Path) -> onnx.ModelProto:
    """Operators on strings."""
    return model([node("StringNormalizer x -> y")], X, ["y"])


CASES = collected(globals())
