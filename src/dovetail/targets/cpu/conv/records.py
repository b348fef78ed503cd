"""The dataclasses of convolutions that stored jobs may hold: tilers, packings, and what they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.kernels.problems.convolution import ConvProblem
from dovetail.kernels.problems.epilogue import Epilogue, RowEpilogue
from dovetail.kernels.problems.geometry import ConvGeometry
from dovetail.targets.cpu.conv.conv1d import LinePanels
from dovetail.targets.cpu.conv.depthwise import Depthwise, DepthwiseTile
from dovetail.targets.cpu.conv.direct import Direct
from dovetail.targets.cpu.conv.few_channels import FewChannels
from dovetail.targets.cpu.conv.few_pixels import FewPixels
from dovetail.targets.cpu.conv.few_pixels_kxk import FewPixelsKxk
from dovetail.targets.cpu.conv.few_results import FewResults, FewResultsForm, FewResultsTile
from dovetail.targets.cpu.conv.filters_in_lanes import RegisterTile
from dovetail.targets.cpu.conv.int8.variant import ByteFilters, ByteRows
from dovetail.targets.cpu.conv.packing import Packing
from dovetail.targets.cpu.conv.pixels_in_lanes import PixelTile
from dovetail.targets.cpu.conv.pointwise import Pointwise
from dovetail.targets.cpu.conv.pointwise_packed import PointwisePacked
from dovetail.targets.cpu.conv.transposed import TransposedPacking
from dovetail.targets.cpu.conv.winograd.scheme import Axis, Scheme
from dovetail.targets.cpu.conv.winograd.variant import TransformedWeights, Winograd

CONV_RECORDS: Mapping[str, type[Any]] = {
    "conv.direct": Direct,
    "conv.depthwise": Depthwise,
    "conv.few_channels": FewChannels,
    "conv.few_pixels": FewPixels,
    "conv.few_pixels_kxk": FewPixelsKxk,
    "conv.few_results": FewResults,
    "conv.few_results_form": FewResultsForm,
    "conv.few_results_tile": FewResultsTile,
    "conv.pointwise": Pointwise,
    "conv.pointwise_packed": PointwisePacked,
    "conv.winograd": Winograd,
    "conv.pack": Packing,
    "conv.pack_conv1d": LinePanels,
    "conv.pack_int8": ByteFilters,
    "conv.pack_int8_rows": ByteRows,
    "conv.pack_transposed": TransposedPacking,
    "conv.pack_winograd": TransformedWeights,
    "conv.problem": ConvProblem,
    "conv.geometry": ConvGeometry,
    "conv.epilogue": Epilogue,
    "conv.row_epilogue": RowEpilogue,
    "conv.shape": PixelTile,
    "conv.register_tile": RegisterTile,
    "conv.depthwise_shape": DepthwiseTile,
    "conv.winograd_scheme": Scheme,
    "conv.winograd_axis": Axis,
}

__all__ = ["CONV_RECORDS"]
