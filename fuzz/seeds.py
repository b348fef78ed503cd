"""Whole files of each format, to be damaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from dovetail import Builder, Graph, ops
from dovetail.dtypes import bool_, f32, i64
from dovetail.frontends.onnx import import_model
from dovetail.graphs import print_graph
from dovetail.ir.serial import to_bytes
from tests.frontends.onnx.build import body, model, node
from tests.gguf_files import TOKENS, decoder, tokenizer_fields, written

EXPORTERS = Path(__file__).resolve().parent.parent / "tests" / "data" / "exporters"
LARGEST = 64 << 10
"""Bytes of an exporter's file: larger ones take longer and hold nothing else."""


def small_graph() -> Graph:
    """A linear layer with its weights."""
    builder = Builder("small", lines=False)
    x = builder.input("x", f32["n", 4])
    w = builder.param("w", f32[4, 3], np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
    builder.output("y", ops.tanh(x @ w + 1.0))
    return builder.graph()


@cache
def onnx_models() -> Sequence[bytes]:
    """Small models of many operators, and the smaller files of exporters."""
    files = sorted(p for p in EXPORTERS.glob("*.onnx") if p.stat().st_size <= LARGEST)
    return (*(made.SerializeToString() for made in _models()), *(p.read_bytes() for p in files))


@cache
def texts() -> Sequence[bytes]:
    """Printed graphs."""
    return tuple(print_graph(graph).encode() for graph in _graphs())


@cache
def saved_graphs() -> Sequence[bytes]:
    """Saved graphs with their arrays."""
    return tuple(to_bytes(graph) for graph in _graphs())


@cache
def decoders() -> Sequence[bytes]:
    """Tiny decoders in GGUF files; the first lines are most of each, so that damage is done there."""
    small: dict[str, Any] = {"hidden": 32, "heads": 2, "kv_heads": 1, "width": 16, "inner": 32, "layers": 1}
    plain = [written(*decoder(name, kind, **small)) for name in ("llama", "qwen3") for kind in ("q4_0", "f16")]
    fields, tensors = decoder("qwen2", "q8_0", **small, vocabulary=len(TOKENS))
    return (*plain, written({**fields, **tokenizer_fields()}, tensors))


@cache
def weights() -> Sequence[bytes]:
    """Files of safetensors."""
    arrays = {"w": np.ones((3, 4), np.float32), "b": np.arange(5), "mask": np.ones((2, 0, 2), np.bool_)}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for (name, array), kind in zip(arrays.items(), ("F32", "I64", "BOOL"), strict=True):
        ends = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": ends}
        data += array.tobytes()
    # Every entry is an object, so that each can be damaged in the same way.
    written = json.dumps(header).encode()
    return (len(written).to_bytes(8, "little") + written + data,)


@cache
def _graphs() -> Sequence[Graph]:
    return (small_graph(), *(import_model(made) for made in _models()))


@cache
def _models() -> Sequence[onnx.ModelProto]:
    r = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return r.standard_normal(shape).astype(np.float32)

    convolution = model(
        [
            node("Conv x w b -> c", pads=[1, 1, 1, 1], strides=[2, 2]),
            "Relu c -> d",
            node("MaxPool d -> p", kernel_shape=[2, 2]),
            "GlobalAveragePool p -> g",
            node("Flatten g -> f"),
            node("Gemm f v -> y"),
        ],
        {"x": f32["n", 3, 8, 8]},
        ["y"],
        initializers={"w": normal(4, 3, 3, 3), "b": normal(4), "v": normal(4, 2)},
    )
    shapes = model(
        [
            "Shape x -> s",
            "Gather s i -> n",
            "Concat n m -> t",
            "Reshape x t -> r",
            node("Transpose r -> p", perm=[1, 0]),
            "Slice p a b z -> q",
            "Expand q e -> y",
        ],
        {"x": f32["n", 2, 3]},
        ["y"],
        initializers={
            "i": np.array([0]),
            "m": np.array([6]),
            "a": np.array([1]),
            "b": np.array([5]),
            "z": np.array([0]),
            "e": np.array([1, 1]),
        },
    )
    shapes.graph.node[2].attribute.append(node("Concat a -> b", axis=0).attribute[0])
    loop = model(
        [
            node(
                "Loop m c x -> y z",
                body=body(
                    ["Add v v -> w", "Identity k -> l", "Mul w w -> o"],
                    {"i": i64[()], "k": bool_[()], "v": f32[3]},
                    {"l": bool_, "w": f32, "o": f32},
                ),
            )
        ],
        {"x": f32[3]},
        ["y", "z"],
        initializers={"m": np.array(3), "c": np.array(True)},
    )
    recurrent = model(
        [node("LSTM x w r -> y h c", hidden_size=3)],
        {"x": f32["t", "n", 2]},
        ["y", "h"],
        initializers={"w": normal(1, 12, 2), "r": normal(1, 12, 3)},
    )
    quantised = model(
        [
            "QuantizeLinear x s z -> q",
            "DequantizeLinear q s z -> d",
            "MatMul d w -> m",
            node("Softmax m -> p"),
            node("TopK p k -> y i"),
        ],
        {"x": f32["n", 4]},
        ["y", "i"],
        initializers={
            "s": np.float32(0.1) * np.ones((), np.float32),
            "z": np.array(3, np.uint8),
            "w": normal(4, 5),
            "k": np.array([2]),
        },
    )
    return (convolution, shapes, loop, recurrent, quantised)
