"""Convolution of bytes: a strip of output pixels is packed as panels (im2col), then multiplied with filters.

A cell is one strip for one block of filters. The strip counts pixels of one image across its rows, so that narrow
images fill vectors too. The padding holds the zero point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.codegen.llvm.arguments import Words, store_words
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, DRIVER, END, SCRATCH, WORDS, KernelCode, assemble_with, inner_name
from dovetail.codegen.llvm.once import HEAD, once_for
from dovetail.ir.dim import Size
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cpu.gemm.byte_tile import ByteTile, byte_tile_function
from dovetail.targets.cpu.gemm.driver import LIVE, words_bytes
from dovetail.targets.cpu.gemm.int8_kernel import words_of
from dovetail.targets.cpu.gemm.policy import INT8

_VECTOR = 16
"""Pixels that are interleaved at a time."""
_RAW = f"<{_VECTOR} x i8>"


@dataclass(frozen=True, slots=True)
class ByteImage:
    """What the code depends on. Sizes are numbers, or arguments of the kernel."""

    tile: ByteTile
    channels: int
    """Of a group."""
    filters: int
    """Of a group."""
    groups: int
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    is_padded: bool
    is_signed: bool
    """Whether pixels are signed bytes."""
    has_offsets: bool
    """Whether filters have offsets, so that sums of pixels are needed."""
    zero: int | None
    """The zero point, where it is a number."""
    zero_bytes: int
    """Bytes of the zero point, where it is a tensor."""
    operands: tuple[str, ...]
    """Pointers that the epilogue reads at filters and pixels of the result."""
    pointers: tuple[str, ...]
    sizes: Mapping[str, Size]

    @property
    def deep(self) -> int:
        return self.channels * self.window[0] * self.window[1]

    @property
    def steps(self) -> int:
        return self.tile.steps(self.deep)

    @property
    def strip(self) -> int:
        """Pixels of a strip, in whole panels."""
        return max(1, INT8.strip // self.tile.nr) * self.tile.nr

    @property
    def tiles(self) -> int:
        """Tiles of rows of a group."""
        return -(-self.filters // self.tile.mr)

    @property
    def blocks(self) -> int:
        """Blocks of filters of a group."""
        return -(-self.filters // INT8.filters)

    def layout(self, epilogue: Kernel) -> dict[str, int]:
        """Offsets in the workspace: words of the epilogue, sums, sums of pixels, four rows, panels, and the end."""
        pitch, mr = 4 * self.strip, self.tile.mr
        sizes = {
            "words": words_bytes(epilogue),
            "sums": -(-min(self.filters, INT8.filters) // mr) * mr * pitch,
            "pixelsums": pitch if self.has_offsets else 0,
            # A copy may write a vector beyond the last pixel.
            "four": 4 * self.strip + _VECTOR,
            "panels": self.strip * 4 * self.steps,
        }
        offsets, end = dict[str, int](), HEAD
        for name, size in sizes.items():
            offsets[name], end = end, end + -(-size // 64) * 64
        return {**offsets, "end": end}


def int8_conv_code(shape: ByteImage, epilogue: Kernel) -> KernelCode:
    """The kernel with its epilogue."""
    driver = _Driver(shape, epilogue)
    code = assemble_with("int8_conv", [driver.function(DRIVER, attributes="nounwind")], [epilogue])
    heights = (shape.tile.mr, 1) if shape.has_offsets else (shape.tile.mr,)
    parts = [byte_tile_function(shape.tile, rows) for rows in heights]
    uses = (*code.uses, *(signature.declaration for _, signature in parts))
    return KernelCode(code.name, code.text, uses, tuple(part for part, _ in parts))


class _Driver(Builder):
    """The function that goes through cells."""

    def __init__(self, shape: ByteImage, epilogue: Kernel) -> None:
        super().__init__()
        self.shape = shape
        self.epilogue = epilogue
        self.given = Words.load(self, WORDS, shape.pointers, tuple(words_of(shape.sizes)))
        offsets = shape.layout(epilogue)
        self.words, self.sums, self.pixelsums, self.four, self.panels = (
            self.ptr_add(SCRATCH, offsets[name]) for name in ("words", "sums", "pixelsums", "four", "panels")
        )
        self.zero = self._zero_point()
        self.strips = self._ceil(self.size("pixels"), shape.strip)
        with self.loop(BEGIN, END) as cell:
            self._cell(cell)

    def size(self, name: str) -> Int:
        known = self.shape.sizes[name]
        return known if isinstance(known, int) else self.given.sizes[name]

    def _ceil(self, x: Int, by: int) -> I64:
        return self.udiv(self.add(x, by - 1), by)

    def _zero_point(self) -> str:
        """The byte of the zero point, as pixels have it."""
        if self.shape.zero is not None:
            return str((self.shape.zero + 128) % 256 - 128)
        kind = f"i{8 * self.shape.zero_bytes}"
        held = self.let(f"load {kind}, ptr {self.given.pointers['z']}, align {self.shape.zero_bytes}")
        return held if self.shape.zero_bytes == 1 else self.let(f"trunc {kind} {held} to i8")

    def _cell(self, cell: I64) -> None:
        shape = self.shape
        block, number = self.urem(cell, shape.blocks), self.udiv(cell, shape.blocks)
        strip, image = self.urem(number, self.strips), self.udiv(number, self.strips)
        group, image = self.urem(image, shape.groups), self.udiv(image, shape.groups)
        first = self.mul(strip, shape.strip)
        live = self.smin(shape.strip, self.sub(self.size("pixels"), first))
        panels = self._ceil(live, shape.tile.nr)
        with self.when(once_for(self, SCRATCH, 0, number)):
            self._pack(image, group, first, live, panels)
        weights = shape.tile.row_bytes * shape.steps
        start = self.add(self.mul(group, shape.tiles), self.mul(block, INT8.filters // shape.tile.mr))
        filters = self.smin(INT8.filters, self.sub(shape.filters, self.mul(block, INT8.filters)))
        w = self.ptr_add(self.given.pointers["w"], self.mul(start, weights))
        _, full = byte_tile_function(shape.tile, shape.tile.mr)
        pitch = 4 * shape.strip
        with self.loop(0, panels) as panel:
            b = self._panel(panel)
            onto = self.ptr_add(self.sums, self.mul(panel, 4 * shape.tile.nr))
            with self.loop(0, self._ceil(filters, shape.tile.mr)) as at:
                there = self.ptr_add(onto, self.mul(at, shape.tile.mr * pitch))
                self.call(full, self.ptr_add(w, self.mul(at, weights)), b, there, shape.steps, pitch)
        number = self.add(self.mul(group, shape.filters), self.mul(block, INT8.filters))
        self._epilogue_words(image, number, first, live)
        self.emit(f"call void @{inner_name(self.epilogue)}(ptr {self.words}, i64 0, i64 {filters}, ptr null)")

    def _panel(self, number: I64) -> Ptr:
        return self.ptr_add(self.panels, self.mul(number, self.shape.tile.step_bytes * self.shape.steps))

    def _pack(self, image: I64, group: I64, first: I64, live: I64, panels: I64) -> None:
        """The strip as panels: four rows of the patch matrix at a time, interleaved; and the sums of its columns."""
        shape = self.shape
        x = self.ptr_add(self.given.pointers["x"], self.mul(image, self.size("x_image")))
        x = self.ptr_add(x, self.mul(self.mul(group, shape.channels), self.size("x_channel")))
        whole, more = divmod(shape.deep, 4)
        with self.loop(0, whole) as step:
            for i in range(4):
                self._patch_row(x, self.add(self.mul(step, 4), i), i, first, live)
            self._interleave(step, panels)
        if more:
            for i in range(more):
                self._patch_row(x, I64(str(4 * whole + i)), i, first, live)
            self._interleave(I64(str(whole)), panels)
        if shape.has_offsets:
            _, single = byte_tile_function(shape.tile, 1)
            ones = shape.tile.row_bytes * shape.steps * shape.groups * shape.tiles
            a = self.ptr_add(self.given.pointers["w"], ones)
            with self.loop(0, panels) as panel:
                onto = self.ptr_add(self.pixelsums, self.mul(panel, 4 * shape.tile.nr))
                self.call(single, a, self._panel(panel), onto, shape.steps, 4 * shape.strip)

    def _patch_row(self, x: Ptr, k: I64, i: int, first: I64, live: I64) -> None:
        """What one tap of one channel sees at the pixels of the strip."""
        shape = self.shape
        rows, columns = shape.window
        channel, tap = self.udiv(k, rows * columns), self.urem(k, rows * columns)
        down, across = self.udiv(tap, columns), self.urem(tap, columns)
        target = self.ptr_add(self.four, i * shape.strip)
        if shape.is_padded:
            fill = self.let(f"insertelement {_RAW} poison, i8 {self.zero}, i64 0")
            fill = self.let(f"shufflevector {_RAW} {fill}, {_RAW} poison, <{_VECTOR} x i32> zeroinitializer")
            with self.steps(0, live, _VECTOR) as at:
                self.emit(f"store {_RAW} {fill}, ptr {self.ptr_add(target, at)}, align 1")
        plane = self.ptr_add(x, self.mul(channel, self.size("x_channel")))
        # The strip goes through rows of the result, the first and the last one maybe in part.
        width = self.size("out_width")
        last = self.add(first, live)
        top, end = self.udiv(first, width), self._ceil_by(last, width)
        across = self.sub(self.mul(across, shape.dilations[1]), self.size("before"))
        stride = shape.strides[1]
        low = self.smax(0, self.ceil_div(self.smax(0, self.sub(0, across)), stride))
        high = self.smin(width, self.ceil_div(self.smax(0, self.sub(self.size("width"), across)), stride))
        with self.loop(top, end) as row:
            line = self.add(self.mul(row, shape.strides[0]), self.mul(down, shape.dilations[0]))
            line = self.sub(line, self.size("above"))
            start = self.mul(row, width)
            begin = self.smax(low, self.sub(first, start))
            count = self.sub(self.smin(high, self.sub(last, start)), begin)
            inside = self.and_(self.icmp("ult", line, self.size("height")), self.icmp("sgt", count, 0))
            with self.when(inside):
                column = self.add(self.mul(begin, stride), across)
                source = self.ptr_add(plane, self.mul(line, self.size("x_row")))
                source = self.ptr_add(source, self.mul(column, self.size("x_column")))
                there = self.ptr_add(target, self.sub(self.add(start, begin), first))
                self._copy(source, there, count)

    def _ceil_by(self, x: I64, by: Int) -> I64:
        return self.udiv(self.sub(self.add(x, by), 1), by)

    def _copy(self, source: Ptr, target: Ptr, count: I64) -> None:
        """Bytes at one distance; contiguous ones vector by vector, the last vector over the one before."""
        step = self.mul(self.size("x_column"), self.shape.strides[1])
        if str(step) != "1":
            with self.loop(0, count) as at:
                byte = self.let(f"load i8, ptr {self.ptr_add(source, self.mul(at, step))}, align 1")
                self.emit(f"store i8 {byte}, ptr {self.ptr_add(target, at)}, align 1")
            return
        wide = self.icmp("sge", count, _VECTOR)
        with self.when(wide):
            last = self.sub(count, _VECTOR)
            with self.steps(0, last, _VECTOR) as at:
                self._copy_vector(source, target, at, _RAW)
            self._copy_vector(source, target, last, _RAW)
        with self.unless(wide):
            with self.when(self.icmp("sge", count, 8)):
                self._copy_vector(source, target, I64("0"), "i64")
                self._copy_vector(source, target, self.sub(count, 8), "i64")
            with self.when(self.and_(self.icmp("slt", count, 8), self.icmp("sge", count, 4))):
                self._copy_vector(source, target, I64("0"), "i32")
                self._copy_vector(source, target, self.sub(count, 4), "i32")
            with self.when(self.icmp("slt", count, 4)), self.loop(0, count) as at:
                self._copy_vector(source, target, at, "i8")

    def _copy_vector(self, source: Ptr, target: Ptr, at: I64, kind: str) -> None:
        found = self.let(f"load {kind}, ptr {self.ptr_add(source, at)}, align 1")
        self.emit(f"store {kind} {found}, ptr {self.ptr_add(target, at)}, align 1")

    def _interleave(self, step: I64, panels: I64) -> None:
        """Four rows as panels: the four bytes of a pixel are neighbours."""
        shape, tile = self.shape, self.shape.tile
        moved = shape.is_signed != tile.shape.signed
        both, wide = f"<{2 * _VECTOR} x i8>", f"<{4 * _VECTOR} x i8>"
        pairs = ", ".join(f"i32 {i}" for i in range(2 * _VECTOR))
        mask = ", ".join(f"i32 {part * _VECTOR + pixel}" for pixel in range(_VECTOR) for part in range(4))
        flip = ", ".join(["i8 -128"] * 4 * _VECTOR)
        quads = ", ".join(f"i32 {i}" for i in range(4 * _VECTOR))
        with self.loop(0, panels) as panel:
            onto = self.ptr_add(self._panel(panel), self.mul(step, tile.step_bytes))
            start = self.ptr_add(self.four, self.mul(panel, tile.nr))
            for vector in range(tile.nr // _VECTOR):
                here = [self.ptr_add(start, i * shape.strip + vector * _VECTOR) for i in range(4)]
                rows = [self.let(f"load {_RAW}, ptr {at}, align 1") for at in here]
                low, high = (
                    self.let(f"shufflevector {_RAW} {a}, {_RAW} {b}, <{2 * _VECTOR} x i32> <{pairs}>")
                    for a, b in (rows[:2], rows[2:])
                )
                joined = self.let(f"shufflevector {both} {low}, {both} {high}, <{4 * _VECTOR} x i32> <{quads}>")
                found = self.let(f"shufflevector {wide} {joined}, {wide} poison, <{4 * _VECTOR} x i32> <{mask}>")
                if moved:
                    found = self.let(f"xor {wide} {found}, <{flip}>")
                self.emit(f"store {wide} {found}, ptr {self.ptr_add(onto, 4 * _VECTOR * vector)}, align 16")

    def _epilogue_words(self, image: I64, number: I64, pixel: I64, live: I64) -> None:
        """The words of the epilogue for this cell."""
        shape = self.shape
        given: list[Ptr | I64] = [
            self.sums,
            self.pixelsums,
            self.ptr_add(self.given.pointers["c"], self.mul(number, 8)),
        ]
        if "z" in shape.pointers:
            given.append(self.given.pointers["z"])
        for name in (*shape.operands, "y"):
            at = self.ptr_add(self.given.pointers[name], self.mul(image, self.size(f"{name}_image")))
            at = self.ptr_add(at, self.mul(number, self.size(f"{name}_row")))
            given.append(self.ptr_add(at, self.mul(pixel, self.size(f"{name}_column"))))
        given += [live if size == LIVE else self.given.sizes[str(size)] for size in self.epilogue.sizes]
        store_words(self, given, self.words)
