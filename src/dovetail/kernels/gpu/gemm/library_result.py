"""What goes with a product that a library computes: copies of its factors, and the epilogue of its sums."""

from __future__ import annotations

from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType
from dovetail.kernels.choice import StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.contract import GemmWriter
from dovetail.kernels.gpu.gemm.fragments import Factor, is_multiple
from dovetail.kernels.gpu.order.passes import for_each
from dovetail.kernels.loops.ir import Kernel, Load, Name, Store, Tensor
from dovetail.kernels.problems.contraction import Contraction
from dovetail.kernels.spec import ALIGNMENT

SOURCE, TARGET = "x", "y"
"""The pointers of a copy."""


class LibraryResult(GemmWriter):
    """The epilogue of a step whose product a library has left in the workspace."""

    name = "library"
    is_gemm = False

    def __init__(self, of: StepProblem[GpuDevice], contraction: Contraction, sums: DType) -> None:
        super().__init__(of.step, contraction, of.locations, of.device, of.request)
        self.sums = sums

    @property
    def kernel(self) -> Kernel:
        """The kernel that reads each sum once, and writes results."""
        return self._summed(1)


def copy_of(factor: Factor, *, along_k: bool) -> tuple[Kernel, Size]:
    """A kernel that copies a factor whose elements are neighbours along k, or along rows, and its tiles. In the copy
    there is nothing between its lines."""
    dtype, item = factor.tensor.dtype, factor.tensor.dtype.itemsize
    along, across, apart = factor.rows, factor.depth, factor.k_stride
    if along_k:
        along, across, apart = factor.depth, factor.rows, factor.row_stride
    at = (Name("j0"), Name("j1"))
    source, target = Tensor(SOURCE, dtype, (apart, item)), Tensor(TARGET, dtype, (along * item, item))
    body = (Store(target, at, Load(source, at)),)
    width = ALIGNMENT // item if is_multiple(along, ALIGNMENT // item) else 1
    return for_each("copy", (across, along), (SOURCE, TARGET), (TARGET,), body, width)


__all__ = ["SOURCE", "TARGET", "LibraryResult", "copy_of"]
