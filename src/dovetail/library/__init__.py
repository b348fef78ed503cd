"""The fused ops that come with dovetail, one a file. Passes take them as an argument; nothing is registered."""

from __future__ import annotations

from dovetail.declare.fused import FusedOp
from dovetail.declare.group import Group
from dovetail.library.attention import attention
from dovetail.library.conv_batch_norm import conv_batch_norm
from dovetail.library.conv_bias_act import conv_bias_act
from dovetail.library.dequantise_blocks import dequantise_blocks
from dovetail.library.gated_product import gated_product
from dovetail.library.gelu import gelu
from dovetail.library.group_norm import group_norm
from dovetail.library.group_norm_silu import group_norm_silu
from dovetail.library.hard_sigmoid import hard_sigmoid
from dovetail.library.hard_swish import hard_swish
from dovetail.library.layer_norm import layer_norm
from dovetail.library.linear import linear
from dovetail.library.log_softmax import log_softmax
from dovetail.library.log_sum_exp import log_sum_exp
from dovetail.library.matmul_add import matmul_add
from dovetail.library.partial_rope import partial_rope
from dovetail.library.residual_layer_norm import residual_layer_norm
from dovetail.library.residual_rms_norm import residual_rms_norm
from dovetail.library.rms_norm import rms_norm
from dovetail.library.rope import rope
from dovetail.library.rope_attention import rope_attention
from dovetail.library.scores import scores
from dovetail.library.shared_input_matmul import shared_input_matmul
from dovetail.library.silu import silu
from dovetail.library.sink_attention import sink_attention
from dovetail.library.softmax import softmax
from dovetail.library.swiglu import swiglu
from dovetail.library.wide_swiglu import wide_swiglu

ALL: tuple[FusedOp[...], ...] = (
    silu,
    hard_sigmoid,
    hard_swish,
    gelu,
    softmax,
    log_softmax,
    log_sum_exp,
    layer_norm,
    # A layer norm is the rms norm of a centred value: it is looked for first.
    rms_norm,
    group_norm,
    rope,
    partial_rope,
    scores,
    conv_batch_norm,
    attention,
    rope_attention,
    sink_attention,
    swiglu,
    wide_swiglu,
    linear,
    residual_layer_norm,
    residual_rms_norm,
    group_norm_silu,
    conv_bias_act,
    matmul_add,
    gated_product,
    dequantise_blocks,
)
"""Every op; among those that could be found at the same time, earlier ones are preferred."""

ATTENTIONS: tuple[FusedOp[...], ...] = (attention, rope_attention, sink_attention)
"""Those that are one attention."""

GROUPS: tuple[Group, ...] = (shared_input_matmul,)
"""Every group of values that are computed together."""
