"""Contract: products of one left operand with one or more right ones, with elementwise work on them in the epilogue.

A block computes a tile of the result. Tensor cores multiply 16-bit floats, with copies to shared memory in flight for
the stages to come; other dtypes are multiplied one by one, with sums in registers.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.ir.dim import Size, product
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.fma import dtype_of_sums
from dovetail.kernels.gpu.gemm.fragments import Factor, is_multiple
from dovetail.kernels.gpu.gemm.scaled_rows import ReadSquares
from dovetail.kernels.gpu.gemm.tile import (
    CHUNK,
)
from dovetail.kernels.gpu.gemm.tile_writer import TileWriter
from dovetail.kernels.gpu.gemm.tiled import Element
from dovetail.kernels.gpu.gemv.packed_matrix import Transposed
from dovetail.kernels.loops.body import cast_to, pointers_of
from dovetail.kernels.loops.ir import (
    Expr,
    Load,
    Name,
    Store,
    Tensor,
    collapsed,
    stretched,
)
from dovetail.kernels.problems.contraction import Contraction, epilogue_of
from dovetail.kernels.request import LAUNCH, Request
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Step

_LEFT, _RIGHT = "left", "right"


class GemmWriter(TileWriter):
    """The job of one contraction while it is put together."""

    name = "contract"
    is_gemm = True
    scale: ReadSquares | None = None
    """The factors of rows of a left operand that is normed; None where it is read as it is."""

    def __init__(
        self,
        step: Step,
        contraction: Contraction,
        locations: TensorLocations,
        device: GpuDevice,
        request: Request = LAUNCH,
    ) -> None:
        self.request = request
        self.step, self.contraction, self.locations, self.device = step, contraction, locations, device
        self.streams = len(contraction.streams)
        self.sums = dtype_of_sums(contraction.products[0].dtype)
        operands = [contraction.operand(v) for v in (contraction.left, *contraction.rights, *contraction.operands)]
        self.names, bindings = pointers_of(step, locations, operands)
        self.bindings = {**bindings}
        depths = (contraction.left.shape[-1], *(right.shape[-2] for right in contraction.rights))
        self.depth = next((size for size in depths if isinstance(size, int)), depths[0])
        self.columns = contraction.result.shape[-1]
        self.rows, self.batch, self.fronts = self._folded()
        self.lead = tuple(Name(f"b{i}") for i in range(len(self.batch)))

    def _folded(self) -> tuple[Size, tuple[Size, ...], dict[str, tuple[Size, ...]]]:
        """Rows, the axes before them, and the strides of tensors along these; axes that are dense become rows."""
        contraction, views = self.contraction, self.contraction.body.views
        shape = contraction.result.shape[:-1]
        fronts: dict[str, tuple[Size, ...]] = {
            _LEFT: stretched(views[contraction.left].strides[:-1], contraction.left.shape[:-1], shape)
        }
        for i, right in enumerate(contraction.rights):
            fronts[f"{_RIGHT}{i}"] = (*stretched(views[right].strides[:-2], right.shape[:-2], shape[:-1]), 0)
        for i, view in enumerate(contraction.operands):
            fronts[f"e{i}"] = stretched(views[view].strides, view.shape, contraction.result.shape)[:-1]
        for i, result in enumerate(self.step.results):
            fronts[f"y{i}"] = self.locations(result).strides[:-1]
        axes, strides = collapsed(shape, list(fronts.values()))
        whole = dict(zip(fronts, strides, strict=True))
        shared = bool(axes) and all(s[-1] == 0 for name, s in whole.items() if name.startswith(_RIGHT))
        if shared:
            return axes[-1], axes[:-1], whole
        return 1, axes, {name: (*s, 0) for name, s in whole.items()}

    def left(self) -> Factor:
        view = self.contraction.left
        at = self.contraction.body.views[view]
        tensor = Tensor(self.pointer(view), view.dtype, (*self.fronts[_LEFT], at.strides[-1]), at.offset)
        if self.scale is not None:
            tensor = self.scale.of.gained
        return Factor(tensor, self.lead, self.rows, self.depth)

    def rights(self) -> list[Factor]:
        """The right factor of each stream; their rows are columns of the result."""
        factors: list[Factor] = []
        for i, first in self.contraction.streams:
            view = self.contraction.rights[i]
            at = self.contraction.body.views[view]
            strides = (*self.fronts[f"{_RIGHT}{i}"][:-1], at.strides[-1], at.strides[-2])
            tensor = Tensor(self.pointer(view), view.dtype, strides, at.offset + first * at.strides[-1])
            factors.append(Factor(tensor, self.lead, self.columns, self.depth))
        return factors

    def transposed(self, pack: Transposed) -> list[Factor] | None:
        """The right factors as they are once packed, when parameters are bound; None where one is no parameter."""
        contraction, depth = self.contraction, self.depth
        operands = [contraction.operand(view) for view in contraction.rights]
        others = {contraction.operand(v) for v in (contraction.left, *contraction.operands)}
        for view, v in zip(contraction.rights, operands, strict=True):
            at = contraction.body.views[view]
            is_whole = at.offset == 0 and v.shape == view.shape and is_dense(v.tensor, at.strides)
            if not is_whole or not self.locations.is_constant(v) or v in others or product(v.shape[:-2]) != 1:
                return None
        if not is_multiple(depth, CHUNK):
            return None
        rights: list[Factor] = []
        for i, first in contraction.streams:
            item = operands[i].dtype.itemsize
            pitch = (depth + pack.padding) * item
            tensor = Tensor(self.names[operands[i]], operands[i].dtype, (pitch, item), first * pitch)
            rights.append(Factor(tensor, (), self.columns, depth))
        return rights

    def pointer(self, view: Value) -> str:
        """That of the operand of a view."""
        return self.names[self.contraction.operand(view)]

    def stores(self, element: Element, at: tuple[Expr, ...]) -> Iterator[Store]:
        contraction, views = self.contraction, self.contraction.body.views
        known: dict[Value, list[Expr]] = {}
        for i, value in enumerate(contraction.products):
            sums = element.sums[i * contraction.parts : (i + 1) * contraction.parts]
            known[value] = [cast_to(x, value.dtype) for x in sums]
        for i, view in enumerate(contraction.operands):
            place = views[view]
            stride = stretched(place.strides, view.shape, contraction.products[0].shape)[-1] if view.shape else 0
            wide = contraction.parts > 1 and bool(view.shape) and view.shape[-1] == contraction.products[0].shape[-1]
            offsets = [place.offset + n * self.columns * stride for n in range(contraction.parts if wide else 1)]
            strides = (*self.fronts[f"e{i}"], stride)
            known[view] = [Load(Tensor(self.pointer(view), view.dtype, strides, o), at) for o in offsets]
        for i, value in enumerate(epilogue_of(contraction, known)):
            result = self.step.results[i]
            strides = (*self.fronts[f"y{i}"], self.locations(result).strides[-1])
            yield Store(Tensor(f"y{i}", result.dtype, strides), at, value)


__all__ = ["GemmWriter"]
