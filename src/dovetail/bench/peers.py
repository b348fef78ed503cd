"""The peers: each takes the same ONNX model and gives a function that runs it once."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from dovetail.frontends.onnx import import_model
from dovetail.ir.literal import Array
from dovetail.runtime.compile import compile

Run: TypeAlias = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to run a model: its name, the package that it needs, and how it is prepared for so many threads."""

    name: str
    package: str
    prepare: Callable[[onnx.ModelProto, int], Run]

    @property
    def is_here(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


def _dovetail(model: onnx.ModelProto, threads: int) -> Run:
    program = compile(import_model(model), target="cpu", threads=threads)
    return lambda feeds: program.run(dict(feeds))


def _onnxruntime(model: onnx.ModelProto, threads: int) -> Run:
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session: Any = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in model.graph.output]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True))


def _onnxruntime_optimised(model: onnx.ModelProto, threads: int) -> Run:
    """onnxruntime behind its own optimiser of transformers, which fuses more than it does when it loads a model."""
    optimizer: Any = importlib.import_module("onnxruntime.transformers.optimizer")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        better = optimizer.optimize_model(str(path), model_type="bert", opt_level=1, use_gpu=False)
    return _onnxruntime(better.model, threads)


def _openvino(model: onnx.ModelProto, threads: int) -> Run:
    openvino: Any = importlib.import_module("openvino")
    core = openvino.Core()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        hints = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        compiled = core.compile_model(core.read_model(str(path)), "CPU", hints)
    request = compiled.create_infer_request()
    names = [o.name for o in model.graph.output]
    return lambda feeds: dict(zip(names, request.infer(dict(feeds)).values(), strict=True))


OURS = Peer("dovetail", "dovetail", _dovetail)
PEERS: tuple[Peer, ...] = (
    Peer("onnxruntime", "onnxruntime", _onnxruntime),
    Peer("onnxruntime-optimised", "onnxruntime", _onnxruntime_optimised),
    Peer("openvino", "openvino", _openvino),
)
