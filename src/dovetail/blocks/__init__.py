"""Blocks: the words that models are written in, above primitives and fused ops.

A block is spelled out before any optimization, and fusion finds what it can. The fused ops of the library serve as
blocks too: `linear(…)` is one op, `linear.body(…)` is spelled out.
"""

from __future__ import annotations

from dovetail.blocks.convolution import basic_block, conv_norm_act, unet_block
from dovetail.blocks.decoder import llama_layer
from dovetail.blocks.encoder import bert_layer
from dovetail.blocks.feed_forward import ffn, moe_ffn, swiglu_ffn
from dovetail.blocks.self_attention import self_attention
from dovetail.declare.block import Block

ALL: tuple[Block[...], ...] = (
    ffn,
    swiglu_ffn,
    moe_ffn,
    self_attention,
    bert_layer,
    llama_layer,
    conv_norm_act,
    basic_block,
    unet_block,
)
"""Every block."""

__all__ = [
    "ALL",
    "basic_block",
    "bert_layer",
    "conv_norm_act",
    "ffn",
    "llama_layer",
    "moe_ffn",
    "self_attention",
    "swiglu_ffn",
    "unet_block",
]
