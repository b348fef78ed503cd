"""Attention whose scores do not tell which queries see no key: their zeros are a step after it."""

from __future__ import annotations

from dovetail.declare.fused import FusedOp
from dovetail.ir.value import Value
from dovetail.library.attention import scores_tell_unseen, zero_where_unseen
from dovetail.passes.claims import Claims


def lower_unseen(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """The attention without these zeros, which kernels take, and a choice by what each query sees."""
    assert isinstance(value.op, FusedOp), "an attention"
    call = value.op.arguments(operands, value.attrs)
    if scores_tell_unseen(call):
        return None
    return zero_where_unseen(value.op(**{**call, "zero_unseen": False}), call)


__all__ = ["lower_unseen"]
