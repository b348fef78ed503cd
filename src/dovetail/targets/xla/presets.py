"""Placements of the models that dovetail builds: data, tensor and sequence parallel, by the names of their tensors.

The mesh axes are `dp`, `tp` and `sp`; those that a mesh lacks are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

DATA_PARALLEL: Mapping[str, str] = dict.fromkeys(
    ("input_ids", "token_type_ids", "attention_mask", "image", "labels", "past_[kv].*"), "dp"
)
"""The batch is split, and every device has all weights."""
TENSOR_PARALLEL: Mapping[str, str] = {
    **DATA_PARALLEL,
    "layers.*.w[qkv]": "- tp",
    "layers.*.b[qkv]": "tp",
    "layers.*.wo": "tp",
    "layers.*.up": "- tp",
    "layers.*.gate": "- tp",
    "layers.*.up.bias": "tp",
    "layers.*.down": "tp",
    "head": "- tp",
}
"""Heads and the inner axis of each layer are split: two sums over `tp` a layer, as Megatron has it."""
SEQUENCE_PARALLEL: Mapping[str, str] = {
    **TENSOR_PARALLEL,
    "input_ids": "dp sp",
    "attention_mask": "dp sp",
    "token_type_ids": "dp sp",
    "labels": "dp sp",
}
"""The same, with the sequence split too."""
PRESETS: Mapping[str, Mapping[str, str]] = {
    "data": DATA_PARALLEL,
    "tensor": TENSOR_PARALLEL,
    "sequence": SEQUENCE_PARALLEL,
}

AUTO = "auto"
"""In the place of a preset: the cheapest of all, and of changes of their rules."""

__all__ = ["AUTO", "DATA_PARALLEL", "PRESETS", "SEQUENCE_PARALLEL", "TENSOR_PARALLEL"]
