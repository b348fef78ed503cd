"""The words that a graph in text or on disk may use."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail import blocks, library, ops
from dovetail.declare.fused import FusedOp
from dovetail.ir.value import Op
from dovetail.ops.region import region


def vocabulary(declared: Iterable[FusedOp[...]] = ()) -> tuple[Op, ...]:
    """Primitives, the library, blocks, and the user's own ops."""
    return (*ops.ALL, region, *library.ALL, *blocks.ALL, *declared)
