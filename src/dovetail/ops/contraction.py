"""Products summed over shared axes: matmul and its general form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import NUMBERS
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
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
    """A product of matrices in a batch packs each of them in every run, for few rows each."""
    return "contract.batched" if tensor(operands[1]).rank > 2 else "contract"


@primitive(_matmul, flops=_matmul_flops, cost_kind=_matmul_kind)
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


@primitive(_dot, flops=_dot_flops, cost_kind="contract")
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
