"""Small ONNX models from short descriptions, and onnxruntime as their judge.

m = model(["Gather x i -> y"], {"x": f32["b", 3], "i": i64[2]}, ["y"])
m = model([node("Gather x i -> y", axis=1)], {...}, ["y"], opset=11, initializers={"i": np.array([0, 2])})
assert_like_onnxruntime(m, {"x": ..., "i": ...}, {"x": ..., "i": ...})     # one compile, several sizes
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import dovetail
from dovetail.frontends.onnx import import_model
from dovetail.frontends.onnx.file.types import NUMBERS
from dovetail.ir.dtype import DType, of_numpy
from dovetail.ir.type import TensorType
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close

Array = NDArray[Any]


def node(description: str, *, domain: str = "", name: str = "", **attributes: Any) -> onnx.NodeProto:
    """`Op in in -> out out`; an underscore is an input or output that is left out. Arrays become tensors."""
    front, _, back = description.partition("->")
    op_type, *inputs = front.split()
    given: dict[str, Any] = {k: _attribute(v) for k, v in attributes.items()}
    return helper.make_node(op_type, _names(inputs), _names(back.split()), domain=domain, name=name, **given)


def _attribute(given: Any) -> Any:
    return numpy_helper.from_array(cast(Array, given)) if isinstance(given, np.ndarray) else given


def _names(listed: Iterable[str]) -> list[str]:
    return ["" if n == "_" else n for n in listed]


def model(
    nodes: Sequence[onnx.NodeProto | str],
    inputs: Mapping[str, TensorType],
    outputs: Sequence[str] | Mapping[str, TensorType],
    *,
    opset: int = 21,
    initializers: Mapping[str, Array] | None = None,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model of these nodes; outputs that have only a name have no type in it."""
    typed: dict[str, TensorType | None] = dict(outputs) if isinstance(outputs, Mapping) else dict.fromkeys(outputs)
    graph = helper.make_graph(
        [node(n) if isinstance(n, str) else n for n in nodes],
        "model",
        [_info(name, t) for name, t in inputs.items()],
        [onnx.ValueInfoProto(name=name) if t is None else _info(name, t) for name, t in typed.items()],
        initializer=[numpy_helper.from_array(a, name) for name, a in (initializers or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    made = helper.make_model(graph, opset_imports=imports, functions=functions)
    made.ir_version = min(10, onnx.IR_VERSION)
    return made


def body(
    nodes: Sequence[onnx.NodeProto | str],
    inputs: Mapping[str, TensorType],
    outputs: Mapping[str, DType],
    initializers: Mapping[str, Array] | None = None,
) -> onnx.GraphProto:
    """A graph for an attribute; of its outputs only the dtypes are declared."""
    return helper.make_graph(
        [node(n) if isinstance(n, str) else n for n in nodes],
        "body",
        [_info(name, t) for name, t in inputs.items()],
        [helper.make_tensor_value_info(k, NUMBERS[d], None) for k, d in outputs.items()],
        initializer=[numpy_helper.from_array(a, k) for k, a in (initializers or {}).items()],
    )


def _info(name: str, type: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, NUMBERS[type.dtype], [s if isinstance(s, int) else str(s) for s in type.shape]
    )


def by_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What onnxruntime makes of a model, without its optimisations."""
    ort: Any = importlib.import_module("onnxruntime")  # it has no types
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session: Any = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in model.graph.output]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def by_dovetail(
    model: onnx.ModelProto, *feeds: Mapping[str, Array], fixed: Mapping[str, Array] | None = None
) -> list[dict[str, Array]]:
    """What dovetail makes of it, compiled once for all feeds; the plain interpreter agrees."""
    graph = import_model(model, fixed=fixed)
    program = dovetail.compile(graph, target="cpu")
    results: list[dict[str, Array]] = []
    for feed in feeds:
        result = program.run(dict(feed))
        for name, plain in evaluate(graph, feed).items():
            _assert_same(result[name], plain, 1.0)
        results.append(result)
    return results


def assert_like_onnxruntime(
    model: onnx.ModelProto, *feeds: Mapping[str, Array], fixed: Mapping[str, Array] | None = None, scale: float = 1.0
) -> None:
    """One compile gives what onnxruntime gives, for each of the feeds. `fixed` are inputs that the import may read."""
    for feed, results in zip(feeds, by_dovetail(model, *feeds, fixed=fixed), strict=True):
        for name, expected in by_onnxruntime(model, {**feed, **(fixed or {})}).items():
            _assert_same(results[name], expected, scale)


def _assert_same(got: Array, expected: Array, scale: float) -> None:
    dtype = of_numpy(expected.dtype)
    assert dtype is not None
    assert_close(got, expected, dtype, scale=scale)
