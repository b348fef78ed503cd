"""GEMMs next to an RMS norm that has no kernel of its own: before it, after it, or with its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.blocks.copied_blocks import CopiedBlocks
from dovetail.kernels.gpu.gemm.contract import GemmWriter
from dovetail.kernels.gpu.gemm.engines import Gemm, blocks_copied, dense_schedule, known_blocks, skinny_schedule
from dovetail.kernels.gpu.gemm.head_rows import HeadResults, Heads
from dovetail.kernels.gpu.gemm.scaled_rows import GAIN, ReadSquares, RowSquares, WrittenSquares
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.gpu.gemv.row_norm import RowNorm
from dovetail.kernels.gpu.gemv.stream import StreamTile
from dovetail.kernels.loops.ir import Tensor
from dovetail.kernels.problems.contraction import find_products
from dovetail.kernels.spec import Job


def normed_product(of: StepProblem[GpuDevice], x: Value, gain: Value, eps: float, gain_name: str) -> Job | None:
    """The kernel of a GEMM whose left operand is the RMS norm of `x`: it reads `x` in its place, and the gain through
    `gain_name`. None where its rows are not few, or something else reads that operand too."""
    writer = _writer(of)
    if writer is None:
        return None
    left, depth, others = writer.left(), writer.depth, (*writer.contraction.rights, *writer.contraction.operands)
    name, blocks = left.tensor.pointer, known_blocks(of)
    if name in set(map(writer.pointer, others)) or not isinstance(depth, int):
        return None
    if blocks is None and x.dtype is f32:
        return None
    writer.bindings[name] = x
    gemm = Gemm(writer, blocks, x.dtype)
    schedule = skinny_schedule(gemm) if blocks is None else blocks_copied(gemm)
    engine = None if isinstance(schedule, Refused) else schedule.engine
    if isinstance(schedule, Refused) or not isinstance(engine, (StreamTile, CopiedBlocks)) or not engine.takes_norm:
        return None
    writer.bindings[gain_name] = gain
    norm = RowNorm(Tensor(gain_name, gain.dtype, (gain.dtype.itemsize,)), eps, depth)
    return gemm.job(replace(schedule, tiled=replace(engine, norm=norm).tiled))


def squared_product(of: StepProblem[GpuDevice], gain: Value) -> tuple[Job, RowSquares] | None:
    """The kernel of a GEMM that leaves its result times a gain, and its squares, for a norm after it; None where no
    producer copies for the GEMM."""
    writer = _writer(of)
    if writer is None:
        return None
    dtype, columns, (result, *others) = writer.contraction.left.dtype, writer.columns, writer.step.results
    if others or writer.batch or not isinstance(columns, int) or columns % CHUNK or result.dtype is not dtype:
        return None
    gemm = Gemm(writer)
    schedule = dense_schedule(gemm)
    if isinstance(schedule, Refused) or schedule.split_k > 1:
        return None
    tiled = schedule.tiled()
    if tiled.producer is None:
        return None
    across = -(-columns // tiled.columns)
    squares = RowSquares(writer.rows, columns, across, dtype)
    writer.squares = WrittenSquares(squares, tiled.columns)
    writer.bindings[GAIN] = gain
    return gemm.job(replace(schedule, tiled=lambda: tiled)), squares


def scaled_product(
    of: StepProblem[GpuDevice],
    normed: Value,
    squares: RowSquares,
    eps: float,
    heads: Sequence[Heads] = (),
    tensors: Mapping[str, Value] | None = None,
) -> Job | None:
    """The kernel of a GEMM whose left operand is `normed`, of rows times gains and their squares; None where no
    producer copies for it, or rows are others.

    Where it has heads, it writes these alone, through pointers to `tensors`.
    """
    writer = _writer(of)
    if writer is None:
        return None
    scale, contraction = ReadSquares(squares, eps), writer.contraction
    left, others = contraction.left, (*contraction.rights, *contraction.operands)
    same = writer.rows == squares.rows and writer.depth == squares.columns and not writer.batch
    at = contraction.body.views[left]
    if not same or at.offset or contraction.operand(left) is not normed or left.dtype is not squares.dtype:
        return None
    if normed in map(contraction.operand, others):
        return None
    writer.bindings.pop(writer.names[normed])
    writer.scale = scale
    gemm = Gemm(writer)
    schedule = dense_schedule(gemm)
    if isinstance(schedule, Refused) or schedule.split_k > 1:
        return None
    tiled = schedule.tiled()
    if tiled.producer is None:
        return None
    if heads:
        ends = sum([part.count for part in heads]) * tiled.columns
        fits = isinstance(writer.rows, int) and HeadResults(tiled.producer, tiled.columns, writer.rows, heads).fits
        if ends != writer.columns or not fits or contraction.operands:
            return None
        writer.heads = heads
        writer.bindings |= tensors or {}
    return gemm.job(replace(schedule, tiled=lambda: tiled))


def _writer(of: StepProblem[GpuDevice]) -> GemmWriter | None:
    contraction = of.once(find_products)
    if isinstance(contraction, Refused):
        return None
    return GemmWriter(of.step, contraction, of.locations, of.device, of.request)


__all__ = ["normed_product", "scaled_product", "squared_product"]
