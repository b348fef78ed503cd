"""Products summed over shared axes: matmul and its general form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import NUMBERS
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint
from dovetail.ops.gradient import Parts
from dovetail.ops.primitive import Array, Ints, family, primitive
from dovetail.ops.rules import broadcast, one_dtype, tensor
from dovetail.ops.special import wide


def _matmul(facts: Facts, x: Type, y: Type) -> Type:
    left, right = tensor(x), tensor(y)
    dtype = one_dtype(facts, [left, right], NUMBERS)
    if left.rank < 2 or right.rank < 2:
        raise TypeRuleError(f"matmul of ranks {left.rank} and {right.rank}", hint="unsqueeze vectors to matrices first")
    facts.equal(left.shape[-1], right.shape[-2], "the contracted sizes")
    batch = broadcast(facts, [left.shape[:-2], right.shape[:-2]])
    return TensorType(dtype, (*batch, left.shape[-2], right.shape[-1]))


def _matmul_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(result).count * 2 * tensor(operands[0]).shape[-1]


def _matmul_kind(operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> str:
    """Return the kind of a matmul: a batch of products packs each matrix in every run, for few rows each."""
    return "contract.batched" if tensor(operands[1]).rank > 2 else "contract"


def _matmul_pull(g: Value, y: Value, a: Value, b: Value) -> Parts:
    left = adjoint.unbroadcast(matmul(g, adjoint.transposed(b)), a.shape)
    if b.rank == 2 < a.rank and g.shape[:-2] == a.shape[:-2]:
        # One weight for all batches: one product over all rows, not a sum of many.
        return left, matmul(adjoint.transposed(adjoint.flat_rows(a)), adjoint.flat_rows(g))
    return left, adjoint.unbroadcast(matmul(adjoint.transposed(a), g), b.shape)


@primitive(_matmul, flops=_matmul_flops, cost_kind=_matmul_kind, pull=_matmul_pull)
def matmul(x: Array, y: Array) -> Array:
    """Matrix product over the last two axes; axes in front broadcast."""
    # Of bf16 NumPy makes f32.
    return np.matmul(x, y).astype(x.dtype, copy=False)


def _dot_axes(left: TensorType, right: TensorType, axes: tuple[Ints, ...]) -> None:
    for side, of, used in (("left", left, axes[0] + axes[2]), ("right", right, axes[1] + axes[3])):
        if len(set(used)) != len(used) or any(not -of.rank <= a < 0 for a in used):
            raise TypeRuleError(
                f"dot: axes {used} of the {side} operand of rank {of.rank}",
                hint="name each axis once, counted from the end",
            )
    if len(axes[0]) != len(axes[1]) or len(axes[2]) != len(axes[3]):
        raise TypeRuleError("dot: the axes of the two sides do not pair up", hint="name as many axes left as right")


def _dot(facts: Facts, x: Type, y: Type, *, left: Ints, right: Ints, left_batch: Ints, right_batch: Ints) -> Type:
    a, b = tensor(x), tensor(y)
    dtype = one_dtype(facts, [a, b], NUMBERS)
    _dot_axes(a, b, (left, right, left_batch, right_batch))
    for i, j in zip(left, right, strict=True):
        facts.equal(a.shape[i], b.shape[j], "the contracted sizes")
    batch = [
        facts.equal(a.shape[i], b.shape[j], "the batch sizes") for i, j in zip(left_batch, right_batch, strict=True)
    ]
    rows = [a.shape[i] for i in range(-a.rank, 0) if i not in left and i not in left_batch]
    columns = [b.shape[i] for i in range(-b.rank, 0) if i not in right and i not in right_batch]
    return TensorType(dtype, (*batch, *rows, *columns))


def _dot_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    total = tensor(result).count * 2
    contracted: Ints = attrs["left"]
    for axis in contracted:
        total = total * tensor(operands[0]).shape[axis]
    return total


def _dot_pull(
    g: Value,
    y: Value,
    a: Value,
    b: Value,
    *,
    left: tuple[int, ...],
    right: tuple[int, ...],
    left_batch: tuple[int, ...],
    right_batch: tuple[int, ...],
) -> Parts:
    batch = tuple(range(-g.rank, -g.rank + len(left_batch)))
    free_a = [i for i in range(-a.rank, 0) if i not in left and i not in left_batch]
    free_b = [i for i in range(-b.rank, 0) if i not in right and i not in right_batch]
    rows = tuple(range(-len(free_a) - len(free_b), -len(free_b)))
    columns = tuple(range(-len(free_b), 0))
    # g @ b gives a's batch axes, a's free axes, then the contracted axes in the order in which b has them.
    by_b = dot(g, b, left=columns, right=tuple(free_b), left_batch=batch, right_batch=right_batch)
    contracted_a = [left[right.index(i)] for i in sorted(right)]
    by_a = dot(g, a, left=rows, right=tuple(free_a), left_batch=batch, right_batch=left_batch)
    contracted_b = [right[left.index(i)] for i in sorted(left)]
    return (
        _in_order(by_b, (*left_batch, *free_a, *contracted_a), a),
        _in_order(by_a, (*right_batch, *free_b, *contracted_b), b),
    )


def _in_order(g: Value, axes: Sequence[int], x: Value) -> Value:
    """g, whose axes are these of x, in x's own order."""
    rank = len(axes)
    order = tuple(list(axes).index(axis) - rank for axis in range(-rank, 0))
    return adjoint.stated(adjoint.permuted(g, order), x.shape)


@primitive(_dot, flops=_dot_flops, cost_kind="contract", pull=_dot_pull)
def dot(x: Array, y: Array, *, left: Ints, right: Ints, left_batch: Ints = (), right_batch: Ints = ()) -> Array:
    """General contraction: batch axes first, then the rest of x, then the rest of y."""
    a, b = range(x.ndim), range(x.ndim, x.ndim + y.ndim)
    names_x, names_y = list(a), list(b)
    for i, j in zip((*left, *left_batch), (*right, *right_batch), strict=True):
        names_y[j] = names_x[i]
    batch = [names_x[i] for i in left_batch]
    summed = {names_x[i] for i in left}
    rows = [n for n in names_x if n not in summed and n not in batch]
    columns = [n for n in names_y if n not in summed and n not in batch]
    # Added up in its own type, a narrow sum stops growing; and einsum does not know bf16.
    sums = wide(x.dtype)
    product = np.einsum(x.astype(sums), names_x, y.astype(sums), names_y, [*batch, *rows, *columns])
    return product.astype(x.dtype)


FAMILY = family(globals())


__all__ = ["dot", "matmul"]
