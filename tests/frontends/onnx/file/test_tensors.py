"""Tensors as arrays: every element type in each place that ONNX keeps it, against ONNX's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import SparseTensorProto, TensorProto, numpy_helper

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx.file.tensors import Tensors, checked_shape
from dovetail.frontends.onnx.file.types import ELEMENTS
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array, Literal

COUNT = 7
WIDE: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
}


def read(tensor: TensorProto, folder: Path | None = None) -> Array:
    return Tensors(folder).array(tensor, "a test")


def raw_bytes(kind: int) -> bytes:
    bits = ELEMENTS[kind].bits
    found = np.random.default_rng(kind).integers(0, 256, (COUNT * bits + 7) // 8).astype(np.uint8)
    if kind == TensorProto.BOOL:
        found %= 2
    if bits < 8:
        found[-1] &= (1 << (COUNT * bits % 8)) - 1  # what is left of the last byte is zero
    return found.tobytes()


def same_bits(a: Array, b: Array) -> bool:
    return Literal(a) == Literal(b)


@pytest.mark.parametrize("kind", ELEMENTS, ids=lambda k: TensorProto.DataType.Name(k))
def test_raw_data_reads_as_onnx_reads_it(kind: int) -> None:
    tensor = TensorProto(data_type=kind, dims=[1, COUNT], raw_data=raw_bytes(kind))
    found = read(tensor)
    assert found.dtype == ELEMENTS[kind].numpy and found.shape == (1, COUNT)
    assert same_bits(found, numpy_helper.to_array(tensor))


@pytest.mark.parametrize("kind", ELEMENTS, ids=lambda k: TensorProto.DataType.Name(k))
def test_typed_fields_hold_the_same_as_raw_data(kind: int) -> None:
    raw = raw_bytes(kind)
    typed = TensorProto(data_type=kind, dims=[COUNT])
    dtype = ELEMENTS[kind]
    if kind in WIDE:
        getattr(typed, WIDE[kind]).extend(np.frombuffer(raw, dtype.numpy).tolist())
    elif kind == TensorProto.COMPLEX64:
        typed.float_data.extend(np.frombuffer(raw, np.float32).tolist())
    elif kind in (TensorProto.UINT32, TensorProto.UINT64):
        typed.uint64_data.extend(np.frombuffer(raw, dtype.numpy).tolist())
    elif dtype.bits < 8 or dtype.kind in ("float", "bool"):
        typed.int32_data.extend(np.frombuffer(raw, f"u{dtype.itemsize}").tolist())
    else:
        typed.int32_data.extend(np.frombuffer(raw, dtype.numpy).tolist())
    assert same_bits(read(typed), read(TensorProto(data_type=kind, dims=[COUNT], raw_data=raw)))


def test_bits_of_floats_may_be_written_with_a_sign() -> None:
    plain = TensorProto(data_type=TensorProto.FLOAT16, dims=[1], int32_data=[0xC000])
    signed = TensorProto(data_type=TensorProto.FLOAT16, dims=[1], int32_data=[0xC000 - 0x10000])
    assert read(plain)[0] == read(signed)[0] == -2.0


def test_an_empty_tensor_needs_no_field() -> None:
    assert read(TensorProto(data_type=TensorProto.FLOAT, dims=[0, 3])).shape == (0, 3)
    assert read(TensorProto(data_type=TensorProto.FLOAT, dims=[0], raw_data=b"")).shape == (0,)


def test_a_bool_is_true_whatever_its_byte() -> None:
    found = read(TensorProto(data_type=TensorProto.BOOL, dims=[3], raw_data=b"\x00\x02\xff"))
    assert found.view(np.uint8).tolist() == [0, 1, 1]


def test_strings_are_not_supported() -> None:
    with pytest.raises(UnsupportedError, match="string"):
        read(TensorProto(data_type=TensorProto.STRING, dims=[1], string_data=[b"a"]))


def test_sizes_are_checked_before_anything_is_made() -> None:
    with pytest.raises(LoadError, match="a size is -1"):
        checked_shape([4, -1], f32, "")
    with pytest.raises(LoadError, match="of the sizes"):
        checked_shape([2**30, 2**30], f32, "")
    with pytest.raises(LoadError, match="of the sizes"):
        checked_shape([0, 2**40, 2**40], f32, "")
    assert checked_shape([0, 2**20, 3], f32, "") == (0, 2**20, 3)


def sparse(indices: Any, dims: list[int]) -> SparseTensorProto:
    made = SparseTensorProto(dims=dims)
    made.values.CopyFrom(numpy_helper.from_array(np.arange(1, len(indices) + 1, dtype=np.float32)))
    made.indices.CopyFrom(numpy_helper.from_array(np.array(indices, np.int64)))
    return made


def test_sparse_tensors_by_position_and_by_axis() -> None:
    flat = Tensors(None).dense(sparse([1, 5], [2, 3]), "")
    by_axis = Tensors(None).dense(sparse([[0, 1], [1, 2]], [2, 3]), "")
    assert flat.tolist() == by_axis.tolist() == [[0, 1, 0], [0, 0, 2]]


def test_a_sparse_tensor_without_values_is_zeros() -> None:
    made = SparseTensorProto(dims=[2, 2])
    made.values.CopyFrom(numpy_helper.from_array(np.zeros(0, np.float32)))
    made.indices.CopyFrom(numpy_helper.from_array(np.zeros((0, 2), np.int64)))
    assert Tensors(None).dense(made, "").tolist() == [[0, 0], [0, 0]]


def test_what_sparse_tensors_stand_for_adds_up() -> None:
    tensors = Tensors(None)
    with pytest.raises(LoadError, match="values for"):
        for _ in range(100):
            tensors.dense(sparse([0], [1 << 20]), "")
