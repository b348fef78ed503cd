"""Which convolutions of bytes the variant serves, their packed weights, and their tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import i8, i32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.body import is_number
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Kernel,
    Load,
    Tensor,
    collapsed,
)
from dovetail.kernels.problems.bytes import BytePacking, ByteProduct, find_byte_product
from dovetail.kernels.spec import Job, Tiles
from dovetail.targets.cpu.conv.int8.kernel import int8_conv_code
from dovetail.targets.cpu.conv.int8.shape import ByteImage, is_by_channels, strip_of
from dovetail.targets.cpu.gemm.int8.job import ByteJob
from dovetail.targets.cpu.gemm.int8.product import NO_DOT, words_of
from dovetail.targets.cpu.gemm.int8.tile import ByteTile, byte_tile_of, fitting_tile
from dovetail.targets.cpu.gemm.policy import INT8
from dovetail.targets.runtime.arrays.aligned import aligned


@dataclass(frozen=True, slots=True)
class ByteFilters(BytePacking):
    """Filters as signed bytes in the order in which they are multiplied, [group][tile][k / 4][filter][4]; then a tile
    of ones, which sums up pixels. k counts channels, then taps; or taps, then channels in blocks of four."""

    mr: int
    groups: int

    def __call__(self, weights: Array, *zero: Array) -> Array:
        every, channels = weights.shape[:2]
        q, _, _ = self.signed(weights.reshape(every, -1), *zero)
        # The last row counts what is there: it is 0 where channels are padded.
        rows = np.concatenate([q, np.ones((1, q.shape[1]), np.int8)]).reshape(every + 1, channels, -1)
        if is_by_channels(channels, rows.shape[2]):
            rows = np.pad(rows, ((0, 0), (0, -channels % 4), (0, 0))).transpose(0, 2, 1)
        rows = rows.reshape(every + 1, -1)
        filters, k = every // self.groups, rows.shape[1]
        tiles, steps = -(-filters // self.mr), -(-k // 4)
        whole = np.zeros((self.groups, tiles * self.mr, 4 * steps), np.int8)
        whole[:, :filters, :k] = rows[:-1].reshape(self.groups, filters, k)
        packed = aligned((self.groups * tiles + 1, steps, self.mr, 4), np.int8)
        packed[:-1] = whole.reshape(self.groups * tiles, self.mr, steps, 4).transpose(0, 2, 1, 3)
        ones = np.zeros((steps, 1, 4), np.int8)
        ones.reshape(-1)[:k] = rows[-1]
        packed[-1] = ones
        return packed


@dataclass(frozen=True, slots=True)
class ByteRows(BytePacking):
    """For each filter the sum of its weights, and the offset that was taken from them."""

    def __call__(self, weights: Array, *zero: Array) -> Array:
        _, offsets, sums = self.signed(weights.reshape(weights.shape[0], -1), *zero)
        return np.stack([sums, offsets], axis=1).astype(np.int32)


def offer_int8_conv(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of one convolution of bytes over one or two axes."""
    tile = byte_tile_of(of.device)
    if tile is None:
        return NO_DOT
    byte_product = of.once(find_byte_product)
    if isinstance(byte_product, Refused):
        return byte_product
    if byte_product.product.op is not ops.conv:
        return Refused("op_is_one_convolution", byte_product.product.op.name)
    if byte_product.result.rank not in (3, 4):
        return Refused("image_has_one_or_two_axes", str(byte_product.result.type))
    fitting = _fitting(replace(tile, weights_are_rows=True), byte_product)
    return Offer(lambda: _Writer(of, byte_product, fitting).job(), lambda: byte_product.cost(of.value))


def _fitting(tile: ByteTile, byte_product: ByteProduct) -> ByteTile:
    """The tile that leaves the fewest lanes empty, where sizes are known and any NR can be packed."""
    weights = byte_product.weights.value
    match (*weights.shape[:2], product(weights.shape[2:]), product(byte_product.result.shape[2:])):
        case (int(filters), int(channels), int(taps), int(pixels)) if is_by_channels(channels, taps):
            return fitting_tile(tile, filters // int(byte_product.product.attrs["groups"]), pixels)
        case _:
            return tile


class _Writer(ByteJob):
    """The job of one convolution while it is put together."""

    def job(self) -> Job | Refused:
        contraction, views = self.contraction, self.contraction.body.views
        image = views[contraction.factor.bytes]
        if image.offset != 0:
            return Refused("image_starts_at_an_operand", "a view within an operand")
        self._image(contraction.factor.bytes, image.strides)
        groups = int(contraction.product.attrs["groups"])
        weights = contraction.weights
        pack = ByteFilters(weights.number, self.tile.mr, groups)
        self.bindings["w"] = weights.packed(f"bytes filters {self.tile.mr} {groups}", pack)
        self.bindings["c"] = weights.packed("bytes rows", ByteRows(weights.number))
        refused = self.bind_epilogue()
        if refused is not None:
            return refused
        pixels, columns = collapsed(self.of.value.shape[2:], [spread[2:] for spread in self.spread.values()])
        if len(pixels) > 1:
            return Refused("pixels_are_one_axis", f"{len(pixels)} axes", "operands that are dense across rows")
        for (name, spread), column in zip(self.spread.items(), columns, strict=True):
            self.sizes |= {
                f"{name}_image": spread[0], f"{name}_row": spread[1], f"{name}_column": column[0] if column else 0
            }  # fmt: skip
        self.sizes["pixels"] = product(pixels)
        self._flatten(contraction.factor.bytes)
        return self._finished(groups)

    def _image(self, x: Value, strides: tuple[Size, ...]) -> None:
        """The sizes of the image; a line is an image of one row."""
        self.bindings["x"] = self.contraction.operand(x)
        padding, result = self.contraction.product.attrs["padding"], self.contraction.result.shape
        two = x.rank == 4
        self.sizes |= {
            "x_image": strides[0], "x_channel": strides[1], "x_row": strides[2] if two else 0, "x_column": strides[-1],
            "height": x.shape[2] if two else 1, "width": x.shape[-1], "out_width": result[-1],
            "above": padding[0] if two else 0, "before": padding[1] if two else padding[0],
        }  # fmt: skip

    def _flatten(self, x: Value) -> None:
        """One tap that sees every pixel once sees one row of them, where rows are dense."""
        attrs, sizes = self.contraction.product.attrs, self.sizes
        window = self.contraction.weights.value.shape[2:]
        once = all(s == 1 for s in (*window, *attrs["strides"])) and all(p == 0 for p in attrs["padding"])
        if once and x.rank == 4 and sizes["x_row"] == x.shape[-1] * sizes["x_column"]:
            pixels = sizes["pixels"]
            self.sizes |= {"x_row": 0, "height": 1, "width": pixels, "out_width": pixels}

    def _finished(self, groups: int) -> Job:
        contraction, (filters, channels, *window) = self.contraction, self._static(self.contraction.weights.value.shape)
        attrs, zero = contraction.product.attrs, contraction.factor.zero
        known = 0 if zero is None else leaf.scalar_of(zero) if is_number(zero) else None
        images, threads = contraction.result.shape[0] * groups, self.of.device.threads
        shape = ByteImage(
            self.tile,
            strip_of(self.tile, self.sizes["pixels"], images, filters // groups, threads),
            channels,
            filters // groups,
            groups,
            self._two(window),
            self._two(attrs["strides"]),
            self._two(attrs["dilations"]),
            any(p != 0 for p in attrs["padding"]),
            contraction.factor.dtype is i8,
            contraction.weights.has_offsets,
            None if known is None else int(known.real),
            0 if zero is None else zero.dtype.itemsize,
            tuple(self.beside.values()),
            tuple(self.bindings),
            self.sizes,
        )
        epilogue = self._epilogue(shape)
        template = int8_conv_code(shape, epilogue).template(
            self.bindings, tuple(words_of(self.sizes).values()), shape.layout(epilogue)["end"]
        )
        strips = floordiv(self.sizes["pixels"] + (shape.strip - 1), shape.strip)
        tiles = images * strips * shape.blocks
        work = min(INT8.filters, shape.filters) * shape.deep * shape.strip // 4
        return Job(template, self.bindings, Tiles(tiles, work, keeps=True))

    def _static(self, shape: tuple[Size, ...]) -> tuple[int, ...]:
        return tuple(size for size in shape if isinstance(size, int))

    def _two(self, of: tuple[int, ...] | list[int]) -> tuple[int, int]:
        """Numbers of two axes; a line has one row."""
        return (1, of[0]) if len(of) == 1 else (of[0], of[1])

    def _epilogue(self, shape: ByteImage) -> Kernel:
        """Exact sums of the products, and the elementwise steps on them."""

        def exact(row: Expr, column: Expr) -> Expr:
            sums: Expr = Load(Tensor("sums", i32, (4 * shape.strip, 4)), (row, column))
            totals = Load(Tensor("c", i32, (8,)), (row,))
            offsets: Expr | None = None
            if shape.has_offsets:
                of_pixel = Load(Tensor("pixelsums", i32, (4,)), (column,))
                offsets = Call("mul", (Load(Tensor("c", i32, (8,), 4), (row,)), of_pixel), i32)
            return self.exact_sums(sums, totals, offsets)

        return self.epilogue(exact, "pixelsums")
