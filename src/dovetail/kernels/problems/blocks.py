"""Products with weights in blocks: the right operands of a contraction, seen through their dequantisation."""

from __future__ import annotations

from dovetail import library
from dovetail.dataclass import dataclass
from dovetail.declare.cost import type_bytes
from dovetail.declare.machine import Cost
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.problems.contraction import Contraction, find_contraction
from dovetail.kernels.problems.stored_weights import cost_with, find_stored
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
        floats = [self.contraction.operand(right) for right in self.contraction.rights]
        stored = [b for of in self.blocks for b in of]
        return cost_with(step, sum([type_bytes(v.type) for v in floats]) - sum([type_bytes(b.type) for b in stored]))


def find_block_product(of: StepProblem[object]) -> BlockProduct | Refused:
    """A step as products with weights in blocks."""
    contraction = of.once(find_contraction)
    if isinstance(contraction, Refused):
        return contraction

    def is_stored(weights: Value) -> bool:
        return weights.op is library.dequantise_blocks and of.locations.is_bound(weights.operands[0])

    def otherwise(weights: Value) -> Refused:
        return Refused("weights_are_blocks", weights.op.name, library.dequantise_blocks.name)

    found = find_stored(contraction, is_stored, otherwise)
    if isinstance(found, Refused):
        return found
    names = {str(part.attrs["format"]) for parts in found for part in parts}
    if len(names) > 1:
        return Refused("blocks_have_one_format", ", ".join(sorted(names)))
    blocks = tuple([tuple([part.operands[0] for part in parts]) for parts in found])
    return BlockProduct(contraction, names.pop(), blocks)


def has_known_blocks(of: BlockProduct) -> bool:
    """Whether kernels read blocks: all columns are known, and nothing else of the step reads the floats."""
    found = of.contraction
    others = {found.operand(v) for v in (found.left, *found.operands)}
    columns = [part.shape[-2] for parts in of.blocks for part in parts]
    return (
        found.left.dtype is f32
        and not others & {found.operand(right) for right in found.rights}
        and all([isinstance(size, int) for size in (*columns, found.result.shape[-1], found.rights[0].shape[-2])])
    )


__all__ = ["BlockProduct", "find_block_product", "has_known_blocks"]
