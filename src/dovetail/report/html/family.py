"""What kind of work a value or a kernel does: the page gives each kind a colour."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.value import Op
from dovetail.ir.walk import walk
from dovetail.ops.region import region

Family: TypeAlias = Literal["move", "map", "reduce", "contract", "attend", "end"]
"""From what only moves bytes to what multiplies most; `end` is an input or output of the graph."""

FAMILIES: tuple[Family, ...] = get_args(Family)
_CONTRACTIONS = frozenset({"dot", "matmul", "conv", "conv_transpose", "deform_conv"})
_REDUCING = ("reduce_", "arg_", "cum_", "max_pool", "average_pool", "lp_pool", "sort", "top_k")


@lru_cache(maxsize=1024)
def family_of(op: Op) -> Family:
    """The kind of work of a primitive, of an elementwise region, or of the heaviest op in a declared body."""
    if "attention" in op.name:
        return "attend"
    if isinstance(op, FusedOp):
        return _heaviest(family_of(part) for part in _body(op))
    if op.name in _CONTRACTIONS:
        return "contract"
    if op.name.startswith(_REDUCING):
        return "reduce"
    return "map" if op.elementwise or op is region else "move"


def kernel_family(op: Op, inside: Iterable[Op]) -> Family:
    """The heaviest kind among a kernel's op and the ops as written that it computes."""
    return _heaviest(family_of(o) for o in (op, *inside))


def _body(op: FusedOp[...]) -> set[Op]:
    """The primitives that a declared op comes down to."""
    found: set[Op] = set()
    pending: list[FusedOp[...]] = [op]
    while pending:
        for variant in pending.pop().variants[:1]:
            for value in walk(variant.results):
                if value.op not in found and value.op not in leaf.LEAVES:
                    found.add(value.op)
                    if isinstance(value.op, FusedOp):
                        pending.append(value.op)
    return {o for o in found if not isinstance(o, FusedOp)}


def _heaviest(families: Iterable[Family]) -> Family:
    found = set(families)
    heaviest: Family = "move"
    for family in FAMILIES:
        heaviest = family if family in found else heaviest
    return heaviest
