"""Lowerings: ops spelled in others, for targets that do not run them natively. One subject a file."""

from dovetail.ir.value import Value
from dovetail.passes.claims import Claims
from dovetail.passes.legalize import Lowering
from dovetail.passes.lowerings.broadcast import spell_broadcast
from dovetail.passes.lowerings.control import lower_if, lower_scan, lower_while
from dovetail.passes.lowerings.conv_transpose import lower_conv_transpose
from dovetail.passes.lowerings.dot import lower_dot
from dovetail.passes.lowerings.groups import lower_grouped_matmul, lower_grouped_outer
from dovetail.passes.lowerings.narrow_conv import lower_narrow_conv
from dovetail.passes.lowerings.unseen import lower_unseen
from dovetail.passes.lowerings.window_products import lower_window_products


def first_of(*lowerings: Lowering) -> Lowering:
    """The first lowering that applies."""

    def lower(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
        made = (lowering(value, operands, claims) for lowering in lowerings)
        return next((found for found in made if found is not None), None)

    return lower


LOWERINGS: dict[str, Lowering] = {
    "attention": lower_unseen,
    "conv": first_of(lower_narrow_conv, lower_window_products),
    "conv_bias_act": lower_narrow_conv,
    "conv_transpose": lower_conv_transpose,
    "dot": lower_dot,
    "grouped_matmul": lower_grouped_matmul,
    "grouped_outer": lower_grouped_outer,
    "rope_attention": lower_unseen,
    "if": lower_if,
    "while": lower_while,
    "scan": lower_scan,
    "broadcast": spell_broadcast,
}
"""Op name -> how it is spelled in others; `broadcast` is the one for operands of elementwise ops."""

__all__ = ["LOWERINGS"]
