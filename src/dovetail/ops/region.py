"""Regions: a connected piece of a graph that runs as one kernel.

A plain region has elementwise steps only. A region may also hold one anchor (a contraction, a convolution, attention,
a norm, a reduction): the steps before it are its prologue, the steps after it its epilogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.fact import Facts
from dovetail.ir.graph import Subgraph
from dovetail.ir.inline import inline
from dovetail.ir.type import TupleType, Type
from dovetail.ir.value import Op, Value, make
from dovetail.ops.primitive import Primitive
from dovetail.ops.rules import tensor


class Region(Op):
    """A body of elementwise steps, maybe around one anchor, run once for each lane of operands."""

    name = "region"

    def __call__(self, body: Subgraph, operands: Sequence[Value], *, lanes: int = 1) -> Value:
        return make(self, tuple(operands), {"body": body, "lanes": lanes})

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        body: Subgraph = attrs["body"]
        lanes: int = attrs["lanes"]
        # The number of lanes is checked first: a lane has an operand at least, so that no text makes a billion.
        fits = 1 <= lanes <= max(len(operands), 1) and operands == body.arguments * lanes
        if not fits or not body.results or (lanes > 1 and len(body.results) != 1):
            raise TypeRuleError(
                f"region of {len(operands)} operands for {len(body.arguments)} arguments in {lanes} lanes, "
                f"with {len(body.results)} results",
                hint="give each lane one operand for each argument, of its type; several lanes have one result each",
            )
        results = tuple([tensor(v.type) for v in body.results])
        together = results * lanes
        return together[0] if len(together) == 1 else TupleType(together)

    def expansion(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> Value:
        """Spell out the steps again."""
        body: Subgraph = attrs["body"]
        width = len(body.arguments)
        lanes = [operands[i * width : (i + 1) * width] for i in range(attrs["lanes"])]
        results = [result for lane in lanes for result in inline(body, lane)]
        return results[0] if len(results) == 1 else leaf.pack(tuple(results))


region = Region()


def steps(body: Subgraph) -> list[Value]:
    """Return what a region does to each element, in order; views in front of it are no steps."""
    return [v for v in body.values if v.op.elementwise]


@lru_cache(maxsize=1 << 10)
def anchor_of(body: Subgraph) -> Value | None:
    """Return the one value of a body that is neither elementwise nor a view; None where there is none, or several."""
    anchors = [v for v in body.values if v.operands and not v.op.elementwise and not is_prologue(v)]
    return anchors[0] if len(anchors) == 1 else None


def is_prologue(value: Value) -> bool:
    """Return whether an op only says which element a region reads: a view, or a nearest-neighbor resize. `again` does
    not.
    """
    if not isinstance(value.op, Primitive) or len(value.operands) != 1 or value.op.name == "again":
        return False
    return value.op.view or (value.op.name == "resize" and value.attrs.get("mode") == "nearest")
