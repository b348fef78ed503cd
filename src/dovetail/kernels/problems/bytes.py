"""A product or a convolution of integers as a problem of bytes: one factor of a run, and weights that are known.

A factor is bytes minus a zero point, widened to i32 inside the kernel's own body, so that the kernel reads bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.cost import kernel_cost, type_bytes
from dovetail.declare.machine import Cost, base_kind
from dovetail.ir import leaf
from dovetail.ir.dim import product as product_of
from dovetail.ir.dtype import DType, i8, i32, u8
from dovetail.ir.literal import Array
from dovetail.ir.value import Op, Value
from dovetail.ir.walk import walk
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.loops.body import Body, is_compiled, is_number
from dovetail.kernels.spec import Packed, TensorLocations

BYTES = (i8, u8)
_CONTRACTIONS: tuple[Op, ...] = (ops.matmul, ops.conv)


@dataclass(frozen=True, slots=True)
class ByteFactor:
    """Bytes minus a zero point."""

    bytes: Value
    """An argument of the body or a view of one."""
    zero: Value | None
    """A number, or a tensor of one element that the body reads; None stands for 0."""

    @property
    def dtype(self) -> DType:
        return self.bytes.dtype


@dataclass(frozen=True, slots=True)
class ByteWeights:
    """Weights that are known before a run: bytes, or integers that were widened from bytes."""

    value: Value
    """The step's operand that holds them."""
    zero: Value | None
    """The operand that holds their zero point, where the kernel's body subtracts one."""
    number: int
    """The zero point, where it is a number."""
    is_transposed: bool
    """Whether a matrix product reads them with their two axes exchanged."""
    has_offsets: bool
    """Whether those of one column or filter may need an offset to fit a signed byte."""

    def packed(self, layout: str, pack: Callable[..., Array]) -> Packed:
        """The weights in a layout, less their zero point."""
        return Packed(self.value, f"{layout} {self.number}", pack, () if self.zero is None else (self.zero,))


@dataclass(frozen=True, slots=True)
class ByteProduct:
    """One contraction of bytes with weights, and the elementwise steps on its sums."""

    body: Body
    product: Value
    factor: ByteFactor
    weights: ByteWeights
    operands: tuple[Value, ...]
    """What the epilogue reads in addition to the sums."""

    @property
    def result(self) -> Value:
        return self.body.results[0]

    def operand(self, view: Value) -> Value:
        """The operand of the step that a view is one of."""
        return self.body.arguments[self.body.views[view].root]

    def cost(self, step: Value) -> Cost:
        """Work of the contraction alone, at the peak of bytes; traffic of the step, with weights packed as bytes."""
        cost = kernel_cost(step)
        weights = self.weights.value
        packed = type_bytes(weights.type) - product_of(weights.shape)
        kind = "conv.depthwise_bytes" if cost.kind == "conv.depthwise" else f"{base_kind(cost.kind)}.bytes"
        return Cost(cost.dense, cost.bytes - packed, cost.given - packed, cost.dense, kind, i8)


def find_byte_product(of: StepProblem[object]) -> ByteProduct | Refused:
    """A step as one contraction of bytes with weights."""
    body = of.body
    contractions = [v for v in body.order if v.op in _CONTRACTIONS]
    if len(contractions) != 1 or len(body.results) != 1:
        return Refused("body_is_one_contraction", f"{len(contractions)} with {len(body.results)} results", "1")
    (product,) = contractions
    if product.dtype is not i32:
        return Refused("sums_are_i32", product.dtype.name, i32.name)
    if product.shape != body.results[0].shape:
        return Refused("epilogue_keeps_the_shape", str(body.results[0].type), str(product.type))
    factor = byte_factor(body, product.operands[0])
    if isinstance(factor, Refused):
        return factor
    weights = _weights(body, product, of.locations)
    if isinstance(weights, Refused):
        return weights
    after = [v for v in walk(body.results, until={product, *body.views}) if v is not product]
    steps = [v for v in after if v not in body.views and not is_number(v)]
    odd = next((v for v in steps if not is_compiled(v, body.scalars)), None)
    if odd is not None:
        return Refused("epilogue_is_compiled", odd.op.name, "elementwise steps")
    operands = tuple(v for v in after if v in body.views)
    return ByteProduct(body, product, factor, weights, operands)


def _weights(body: Body, product: Value, locations: TensorLocations) -> ByteWeights | Refused:
    right = product.operands[1]
    factor = byte_factor(body, right)
    seen = right if isinstance(factor, Refused) else factor.bytes
    transposed = seen.op is ops.permute and seen.rank == 2 and seen.operands[0] in body.arguments
    source = seen.operands[0] if transposed else seen
    if source not in body.arguments:
        return Refused("weights_are_an_operand", "weights that are computed, or a view of them")
    weights, zero, number = body.arguments[source], None, 0
    if isinstance(factor, Refused):
        # Along the axes that are summed, weights of a signed byte each may differ by 255 at most.
        kept = ((0 if transposed else 1) if product.op is ops.matmul else 0) - weights.rank
        offsets = _offsets(weights, kept)
    else:
        offsets = factor.dtype is u8 or factor.zero is not None
        if factor.zero is not None and is_number(factor.zero):
            number = int(complex(leaf.scalar_of(factor.zero) or 0).real)
        elif factor.zero is not None:
            zero = body.arguments[body.views[factor.zero].root]
    known = locations.is_bound(weights) and (zero is None or locations.is_bound(zero))
    if offsets is None or not known:
        return Refused("weights_are_bytes", "integers of a run, or of more than 8 bits", "bytes that are bound")
    return ByteWeights(weights, zero, number, transposed, offsets)


def byte_factor(body: Body, value: Value) -> ByteFactor | Refused:
    """A factor as bytes minus a zero point."""
    wide, zero = value, None
    if value.op in (ops.sub, ops.add) and value not in body.views:
        wide, zero = value.operands
    if wide in body.views or wide.op is not ops.cast or wide.dtype is not i32:
        return Refused("factor_is_bytes", value.op.name, "bytes that the kernel widens")
    (source,) = wide.operands
    if source not in body.views or source.dtype not in BYTES:
        return Refused("factor_is_bytes", source.dtype.name, "i8 or u8")
    if zero is None:
        return ByteFactor(source, None)
    if value.op is ops.add:
        added = leaf.scalar_of(zero) if is_number(zero) else None
        if not isinstance(added, int):
            return Refused("factor_is_bytes", "a sum", "bytes minus a zero point")
        zero = leaf.scalar(-added, i32)
    held = _zero_point(body, zero, source.dtype)
    return held if isinstance(held, Refused) else ByteFactor(source, held)


def _zero_point(body: Body, zero: Value, dtype: DType) -> Value | Refused:
    """What holds a zero point: a number, or a tensor of one element, in the dtype of the bytes or widened from it."""
    if is_number(zero):
        known, (low, high) = leaf.scalar_of(zero), dtype.range
        fits = isinstance(known, int) and low <= known <= high
        return zero if fits else Refused("zero_point_is_a_byte", str(known), dtype.name)
    if zero.tensor.count != 1:
        return Refused("zero_point_is_one_number", str(zero.type), "one for the tensor")
    if zero in body.views and body.views[zero].offset == 0:
        operand = body.arguments[body.views[zero].root]
        widened = operand.op is ops.cast and operand.operands[0].dtype is dtype
        return zero if widened else Refused("zero_point_is_a_byte", str(zero.type), dtype.name)
    held = body.views.get(zero.operands[0]) if zero.op is ops.cast else None
    if held is not None and held.offset == 0 and zero.operands[0].dtype is dtype:
        return zero.operands[0]
    return Refused("zero_point_is_a_byte", zero.op.name, dtype.name)


def _offsets(weights: Value, kept: int) -> bool | None:
    """Whether weights need offsets along the kept axis to fit signed bytes; None where they may not fit at all."""
    if weights.op is ops.cast and weights.operands[0].dtype in BYTES:
        return weights.operands[0].dtype is u8
    if weights.op is leaf.CONST:
        return _offsets_of(weights.attrs["value"].array, kept)
    if weights.op is ops.sub:
        wide, zero = weights.operands
        one_per_column = all(s == 1 for i, s in enumerate(zero.shape, -zero.rank) if i != kept)
        return True if one_per_column and _offsets(wide, kept) is not None and wide.op is ops.cast else None
    if weights.op is ops.permute:
        order = weights.attrs["order"]
        return _offsets(weights.operands[0], _from_end(order[kept], weights.rank))
    if weights.op is ops.concat and _from_end(weights.attrs["axis"], weights.rank) == kept:
        parts = [_offsets(part, kept) for part in weights.operands]
        return None if None in parts else any(parts)
    return None


def _offsets_of(array: Array, kept: int) -> bool | None:
    """The same of integers that are known."""
    summed = tuple(a for a in range(array.ndim) if a != kept % array.ndim)
    low, high = (np.asarray(extreme, np.int64) for extreme in (array.min(axis=summed), array.max(axis=summed)))
    return None if (high - low > 255).any() else bool((low < -128).any() or (high > 127).any())


def _from_end(axis: int, rank: int) -> int:
    return axis - rank if axis >= 0 else axis


@dataclass(frozen=True, slots=True)
class BytePacking:
    """Weights as signed bytes."""

    number: int
    """A zero point that is known."""

    def signed(self, rows: Array, *zero: Array) -> tuple[Array, Array, Array]:
        """Rows [kept, summed] less their zero point: as signed bytes, the offset that brings each row there, sums."""
        wide = rows.astype(np.int64) - self.number - (zero[0].astype(np.int64).reshape(()) if zero else 0)
        lowest, highest = wide.min(axis=1), wide.max(axis=1)
        assert (highest - lowest <= 255).all(), "weights of one row differ by a byte"
        offset = np.where((lowest >= -128) & (highest <= 127), 0, lowest + 128)
        return (wide - offset[:, None]).astype(np.int8), offset, wide.sum(axis=1)


__all__ = ["BYTES", "ByteFactor", "BytePacking", "ByteProduct", "ByteWeights", "byte_factor", "find_byte_product"]
