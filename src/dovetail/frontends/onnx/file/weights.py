"""Weights written back into an ONNX model: its initializers replaced, all else as it was."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import onnx
from google.protobuf.message import EncodeError
from onnx import external_data_helper, numpy_helper

from dovetail.errors import LoadError
from dovetail.frontends.onnx.file.read import read_model
from dovetail.ir.literal import Array
from dovetail.ir.whole_file import write_whole

_MOST = (1 << 31) - 1
"""Bytes of one message, at most."""


def write_weights(source: str | os.PathLike[str], target: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Write the model of a file with other numbers in its initializers, which stand in the new file itself."""
    model = read_model(Path(source))
    external_data_helper.load_external_data_for_model(model, str(Path(source).parent))
    left = dict(arrays)
    for tensor in model.graph.initializer:
        array = left.pop(tensor.name, None)
        if array is None:
            continue
        if tuple(tensor.dims) != array.shape:
            raise LoadError(
                f"{tensor.name} is {list(tensor.dims)} in the model, and {list(array.shape)} in the weights"
            )
        made = numpy_helper.from_array(array, tensor.name)
        if made.data_type != tensor.data_type:
            raise LoadError(f"{tensor.name} has another type in the model", hint="write safetensors instead")
        tensor.CopyFrom(made)
    if left:
        raise LoadError(
            f"the model has no initializer {', '.join(list(left)[:5])}", hint="write safetensors instead; it has names"
        )
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    try:
        content = model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise LoadError(f"a model of more than {_MOST:,} bytes", hint="write safetensors instead") from error
    write_whole(target, [content])


__all__ = ["write_weights"]
