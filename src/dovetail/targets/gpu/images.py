"""Images on GPUs: which steps are convolutions and pools, and when channels are innermost."""

from __future__ import annotations

from dovetail import library, ops
from dovetail.ir import leaf
from dovetail.ir.dtype import bf16, f16
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.ops.region import anchor_of, is_prologue, region
from dovetail.ops.resize import resize
from dovetail.passes.memory_rules import ChannelsLast

POOLS = (ops.max_pool, ops.average_pool, ops.lp_pool)
FOLLOWERS = (*POOLS, ops.concat, ops.pad, resize)
"""Ops whose kernels read and write images in any layout."""
CONVOLVED = tuple(op.name for op in (ops.conv, ops.conv_transpose, library.conv_bias_act))
"""Names of ops whose kernels are convolutions."""


def is_convolved(value: Value) -> bool:
    """Whether it is a convolution, or a region around one."""
    anchor = anchor_of(value.attrs["body"]) if value.op is region else value
    return anchor is not None and anchor.op.name in CONVOLVED


def _convolution(value: Value) -> Value | None:
    """The convolution that a step computes, with the operands of the step or the arguments of its region."""
    return (anchor_of(value.attrs["body"]) if value.op is region else value) if is_convolved(value) else None


def _is_read(anchor: Value, value: Value, index: int, place: int) -> bool:
    """Whether an operand of a step is that of its convolution at a place."""
    operand = anchor.operands[place]
    return index == place if value.op is not region else operand.op is leaf.ARGUMENT and operand.attrs["index"] == index


def _gains(value: Value, index: int) -> bool:
    """Tensor cores copy 16 bytes of channels at once, of images whose filters are known when parameters are bound.

    A permutation that makes channels the last axis is a view of such an image.
    """
    if value.op is ops.permute:
        order: tuple[int, ...] = value.attrs["order"]
        return order[-value.rank + 1 :] == (*range(2 - value.rank, 0), 1 - value.rank)
    anchor = _convolution(value)
    if anchor is None or not _is_read(anchor, value, index, 0) or anchor.dtype not in (f16, bf16):
        return False
    groups, (first, second, *_) = int(anchor.attrs["groups"]), anchor.operands[1].shape
    channels = first // groups if anchor.op is ops.conv_transpose else second
    weights = [v for i, v in enumerate(value.operands) if _is_read(anchor, value, i, 1)]
    are_constant = all(v.op is not leaf.INPUT for v in walk(weights))
    return are_constant and isinstance(channels, int) and channels % CHUNK == 0


def _keeps(value: Value, index: int) -> bool:
    """Elementwise steps, copies, pools, epilogues and depthwise filters; a mean of pixels has channels side by side."""
    if value.op.elementwise or value.op in FOLLOWERS:
        return True
    if value.op in (ops.reduce_mean, ops.reduce_sum, ops.reduce_max):
        return tuple(sorted(value.attrs["axes"])) == tuple(range(2 - value.operands[0].rank, 0))
    anchor = _convolution(value)
    if anchor is not None:
        depthwise = anchor.op is not ops.conv_transpose and anchor.operands[1].shape[1] == 1
        return not _is_read(anchor, value, index, 1) and (depthwise or not _is_read(anchor, value, index, 0))
    return value.op is region and all(v.op.elementwise for v in value.attrs["body"].values if v.operands)


def _writes(value: Value) -> bool:
    if value.op.elementwise or value.op in FOLLOWERS or is_convolved(value):
        return True
    inner = [v for v in value.attrs["body"].values if v.operands] if value.op is region else []
    return bool(inner) and all(v.op.elementwise or is_prologue(v) for v in inner)


def _prefers(value: Value) -> bool:
    """Tensor cores give neighbouring columns to a thread, which are filters then."""
    anchor = _convolution(value)
    filters = value.shape[1] if anchor is not None and isinstance(value.type, TensorType) else 0
    return anchor is not None and anchor.dtype in (f16, bf16) and isinstance(filters, int) and filters % CHUNK == 0


CHANNELS_LAST = ChannelsLast(_gains, _keeps, _writes, _prefers)

__all__ = ["CHANNELS_LAST", "CONVOLVED", "POOLS", "is_convolved"]
