"""ONNX models written node by node, as exporters write them: what dovetail and its peers are all given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dovetail.ir.literal import Array

OPSET = 17


class Net:
    """A model while it is written. Nodes are numbered; weights are drawn from a seed and scaled to keep values tame."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._kept: dict[tuple[str, bytes, tuple[int, ...]], str] = {}

    def input(self, name: str, element: int, shape: Sequence[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, element, list(shape)))
        return name

    def output(self, name: str, value: str, element: int = TensorProto.FLOAT) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self.outputs.append(helper.make_tensor_value_info(name, element, None))

    def op(self, op_type: str, *inputs: str, count: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or a list of them."""
        outputs = [f"v{len(self.nodes)}_{i}" for i in range(count)]
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), outputs, name=name, **attributes))
        return outputs[0] if count == 1 else outputs

    def array(self, array: Array, name: str = "") -> str:
        """Add a constant; equal ones without a name are kept once."""
        key = (str(array.dtype), array.tobytes(), array.shape)
        if not name and key in self._kept:
            return self._kept[key]
        unique = name or f"constant{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, unique))
        if not name:
            self._kept[key] = unique
        return unique

    def ints(self, *numbers: int) -> str:
        return self.array(np.array(numbers, np.int64))

    def number(self, value: float) -> str:
        return self.array(np.array(value, np.float32))

    def weight(self, name: str, *shape: int) -> str:
        """Add a matrix or a kernel, scaled by what it sums over."""
        fan = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        return self.array((self.rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32), name)

    def vector(self, name: str, size: int, *, around: float = 0.0) -> str:
        return self.array((around + 0.05 * self.rng.standard_normal(size)).astype(np.float32), name)

    def linear(self, name: str, x: str, inner: int, outer: int, *, bias: bool = True) -> str:
        y = self.op("MatMul", x, self.weight(f"{name}.weight", inner, outer))
        return self.op("Add", y, self.vector(f"{name}.bias", outer)) if bias else y

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, initializer=self.weights)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        proto.ir_version = 8
        return proto
