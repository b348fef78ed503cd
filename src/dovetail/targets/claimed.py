"""The fused ops that every target with kernels of its own keeps."""

from __future__ import annotations

from dovetail import library
from dovetail.declare.fused import FusedOp

EVERYWHERE: tuple[FusedOp[...], ...] = (
    library.silu,
    library.gelu,
    library.softmax,
    library.layer_norm,
    library.rms_norm,
    library.group_norm,
    library.group_norm_silu,
    library.residual_layer_norm,
    library.residual_rms_norm,
    library.rope,
    library.partial_rope,
    library.linear,
    library.matmul_add,
    library.swiglu,
    library.wide_swiglu,
    library.gated_product,
    library.attention,
    library.rope_attention,
    library.conv_bias_act,
)
