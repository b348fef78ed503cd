"""shared_input_matmul: several matmuls of one input as one wide matmul."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dovetail import ops
from dovetail.declare.fused import Call
from dovetail.declare.group import group_rule
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.library.activation import Activation
from dovetail.library.dequantise_blocks import dequantise_blocks
from dovetail.library.linear import linear


@group_rule(shared="x", shapes="x[*, m, k] w[k, n] b[n]")
def shared_input_matmul(x: Value, w: Value, b: Value | None = None, *, act: Activation = "none") -> Value:
    """Matmuls of one input, with or without bias and activation, as one wide matmul and views of it."""
    return x @ w if b is None and act == "none" else linear(x, w, b, act=act)


@shared_input_matmul.requires(
    reason="the weight is {w.type}; weights are joined column by column, so each is one matrix",
)
def weight_is_a_matrix(w: Value) -> bool:
    return w.rank == 2


@shared_input_matmul.kind
def format_of_the_weight(member: Call) -> Hashable:
    """Weights in blocks of one format: put together with others they could only be floats."""
    weights: Value = member.w
    source = weights.operands[0] if weights.op is ops.permute else weights
    return source.attrs["format"] if source.op is dequantise_blocks else None


@shared_input_matmul.joined
def one_wide_matmul(members: Sequence[Call]) -> tuple[Value, ...]:
    """The weights side by side, which is work of bind time, one matmul, and its columns taken apart."""
    first = members[0]
    w = ops.concat(*(m.w for m in members), axis=-1)
    b = None if first.b is None else ops.concat(*(m.b for m in members), axis=-1)
    return _columns(shared_input_matmul(first.x, w, b, act=first.act), [m.w.shape[-1] for m in members])


def _columns(wide: Value, widths: Sequence[Size]) -> tuple[Value, ...]:
    if all(width == widths[0] for width in widths):
        return tuple(ops.part(wide, axis=-1, index=i, parts=len(widths)) for i in range(len(widths)))
    views: list[Value] = []
    start: Size = 0
    for width in widths:
        views.append(ops.slice_(wide, axis=-1, start=start, stop=start + width))
        start = start + width
    return tuple(views)
