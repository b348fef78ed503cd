"""onnxruntime and TensorRT as peers on an NVIDIA GPU: the same ONNX file, inputs and outputs bound on the device."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converted import ELEMENTS  # pyright: ignore
from onnx import TensorProto

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
PEERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "ort": (CUDA, {}),
    "ort_graph": (CUDA, {"enable_cuda_graph": "1"}),
    "tensorrt": (TENSORRT, {"trt_cuda_graph_enable": "1"}),
}
"""By name the execution provider and its options."""
NARROW: Mapping[str, Mapping[str, str]] = {"f16": {"trt_fp16_enable": "1"}, "bf16": {"trt_bf16_enable": "1"}}
"""What lets TensorRT compute in a dtype."""


@dataclass(slots=True)
class OnnxStep:
    """A run of a session on arrays that stay where they are; it returns when the device is done."""

    session: Any
    binding: Any
    kept: Sequence[Any]
    """The tensors whose memory is bound."""
    result: Any
    """The tensor of the first output."""

    def __call__(self) -> None:
        self.session.run_with_iobinding(self.binding)


def available() -> dict[str, str]:
    """The peers that the installed onnxruntime has, with their execution providers; none where it is not installed."""
    try:
        ort: Any = importlib.import_module("onnxruntime")
    except ImportError:
        return {}
    found: Sequence[str] = ort.get_available_providers()
    return {name: provider for name, (provider, _) in PEERS.items() if provider in found}


def step_of(
    torch: Any, name: str, model: bytes, dtype: str, given: Mapping[str, Any], outputs: Mapping[str, Sequence[int]]
) -> OnnxStep:
    """A peer on tensors of torch by the names of the inputs; `outputs` are shapes of results, all in the dtype."""
    ort: Any = importlib.import_module("onnxruntime")
    provider, options = PEERS[name]
    if provider == TENSORRT:
        if dtype == "f32":
            raise RuntimeError("it multiplies f32 in tf32")
        options = {**options, **NARROW[dtype]}
    elif dtype == "f32":
        options = {**options, "use_tf32": "0"}
    session = ort.InferenceSession(model, providers=[(provider, dict(options))])
    if provider not in session.get_providers():
        raise RuntimeError(f"onnxruntime could not start {provider}")
    binding = session.io_binding()
    floats = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
    kinds = {torch.int64: TensorProto.INT64, **{floats[name]: element for name, element in ELEMENTS.items()}}
    made = {key: torch.empty(tuple(shape), dtype=floats[dtype], device="cuda") for key, shape in outputs.items()}
    for key, x in given.items():
        binding.bind_input(key, "cuda", 0, kinds[x.dtype], tuple(x.shape), x.data_ptr())
    for key, y in made.items():
        binding.bind_output(key, "cuda", 0, kinds[y.dtype], tuple(y.shape), y.data_ptr())
    torch.cuda.synchronize()  # sessions have streams of their own
    return OnnxStep(session, binding, (*given.values(), *made.values()), next(iter(made.values())))


__all__ = ["OnnxStep", "available", "step_of"]
