"""Declaring fused ops: one function, its guards, its spellings, its cost."""

from dovetail.declare.cost import Cost, Machine
from dovetail.declare.fused import FusedOp, Variant, fused_op
from dovetail.declare.guard import Guard

__all__ = ["Cost", "FusedOp", "Guard", "Machine", "Variant", "fused_op"]
