"""What ops ask that add a residual to x, and a bias before it, row by row."""

from __future__ import annotations

from dovetail.declare import Change, FusedOp, typed
from dovetail.ir.value import Value
from dovetail.library.norms import is_a_row


def added_by_rows(op: FusedOp[...]) -> None:
    """Declare the guards of an op with operands x, r and maybe b, and what would make them hold."""
    op.requires(
        reason="{x.type} and {r.type} are added; the kernel reads both row by row",
        hint="give both operands one shape",
    )(operands_have_one_shape)
    op.remedy(operands_have_one_shape)(operands_in_one_shape)
    op.requires(
        reason="the bias is {b.type} and x is {x.type}; one vector is added to every row",
        hint="give the bias the shape of the last axis",
    )(bias_is_a_vector)
    op.remedy(bias_is_a_vector)(bias_as_a_vector)


def operands_have_one_shape(x: Value, r: Value) -> bool:
    return x.shape == r.shape


def operands_in_one_shape(x: Value, r: Value) -> Change:
    """Both operands come in the shape of their sum."""
    shape = (x + r).shape
    return {"x": typed(x, shape=shape), "r": typed(r, shape=shape)}


def bias_is_a_vector(x: Value, b: Value | None) -> bool:
    return is_a_row(b, x)


def bias_as_a_vector(x: Value, b: Value) -> Change:
    """The bias is one vector for all rows."""
    return {"b": typed(b, shape=x.shape[-1:])}
