"""What is measured: models by name, with inputs drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import onnx

from dovetail.bench.convnets import Resnet, UnetBlock, resnet, unet_block
from dovetail.bench.transformers import BERT_BASE, MINILM, Decoder, Encoder, decoder, encoder
from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.ir.literal import Array

Shape: TypeAlias = Encoder | Decoder | Resnet | UnetBlock
"""The sizes of a network that is written for every peer."""
SHAPES: Mapping[str, type[Shape]] = {shape.__name__: shape for shape in (Encoder, Decoder, Resnet, UnetBlock)}


@dataclass(frozen=True, slots=True)
class Workload:
    """A model: its sizes, by which peers without ONNX write it down for themselves, and how it is written as ONNX."""

    shape: Shape
    build: Callable[[], onnx.ModelProto]


def _encoder(of: Encoder, batch: int, seq: int) -> Workload:
    return Workload(of, lambda: encoder(of, batch, seq))


def _decoder(of: Decoder, seq: int, cached: int = 0) -> Workload:
    return Workload(of, lambda: decoder(of, seq, cached))


WORKLOADS: Mapping[str, Workload] = {
    "minilm_1x16": _encoder(MINILM, 1, 16),
    "minilm_1x128": _encoder(MINILM, 1, 128),
    "minilm_8x128": _encoder(MINILM, 8, 128),
    "bert_base_1x128": _encoder(BERT_BASE, 1, 128),
    "prefill_1x128": _decoder(Decoder(), 128),
    "one_token_256": _decoder(Decoder(), 1, 256),
    "resnet50": Workload(Resnet(), lambda: resnet(Resnet())),
    "unet_block": Workload(UnetBlock(), lambda: unet_block(UnetBlock())),
}


CACHED = 256
"""Tokens in the cache of a decoder's step."""
_LLAMA_CACHES = 16
_LLAMA_CACHE = (1, 4, CACHED + 1, 64)


def _tokens(rng: np.random.Generator, length: int) -> dict[str, Array]:
    ids = rng.integers(0, 1000, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _normal(rng: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, Array]:
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def _step(rng: np.random.Generator) -> dict[str, Array]:
    held = {f"held_{i}": _LLAMA_CACHE for i in range(_LLAMA_CACHES)}
    return {"token": np.array([[7]]), "position": np.array(CACHED), **_normal(rng, **held)}


MODULES: Mapping[str, Callable[[np.random.Generator], dict[str, Array]]] = {
    "torch/bert_1x16": lambda rng: _tokens(rng, 16),
    "torch/bert_1x128": lambda rng: _tokens(rng, 128),
    "torch/llama_step": _step,
    "torch/resnet50": lambda rng: _normal(rng, pixel_values=(1, 3, 224, 224)),
    "torch/vit": lambda rng: _normal(rng, pixel_values=(1, 3, 224, 224)),
    "torch/whisper_encoder": lambda rng: _normal(rng, input_features=(1, 80, 3000)),
}
"""The arguments of modules of transformers, by name and in order; drawing them takes neither torch nor the module."""


def module_feeds(name: str) -> dict[str, Array]:
    """Return the arguments of a call of a module; the same in every process."""
    return MODULES[name](np.random.default_rng(0))


def feeds_for(model: onnx.ModelProto, sizes: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Inputs by a model's signature: ids, masks of ones, normal numbers, else 0 or 1. `sizes` are for symbols."""
    rng = np.random.default_rng(0)
    weights = {t.name for t in model.graph.initializer}
    most = _most_ids(model)
    feeds: dict[str, Array] = {}
    for info in model.graph.input:
        if info.name in weights:
            continue
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        dims = enumerate(info.type.tensor_type.shape.dim)
        shape = [_size(dim, f"{info.name}_{axis}", sizes or {}) for axis, dim in dims]
        if kind.kind == "f":
            feeds[info.name] = rng.standard_normal(shape).astype(kind)
        elif "mask" in info.name or kind.kind == "b":
            feeds[info.name] = np.ones(shape, kind)
        else:
            feeds[info.name] = rng.integers(0, most.get(info.name, 2), shape).astype(kind)
    return feeds


def _size(dim: onnx.TensorShapeProto.Dimension, place: str, sizes: Mapping[str, int]) -> int:
    """Return a size as the model or the caller has it; one without a name is called by its place."""
    if dim.HasField("dim_value"):
        return dim.dim_value
    name = dim.dim_param.strip() or place
    if name not in sizes and place not in sizes:
        raise OptionError(f"the size {name} is not known", hint=f"say what it is: --size {name}=8")
    return sizes.get(name, sizes.get(place, 0))


def _most_ids(model: onnx.ModelProto) -> dict[str, int]:
    """Return the number of rows for each input that picks rows of a table; a thousand are enough."""
    rows = {t.name: int(t.dims[0]) for t in model.graph.initializer if t.dims}
    limits: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[0] in rows:
            limits[node.input[1]] = min(rows[node.input[0]], limits.get(node.input[1], 1000))
    return limits
