"""What a kernel costs that carries a panel of rows through all steps of a block."""

from __future__ import annotations

from dovetail.declare.cost import Cost, default_cost, type_bytes
from dovetail.ir.dim import floordiv, product
from dovetail.ir.value import Value

ROWS = 64
"""How many rows a block kernel carries at once."""


def in_panels(block: Value, x: Value) -> Cost:
    """Everything that does not grow with the rows of x is read anew for each panel of them.

    Panels wait for each other where separate kernels would share the machine, so the work counts once a panel too.
    """
    panels = floordiv(product(x.shape[:-1]) + (ROWS - 1), ROWS)
    once = default_cost(block)
    weights = [v for v in dict.fromkeys(block.operands) if v.rank <= 2]
    again = sum((type_bytes(v.type) for v in weights), start=0) * (panels - 1)
    return Cost(once.flops * panels, once.bytes + again)
