"""Products with weights of two bytes: the right operands of a contraction, seen through their cast to f32."""

from __future__ import annotations

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.machine import Cost
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, bf16, f16, f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.problems.contraction import Contraction
from dovetail.kernels.problems.grouped import find_any_product, read_bytes
from dovetail.kernels.problems.stored_weights import cost_with, find_stored

HALVES: tuple[DType, ...] = (f16, bf16)


@dataclass(frozen=True, slots=True)
class HalfProduct:
    """A contraction whose right operands are all parameters of two bytes, cast to f32."""

    contraction: Contraction
    dtype: DType
    """Of the parameters."""
    matrices: tuple[tuple[Value, ...], ...]
    """For each right operand the parameters with its columns, [columns, k], one after the other."""

    def cost(self, step: Value) -> Cost:
        """Work and traffic of the step, which reads two bytes in place of four."""
        return cost_with(step, sum([read_bytes(self.contraction, matrix) for of in self.matrices for matrix in of]))


def find_half_product(of: StepProblem[object]) -> HalfProduct | Refused:
    """A step as products with weights of two bytes."""
    contraction = of.once(find_any_product)
    if isinstance(contraction, Refused):
        return contraction

    def is_stored(weights: Value) -> bool:
        if weights.op is not ops.cast or weights.dtype is not f32:
            return False
        (source,) = weights.operands
        return source.op is leaf.PARAM and source.dtype in HALVES and of.locations.is_bound(source)

    def otherwise(weights: Value) -> Refused:
        return Refused("weights_are_halves", weights.op.name, "a cast of parameters in f16 or bf16")

    stored = find_stored(contraction, is_stored, otherwise)
    if isinstance(stored, Refused):
        return stored
    matrices = tuple([tuple([cast.operands[0] for cast in some]) for some in stored])
    kinds = {matrix.dtype for some in matrices for matrix in some}
    if len(kinds) > 1:
        return Refused("weights_have_one_type", ", ".join(sorted([kind.name for kind in kinds])))
    return HalfProduct(contraction, kinds.pop(), matrices)


__all__ = ["HALVES", "HalfProduct", "find_half_product"]
