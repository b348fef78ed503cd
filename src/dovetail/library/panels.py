"""What a kernel costs that carries a panel of rows through all steps of a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail.declare.cost import Cost, type_bytes
from dovetail.declare.fused import FusedOp
from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.value import Value
from dovetail.library.masks import cost_by_position

ROWS = 64
"""How many rows a block kernel carries at once."""


def in_panels(op: FusedOp[...], call: Mapping[str, Any]) -> Cost:
    """The weights are read anew for each panel of the rows of x.

    Panels wait for each other where separate kernels would share the machine, so the work counts once a panel too.
    """
    x: Value = call["x"]
    panels = floordiv(product(x.shape[:-1]) + (ROWS - 1), ROWS)
    once = cost_by_position(op, call)
    weights: Size = 0
    for operand in dict.fromkeys(v for v in call.values() if isinstance(v, Value) and v.rank <= 2):
        weights = weights + type_bytes(operand.type)
    again = weights * (panels - 1)
    return replace(
        once,
        flops=once.flops * panels,
        dense=once.dense * panels,
        bytes=once.bytes + again,
        given=once.given + again,
    )
