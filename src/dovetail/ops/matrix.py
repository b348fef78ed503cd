"""What a square matrix amounts to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import INEXACT
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint, elementwise, generate, linear_algebra, movement
from dovetail.ops.gradient import NoRuleError, Parts
from dovetail.ops.primitive import Array, family, primitive
from dovetail.ops.rules import one_dtype, tensor
from dovetail.ops.special import wide


def _det(facts: Facts, x: Type) -> Type:
    of = tensor(x)
    if of.rank < 2:
        raise TypeRuleError(f"{facts.op} of {of}", hint="it takes matrices")
    facts.equal(of.shape[-2], of.shape[-1], "the rows of a square matrix, against its columns")
    return TensorType(one_dtype(facts, [of], INEXACT), of.shape[:-2])


def _det_pull(g: Value, y: Value, x: Value) -> Parts:
    """g * y times the inverse of xᵀ; NaN where x is singular."""
    if not x.dtype.is_float:
        raise NoRuleError("gradients of complex numbers are not there", "compute with real and imaginary parts")
    rows = movement.unsqueeze(generate.iota(size=x.shape[-2]), axes=(-1,))
    scale = movement.unsqueeze(g * y, axes=(-2, -1))
    diagonal = elementwise.where(elementwise.equal(rows, generate.iota(size=x.shape[-1])), scale, 0.0)
    return (linear_algebra.solve(adjoint.transposed(x), diagonal),)


def _by_elimination(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    of = tensor(operands[0])
    return of.count * of.shape[-1]


@primitive(_det, flops=_by_elimination, pull=_det_pull)
def det(x: Array) -> Array:
    """Determinant of each matrix of the last two axes."""
    return np.asarray(np.linalg.det(x.astype(wide(x.dtype)))).astype(x.dtype)


FAMILY = family(globals())


__all__ = ["det"]
