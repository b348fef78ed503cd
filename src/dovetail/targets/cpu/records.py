"""The dataclasses of the CPU target that stored jobs may hold: tilers, packings, and their parts.

A name stays when its class moves or is renamed; the fields of a class are part of the stored form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.kernels.device import Caches, CpuDevice
from dovetail.targets.cpu.gemm.f32.pack import PackedColumns, Panels
from dovetail.targets.runtime.registry import Registry


def _of_narrow_products() -> Mapping[str, type[Any]]:
    from dovetail.targets.cpu.gemm.amx.bf16 import Bf16Panels
    from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout, BlockPanels
    from dovetail.targets.cpu.gemm.groups import Stacked
    from dovetail.targets.cpu.gemm.halves.product import HalfPanels
    from dovetail.targets.cpu.gemm.int8.product import ByteColumns, BytePanels

    return {
        "gemm.pack_bf16": Bf16Panels,
        "gemm.block_layout": BlockLayout,
        "gemm.pack_blocks": BlockPanels,
        "gemm.pack_halves": HalfPanels,
        "gemm.pack_int8": BytePanels,
        "gemm.pack_int8_columns": ByteColumns,
        "gemm.pack_stack": Stacked,
    }


def _of_convolutions() -> Mapping[str, type[Any]]:
    from dovetail.targets.cpu.conv.records import CONV_RECORDS

    return CONV_RECORDS


RECORDS = Registry(
    {
        "gemm.pack": Panels,
        "gemm.pack_columns": PackedColumns,
        "device": CpuDevice,
        "caches": Caches,
    },
    later=(_of_narrow_products, _of_convolutions),
)

__all__ = ["RECORDS"]
