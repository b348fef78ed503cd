"""What the CPU target keeps: every primitive but general dot, and the fused ops that one kernel can serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dovetail import ops
from dovetail.declare.cost import Machine
from dovetail.declare.fused import FusedOp
from dovetail.ir.dtype import ALL as EVERY
from dovetail.passes.claims import Claims, Condition
from dovetail.passes.regions import RegionLimits

_REWRITTEN = frozenset({"dot"})
_FUSED = (
    "silu",
    "gelu",
    "softmax",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "group_norm_silu",
    "residual_layer_norm",
    "residual_rms_norm",
    "rope",
    "linear",
    "matmul_add",
    "rms_norm_matmul",
    "swiglu",
    "wide_swiglu",
    "gated_product",
    "attention",
    "rope_attention",
    "attention_block",
    "conv_bias_act",
    "region",
)


def claims(declared: Iterable[FusedOp[...]] = ()) -> Claims:
    """The claims for a vocabulary with the user's own ops, which run by their bodies."""
    return replace(CLAIMS, native={**CLAIMS.native, **{op.name: () for op in declared}})


CLAIMS = Claims(
    target="cpu",
    # One core of a server CPU of 2020: the order of magnitude that prices need before a host is measured.
    machine=Machine(flops_per_second=4.0e10, bytes_per_second=2.0e10, launch_seconds=5e-7),
    native={
        **{op.name: () for op in ops.ALL if op.name not in _REWRITTEN},
        **dict.fromkeys(_FUSED, tuple[Condition, ...]()),
    },
    dtypes=EVERY,
    regions=RegionLimits(),
)
