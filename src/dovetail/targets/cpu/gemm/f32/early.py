"""The functions that the matrix products of a graph will call, known before the graph is lowered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dovetail import ops
from dovetail.declare.cost import is_free
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.f32.block import block_function
from dovetail.targets.cpu.gemm.f32.pair import pair_tile
from dovetail.targets.cpu.gemm.f32.pair_kernel import rows_function
from dovetail.targets.cpu.gemm.f32.pair_pack import pack_function
from dovetail.targets.cpu.gemm.policy import BF16, tiles_of
from dovetail.targets.cpu.gemm.tile import tile_of


def early_products(values: Iterable[Value], device: CpuDevice, *, in_bf16: bool = False) -> list[SharedFunction]:
    """The GEMM block where weights are packed before the run, and what multiplies a matrix by an input of it.

    Products in bf16 have functions of their own in place of the block.

    Products of two values that a run computes are left out, but for gradients of weights: attention has kernels of
    its own.
    """
    running: set[Value] = set()
    products: list[Value] = []
    for value in values:
        if value.op is leaf.INPUT or any(v in running for v in value.operands):
            running.add(value)
        if value.op is ops.matmul:
            products.append(value)
    with_weights = any(v.operands[1] not in running for v in products)
    block = [] if not with_weights else _in_bf16(device) if in_bf16 else [block_function(tile_of(device))[0]]
    streamed = [v for v in products if v.dtype is f32 and _root(v.operands[1]).op is leaf.INPUT]
    summed = [v for v in products if v.dtype is f32 and v.rank == 2 and v.operands[1] in running and _is_by_columns(v)]
    return list({f.name: f for f in (*block, *_pairs(streamed, device), *_by_columns(summed, device))}.values())


def _in_bf16(device: CpuDevice) -> list[SharedFunction]:
    from dovetail.targets.cpu.gemm.amx.bf16 import DotFunctions  # few programs round

    return [part for part, _ in DotFunctions.of(device, BF16.vectors * device.lanes, 0).every]


def _pairs(products: Sequence[Value], device: CpuDevice) -> Iterator[SharedFunction]:
    """The micro-kernels, and what packs operands that are contiguous along k, which takes longest to compile."""
    tall = tiles_of(device).tall
    tiles = [(pair_tile(device, v.shape[-1], by_rows=tall is None), v) for v in products]
    for tile, _ in tiles:
        yield rows_function(tile, by_rows=tall is None)[0]
    for tile, value in tiles:
        if tall is not None:
            yield pack_function(device, f32, "along", tile.rows, f32.itemsize * tile.rows)[0]
        if _is_transposed(value.operands[1]):
            yield pack_function(device, f32, "along", tile.columns, tile.row_bytes)[0]


def _by_columns(products: Sequence[Value], device: CpuDevice) -> Iterator[SharedFunction]:
    """The micro-kernels of gradients of weights, and what packs their operands, which are contiguous across k."""
    for value in products:
        tile = pair_tile(device, value.shape[-1], by_rows=False)
        yield rows_function(tile, by_rows=False)[0]
        yield pack_function(device, f32, "across", tile.rows, f32.itemsize * tile.rows)[0]
        yield pack_function(device, f32, "across", tile.columns, tile.row_bytes)[0]


def _is_by_columns(product: Value) -> bool:
    left = product.operands[0]
    while left.operands and is_free(left) and left.op is not ops.permute:
        left = left.operands[0]
    return _is_transposed(left)


def _root(value: Value) -> Value:
    while value.operands and is_free(value):
        value = value.operands[0]
    return value


def _is_transposed(value: Value) -> bool:
    return value.op is ops.permute and value.rank > 1 and value.attrs["order"][-1] != -1


__all__ = ["early_products"]
