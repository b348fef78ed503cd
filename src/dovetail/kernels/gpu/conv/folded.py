"""Convolutions of images with few channels, such as photographs: a first kernel folds the strides of the window into
channels (space to depth), a second one multiplies.

The channels of a folded pixel fill 16 bytes, and those of all taps of a row are neighbours in memory. So the TMA copies
a row of the window at once: k goes through rows, and the channels of all taps in each.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from dovetail.dataclass import dataclass
from dovetail.declare.cost import kernel_cost
from dovetail.declare.machine import Cost
from dovetail.ir.dim import Size, product
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.conv.convolve import FEWEST_RESULTS, TENSOR_CORE_DTYPES, ConvWriter
from dovetail.kernels.gpu.conv.packed_filters import FoldedFilters
from dovetail.kernels.gpu.conv.pixels import Pixels
from dovetail.kernels.gpu.gemm.fragments import Coordinate, Factor, Gather, is_multiple
from dovetail.kernels.gpu.gemm.pipelined_tile import PipelinedTile
from dovetail.kernels.gpu.gemm.tile import CHUNK, DEPTH, BlockTile, pipelined_split_of
from dovetail.kernels.gpu.gemm.tile_writer import FOLDED
from dovetail.kernels.gpu.order.passes import for_each, in_passes
from dovetail.kernels.loops.along import Along
from dovetail.kernels.loops.ir import Expr, Kernel, Name, Store, Tensor
from dovetail.kernels.problems.windows import Windowed, find_windowed
from dovetail.kernels.request import LAUNCH, Request
from dovetail.kernels.spec import Job, Packed, TensorLocations
from dovetail.plan.plan import Step

MOST_CHANNELS = 4
FEWEST = 4
"""Times the results that fill a device: a second kernel is worth its launch."""


def offer_folded(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernels of a convolution of a few channels on tensor cores."""
    conv, device = of.once(find_windowed), of.device
    if isinstance(conv, Refused):
        return conv
    if of.locations.strict:
        return Refused("taps_are_exact", "taps with weights of 0 beyond the window")
    refused = _unfit(conv, of.locations)
    if refused is not None:
        return refused
    writer = FoldedWriter(of.step, conv, of.locations, device, of.request)
    tile = writer.tile()
    if tile is None:
        return Refused("device_has_producers", device.architecture, "warpgroups and enough results for all of them")
    return Offer(lambda: writer.folded_job(tile), writer.cost)


def _unfit(of: Windowed, locations: TensorLocations) -> Refused | None:
    if of.x.dtype not in TENSOR_CORE_DTYPES:
        return Refused("tensor_cores_have_the_dtype", of.x.dtype.name, "f16 or bf16")
    if of.channels > MOST_CHANNELS or of.groups > 1 or of.is_transposed:
        return Refused("channels_are_few", str(of.channels * of.groups), f"at most {MOST_CHANNELS}")
    if any(axis.dilation > 1 for axis in of.axes):
        return Refused("taps_are_neighbours", "dilations")
    if not (of.w in of.contraction.body.arguments and locations.is_bound(of.contraction.operand(of.w))):
        return Refused("filters_are_bound", "filters that a run computes or is given")
    return None


@dataclass(frozen=True, slots=True)
class _Fold:
    """Strides as channels."""

    strides: tuple[int, ...]
    taps: tuple[int, ...]
    """Folded pixels under the window, along each axis."""
    channels: int
    """Of an image, before."""

    @property
    def filled(self) -> int:
        """Channels of a folded pixel, without padding."""
        return prod(self.strides) * self.channels

    @property
    def width(self) -> int:
        """The same with padding."""
        return -(-self.filled // CHUNK) * CHUNK

    @property
    def line(self) -> int:
        """Elements of all taps of a row."""
        return self.taps[-1] * self.width

    @property
    def depth(self) -> int:
        """Elements of k: each row of the window fills rounds of its own."""
        return prod(self.taps[:-1]) * -(-self.line // DEPTH) * DEPTH


class FoldedWriter(ConvWriter):
    """The job of one convolution of a few channels."""

    def __init__(
        self, step: Step, of: Windowed, locations: TensorLocations, device: GpuDevice, request: Request = LAUNCH
    ) -> None:
        super().__init__(step, of, locations, device, "gathered", request)
        strides = tuple([axis.stride for axis in of.axes])
        taps = tuple([-(-n // s) for n, s in zip(of.window, strides, strict=True)])
        self.fold = _Fold(strides, taps, of.channels)
        self.depth = self.fold.depth
        pack = FoldedFilters(strides, self.fold.width, DEPTH)
        self.bindings["w"] = Packed(self.contraction.operand(of.w), pack.layout, pack)

    @property
    def shape(self) -> tuple[Size, ...]:
        """Images and pixels of the folded image."""
        taps = self.fold.taps
        return (self.images, *[axis.out + (n - 1) for axis, n in zip(self.of.axes, taps, strict=True)])

    @property
    def nbytes(self) -> Size:
        return product(self.shape) * self.fold.width * self.of.x.dtype.itemsize

    def tile(self) -> BlockTile | None:
        """The tile of the product; None where the device has none, or results are too few or not where it stores."""
        results = self.rows * self.columns
        if not isinstance(results, int) or results < FEWEST * self.device.multiprocessors * FEWEST_RESULTS:
            return None
        if not self.pixels_first or not is_multiple(self.columns, CHUNK) or not self._pixels().fits():
            return None
        known = self.device, self.result_bytes, self.request
        split = pipelined_split_of(self.rows, self.columns, self.depth, *known, parts=False)
        return None if split is None else split[0]

    def _pixels(self) -> Pixels:
        """The folded image: a line of the window is the channels of one pixel."""
        axes = [Along(size, axis.out, 1, 1, 0) for size, axis in zip(self.shape[1:], self.of.axes, strict=True)]
        last = Along(self.of.axes[-1].out, self.of.axes[-1].out, 1, 1, 0)
        return Pixels(self.images, (*axes[:-1], last), (*self.fold.taps[:-1], 1), self.fold.line)

    def cost(self) -> Cost:
        cost = kernel_cost(self.step.value)
        work = 2 * self.rows * self.columns * self.depth
        return replace(cost, flops=cost.flops - cost.dense + work, dense=work, bytes=cost.bytes + 2 * self.nbytes)

    def folded_job(self, tile: BlockTile) -> Job:
        """Two kernels: the folded image, and the product."""
        item = self.of.x.dtype.itemsize
        strides: list[Size] = [item]
        for size in (self.fold.width, *reversed(self.shape[1:])):
            strides.append(strides[-1] * size)
        image = Tensor(FOLDED, self.of.x.dtype, (*reversed(strides[1:]), item))
        row = self.depth * item
        right = Factor(Tensor("w", self.of.w.dtype, (row, item)), (), self.columns, self.depth)
        gather = Gather((self.images, *self.out), (self.depth,), _nowhere, is_dense=True, pixels=self._pixels())
        left = Factor(image, (), self.rows, self.depth, gather=gather)
        engine = PipelinedTile(tile, self.of.x.dtype, left, [right], "k", "k", self.depth)
        finished = self.finished(engine.tiled())
        assert isinstance(finished.kernel, Kernel)
        kernels = (self._folded(), (finished.kernel, finished.tiled.tiles))
        return in_passes(kernels, self.bindings, {FOLDED: self.nbytes})

    def _folded(self) -> tuple[Kernel, Size]:
        """The kernel that folds: a row for each folded pixel, with the channels of its phases; zeros in the padding."""
        of, at = self.of, self.contraction.body.views[self.of.x]
        image, channel, *spatial = at.strides
        x = Tensor(self._name(of.x), of.x.dtype, (image, *spatial, channel), at.offset)

        def see(row: tuple[Expr, ...], k: tuple[Expr, ...]) -> tuple[Coordinate, ...]:
            every = zip(of.axes, row[1:], k[:-1], strict=True)
            places = [Coordinate(axis.place(pixel, phase), axis.size) for axis, pixel, phase in every]
            return (Coordinate(row[0]), *places, Coordinate(k[-1]))

        gather = Gather(self.shape, (*self.fold.strides, of.channels), see)
        rows, width = product(self.shape), self.fold.width
        factor = Factor(x, (), rows, self.fold.filled, gather=gather)
        j0, j1 = Name("j0"), Name("j1")
        target = Tensor(FOLDED, of.x.dtype, (width * of.x.dtype.itemsize, of.x.dtype.itemsize))
        body = (Store(target, (j0, j1), factor.element(j0, j1)),)
        return for_each("convolve_fold", (rows, width), (x.pointer, FOLDED), (FOLDED,), body, CHUNK)


def _nowhere(row: tuple[Expr, ...], k: tuple[Expr, ...]) -> tuple[Coordinate, ...]:
    raise AssertionError("the TMA copies it")


__all__ = ["offer_folded"]
