"""Convolve: an implicit GEMM, in which one factor is gathered from images: a row for each pixel of the result.

k counts taps and channels. Where the channels of an image are dense in memory, k goes through the channels of a tap,
and 16 bytes of them are copied at once for any stride, dilation and padding; else elements are loaded one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Literal, TypeAlias

from dovetail.declare.cost import kernel_cost
from dovetail.declare.machine import Cost
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import bf16, bool_, f16, i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.conv.packed_filters import FiltersByTap
from dovetail.kernels.gpu.conv.pixels import Pixels
from dovetail.kernels.gpu.gemm.fma import FmaTile, dtype_of_sums
from dovetail.kernels.gpu.gemm.fragments import Coordinate, Factor, Gather, is_multiple
from dovetail.kernels.gpu.gemm.pipelined_tile import PipelinedTile
from dovetail.kernels.gpu.gemm.tensor_core_tile import TensorCoreTile
from dovetail.kernels.gpu.gemm.tile import CHUNK, DEPTH, pipelined_split_of, split_of
from dovetail.kernels.gpu.gemm.tile_writer import TileWriter
from dovetail.kernels.gpu.gemm.tiled import Element
from dovetail.kernels.loops.along import Along
from dovetail.kernels.loops.body import cast_to, overwritten_operands
from dovetail.kernels.loops.ir import (
    ZERO,
    Call,
    Expr,
    Extent,
    Load,
    Name,
    Store,
    Tensor,
    add,
    collapsed,
    indices,
    mul,
    stretched,
)
from dovetail.kernels.matrix_instruction import MMA_F16, MatrixInstruction, instruction_for
from dovetail.kernels.problems.contraction import epilogue_of
from dovetail.kernels.problems.windows import Windowed, find_windowed
from dovetail.kernels.request import LAUNCH, Request
from dovetail.kernels.spec import ALIGNMENT, Job, Packed, TensorLocations
from dovetail.ops.view import quotient
from dovetail.plan.plan import Step

Way: TypeAlias = Literal["copied", "gathered", "fma"]
"""How factors come to be multiplied."""
TENSOR_CORE_DTYPES = (f16, bf16)
FEWEST_RESULTS = 64 * 64
"""Results of a multiprocessor from which a producer is worth its threads: a tile of a warpgroup."""
GATHER_COST = 8
"""How much slower tensor cores are where elements are gathered one by one: the threads load, then they multiply."""


def offer_copied(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernel of a convolution on tensor cores whose factors are copied to shared memory in 16 bytes."""
    conv = _on_tensor_cores(of)
    if isinstance(conv, Refused):
        return conv
    refused = _not_copied(conv, of.locations)
    if refused is not None and not conv.is_point:
        return refused
    writer = ConvWriter(of.step, conv, of.locations, of.device, "copied", of.request)
    return Offer(writer.job, writer.cost) if all(writer.dense_axes()) else Refused("factors_are_aligned")


def offer_gathered(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernel of a convolution on tensor cores whose factors are loaded element by element."""
    conv = _on_tensor_cores(of)
    if isinstance(conv, Refused):
        return conv
    writer = ConvWriter(of.step, conv, of.locations, of.device, "gathered", of.request)
    return Offer(writer.job, writer.cost)


def offer_fma(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernel of a convolution whose elements are multiplied one by one."""
    conv = of.once(find_windowed)
    if isinstance(conv, Refused):
        return conv
    multiplies = instruction_for(of.device.matrix_instructions, conv.x.dtype) is not None
    if conv.x.dtype in TENSOR_CORE_DTYPES and multiplies:
        return Refused("tensor_cores_lack_the_dtype", conv.x.dtype.name)
    writer = ConvWriter(of.step, conv, of.locations, of.device, "fma", of.request)
    return Offer(writer.job, writer.cost)


def _on_tensor_cores(of: StepProblem[GpuDevice]) -> Windowed | Refused:
    conv = of.once(find_windowed)
    if isinstance(conv, Windowed) and conv.x.dtype not in TENSOR_CORE_DTYPES:
        return Refused("tensor_cores_have_the_dtype", conv.x.dtype.name, "f16 or bf16")
    if isinstance(conv, Windowed) and instruction_for(of.device.matrix_instructions, conv.x.dtype) is None:
        return Refused("the_device_multiplies_matrices", of.device.architecture)
    return conv


def _not_copied(of: Windowed, locations: TensorLocations) -> Refused | None:
    """Why 8 channels of a tap are not 16 aligned bytes of both factors; None where they are."""
    body, item = of.contraction.body, of.x.dtype.itemsize
    at, operand = body.views[of.x], of.contraction.operand(of.w)
    if at.strides[1] != item:
        return Refused("channels_are_innermost", f"{at.strides[1]} bytes from one to the next", str(item))
    if of.channels % CHUNK:
        return Refused("channels_fill_16_bytes", str(of.channels), f"a multiple of {CHUNK}")
    others = (at.offset, at.strides[0], *at.strides[2:])
    if any(quotient(size, ALIGNMENT) is None for size in others if size != 0):
        return Refused("pixels_are_aligned", ", ".join(map(str, others)), f"multiples of {ALIGNMENT} bytes")
    if prod(of.window) > 1 and not (of.w in body.arguments and locations.is_bound(operand)):
        return Refused("filters_are_bound", "filters that a run computes or is given")
    return None


class ConvWriter(TileWriter):
    """The job of one convolution while it is put together."""

    name = "convolve"
    streams = 1

    def __init__(
        self,
        step: Step,
        of: Windowed,
        locations: TensorLocations,
        device: GpuDevice,
        way: Way,
        request: Request = LAUNCH,
    ) -> None:
        self.request = request
        self.step, self.of, self.locations, self.device, self.way = step, of, locations, device, way
        self.contraction = of.contraction
        self.images = of.x.shape[0]
        self.out = tuple(axis.out for axis in of.axes)
        first = step.results[0]
        self.pixels_first = locations(first).strides[1] == first.dtype.itemsize and of.filters > 1
        """Whether pixels are the rows of the product, and filters its columns, which are dense in the result."""
        self.depth = of.channels * prod(of.window)
        self.by_tap = way == "copied" and _not_copied(of, locations) is None
        self.packs = self.by_tap and prod(of.window) > 1
        operands = list(dict.fromkeys(self.contraction.operand(v) for v in (of.x, of.w, *self.contraction.operands)))
        overwritten = overwritten_operands(step, locations)
        self.names = {v: f"x{i}" for i, v in enumerate(v for v in operands if v not in overwritten)}
        self.bindings = {name: v for v, name in self.names.items()}
        if self.packs:
            self._pack()
        self.bindings |= {f"y{i}": v for i, v in enumerate(step.results)}
        self.names |= dict.fromkeys(overwritten, "y0")
        sizes: tuple[Size, ...] = (of.groups,) if self.pixels_first else (self.images, of.groups)
        self.kept = [n != 1 for n in sizes]
        self.batch = tuple(n for n in sizes if n != 1)
        self.lead = tuple(Name(f"b{i}") for i in range(len(self.batch)))
        pixels = product((self.images, *self.out)) if self.pixels_first else product(self.out)
        self.rows, self.columns = (pixels, of.filters) if self.pixels_first else (of.filters, pixels)
        self.axes, self.strides = self._pixel_axes()

    def _pack(self) -> None:
        """Let the kernel read filters that were packed when parameters were bound."""
        operand, of = self.contraction.operand(self.of.w), self.of
        pack = FiltersByTap(of.groups, of.is_transposed)
        if all(self.contraction.operand(v) is not operand for v in (of.x, *self.contraction.operands)):
            self.bindings.pop(self.names.pop(operand))
        self.bindings["w"] = Packed(operand, pack.layout, pack)

    def _pixel_axes(self) -> tuple[tuple[Size, ...], dict[str, tuple[Size, ...]]]:
        """The axes that pixels are counted along, and strides of what the epilogue reads and writes: batch, pixels,
        filters."""
        body, shape = self.contraction.body, self.of.value.shape
        whole = {f"y{i}": self.locations(r).strides for i, r in enumerate(self.step.results)}
        for i, view in enumerate(self.contraction.operands):
            whole[f"e{i}"] = stretched(body.views[view].strides, view.shape, shape)
        count = 0 if self.pixels_first else 1
        pixels = [tuple([s[0], *s[2:]][count:]) for s in whole.values()]
        axes, strides = collapsed((self.images, *self.out)[count:], pixels)
        strides_of: dict[str, tuple[Size, ...]] = {}
        for (name, s), along in zip(whole.items(), strides, strict=True):
            strides_of[name] = (*self._batched(s[0], s[1] * self.of.filters), *along, s[1])
        return axes, strides_of

    def _batched(self, image: Size, group: Size) -> list[Size]:
        """The strides of the axes of the batch."""
        every = [group] if self.pixels_first else [image, group]
        return [stride for stride, keeps in zip(every, self.kept, strict=True) if keeps]

    def pixels(self) -> Factor:
        """The factor that is gathered from images."""
        of, at = self.of, self.contraction.body.views[self.of.x]
        image, channel, *spatial = at.strides
        lead = self._batched(image, channel * of.channels)
        count = 0 if self.pixels_first else 1
        shape: tuple[Size, ...] = (self.images, *self.out)[count:]
        name, dtype = self._name(of.x), of.x.dtype
        rows = self.rows if self.pixels_first else self.columns
        if of.is_point:
            axes, (strides,) = collapsed(shape, [tuple([image, *spatial][count:])])
            if len(axes) <= 1:
                tensor = Tensor(name, dtype, (*lead, strides[0] if axes else 0, channel), at.offset)
                return Factor(tensor, self.lead, rows, self.depth)
        tensor = Tensor(name, dtype, (*lead, *[image, *spatial][count:], channel), at.offset)

        def see(row: tuple[Expr, ...], k: tuple[Expr, ...]) -> tuple[Coordinate, ...]:
            taps, c = (k[:-1], k[-1]) if self.by_tap else (k[1:], k[0])
            images, places = row[: 1 - count], row[1 - count :]
            every = zip(of.axes, of.window, places, taps, strict=True)
            seen = (_seen(axis, window, out, tap, of.is_transposed) for axis, window, out, tap in every)
            return (*map(Coordinate, images), *seen, Coordinate(c))

        k_axes = (*of.window, of.channels) if self.by_tap else (of.channels, *of.window)
        gather = Gather(shape, k_axes, see, self.by_tap, self._traversed(tensor))
        return Factor(tensor, self.lead, rows, self.depth, gather=gather)

    def _traversed(self, tensor: Tensor) -> Pixels | None:
        """The pixels where the TMA can copy them; None where it cannot."""
        of = self.of
        known = all(isinstance(stride, int) and stride > 0 for stride in tensor.strides)
        if not (known and self.by_tap and self.pixels_first) or self.batch or of.is_transposed:
            return None
        # A copy has channels of one tap, and so must have the rows of filters that it is multiplied by.
        if prod(of.window) > 1 and of.channels % DEPTH:
            return None
        pixels = Pixels(self.images, of.axes, of.window, of.channels)
        return pixels if pixels.fits() else None

    def filters(self) -> Factor:
        """The factor of weights."""
        of, dtype, item = self.of, self.of.w.dtype, self.of.w.dtype.itemsize
        if self.packs:
            row = self.depth * item
            tensor = Tensor("w", dtype, (*self._batched(0, row * of.filters), row, item))
            return Factor(tensor, self.lead, of.filters, self.depth)
        at = self.contraction.body.views[of.w]
        first, second, *taps = at.strides
        row, channel = (second, first) if of.is_transposed else (first, second)
        lead = self._batched(0, first * of.channels if of.is_transposed else first * of.filters)
        k_shape, k_strides = (of.channels, *of.window), (channel, *taps)
        if self.by_tap:
            k_shape, k_strides = (*k_shape[1:], k_shape[0]), (*k_strides[1:], k_strides[0])
        axes, (strides,) = collapsed(k_shape, [k_strides])
        name = self._name(of.w)
        if len(axes) <= 1:
            tensor = Tensor(name, dtype, (*lead, row, strides[0] if axes else 0), at.offset)
            return Factor(tensor, self.lead, of.filters, self.depth)
        tensor = Tensor(name, dtype, (*lead, row, *strides), at.offset)
        gather = Gather((of.filters,), axes, lambda r, k: tuple(map(Coordinate, (*r, *k))))
        return Factor(tensor, self.lead, of.filters, self.depth, gather=gather)

    def _name(self, view: Value) -> str:
        return self.names[self.contraction.operand(view)]

    @property
    def by(self) -> MatrixInstruction:
        """What warps multiply with; of factors of other dtypes it says how large tiles would be."""
        instruction = instruction_for(self.device.matrix_instructions, self.of.x.dtype)
        return instruction or MMA_F16

    def cost(self) -> Cost:
        """The cost of the step with the work on elements of tiles that are not there, and on zeros of a transpose."""
        cost = kernel_cost(self.step.value)
        tile, _ = split_of(product(self.batch), self.rows, self.columns, self.depth, self.device, self.by, self.request)
        wasted = -(-self.depth // DEPTH) * DEPTH / self.depth
        for size, of in ((self.rows, tile.rows), (self.columns, tile.columns)):
            wasted *= -(-size // of) * of / size if isinstance(size, int) and size > 0 else 1.0
        if self.of.is_transposed:
            wasted *= prod(axis.stride for axis in self.of.axes)
        if self.way == "gathered":
            wasted *= GATHER_COST
        work = cost.dense * ceil(wasted)
        return replace(cost, flops=cost.flops - cost.dense + work, dense=work)

    def factors(self) -> tuple[Factor, Factor]:
        """Left and right."""
        pixels, filters = self.pixels(), self.filters()
        return (pixels, filters) if self.pixels_first else (filters, pixels)

    def dense_axes(self) -> tuple[str, str]:
        """The axes along which the factors are copied."""
        left, right = [factor.dense_axis(self.alignment(factor)) for factor in self.factors()]
        return left, right

    def job(self) -> Job:
        left, right = self.factors()
        dtype = self.of.x.dtype
        if self.way == "fma":
            sums = self.sums = dtype_of_sums(dtype)
            axes = [factor.dense_axis(self.alignment(factor), (sums,)) for factor in (left, right)]
            return self.finished(
                *FmaTile.chosen(left, [right], axes, product(self.batch), sums, self.device, self.request)
            )
        axes = self.dense_axes() if self.way == "copied" else ("", "")
        if axes == ("k", "k") and self._is_pipelined(left, right):
            split = pipelined_split_of(
                self.rows, self.columns, self.depth, self.device, self.result_bytes, self.request
            )
            if split is not None:
                tile, parts = split
                return self.finished(PipelinedTile(tile, dtype, left, [right], *axes, self.depth, parts).tiled(), parts)
        sizes = product(self.batch), self.rows, self.columns, self.depth
        tile, parts = split_of(*sizes, self.device, self.by, self.request)
        engine = TensorCoreTile(tile, self.by, left, [right], *axes, self.depth, parts, early=self.early(left, [right]))
        return self.finished(engine.tiled(self.device), parts)

    @property
    def result_bytes(self) -> int:
        """Bytes that the epilogue reads and writes for each pixel of a filter."""
        read = [v for i, v in enumerate(self.contraction.operands) if any(self.strides[f"e{i}"][len(self.batch) : -1])]
        return sum([v.dtype.itemsize for v in (*self.step.results, *read)])

    def _is_pipelined(self, left: Factor, right: Factor) -> bool:
        """Whether the TMA can copy both factors, and there are results for all multiprocessors."""
        if self.batch or not is_multiple(self.columns, CHUNK) or not PipelinedTile.takes((left, right)):
            return False
        results = self.rows * self.columns
        return not isinstance(results, int) or results >= self.device.multiprocessors * FEWEST_RESULTS

    def stores(self, element: Element, at: tuple[Expr, ...]) -> Iterator[Store]:
        *lead, row, column = at
        pixel, filter = (row, column) if self.pixels_first else (column, row)
        place = (*lead, *indices(self.axes, pixel), filter)
        known: dict[Value, Sequence[Expr]] = {self.of.value: [cast_to(element.sums[0], self.of.value.dtype)]}
        for i, view in enumerate(self.contraction.operands):
            offset = self.contraction.body.views[view].offset
            tensor = Tensor(self._name(view), view.dtype, self.strides[f"e{i}"], offset)
            known[view] = [Load(tensor, place)]
        for i, value in enumerate(epilogue_of(self.contraction, known)):
            yield Store(Tensor(f"y{i}", self.step.results[i].dtype, self.strides[f"y{i}"]), place, value)


def _seen(axis: Along, window: int, out: Expr, tap: Expr, transposed: bool) -> Coordinate:
    """Where on an axis a tap of a window looks for a pixel of the result."""
    if not transposed:
        last = (axis.out - 1) * axis.stride + (window - 1) * axis.dilation
        beyond = axis.size - last
        is_inside = axis.before == 0 and isinstance(beyond, int) and beyond > 0
        return Coordinate(axis.place(out, tap), None if is_inside else axis.size)
    # The pixel that a transposed convolution spreads there, if its stride comes by.
    moved = Call("sub", (add(out, Extent(axis.before)), mul(tap, Extent(axis.dilation))), i64)
    if axis.stride == 1:
        return Coordinate(moved, axis.size)
    start = Call("maximum", (ZERO, moved), i64)
    whole = Call("equal", (Call("rem", (start, Extent(axis.stride)), i64), ZERO), bool_)
    met = Call("bit_and", (whole, Call("less", (Extent(-1), moved), bool_)), bool_)
    return Coordinate(Call("div", (start, Extent(axis.stride)), i64), axis.size, met)


__all__ = ["offer_copied", "offer_fma", "offer_gathered"]
