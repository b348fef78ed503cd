"""Claims that all targets with kernels of their own share: fused ops, and conditions on primitives."""

from __future__ import annotations

from dovetail import library
from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.library.attention import scores_tell_unseen
from dovetail.passes.claims import Condition
from dovetail.passes.lowerings.conv_transpose import is_a_convolution

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


def _scores_tell_unseen(value: Value) -> bool:
    assert isinstance(value.op, FusedOp), "an attention"
    return scores_tell_unseen(value.op.arguments(value.operands, value.attrs))


UNSEEN = Condition(
    "scores_tell_unseen",
    _scores_tell_unseen,
    "with a finite fill a query that sees no key scores like any other; 0 is written by a step after the attention",
)
"""Of attention."""
TRANSPOSED = Condition(
    "no_convolution_computes_it",
    lambda value: not is_a_convolution(value),
    "a convolution makes the phases of the stride as channels, without zeros between pixels",
    # Phases with fewer taps than others multiply pixels by 0, and an infinite one gives NaN.
    strict=False,
)
"""Of a transposed convolution."""
PACKED_BLOCKS = Condition(
    "blocks_are_parameters",
    lambda value: value.operands[0].op in (leaf.PARAM, leaf.CONST),
    "kernels of products pack blocks before a run; blocks of a run are spelled out",
)
"""Of weights in blocks."""

__all__ = ["EVERYWHERE", "PACKED_BLOCKS", "TRANSPOSED", "UNSEEN"]
