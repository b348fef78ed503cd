"""The words that a graph in text or on disk may use."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail import blocks, library, ops
from dovetail.declare.backward import BackwardOp
from dovetail.declare.fused import FusedOp
from dovetail.ir.value import Op
from dovetail.ops.region import region


def vocabulary(declared: Iterable[FusedOp[...]] = ()) -> tuple[Op, ...]:
    """Primitives, the library, blocks, the user's own ops, and backward ops."""
    own = (*library.ALL, *declared)
    backward = [op.back for op in own if isinstance(op.back, BackwardOp)]
    return (*ops.ALL, region, *own, *blocks.ALL, *backward)
