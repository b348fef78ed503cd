"""Products of groups of rows, each with the matrix of its group, as mixtures of experts have them.

Rows are sorted by group, and `ends[g]` is the row after the last one of group g. An end below an earlier one leaves its
group empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import FLOATS, INTEGERS
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint
from dovetail.ops.gradient import Parts
from dovetail.ops.primitive import Array, family, primitive
from dovetail.ops.rules import one_dtype, tensor


def _ends(ends: Type) -> TensorType:
    of = tensor(ends)
    if of.rank != 1 or of.dtype not in INTEGERS:
        raise TypeRuleError(f"ends of groups are {of}", hint="pass a vector of integers, one for each group")
    return of


def _ranks(facts: Facts, *operands: tuple[TensorType, int]) -> None:
    if any(of.rank != rank for of, rank in operands):
        shapes = " and ".join(str(of) for of, _ in operands)
        raise TypeRuleError(f"{facts.op} of {shapes}", hint=f"pass ranks {' and '.join(str(r) for _, r in operands)}")


def _product(facts: Facts, x: Type, w: Type, ends: Type) -> Type:
    rows, matrices, groups = tensor(x), tensor(w), _ends(ends)
    dtype = one_dtype(facts, [rows, matrices], FLOATS)
    _ranks(facts, (rows, 2), (matrices, 3))
    facts.equal(rows.shape[-1], matrices.shape[-2], "the contracted sizes")
    facts.equal(matrices.shape[0], groups.shape[0], "the matrices, against the ends of groups")
    return TensorType(dtype, (rows.shape[0], matrices.shape[-1]))


def _product_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(result).count * 2 * tensor(operands[0]).shape[-1]


def _product_pull(g: Value, y: Value, x: Value, w: Value, ends: Value) -> Parts:
    return grouped_matmul(g, adjoint.transposed(w), ends), grouped_outer(x, g, ends), None


def _groups(ends: Array, rows: int) -> Iterator[tuple[int, slice]]:
    """Yield the groups that have rows."""
    first = 0
    for group, end in enumerate(ends.tolist()):
        end = max(first, min(int(end), rows))
        if end > first:
            yield group, slice(first, end)
        first = end


@primitive(_product, flops=_product_flops, cost_kind="contract", pull=_product_pull)
def grouped_matmul(x: Array, w: Array, ends: Array) -> Array:
    """Rows of each group times the matrix of the group: x[r, k], w[e, k, n], ends[e]; rows after the last end are 0."""
    y = np.zeros((len(x), w.shape[-1]), x.dtype)
    for group, rows in _groups(ends, len(x)):
        # Of bf16 NumPy makes f32.
        y[rows] = np.matmul(x[rows], w[group]).astype(x.dtype, copy=False)
    return y


def _outer(facts: Facts, x: Type, y: Type, ends: Type) -> Type:
    left, right, groups = tensor(x), tensor(y), _ends(ends)
    dtype = one_dtype(facts, [left, right], FLOATS)
    _ranks(facts, (left, 2), (right, 2))
    facts.equal(left.shape[0], right.shape[0], "the rows of both")
    return TensorType(dtype, (groups.shape[0], left.shape[-1], right.shape[-1]))


def _outer_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    left, right = tensor(operands[0]), tensor(operands[1])
    return left.count * 2 * right.shape[-1]


def _outer_pull(g: Value, z: Value, x: Value, y: Value, ends: Value) -> Parts:
    return grouped_matmul(y, adjoint.transposed(g), ends), grouped_matmul(x, g, ends), None


@primitive(_outer, flops=_outer_flops, cost_kind="contract", pull=_outer_pull)
def grouped_outer(x: Array, y: Array, ends: Array) -> Array:
    """The gradient of the matrices of grouped_matmul: xᵀ y of the rows of each group, x[r, k], y[r, n], ends[e]."""
    z = np.zeros((len(ends), x.shape[-1], y.shape[-1]), x.dtype)
    for group, rows in _groups(ends, len(x)):
        z[group] = np.matmul(x[rows].T, y[rows]).astype(x.dtype, copy=False)
    return z


FAMILY = family(globals())


__all__ = ["grouped_matmul", "grouped_outer"]
