"""Declaring fused ops and groups: one function, its guards, its spellings, its cost."""

from dovetail.declare.backward import BackwardOp, fused_op
from dovetail.declare.cost import Cost, Machine
from dovetail.declare.fused import FusedOp, UnwrittenError, Variant
from dovetail.declare.group import Group, group_rule
from dovetail.declare.guard import Guard
from dovetail.declare.remedy import Change, Remedy, every, typed
from dovetail.declare.signature import HANDED_ON
from dovetail.declare.trace import part_of_traces

__all__ = [
    "HANDED_ON",
    "BackwardOp",
    "Change",
    "Cost",
    "FusedOp",
    "Group",
    "Guard",
    "Machine",
    "Remedy",
    "UnwrittenError",
    "Variant",
    "every",
    "fused_op",
    "group_rule",
    "part_of_traces",
    "typed",
]
