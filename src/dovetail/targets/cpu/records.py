"""The dataclasses of the CPU target that stored jobs may hold: tilers, packings, and what they are made of.

A name stays when its class moves or is renamed; the fields of a class are part of the stored form.
"""

from __future__ import annotations

from dovetail.kernels.device import Caches, CpuDevice
from dovetail.kernels.problems.geometry import Field
from dovetail.targets.cpu.conv.conv1d.variant import LinePanels
from dovetail.targets.cpu.conv.depthwise.kernel import Depth
from dovetail.targets.cpu.conv.depthwise.variant import DepthTiler
from dovetail.targets.cpu.conv.direct.kernel import Shape
from dovetail.targets.cpu.conv.direct.variant import Direct, Expanse, Packing
from dovetail.targets.cpu.conv.epilogue import Epilogue
from dovetail.targets.cpu.conv.few_channels.variant import Row
from dovetail.targets.cpu.conv.few_pixels.kernel import Square
from dovetail.targets.cpu.conv.few_pixels.variant import Small
from dovetail.targets.cpu.conv.few_pixels_kxk.variant import Window
from dovetail.targets.cpu.conv.pointwise.variant import Point
from dovetail.targets.cpu.conv.pointwise_packed.variant import Panel
from dovetail.targets.cpu.conv.transposed import Turning
from dovetail.targets.cpu.conv.winograd.scheme import Scheme
from dovetail.targets.cpu.conv.winograd.variant import Transforming, Winograd
from dovetail.targets.cpu.gemm.int8 import ByteColumns, BytePanels, ByteSteps
from dovetail.targets.cpu.gemm.pack import Panels
from dovetail.targets.runtime.registry import Registry

RECORDS = Registry(
    {
        # Tilers.
        "conv.direct": Direct,
        "conv.depthwise": DepthTiler,
        "conv.few_channels": Row,
        "conv.few_pixels": Small,
        "conv.few_pixels_kxk": Window,
        "conv.pointwise": Point,
        "conv.pointwise_packed": Panel,
        "conv.winograd": Winograd,
        # Packings.
        "conv.pack": Packing,
        "conv.pack_conv1d": LinePanels,
        "conv.pack_transposed": Turning,
        "conv.pack_winograd": Transforming,
        "gemm.pack": Panels,
        "gemm.pack_int8": BytePanels,
        "gemm.pack_int8_columns": ByteColumns,
        "gemm.pack_int8_steps": ByteSteps,
        # What tilers and packings are made of.
        "conv.problem": Expanse,
        "conv.geometry": Field,
        "conv.epilogue": Epilogue,
        "conv.shape": Shape,
        "conv.register_tile": Square,
        "conv.depthwise_shape": Depth,
        "conv.winograd_scheme": Scheme,
        "device": CpuDevice,
        "caches": Caches,
    }
)

__all__ = ["RECORDS"]
