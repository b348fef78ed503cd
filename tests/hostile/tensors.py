"""Tensors that are not what they say: sizes, lengths, element types, sparse ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dovetail.ir.dtype import f32
from tests.frontends.onnx.build import model
from tests.hostile.case import collected, hostile, variants

X = {"x": f32["n", 4]}
AGAIN = ("LoadError",)


def with_tensor(tensor: TensorProto) -> onnx.ModelProto:
    """A model that reads a tensor."""
    tensor.name = "w"
    made = model(["Identity w -> y"], X, ["y"])
    made.graph.initializer.append(tensor)
    return made


def raw(folder: Path, kind: int, dims: Sequence[int], length: int) -> onnx.ModelProto:
    """Bytes that do not fit their sizes:"""
    return with_tensor(TensorProto(data_type=kind, dims=dims, raw_data=bytes(length)))


lengths = variants(
    raw,
    {
        "one_too_few": (TensorProto.FLOAT, [4], 15),
        "one_too_many": (TensorProto.FLOAT, [4], 17),
        "none": (TensorProto.FLOAT, [4], 0),
        "some_for_an_empty_tensor": (TensorProto.FLOAT, [0], 4),
        "terabytes_promised": (TensorProto.FLOAT, [2**20, 2**20], 16),
        "half_floats": (TensorProto.FLOAT16, [4], 7),
        "bools": (TensorProto.BOOL, [9], 2),
        "four_bits": (TensorProto.INT4, [5], 2),
        "two_bits": (TensorProto.UINT2, [5], 1),
        "four_bit_floats": (TensorProto.FLOAT4E2M1, [3], 3),
        "complex": (TensorProto.COMPLEX64, [2], 8),
        "scalar": (TensorProto.INT64, [], 0),
    },
    *AGAIN,
)


def shaped(folder: Path, dims: Sequence[int]) -> onnx.ModelProto:
    """A tensor whose sizes are"""
    return with_tensor(TensorProto(data_type=TensorProto.FLOAT, dims=dims, float_data=[1.0] * 4))


shapes = variants(
    shaped,
    {
        "negative": ([-4],),
        "negative_twice": ([-2, -2],),
        "wrapping_to_four": ([2**62, 2**62 + 1, 4],),
        "wrapping_to_nothing": ([2**32, 2**32],),
        "empty_and_endless": ([0, 2**63 - 1, 2**63 - 1],),
        "the_largest": ([2**63 - 1],),
        "of_rank_100000": ([1] * 100_000,),
        "too_few": ([3],),
        "too_many": ([5],),
    },
    *AGAIN,
)


def listed(folder: Path, kind: int, dims: Sequence[int], name: str, numbers: Sequence[Any]) -> onnx.ModelProto:
    """Elements in the wrong number, range or field:"""
    tensor = TensorProto(data_type=kind, dims=dims)
    getattr(tensor, name).extend(numbers)
    return with_tensor(tensor)


fields = variants(
    listed,
    {
        "floats_as_doubles": (TensorProto.FLOAT, [2], "double_data", [1, 2]),
        "ints_as_floats": (TensorProto.INT32, [2], "float_data", [1, 2]),
        "longs_as_ints": (TensorProto.INT64, [2], "int32_data", [1, 2]),
        "floats_as_strings": (TensorProto.FLOAT, [2], "string_data", [b"1", b"2"]),
        "byte_of_256": (TensorProto.UINT8, [2], "int32_data", [1, 256]),
        "negative_byte": (TensorProto.UINT8, [2], "int32_data", [1, -1]),
        "signed_byte_of_200": (TensorProto.INT8, [2], "int32_data", [1, 200]),
        "bool_of_2": (TensorProto.BOOL, [2], "int32_data", [1, 2]),
        "half_of_17_bits": (TensorProto.FLOAT16, [2], "int32_data", [1, 1 << 16]),
        "bfloat_of_17_bits": (TensorProto.BFLOAT16, [2], "int32_data", [1, 1 << 16]),
        "eight_bit_float_of_9_bits": (TensorProto.FLOAT8E4M3FN, [2], "int32_data", [1, 256]),
        "four_bits_in_9": (TensorProto.INT4, [2], "int32_data", [256]),
        "four_bits_one_by_one": (TensorProto.UINT4, [4], "int32_data", [1, 2, 3, 4]),
        "two_bits_one_by_one": (TensorProto.INT2, [4], "int32_data", [1, 2, 3, 1]),
        "complex_without_half": (TensorProto.COMPLEX64, [2], "float_data", [1, 2, 3]),
        "uint32_beyond": (TensorProto.UINT32, [1], "uint64_data", [2**32]),
        "one_float_of_many": (TensorProto.FLOAT, [2**20], "float_data", [1]),
    },
    *AGAIN,
)


def kind(folder: Path, number: int) -> onnx.ModelProto:
    """A tensor whose element type is"""
    return with_tensor(TensorProto(data_type=number, dims=[1], raw_data=bytes(16)))


kinds = variants(
    kind,
    {"undefined": (0,), "beyond_all": (99,), "negative": (-1,), "complex128": (TensorProto.COMPLEX128,)},
    "LoadError",
    "UnsupportedError",
)


@hostile("UnsupportedError", says="string")
def strings(folder: Path) -> onnx.ModelProto:
    """A tensor of strings."""
    return with_tensor(TensorProto(data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"\xff"]))


@hostile("LoadError", says="and")
def elements_in_two_places(folder: Path) -> onnx.ModelProto:
    """Bytes and floats at once, of different numbers."""
    return with_tensor(TensorProto(data_type=TensorProto.FLOAT, dims=[1], raw_data=bytes(4), float_data=[1.0]))


@hostile("UnsupportedError", says="segments")
def tensor_in_segments(folder: Path) -> onnx.ModelProto:
    """A piece of a tensor that says it is from 0 to 2**62."""
    tensor = TensorProto(data_type=TensorProto.FLOAT, dims=[1], float_data=[1.0])
    tensor.segment.begin, tensor.segment.end = 0, 2**62
    return with_tensor(tensor)


@hostile()
def thousands_of_dims_of_nothing(folder: Path) -> onnx.ModelProto:
    """A tensor without elements, whose other sizes are large."""
    return with_tensor(TensorProto(data_type=TensorProto.FLOAT, dims=[0, 2**20, 2**20]))


@hostile()
def bools_that_are_neither(folder: Path) -> onnx.ModelProto:
    """Bools whose bytes are 2 and 255."""
    return with_tensor(TensorProto(data_type=TensorProto.BOOL, dims=[2], raw_data=b"\x02\xff"))


def constant(folder: Path, dims: Sequence[int], length: int) -> onnx.ModelProto:
    """A constant node whose tensor does not hold what it says:"""
    value = TensorProto(data_type=TensorProto.FLOAT, dims=dims, raw_data=bytes(length))
    return model([helper.make_node("Constant", [], ["y"], value=value)], X, ["y"])


constants = variants(constant, {"terabytes": ([2**40], 4), "negative": ([-1], 4), "cut_off": ([3], 4)}, *AGAIN)


def sparse(values: TensorProto, indices: TensorProto, dims: Sequence[int]) -> onnx.ModelProto:
    made = model(["Identity w -> y"], X, ["y"])
    entry = made.graph.sparse_initializer.add()
    values.name = "w"
    entry.values.CopyFrom(values)
    entry.indices.CopyFrom(indices)
    entry.dims.extend(dims)
    return made


def scattered(folder: Path, indices: Any, dims: Sequence[int]) -> onnx.ModelProto:
    """A sparse tensor with"""
    values = numpy_helper.from_array(np.ones(len(indices), np.float32))
    return sparse(values, numpy_helper.from_array(np.array(indices, np.int64)), dims)


scatterings = variants(
    scattered,
    {
        "an_index_beyond": ([0, 5], [2, 2]),
        "a_negative_index": ([-1, 2], [2, 2]),
        "indices_out_of_order": ([2, 1], [2, 2]),
        "an_index_twice": ([1, 1], [2, 2]),
        "more_values_than_room": ([0, 1, 2, 3, 4], [2, 2]),
        "a_dense_size_of_terabytes": ([0, 1, 2, 3], [2**20, 2**20]),
        "a_dense_size_that_wraps": ([0, 1], [2**62, 4]),
        "a_negative_dense_size": ([0, 1], [-2, 2]),
        "a_column_beyond": ([[0, 2], [1, 0]], [2, 2]),
        "columns_of_another_rank": ([[0, 0, 0], [1, 0, 0]], [2, 2]),
        "rows_out_of_order": ([[1, 0], [0, 1]], [2, 2]),
        "indices_of_rank_three": ([[[0]], [[1]]], [2, 2]),
    },
    *AGAIN,
)


@hostile("LoadError")
def sparse_with_float_indices(folder: Path) -> onnx.ModelProto:
    """Indices that are floats."""
    ones = numpy_helper.from_array(np.ones(2, np.float32))
    return sparse(ones, numpy_helper.from_array(np.array([0.0, np.nan], np.float32)), [2, 2])


@hostile("LoadError")
def sparse_with_values_of_rank_two(folder: Path) -> onnx.ModelProto:
    """Values in a matrix."""
    ones = numpy_helper.from_array(np.ones((2, 1), np.float32))
    return sparse(ones, numpy_helper.from_array(np.array([0, 1], np.int64)), [2, 2])


@hostile("LoadError")
def sparse_with_fewer_indices(folder: Path) -> onnx.ModelProto:
    """Fewer indices than values."""
    ones = numpy_helper.from_array(np.ones(3, np.float32))
    return sparse(ones, numpy_helper.from_array(np.array([0, 1], np.int64)), [2, 2])


@hostile("LoadError", says="values for")
def thousands_of_sparse_tensors(folder: Path) -> onnx.ModelProto:
    """A thousand sparse tensors of one value, each four megabytes once it is written out."""
    made = model(["Relu x -> y"], X, ["y"])
    for i in range(1000):
        entry = made.graph.sparse_initializer.add()
        entry.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), f"w{i}"))
        entry.indices.CopyFrom(numpy_helper.from_array(np.array([i], np.int64)))
        entry.dims.extend([1 << 20])
    return made


CASES = collected(globals())
