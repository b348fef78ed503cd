"""Products with weights in blocks: the right operands of a contraction, seen through their dequantisation."""

from __future__ import annotations

from collections.abc import Hashable

from dovetail import library, ops
from dovetail.dataclass import dataclass
from dovetail.declare.machine import Cost
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.problems.contraction import Contraction
from dovetail.kernels.problems.grouped import find_any_product, read_bytes
from dovetail.kernels.problems.stored_weights import cost_with, find_stored
from dovetail.kernels.spec import TensorLocations
from dovetail.library.block_formats import FORMATS, Format


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """A contraction whose right operands are all dequantised from blocks."""

    contraction: Contraction
    names: tuple[str, ...]
    """Of all formats, in order."""
    blocks: tuple[tuple[Value, ...], ...]
    """For each right operand the blocks of its columns, [columns, bytes], one part after the other."""

    @property
    def name(self) -> str:
        """Of the only format."""
        (name,) = self.names
        return name

    @property
    def format(self) -> Format:
        return FORMATS[self.name]

    def cost(self, step: Value) -> Cost:
        """Work and traffic of the step, which reads blocks in place of floats."""
        floats = [self.contraction.operand(right) for right in self.contraction.rights]
        stored = [b for of in self.blocks for b in of]
        spared = [read_bytes(self.contraction, v) for v in floats], [read_bytes(self.contraction, b) for b in stored]
        return cost_with(step, sum(spared[0]) - sum(spared[1]))


def find_blocks(of: StepProblem[object]) -> BlockProduct | Refused:
    """A step as products with weights in blocks of any formats."""
    contraction = of.once(find_any_product)
    if isinstance(contraction, Refused):
        return contraction

    def is_stored(weights: Value) -> bool:
        return weights.op is library.dequantise_blocks and of.locations.is_bound(weights.operands[0])

    def otherwise(weights: Value) -> Refused:
        return Refused("weights_are_blocks", weights.op.name, library.dequantise_blocks.name)

    stored = find_stored(contraction, is_stored, otherwise)
    if isinstance(stored, Refused):
        return stored
    names = {str(part.attrs["format"]) for parts in stored for part in parts}
    blocks = tuple([tuple([part.operands[0] for part in parts]) for parts in stored])
    return BlockProduct(contraction, tuple(sorted(names)), blocks)


def find_block_product(of: StepProblem[object]) -> BlockProduct | Refused:
    """A step as products with weights in blocks of one format."""
    product = of.once(find_blocks)
    if isinstance(product, BlockProduct) and len(product.names) > 1:
        return Refused("blocks_have_one_format", ", ".join(product.names))
    return product


def formats_alike(value: Value, locations: TensorLocations) -> frozenset[str]:
    """The formats of the blocks that a step's weights are dequantised from, and of those of all steps that are the same
    but for their tensors: layers of a model may have different ones."""
    return locations.once(_formats).get(_shape(value), formats_of(value))


def _formats(locations: TensorLocations) -> dict[Hashable, frozenset[str]]:
    by_key: dict[Hashable, frozenset[str]] = {}
    for value in locations.steps:
        some = formats_of(value)
        if some:
            key = _shape(value)
            by_key[key] = by_key.get(key, frozenset()) | some
    return by_key


def _shape(value: Value) -> Hashable:
    return value.op, value.attrs_key, value.type, tuple([v.type for v in value.operands])


def formats_of(value: Value) -> frozenset[str]:
    """The formats of the operands of a step."""
    formats: set[str] = set()
    left = [*value.operands]
    while left:
        weights = left.pop()
        if weights.op is library.dequantise_blocks:
            formats.add(str(weights.attrs["format"]))
        elif weights.op in (ops.permute, ops.concat):
            left += weights.operands
    return frozenset(formats)


__all__ = ["BlockProduct", "find_block_product", "find_blocks", "formats_alike", "formats_of"]
