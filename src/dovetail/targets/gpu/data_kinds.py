"""Kinds of steps that convert, sample, index, scan or order elements, and the kernel families that serve them."""

from __future__ import annotations

from collections.abc import Callable

from dovetail import ops
from dovetail.ir.value import Op, Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.families.grid_sample import offer_grid_sample
from dovetail.kernels.families.lut_cast import offer_table
from dovetail.kernels.families.quantise import offer_quantise
from dovetail.kernels.families.reduce import offer_reduce
from dovetail.kernels.families.resize import offer_resize
from dovetail.kernels.gpu.fp8_cast import offer_fp8_cast
from dovetail.kernels.gpu.order.scan import offer_scan, offer_serial_scan
from dovetail.kernels.gpu.order.scatter import offer_scatter
from dovetail.kernels.gpu.order.sort import offer_sort
from dovetail.ops.detection import grid_sample
from dovetail.ops.resize import resize
from dovetail.targets.runtime.selection import Kind, Row


def _is(*listed: Op) -> Callable[[Value], bool]:
    ops_listed = frozenset(listed)
    return lambda value: value.op in ops_listed


def _kind(name: str, takes: Callable[[Value], bool], *rows: Row[GpuDevice]) -> Kind[GpuDevice]:
    return Kind(name, takes, lambda: rows)


DATA_KINDS: tuple[Kind[GpuDevice], ...] = (
    _kind("arg reduction", _is(ops.arg_max, ops.arg_min), Row("reduce", offer_reduce)),
    _kind(
        "scan",
        _is(ops.cum_sum, ops.cum_prod, ops.cum_max, ops.cum_min),
        Row("scan", offer_scan),
        Row("reduce", offer_serial_scan),
    ),
    _kind("scatter", _is(ops.scatter_elements, ops.scatter_nd), Row("scatter", offer_scatter)),
    _kind("sort", _is(ops.sort, ops.top_k), Row("sort", offer_sort)),
    _kind("narrow cast", _is(ops.cast, ops.cast_f8), Row("convert", offer_fp8_cast), Row("table", offer_table)),
    _kind("quantisation", _is(ops.quantise, ops.dequantise), Row("quantise", offer_quantise)),
    _kind("resize", _is(resize), Row("resize", offer_resize)),
    _kind("grid sample", _is(grid_sample), Row("grid_sample", offer_grid_sample)),
)

__all__ = ["DATA_KINDS"]
