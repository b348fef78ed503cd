"""What kind of work a value or a kernel does: the page gives each kind a colour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from dovetail.ir.op import Op
from dovetail.ops.region import region

Family: TypeAlias = Literal["move", "map", "reduce", "contract", "attend", "end"]
"""From what only moves bytes to what multiplies most; `end` is an input or output of the graph."""

FAMILIES: tuple[Family, ...] = get_args(Family)
_CONTRACTIONS = frozenset({"dot", "matmul", "conv", "conv_transpose", "deform_conv"})
_REDUCING = ("reduce_", "arg_", "cum_", "max_pool", "average_pool", "lp_pool", "sort", "top_k")


def family_of(op: Op) -> Family:
    """The kind of work of one primitive, or of an elementwise region."""
    if op.name in _CONTRACTIONS:
        return "contract"
    if op.name.startswith(_REDUCING):
        return "reduce"
    return "map" if op.elementwise or op is region else "move"


def kernel_family(op: Op, inside: Iterable[Op]) -> Family:
    """The heaviest kind among the ops that a kernel computes."""
    if "attention" in op.name:
        return "attend"
    found = {family_of(o) for o in (op, *inside)}
    return next(family for family in reversed(FAMILIES) if family in found)
