"""GGUF files written for tests: any fields and tensors, and tiny decoders with random weights."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from dovetail.frontends.gguf.file import BLOCKS
from dovetail.ir.literal import Array
from dovetail.language.tokenizer import byte_of
from tests.block_arrays import random_blocks

_KINDS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
_PLAIN = {"f32": 0, "f16": 1}
_CODES = {name: code for code, name in BLOCKS.items()} | _PLAIN

Tensors = Mapping[str, tuple[str, tuple[int, ...], Array]]
"""By name the type of a tensor, its shape with rows first, and its bytes as an array."""

_UNITS = list(byte_of())
TOKENS = [*_UNITS, "he", "ll", "hell", "hello", "Ġw", "<|end|>", "<|start|>"]
"""Every byte, a few words, and two control tokens."""
_MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]


def tokenizer_fields(pre: str = "smollm") -> dict[str, Any]:
    """A byte-level tokenizer with a few merges."""
    end = TOKENS.index("<|end|>")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3 if t.startswith("<|") else 1 for t in TOKENS],
        "tokenizer.ggml.merges": _MERGES,
        "tokenizer.ggml.eos_token_id": end,
    }


def text(said: str | bytes) -> bytes:
    raw = said.encode() if isinstance(said, str) else said
    return struct.pack("<Q", len(raw)) + raw


def value(said: Any) -> bytes:
    """A field's value with its type."""
    if isinstance(said, str):
        return struct.pack("<I", 8) + text(said)
    if isinstance(said, list):
        items = cast(list[Any], said)
        if items and isinstance(items[0], str):
            return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(map(text, items))
        code, form = _KINDS[type(items[0])] if items else (4, "I")
        return struct.pack(f"<IIQ{len(items)}{form}", 9, code, len(items), *items)
    code, form = _KINDS[type(said)]
    return struct.pack(f"<I{form}", code, said)


def written(fields: Mapping[str, Any], tensors: Tensors, version: int = 3, alignment: int = 32) -> bytes:
    """The bytes of a file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(fields))
    head += b"".join(text(name) + value(said) for name, said in fields.items())
    data = b""
    for name, (kind, shape, array) in tensors.items():
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += text(name) + sizes + struct.pack("<IQ", _CODES[kind], len(data))
        raw = array.tobytes()
        data += raw + bytes(-len(raw) % alignment)
    return head + bytes(-len(head) % alignment) + data


def decoder(
    architecture: str = "llama",
    kind: str = "q8_0",
    *,
    kinds: Mapping[str, str] | None = None,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    width: int = 16,
    inner: int = 96,
    layers: int = 2,
    vocabulary: int = 80,
    is_tied: bool = True,
    fields: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...], Array]]]:
    """The fields and tensors of a tiny decoder; `kinds` stores some tensors in another way."""
    rng = np.random.default_rng(5)
    sizes = {"embedding_length": hidden, "block_count": layers, "feed_forward_length": inner, "context_length": 512}
    said: dict[str, Any] = {"general.architecture": architecture}
    said |= {f"{architecture}.{name}": size for name, size in sizes.items()}
    said |= {
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv_heads,
        f"{architecture}.attention.key_length": width,
        f"{architecture}.attention.value_length": width,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        **(fields or {}),
    }
    tensors: dict[str, tuple[str, tuple[int, ...], Array]] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        stored = (kinds or {}).get(name, kind)
        numbers = rng.normal(size=(rows, columns)) / np.sqrt(columns)
        dtype = {"f32": np.float32, "f16": np.float16}.get(stored)
        array = random_blocks(stored, rows, columns, len(tensors)) if dtype is None else numbers.astype(dtype)
        tensors[name] = stored, (rows, columns), array

    def vector(name: str, size: int, centre: float = 0.0) -> None:
        tensors[name] = "f32", (size,), (centre + 0.2 * rng.normal(size=size)).astype(np.float32)

    matrix("token_embd.weight", vocabulary, hidden)
    vector("output_norm.weight", hidden, 1.0)
    if not is_tied:
        matrix("output.weight", vocabulary, hidden)
    for index in range(layers):
        at = f"blk.{index}."
        vector(at + "attn_norm.weight", hidden, 1.0)
        vector(at + "ffn_norm.weight", hidden, 1.0)
        for side, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            matrix(f"{at}attn_{side}.weight", count * width, hidden)
            if architecture == "qwen2":
                vector(f"{at}attn_{side}.bias", count * width)
        if architecture == "qwen3":
            vector(at + "attn_q_norm.weight", width, 1.0)
            vector(at + "attn_k_norm.weight", width, 1.0)
        matrix(at + "attn_output.weight", hidden, heads * width)
        matrix(at + "ffn_gate.weight", inner, hidden)
        matrix(at + "ffn_up.weight", inner, hidden)
        matrix(at + "ffn_down.weight", hidden, inner)
    return said, tensors


__all__ = ["TOKENS", "Tensors", "decoder", "text", "tokenizer_fields", "value", "written"]
