"""A grouped product as a contraction: the matrix that rows are multiplied with is that of their group."""

from __future__ import annotations

from dovetail import ops
from dovetail.declare.cost import type_bytes
from dovetail.ir.dim import Size, smallest
from dovetail.ir.dtype import i32, i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.problems.contraction import SUMMED_IN_F32, Contraction, find_contraction

ENDS = (i32, i64)


def find_grouped(of: StepProblem[object]) -> Contraction | Refused:
    """A step as the product of rows with the matrices of their groups."""
    if of.value.op is not ops.grouped_matmul:
        return Refused("step_is_a_grouped_product", of.value.op.name, ops.grouped_matmul.name)
    body = of.body
    (product,) = body.results
    rows, matrices, ends = product.operands
    if product.dtype not in SUMMED_IN_F32:
        return Refused("sums_are_f32", product.dtype.name, ", ".join(d.name for d in SUMMED_IN_F32))
    if ends.dtype not in ENDS:
        return Refused("ends_are_integers_of_a_kernel", ends.dtype.name, ", ".join(d.name for d in ENDS))
    if any(v not in body.views for v in (rows, matrices, ends)):
        return Refused("factors_are_operands", "a factor that is computed")
    if not isinstance(matrices.shape[0], int):
        return Refused("number_of_groups_is_known", str(matrices.shape[0]), "a number")
    return Contraction(body, (product,), 1, (), ends)


def find_any_product(of: StepProblem[object]) -> Contraction | Refused:
    """A step as products with one matrix for all rows, or with one for each group of them."""
    return of.once(find_grouped if of.value.op is ops.grouped_matmul else find_contraction)


def read_bytes(of: Contraction, stored: Value) -> Size:
    """The bytes that are read of weights as they are stored: of matrices of groups, no more than there are rows."""
    whole = type_bytes(stored.type)
    if of.ends is None:
        return whole
    groups = of.rights[0].shape[0]
    assert isinstance(groups, int), "the number of groups is known"
    return whole // max(1, groups) * smallest(groups, of.left.shape[0])


__all__ = ["ENDS", "find_any_product", "find_grouped", "read_bytes"]
