"""A GGUF file of Qwen3 as a folder for ONNX Runtime GenAI: the graph that its model builder makes for a CPU.

Weights in blocks are operands of `MatMulNBits` with accuracy level 4, for which activations are rounded to bytes;
weights in f16 become f32, in which that builder stores them for CPUs. The head takes the last token of a prompt only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from decode_steps.onnx_weights import n_bits
from dovetail.frontends.gguf.file import GgufFile, read_gguf
from dovetail.ir.literal import Array

ROOM = 4096
"""Positions of the cache."""
_MICROSOFT = "com.microsoft"


class _Graph:
    """Nodes, and weights in a file beside them."""

    def __init__(self, file: GgufFile, weights: Path) -> None:
        self.file = file
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.weights, self.raw = weights, weights.open("wb")

    def node(
        self, op: str, operands: Sequence[str], domain: str = "", results: int = 1, **attributes: Any
    ) -> list[str]:
        names = [f"{op}_{len(self.nodes)}_{i}" for i in range(results)]
        self.nodes.append(helper.make_node(op, operands, names, domain=domain, **attributes))
        return names

    def one(self, op: str, *operands: str, **attributes: Any) -> str:
        return self.node(op, operands, **attributes)[0]

    def constant(self, name: str, value: Array) -> str:
        tensor = TensorProto(name=name, dims=value.shape, data_type=helper.np_dtype_to_tensor_dtype(value.dtype))
        if value.nbytes < 1024:
            tensor.raw_data = value.tobytes()
        else:
            self.raw.write(bytes(-self.raw.tell() % 64))
            tensor.data_location = TensorProto.EXTERNAL
            where = {"location": self.weights.name, "offset": self.raw.tell(), "length": value.nbytes}
            for key, said in where.items():
                tensor.external_data.add(key=key, value=str(said))
            self.raw.write(np.ascontiguousarray(value).data)
        self.tensors.append(tensor)
        return name

    def matmul(self, x: str, name: str) -> str:
        """The product with the transpose of a tensor of the file."""
        n, k = self.file.tensors[name].shape
        found = n_bits(self.file.array(name), self.file.tensors[name].kind)
        if found is None:
            return self.one("MatMul", x, self.constant(name, _floats(self.file, name).T))
        operands = [x, self.constant(name, found.codes), self.constant(f"{name}.scales", found.scales)]
        if found.zeros is not None:
            operands.append(self.constant(f"{name}.zeros", found.zeros))
        sizes = {"N": n, "K": k, "bits": found.bits, "block_size": found.block, "accuracy_level": 4}
        return self.one("MatMulNBits", *operands, domain=_MICROSOFT, **sizes)

    def norm(self, x: str, name: str, epsilon: float) -> str:
        weight = self.constant(name, _floats(self.file, name))
        return self.one("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=epsilon, stash_type=1)

    def heads(self, x: str, count: int, name: str, epsilon: float) -> str:
        """A norm of each head."""
        width = self.file.tensors[name].shape[0]
        apart = self.one("Reshape", x, self.constant(f"{name}.apart", np.array([0, 0, count, width])))
        whole = self.constant(f"{name}.whole", np.array([0, 0, count * width]))
        return self.one("Reshape", self.norm(apart, name, epsilon), whole)

    def skip_norm(self, x: str, more: str, name: str, epsilon: float) -> tuple[str, str]:
        """The norm of a sum, and the sum."""
        weight = self.constant(name, _floats(self.file, name))
        operands = [x, more, weight]
        found = self.node("SkipSimplifiedLayerNormalization", operands, _MICROSOFT, 4, epsilon=epsilon)
        self.nodes[-1].output[1:3] = ["", ""]
        return found[0], found[3]


def write_folder(path: Path, folder: Path) -> None:
    """Write the folder of a file, unless it is there."""
    if (folder / "genai_config.json").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = read_gguf(path)
    if file.fields["general.architecture"] != "qwen3":
        raise ValueError("only files of Qwen3 are written for ONNX Runtime GenAI")
    graph = _Graph(file, folder / "model.onnx.data")
    layers, heads, shared = (_number(file, name) for name in ("block_count", *_COUNTS))
    width = _number(file, "attention.key_length")
    logits = _decoder(graph, layers, heads, shared, width)
    graph.raw.close()
    cache = ("batch", shared, "past", width)
    inputs = [_told("input_ids", TensorProto.INT64, ("batch", "tokens"))]
    inputs += [_told("attention_mask", TensorProto.INT64, ("batch", "all"))]
    inputs += [_told(_past(i, word), TensorProto.FLOAT, cache) for i in range(layers) for word in _CACHED]
    outputs = [_told(logits, TensorProto.FLOAT, ("batch", 1, "vocabulary"))]
    outputs += [_told(_present(i, word), TensorProto.FLOAT, cache) for i in range(layers) for word in _CACHED]
    made = helper.make_graph(graph.nodes, "decoder", inputs, outputs, graph.tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
    made = helper.make_model(made, opset_imports=opsets, ir_version=10)
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    (folder / "genai_config.json").write_text(json.dumps(_config(file, layers, heads, shared, width)))


_COUNTS = ("attention.head_count", "attention.head_count_kv")
_CACHED = ("key", "value")


def _past(layer: int, word: str) -> str:
    return f"past_key_values.{layer}.{word}"


def _present(layer: int, word: str) -> str:
    return f"present.{layer}.{word}"


def _told(name: str, dtype: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _number(file: GgufFile, name: str) -> int:
    found = file.fields[f"qwen3.{name}"]
    assert isinstance(found, int)
    return found


def _floats(file: GgufFile, name: str) -> Array:
    found = n_bits(file.array(name), file.tensors[name].kind)
    return file.array(name).astype(np.float32) if found is None else found.floats()


def _decoder(graph: _Graph, layers: int, heads: int, shared: int, width: int) -> str:
    """All nodes; the name of the logits."""
    file = graph.file
    epsilon, base = (file.fields[f"qwen3.{name}"] for name in ("attention.layer_norm_rms_epsilon", "rope.freq_base"))
    assert isinstance(epsilon, float) and isinstance(base, float)
    angles = np.arange(ROOM)[:, None] * base ** (-2 * np.arange(width // 2) / width)
    turns = [graph.constant(name, of(angles).astype(np.float32)) for name, of in (("cos", np.cos), ("sin", np.sin))]
    one = graph.constant("one", np.array([1]))
    counted = graph.one("ReduceSum", "attention_mask", one)
    last = graph.one("Cast", graph.one("Sub", counted, one), to=TensorProto.INT32)
    shape = graph.one("Shape", "attention_mask")
    whole = graph.one("Cast", graph.one("Gather", shape, graph.constant("second", np.array(1))), to=TensorProto.INT32)
    x = graph.one("Gather", graph.constant("embedding", _floats(file, "token_embd.weight")), "input_ids")
    normed, more = "", ""
    for layer in range(layers):
        at = f"blk.{layer}."
        if more:
            normed, x = graph.skip_norm(x, more, f"{at}attn_norm.weight", epsilon)
        else:
            normed = graph.norm(x, f"{at}attn_norm.weight", epsilon)
        q, k, v = (graph.matmul(normed, f"{at}attn_{name}.weight") for name in "qkv")
        q = graph.heads(q, heads, f"{at}attn_q_norm.weight", epsilon)
        k = graph.heads(k, shared, f"{at}attn_k_norm.weight", epsilon)
        operands = [q, k, v, _past(layer, "key"), _past(layer, "value"), last, whole, *turns]
        sizes = {"num_heads": heads, "kv_num_heads": shared, "do_rotary": 1, "rotary_interleaved": 0}
        attended = graph.node("GroupQueryAttention", operands, _MICROSOFT, 3, scale=width**-0.5, **sizes)
        graph.nodes[-1].output[1:] = [_present(layer, word) for word in _CACHED]
        out = graph.matmul(attended[0], f"{at}attn_output.weight")
        normed, x = graph.skip_norm(x, out, f"{at}ffn_norm.weight", epsilon)
        gate, up = (graph.matmul(normed, f"{at}ffn_{name}.weight") for name in ("gate", "up"))
        inner = graph.one("Mul", graph.one("Mul", gate, graph.one("Sigmoid", gate)), up)
        more = graph.matmul(inner, f"{at}ffn_down.weight")
    normed, _ = graph.skip_norm(x, more, "output_norm.weight", epsilon)
    ends = [graph.constant(f"end{number}", np.array([number])) for number in (-1, 2**31)]
    normed = graph.one("Slice", normed, *ends, one)
    graph.matmul(normed, "output.weight" if "output.weight" in file.tensors else "token_embd.weight")
    graph.nodes[-1].output[0] = "logits"
    return "logits"


def _config(file: GgufFile, layers: int, heads: int, shared: int, width: int) -> dict[str, Any]:
    """What ONNX Runtime GenAI asks of a folder."""
    end = file.fields["tokenizer.ggml.eos_token_id"]
    decoder: dict[str, Any] = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": width,
        "hidden_size": _number(file, "embedding_length"),
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": shared,
    }
    model: dict[str, Any] = {
        "bos_token_id": end,
        "context_length": ROOM,
        "decoder": decoder,
        "eos_token_id": end,
        "pad_token_id": end,
        "type": "qwen3",
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
    }
    return {"model": model, "search": {"max_length": ROOM, "past_present_share_buffer": True}}


__all__ = ["write_folder"]
