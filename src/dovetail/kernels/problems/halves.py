"""Products with weights of two bytes: the right operands of a contraction, seen through their cast to f32."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.cost import kernel_cost, type_bytes
from dovetail.declare.machine import Cost
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, bf16, f16, f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.problems.contraction import Contraction, find_contraction

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
        cost = kernel_cost(step)
        saved = sum([type_bytes(matrix.type) for of in self.matrices for matrix in of])
        return Cost(cost.flops, cost.bytes - saved, cost.given - saved, cost.dense, cost.kind, cost.dtype, cost.rows)


def find_half_product(of: StepProblem[object]) -> HalfProduct | Refused:
    """A step as products with weights of two bytes."""
    found = of.once(find_contraction)
    if isinstance(found, Refused):
        return found
    matrices: list[tuple[Value, ...]] = []
    for right in found.rights:
        is_transposed = right.op is ops.permute and right.rank == 2 and right.operands[0] in found.body.arguments
        if right not in found.body.arguments and not is_transposed:
            return Refused("weights_are_an_operand", "a view of an operand")
        weights = found.operand(right)
        parts = stored_rows(weights, is_transposed=is_transposed)
        if parts is None or not all(map(of.locations.is_bound, parts)):
            return Refused("weights_are_halves", weights.op.name, "a cast of parameters in f16 or bf16")
        matrices.append(tuple(parts))
    kinds = {matrix.dtype for some in matrices for matrix in some}
    if len(kinds) > 1:
        return Refused("weights_have_one_type", ", ".join(sorted([kind.name for kind in kinds])))
    return HalfProduct(found, kinds.pop(), tuple(matrices))


def stored_rows(weights: Value, *, is_transposed: bool) -> Sequence[Value] | None:
    """The parameters [columns, k] that weights [k, columns], or [columns, k] if transposed, are cast from."""
    if weights.rank != 2:
        return None
    if weights.op is ops.permute:
        return stored_rows(weights.operands[0], is_transposed=not is_transposed)
    if weights.op is ops.concat and weights.attrs["axis"] % 2 == (0 if is_transposed else 1):
        found = [stored_rows(part, is_transposed=is_transposed) for part in weights.operands]
        some = [parts for parts in found if parts is not None]
        return [part for parts in some for part in parts] if len(some) == len(found) else None
    source = weights.operands[0] if weights.op is ops.cast and weights.dtype is f32 else None
    if source is None or not is_transposed or source.op is not leaf.PARAM or source.dtype not in HALVES:
        return None
    return [source]


__all__ = ["HALVES", "HalfProduct", "find_half_product", "stored_rows"]
