"""Operands stretched to the shape of their result, for kernels that take equal shapes only."""

from __future__ import annotations

from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.passes.claims import Claims


def spell_broadcast(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """The value on stretched operands; numbers are written into the kernel and need no shape."""
    stretched = tuple(
        v if v.shape == value.shape or (v.op is leaf.CONST and v.rank == 0) else build.broadcast_to(v, value.shape)
        for v in operands
    )
    return None if stretched == operands else value.with_operands(stretched)
