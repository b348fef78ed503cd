"""ONNX models in another dtype of floats, and their weights and inputs in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DTYPES: Mapping[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
ELEMENTS: Mapping[str, int] = {"f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "f32": TensorProto.FLOAT}
MOST: Mapping[str, float] = {"f16": 65504.0, "bf16": 255 * 2.0**120}
"""The largest number of a dtype."""


def converted(model: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """The model with a dtype in place of f32; numbers beyond its range become the largest."""
    if dtype == "f32":
        return model
    element = ELEMENTS[dtype]

    def rounded(tensor: TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            array = _rounded(numpy_helper.to_array(tensor), dtype)
            # As bytes, since not every version of onnx knows the bf16 of ml_dtypes.
            made = helper.make_tensor(tensor.name, element, array.shape, array.tobytes(), raw=True)
            tensor.CopyFrom(made)

    graph = model.graph
    for tensor in graph.initializer:
        rounded(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = element
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                rounded(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = element
    return model


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with f16 in place of f32."""
    return converted(model, "f16")


def _rounded(array: Any, dtype: str) -> Any:
    return np.clip(array, -MOST[dtype], MOST[dtype]).astype(DTYPES[dtype])


def weights_of(model: onnx.ModelProto) -> dict[str, Any]:
    """The initializers by name, those of bf16 as ml_dtypes has them."""

    def array_of(tensor: TensorProto) -> Any:
        if tensor.data_type == TensorProto.BFLOAT16:
            return np.frombuffer(tensor.raw_data, ml_dtypes.bfloat16).reshape(tuple(tensor.dims))
        return numpy_helper.to_array(tensor)

    return {tensor.name: array_of(tensor) for tensor in model.graph.initializer}


def narrowed(arrays: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Arrays with floats in a dtype."""
    return {name: x.astype(DTYPES[dtype]) if is_float(x) else x for name, x in arrays.items()}


def widened(arrays: Mapping[str, Any], dtype: Any = np.float32) -> dict[str, Any]:
    """Arrays with floats as f32 or f64, which have every number of the others."""
    return {name: x.astype(dtype) if is_float(x) else x for name, x in arrays.items()}


def is_float(array: Any) -> bool:
    """Whether it is of one of the dtypes; NumPy does not count the bf16 of ml_dtypes as a float."""
    return any(array.dtype == np.dtype(dtype) for dtype in DTYPES.values())


__all__ = ["DTYPES", "ELEMENTS", "converted", "half", "is_float", "narrowed", "weights_of", "widened"]
