"""Which products have few rows, and the tile of such a product."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.fragments import Factor
from dovetail.kernels.gpu.gemv.row_stream import RowStream
from dovetail.kernels.gpu.gemv.stream import MOST_ROWS, StreamTile


def has_few_rows(rows: Size) -> bool:
    return isinstance(rows, int) and rows <= MOST_ROWS


def stream_of(
    dtype: DType,
    left: Factor,
    rights: Sequence[Factor],
    axes: Sequence[str],
    batch: tuple[Size, ...],
    device: GpuDevice,
    *,
    early: bool,
) -> StreamTile | None:
    """The tile of a product with few rows; None where it has many, or sizes are not known."""
    axis = axes[0] if len(set(axes)) == 1 else ""
    sizes = (product(batch), left.rows, rights[0].rows, left.depth)
    found = StreamTile.of(dtype, left, rights, axis, sizes, device, early=early)
    return found and (RowStream.from_tile(found, device) or found)


__all__ = ["has_few_rows", "stream_of"]
