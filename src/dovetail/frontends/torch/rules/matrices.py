"""What several rules of linear algebra need: triangles, identities, transposes, batches that broadcast."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.torch.importing.node import common_shape
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.ops import build


def turned(x: Value) -> Value:
    """The matrices transposed."""
    return ops.permute(x, order=(-1, -2))


def identity(shape: Sequence[Size], like: Value) -> Value:
    """Identity matrices in a shape."""
    return build.broadcast_to(ops.eye(rows=shape[-2], columns=shape[-1], dtype=like.dtype), shape)


def diagonal(x: Value) -> Value:
    """The main diagonals of matrices."""
    rows, columns = x.shape[-2:]
    on = ops.equal(ops.unsqueeze(ops.iota(size=rows), axes=(-1,)), ops.iota(size=columns))
    axis = -2 if isinstance(rows, int) and isinstance(columns, int) and rows >= columns else -1
    picked = ops.where(on, x, leaf.scalar(0, x.dtype))
    return build.squeeze_dims(ops.reduce_sum(picked, axes=(axis,)), axis)


def lower(x: Value, *, unit: bool = False) -> Value:
    """The matrices on and below the diagonal; `unit` puts ones on it."""
    below = build.trilu(x, upper=False, offset=-1 if unit else 0)
    return below + identity(x.shape, x) if unit else below


def upper(x: Value, *, unit: bool = False) -> Value:
    """The matrices on and above the diagonal; `unit` puts ones on it."""
    above = build.trilu(x, upper=True, offset=1 if unit else 0)
    return above + identity(x.shape, x) if unit else above


def together(x: Value, y: Value) -> tuple[Value, Value]:
    """Two stacks of matrices with their batches broadcast."""
    lead = common_shape(x.shape[:-2], y.shape[:-2])
    return build.broadcast_to(x, (*lead, *x.shape[-2:])), build.broadcast_to(y, (*lead, *y.shape[-2:]))


def solved(a: Value, b: Value, *, left: bool = True) -> Value:
    """x with a @ x = b, or with x @ a = b."""
    first, second = together(a, b)
    return ops.solve(first, second) if left else turned(ops.solve(turned(first), turned(second)))


__all__ = ["diagonal", "identity", "lower", "solved", "together", "turned", "upper"]
