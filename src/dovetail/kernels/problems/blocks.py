"""Products with weights in blocks: the right operands of a contraction, seen through their dequantisation."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import library, ops
from dovetail.dataclass import dataclass
from dovetail.declare.cost import kernel_cost, type_bytes
from dovetail.declare.machine import Cost
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.problems.contraction import Contraction, find_contraction
from dovetail.library.block_formats import FORMATS, Format


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """A contraction whose right operands are all dequantised from blocks of one format."""

    contraction: Contraction
    name: str
    """Of the format."""
    blocks: tuple[tuple[Value, ...], ...]
    """For each right operand the blocks of its columns, [columns, bytes], one part after the other."""

    @property
    def format(self) -> Format:
        return FORMATS[self.name]

    def cost(self, step: Value) -> Cost:
        """Work and traffic of the step, which reads blocks in place of floats."""
        cost = kernel_cost(step)
        floats = [self.contraction.operand(right) for right in self.contraction.rights]
        saved = sum([type_bytes(v.type) for v in floats]) - sum([type_bytes(b.type) for of in self.blocks for b in of])
        return Cost(cost.flops, cost.bytes - saved, cost.given - saved, cost.dense, cost.kind, cost.dtype, cost.rows)


def find_block_product(of: StepProblem[object]) -> BlockProduct | Refused:
    """A step as products with weights in blocks."""
    found = of.once(find_contraction)
    if isinstance(found, Refused):
        return found
    names: set[str] = set()
    blocks: list[tuple[Value, ...]] = []
    for right in found.rights:
        is_transposed = right.op is ops.permute and right.rank == 2 and right.operands[0] in found.body.arguments
        if right not in found.body.arguments and not is_transposed:
            return Refused("weights_are_an_operand", "a view of an operand")
        weights = found.operand(right)
        parts = _rows(weights) if is_transposed else _columns(weights)
        if parts is None or not all(of.locations.is_bound(part.operands[0]) for part in parts):
            return Refused("weights_are_blocks", weights.op.name, library.dequantise_blocks.name)
        names |= {part.attrs["format"] for part in parts}
        blocks.append(tuple([part.operands[0] for part in parts]))
    if len(names) > 1:
        return Refused("blocks_have_one_format", ", ".join(sorted(names)))
    return BlockProduct(found, names.pop(), tuple(blocks))


def _columns(weights: Value) -> Sequence[Value] | None:
    """The dequantised matrices [columns, k] that weights [k, columns] consist of; None where they are others."""
    if weights.rank == 2 and weights.op is ops.concat and weights.attrs["axis"] % 2 == 1:
        return _all([_columns(part) for part in weights.operands])
    return _rows(weights.operands[0]) if weights.rank == 2 and weights.op is ops.permute else None


def _rows(weights: Value) -> Sequence[Value] | None:
    """The same of weights [columns, k]."""
    if weights.rank == 2 and weights.op is ops.concat and weights.attrs["axis"] % 2 == 0:
        return _all([_rows(part) for part in weights.operands])
    return [weights] if weights.rank == 2 and weights.op is library.dequantise_blocks else None


def _all(parts: Sequence[Sequence[Value] | None]) -> Sequence[Value] | None:
    found = [some for some in parts if some is not None]
    return [one for some in found for one in some] if len(found) == len(parts) else None


__all__ = ["BlockProduct", "find_block_product"]
