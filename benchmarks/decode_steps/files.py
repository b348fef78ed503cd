"""GGUF files with random weights in the shape of Qwen3-0.6B, stored as the usual tools mix their formats.

Kinds that begin with moe_ are small mixtures of experts (Qwen3-MoE), with fewer layers and words.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.frontends.gguf.file import BLOCKS
from dovetail.ir.literal import Array
from dovetail.language.tokenizer import byte_of
from tests.block_arrays import random_blocks
from tests.gguf_files import text, value

LAYERS, HIDDEN, HEADS, KV_HEADS, WIDTH, INNER, VOCABULARY = 28, 1024, 16, 8, 128, 3072, 151936
KINDS = ("q8_0", "q4_0", "q4_k_m", "f16")
MORE_KINDS = ("q4_1", "q5_0", "q5_k_m", "q6_k")
EXPERTS, CHOSEN, EXPERT_INNER, EXPERT_LAYERS, EXPERT_VOCABULARY = 64, 8, 512, 8, 40960
EXPERT_KINDS = ("moe_q8_0", "moe_q4_0", "moe_q4_k_m")
_MOE = "moe_"
_ALIGNMENT = 32
_ARRAY, _I32 = 9, 5
"""Types of fields."""
_NORMAL, _CONTROL = 1, 3
"""Types of tokens. The last one, which ends a text, is a control token as in any real file."""
_FILE_TYPES = {"f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18}
"""What general.file_type calls each kind; OpenVINO GenAI reads no file without it."""
_CODES = {name: code for code, name in BLOCKS.items()} | {"f32": 0, "f16": 1}


def write_qwen3(path: Path, kind: str, layers: int = LAYERS) -> None:
    """Write the file, unless it is there."""
    if path.is_file():
        return
    tensors, fields = list(tensors_of(kind, layers)), _fields(kind, layers)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields) + 1)
    head += b"".join([text(name) + value(said) for name, said in fields.items()])
    head += text("tokenizer.ggml.token_type") + struct.pack("<IIQ", _ARRAY, _I32, vocabulary(kind))
    head += np.array([_NORMAL] * (vocabulary(kind) - 1) + [_CONTROL], np.int32).tobytes()
    at = 0
    for name, stored, shape in tensors:
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", _CODES[stored], at)
        at += -(-_bytes(stored, shape) // _ALIGNMENT) * _ALIGNMENT
    half = path.with_suffix(".half")
    with half.open("wb") as file:
        file.write(head + bytes(-len(head) % _ALIGNMENT))
        for number, (_, stored, shape) in enumerate(tensors):
            raw = _array(stored, shape, number).tobytes()
            file.write(raw + bytes(-len(raw) % _ALIGNMENT))
    half.replace(path)


def vocabulary(kind: str) -> int:
    """Words of a file of a kind."""
    return EXPERT_VOCABULARY if kind.startswith(_MOE) else VOCABULARY


def token_bytes(kind: str, layers: int) -> int:
    """Bytes of a file's tensors that a token reads: of experts those that are chosen."""
    every = [(stored, shape) for _, stored, shape in tensors_of(kind, layers)]
    return sum([_bytes(stored, shape) * (CHOSEN if len(shape) == 3 else EXPERTS) // EXPERTS for stored, shape in every])


def _fields(kind: str, layers: int) -> dict[str, Any]:
    units = list(byte_of())
    words = vocabulary(kind)
    tokens = units + [f"<{number}>" for number in range(len(units), words)]
    family = "qwen3moe" if kind.startswith(_MOE) else "qwen3"
    sizes: dict[str, Any] = {
        "block_count": layers,
        "context_length": 40960,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": WIDTH,
        "attention.value_length": WIDTH,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
    }
    if kind.startswith(_MOE):
        sizes |= {
            "expert_count": EXPERTS,
            "expert_used_count": CHOSEN,
            "expert_feed_forward_length": EXPERT_INNER,
        }
    return {
        "general.architecture": family,
        "general.name": "random",
        "general.file_type": _FILE_TYPES[kind.removeprefix(_MOE)],
        **{f"{family}.{name}": said for name, said in sizes.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [f"{units[65 + i]} {units[66 + i]}" for i in range(8)],
        "tokenizer.ggml.eos_token_id": words - 1,
        "tokenizer.ggml.padding_token_id": words - 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def tensors_of(kind: str, layers: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Names, formats and shapes; the embedding is the head too, which files of 4 and 5 bits store in Q6_K."""
    words, has_experts, kind = vocabulary(kind), kind.startswith(_MOE), kind.removeprefix(_MOE)
    few = kind.removesuffix("_m")
    more = "q6_k" if kind.endswith("_m") else few
    yield "token_embd.weight", "q6_k" if kind.startswith(("q4", "q5")) else kind, (words, HIDDEN)
    yield "output_norm.weight", "f32", (HIDDEN,)
    for index in range(layers):
        wide = more if _has_more_bits(index, layers) else few
        at = f"blk.{index}."
        for name, size in (("attn", HIDDEN), ("ffn", HIDDEN), ("attn_q", WIDTH), ("attn_k", WIDTH)):
            yield f"{at}{name}_norm.weight", "f32", (size,)
        yield f"{at}attn_q.weight", few, (HEADS * WIDTH, HIDDEN)
        yield f"{at}attn_k.weight", few, (KV_HEADS * WIDTH, HIDDEN)
        yield f"{at}attn_v.weight", wide, (KV_HEADS * WIDTH, HIDDEN)
        yield f"{at}attn_output.weight", few, (HIDDEN, HEADS * WIDTH)
        if has_experts:
            yield f"{at}ffn_gate_inp.weight", "f32", (EXPERTS, HIDDEN)
            yield f"{at}ffn_gate_exps.weight", few, (EXPERTS, EXPERT_INNER, HIDDEN)
            yield f"{at}ffn_up_exps.weight", few, (EXPERTS, EXPERT_INNER, HIDDEN)
            yield f"{at}ffn_down_exps.weight", wide, (EXPERTS, HIDDEN, EXPERT_INNER)
            continue
        yield f"{at}ffn_gate.weight", few, (INNER, HIDDEN)
        yield f"{at}ffn_up.weight", few, (INNER, HIDDEN)
        yield f"{at}ffn_down.weight", wide, (HIDDEN, INNER)


def _has_more_bits(index: int, layers: int) -> bool:
    """Whether a file of the kind Q4_K_M stores values and the last matrix of a layer in Q6_K."""
    return index < layers // 8 or index >= 7 * layers // 8 or (index - layers // 8) % 3 == 2


def _bytes(stored: str, shape: tuple[int, ...]) -> int:
    return _array(stored, (1, shape[-1]), 0).nbytes * prod(shape[:-1])


def _array(stored: str, shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if stored == "f32":
        return (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    if stored == "f16":
        return (0.02 * rng.standard_normal(shape, dtype=np.float32)).astype(np.float16)
    if len(shape) == 3:
        return _array(stored, (shape[0] * shape[1], shape[2]), seed).reshape(*shape[:2], -1)
    # Blocks of 4096 rows repeat: a draw takes longer than writing them.
    rows = min(shape[0], 4096)
    some = random_blocks(stored, rows, shape[1], seed)
    return np.concatenate([some] * -(-shape[0] // rows))[: shape[0]]


__all__ = [
    "EXPERT_KINDS",
    "EXPERT_LAYERS",
    "KINDS",
    "LAYERS",
    "MORE_KINDS",
    "VOCABULARY",
    "token_bytes",
    "vocabulary",
    "write_qwen3",
]
