"""Contractions next to an RMS norm that has no kernel of its own: before it, after it, or with its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.blocks.units import has_known_blocks
from dovetail.kernels.gpu.gemm.contract import Writer
from dovetail.kernels.gpu.gemm.head_rows import Heads
from dovetail.kernels.gpu.gemm.scaled_rows import ReadSquares, RowSquares
from dovetail.kernels.gpu.gemm.tile import H200
from dovetail.kernels.problems.blocks import BlockProduct, find_blocks
from dovetail.kernels.problems.contraction import find_products
from dovetail.kernels.spec import Job


def normed_product(of: StepProblem[GpuDevice | None], x: Value, gain: Value, eps: float, gain_name: str) -> Job | None:
    """The kernel of a contraction whose left operand is the RMS norm of `x`: it reads `x` in its place, and the gain
    through `gain_name`. None where its rows are not few, or something else reads that operand too."""
    found = of.once(find_products)
    if isinstance(found, Refused):
        return None
    writer = Writer(of.step, found, of.locations, of.device or H200, of.request)
    blocks = of.once(find_blocks)
    known = blocks if isinstance(blocks, BlockProduct) and has_known_blocks(blocks) else None
    return writer.normed(x, gain, eps, gain_name, known)


def squared_product(of: StepProblem[GpuDevice | None], gain: Value) -> tuple[Job, RowSquares] | None:
    """The kernel of a contraction that leaves its result times a gain, and its squares, for a norm after it."""
    found = of.once(find_products)
    return (
        None
        if isinstance(found, Refused)
        else Writer(of.step, found, of.locations, of.device or H200, of.request).squared(gain)
    )


def scaled_product(
    of: StepProblem[GpuDevice | None],
    normed: Value,
    squares: RowSquares,
    eps: float,
    heads: Sequence[Heads] = (),
    tensors: Mapping[str, Value] | None = None,
) -> Job | None:
    """The kernel of a contraction whose left operand is `normed`, of rows times gains and their squares.

    Where it has heads, it writes these alone, through pointers to `tensors`.
    """
    found = of.once(find_products)
    if isinstance(found, Refused):
        return None
    writer = Writer(of.step, found, of.locations, of.device or H200, of.request)
    return writer.scaled(normed, ReadSquares(squares, eps), heads, tensors)


__all__ = ["normed_product", "scaled_product", "squared_product"]
