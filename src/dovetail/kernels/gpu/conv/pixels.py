"""Pixels of images as rows of a product: what the TMA needs to copy those that a tap of a window sees (im2col)."""

from __future__ import annotations

from math import prod

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.kernels.gpu.gemm.tile import DEPTH
from dovetail.kernels.loops.along import Along, sub
from dovetail.kernels.loops.ir import ZERO, Expr, Extent, Tensor, TensorMap, Traversal, mul
from dovetail.kernels.loops.ir import indices as along

CORNER_BITS = {1: 16, 2: 8, 3: 5}
"""Bits of a signed bound of a traversal, and of an unsigned tap, by the number of spatial axes."""
MOST_STRIDE = 8


@dataclass(frozen=True, slots=True)
class Pixels:
    """The pixels that a window sees: a row for each of its places, k along its taps and the channels of each."""

    images: Size
    axes: tuple[Along, ...]
    """The spatial axes under the window, innermost last."""
    window: tuple[int, ...]
    channels: int

    @property
    def rounds(self) -> int:
        """Copies along the channels of a tap."""
        return -(-self.channels // DEPTH)

    def fits(self) -> bool:
        """Whether the TMA can copy them: sizes are known and small enough."""
        bits, traversal = CORNER_BITS.get(len(self.axes)), self.traversal()
        if bits is None or traversal is None:
            return False
        half = 1 << (bits - 1)
        corners = all(-half <= n < half for n in (*traversal.lower, *traversal.upper))
        reach = [axis.dilation * (size - 1) for axis, size in zip(self.axes, self.window, strict=True)]
        return corners and max(reach) < 2 * half and max(traversal.strides) <= MOST_STRIDE

    def traversal(self) -> Traversal | None:
        """Bounds and strides, innermost first; None where sizes are known only in a run."""
        lower: list[int] = []
        upper: list[int] = []
        for axis in reversed(self.axes):
            if not (isinstance(axis.size, int) and isinstance(axis.out, int) and isinstance(axis.before, int)):
                return None
            lower.append(-axis.before)
            upper.append((axis.out - 1) * axis.stride - axis.before - (axis.size - 1))
        return Traversal(tuple(lower), tuple(upper), tuple([axis.stride for axis in reversed(self.axes)]))

    def source(self, tensor: Tensor, lines: int) -> TensorMap:
        """Images, channels innermost, as copies of some pixels see them."""
        image, *spatial, _ = tensor.strides
        sizes = (self.channels, *[axis.size for axis in reversed(self.axes)], self.images)
        strides = (*reversed(spatial), image)
        return TensorMap(tensor.pointer, tensor.offset, sizes, strides, lines, self.traversal(), tensor.dtype.itemsize)

    def start(self, place: tuple[Expr, ...], number: Expr) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """Where a copy starts and how far from there it reads, innermost first: its image and place of the window,
        and its number along k."""
        image, *places = place
        if prod(self.window) == 1:
            tap, chunk = (ZERO,) * len(self.window), number
        else:
            *tap, chunk = along((*self.window, self.rounds), number)
        first = [
            sub(mul(at, Extent(axis.stride)), Extent(axis.before)) for axis, at in zip(self.axes, places, strict=True)
        ]
        taps = [mul(at, Extent(axis.dilation)) for axis, at in zip(self.axes, tap, strict=True)]
        return (mul(chunk, Extent(DEPTH)), *reversed(first), image), tuple(reversed(taps))


__all__ = ["Pixels"]
