"""Tensors of a model as arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper

from dovetail.frontends.onnx.types import element
from dovetail.ir.literal import Array


class Tensors:
    """Reads the tensors of one model; `folder` is where its external data lies."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def array(self, tensor: onnx.TensorProto, where: str) -> Array:
        element(tensor.data_type, where)
        return onnx.numpy_helper.to_array(tensor, base_dir=str(self.folder or ""))

    def dense(self, sparse: onnx.SparseTensorProto, where: str) -> Array:
        values = self.array(sparse.values, where)
        indices = self.array(sparse.indices, where)
        result = np.zeros(tuple(sparse.dims), values.dtype)
        if indices.ndim == 1:
            result.reshape(-1)[indices] = values
        else:
            result[tuple(indices.T)] = values
        return result
