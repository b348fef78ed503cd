"""Operators that torch runs whole layers by where no gradient is recorded, spelled out in operators that have rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.frontends.torch.reading.package import torch_module


def fast_paths() -> dict[Any, Callable[..., Any]]:
    """What each of them computes; NotImplemented, with masks, leaves the operator as it is."""
    aten = torch_module().ops.aten
    return {aten._transformer_encoder_layer_fwd.default: _encoder_layer}


def _encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """`nn.TransformerEncoderLayer` in eval mode: attention and two linear layers, each with a residual and a norm."""
    if mask is not None or src.is_nested:
        return NotImplemented
    f = torch_module("torch.nn.functional")

    def first_norm(x: Any) -> Any:
        return f.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: Any) -> Any:
        return f.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attended(x: Any) -> Any:
        joined = f.linear(x, qkv_weight, qkv_bias).unflatten(-1, (3, num_heads, embed_dim // num_heads))
        q, k, v = (part.transpose(1, 2) for part in joined.unbind(2))
        y = f.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return f.linear(y, proj_weight, proj_bias)

    def fed_forward(x: Any) -> Any:
        hidden = f.linear(x, ffn_weight_1, ffn_bias_1)
        return f.linear(f.gelu(hidden) if use_gelu else f.relu(hidden), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attended(first_norm(src))
        return x + fed_forward(second_norm(x))
    x = first_norm(src + attended(src))
    return second_norm(x + fed_forward(x))
