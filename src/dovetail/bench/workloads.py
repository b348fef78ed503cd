"""What is measured: models by name, with inputs drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto

from dovetail.bench.convnets import resnet50, unet_block
from dovetail.bench.transformers import BERT_BASE, MINILM, Decoder, decoder, encoder
from dovetail.ir.literal import Array

WORKLOADS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "minilm_1x16": lambda: encoder(MINILM, 1, 16),
    "minilm_1x128": lambda: encoder(MINILM, 1, 128),
    "minilm_8x128": lambda: encoder(MINILM, 8, 128),
    "bert_base_1x128": lambda: encoder(BERT_BASE, 1, 128),
    "prefill_1x128": lambda: decoder(Decoder(), 128),
    "one_token_256": lambda: decoder(Decoder(), 1, 256),
    "resnet50": resnet50,
    "unet_block": unet_block,
}


def feeds_for(model: onnx.ModelProto, seed: int = 0) -> dict[str, Array]:
    """Inputs for a model of known sizes: ids, masks of ones, and normal numbers."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for info in model.graph.input:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if info.type.tensor_type.elem_type == TensorProto.INT64:
            feeds[info.name] = np.ones(shape, np.int64) if "mask" in info.name else rng.integers(0, 1000, shape)
        else:
            feeds[info.name] = rng.standard_normal(shape).astype(np.float32)
    return feeds


def floor_of(model: onnx.ModelProto) -> tuple[float, float]:
    """The multiply-adds of matmuls and convolutions, counted twice, and the bytes of the weights that they read."""
    shapes = {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in _typed(model)}
    sizes = {t.name: (tuple(t.dims), int(np.prod(t.dims)) * 4) for t in model.graph.initializer}
    flops = read = 0.0
    for node in model.graph.node:
        if node.op_type not in ("MatMul", "Gemm", "Conv"):
            continue
        result = shapes[node.output[0]]
        weight, bytes = sizes.get(node.input[1], (shapes.get(node.input[1], ()), 0))
        inner = np.prod(weight[1:]) if node.op_type == "Conv" else weight[-2]
        flops += 2.0 * float(np.prod(result)) * float(inner)
        read += bytes
    return flops, read


def _typed(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    known = onnx.shape_inference.infer_shapes(model).graph
    return [*known.value_info, *known.input, *known.output]
