"""What several rules of linear algebra need: triangles, identities, transposes, batches that broadcast."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.torch.importing.node import Node
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


def together(n: Node, x: Value, y: Value) -> tuple[Value, Value]:
    """Two stacks of matrices with their batches broadcast."""
    rank = max(x.rank, y.rank)
    leads = [(1,) * (rank - v.rank) + v.shape[:-2] for v in (x, y)]
    lead = tuple(b if a == 1 else a for a, b in zip(*leads, strict=True))
    return tuple[Value, Value](build.broadcast_to(v, (*lead, *v.shape[-2:])) for v in (x, y))


def solved(n: Node, a: Value, b: Value, *, left: bool = True) -> Value:
    """x with a @ x = b, or with x @ a = b."""
    first, second = together(n, a, b)
    return ops.solve(first, second) if left else turned(ops.solve(turned(first), turned(second)))


__all__ = ["diagonal", "identity", "lower", "solved", "together", "turned", "upper"]
