"""MiniLM as an ONNX file, written node by node from its safetensors file, so that onnxruntime can always run it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from dovetail.frontends.safetensors import read_safetensors

Array = NDArray[Any]
OPSET = 20
"""The first with Gelu."""
_IR = 9
_NAMES = ("input_ids", "token_type_ids", "attention_mask")


class _Writer:
    """Nodes and initializers in the order in which they were added."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def add(self, op: str, *inputs: str, called: str = "", **attributes: Any) -> str:
        """The name of the first output of a new node."""
        output = called or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, name: str, array: Array) -> str:
        """The name of an initializer."""
        self.initializers.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name].astype(np.float32))

    def dense(self, x: str, name: str) -> str:
        kernel = self.constant(f"{name}.transposed", self.weights[f"{name}.weight"].astype(np.float32).T)
        return self.add("Add", self.add("MatMul", x, kernel), self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str, eps: float, called: str = "") -> str:
        scale, shift = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", x, scale, shift, called=called, axis=-1, epsilon=eps)


def write(folder: Path, path: Path) -> None:
    """Write the model with open batch and length."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = _Writer({name: np.asarray(a) for name, a in read_safetensors(folder / "model.safetensors").items()})
    _encoder(writer, config)
    open_shape = ["batch", "length"]
    graph = helper.make_graph(
        writer.nodes,
        "minilm",
        [helper.make_tensor_value_info(name, TensorProto.INT64, open_shape) for name in _NAMES],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*open_shape, config["hidden_size"]])],
        list(writer.initializers.values()),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR)
    half_made = path.with_suffix(".part")
    half_made.write_bytes(model.SerializeToString())
    os.replace(half_made, path)


def _encoder(writer: _Writer, config: dict[str, Any]) -> None:
    add, eps = writer.add, config["layer_norm_eps"]
    words = add("Gather", writer.weight("embeddings.word_embeddings.weight"), "input_ids")
    types = add("Gather", writer.weight("embeddings.token_type_embeddings.weight"), "token_type_ids")
    length = add("Shape", "input_ids", start=1, end=2)
    first = writer.constant("first", np.array([0], np.int64))
    places = add("Slice", writer.weight("embeddings.position_embeddings.weight"), first, length, first)
    x = writer.norm(add("Add", add("Add", words, types), places), "embeddings.LayerNorm", eps)
    masked = add("Cast", "attention_mask", to=int(TensorProto.FLOAT))
    masked = add("Unsqueeze", masked, writer.constant("heads_and_rows", np.array([1, 2], np.int64)))
    missing = add("Sub", writer.constant("one", np.array(1, np.float32)), masked)
    hidden = add("Mul", missing, writer.constant("lowest", np.array(np.finfo(np.float32).min)))
    for index in range(config["num_hidden_layers"]):
        last = "last_hidden_state" if index + 1 == config["num_hidden_layers"] else ""
        x = _layer(writer, x, hidden, f"encoder.layer.{index}", config, last)


def _layer(writer: _Writer, x: str, hidden: str, name: str, config: dict[str, Any], last: str) -> str:
    add, eps, heads = writer.add, config["layer_norm_eps"], config["num_attention_heads"]
    depth = config["hidden_size"] // heads
    split = writer.constant("split", np.array([0, 0, heads, depth], np.int64))
    joined = writer.constant("joined", np.array([0, 0, heads * depth], np.int64))
    q, k, v = (
        add("Reshape", writer.dense(x, f"{name}.attention.self.{part}"), split) for part in ("query", "key", "value")
    )
    q, v = (add("Transpose", y, perm=[0, 2, 1, 3]) for y in (q, v))
    scores = add("MatMul", q, add("Transpose", k, perm=[0, 2, 3, 1]))
    scaled = add("Div", scores, writer.constant("root", np.array(math.sqrt(depth), np.float32)))
    seen = add("MatMul", add("Softmax", add("Add", scaled, hidden), axis=-1), v)
    seen = add("Reshape", add("Transpose", seen, perm=[0, 2, 1, 3]), joined)
    dense = writer.dense(seen, f"{name}.attention.output.dense")
    x = writer.norm(add("Add", dense, x), f"{name}.attention.output.LayerNorm", eps)
    up = add("Gelu", writer.dense(x, f"{name}.intermediate.dense"))
    return writer.norm(add("Add", writer.dense(up, f"{name}.output.dense"), x), f"{name}.output.LayerNorm", eps, last)
