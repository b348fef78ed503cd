"""Convolution of bytes: a strip of output pixels is packed as panels (im2col), then multiplied with filters.

A cell is one strip for one block of filters. The strip counts pixels of one image across its rows, so that narrow
images fill vectors too. The padding holds the zero point. It stays apart from the nests of f32: register tile, packing
and epilogue are those of products of bytes.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from dovetail.codegen.llvm.arguments import NamedArguments, store_words
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, DRIVER, END, SCRATCH, WORDS, KernelCode, assemble_with, inner_name
from dovetail.codegen.llvm.once import once_for
from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cpu.conv.int8.shape import VECTOR, ByteImage
from dovetail.targets.cpu.gemm.driver import LIVE
from dovetail.targets.cpu.gemm.int8.product import words_of
from dovetail.targets.cpu.gemm.int8.tile import byte_tile_function
from dovetail.targets.cpu.gemm.policy import INT8

_RAW = f"<{VECTOR} x i8>"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one tap sees of the image at the pixels of a strip."""

    first: I64
    """The first pixel of the strip."""
    last: I64
    top: I64
    """The first row of the result that the strip goes through."""
    end: I64
    down: I64
    """The row of the image that the tap sees from row 0 of the result."""
    across: I64
    low: I64
    """The first column of the result whose tap is inside the image."""
    high: I64


class Packer(Builder):
    """The arguments and the workspace of the kernel, and code that packs a strip."""

    def __init__(self, shape: ByteImage, epilogue: Kernel) -> None:
        super().__init__()
        self.shape = shape
        self.epilogue = epilogue
        self.arguments = NamedArguments.load(self, WORDS, shape.pointers, tuple(words_of(shape.sizes)))
        offsets = shape.layout(epilogue)
        self.words, self.sums, self.pixelsums, self.four, self.panels, self.seen_lines = (
            self.ptr_add(SCRATCH, offsets[name]) for name in ("words", "sums", "pixelsums", "four", "panels", "lines")
        )
        self.zero = self._zero_point()

    def size(self, name: str) -> Int:
        known = self.shape.sizes[name]
        return known if isinstance(known, int) else self.arguments.sizes[name]

    def ceil(self, x: Int, by: int) -> I64:
        return self.udiv(self.add(x, by - 1), by)

    def _zero_point(self) -> str:
        """The byte of the zero point, as pixels have it."""
        if self.shape.zero is not None:
            return str((self.shape.zero + 128) % 256 - 128)
        kind = f"i{8 * self.shape.zero_bytes}"
        held = self.let(f"load {kind}, ptr {self.arguments.pointers['z']}, align {self.shape.zero_bytes}")
        return held if self.shape.zero_bytes == 1 else self.let(f"trunc {kind} {held} to i8")

    def panel(self, number: I64) -> Ptr:
        """One panel of packed columns."""
        return self.ptr_add(self.panels, self.mul(number, self.shape.tile.step_bytes * self.shape.steps))

    def pack(self, image: I64, group: I64, first: I64, live: I64, panels: I64) -> None:
        """The strip as panels, and the sums of its columns."""
        shape = self.shape
        x = self.ptr_add(self.arguments.pointers["x"], self.mul(image, self.size("x_image")))
        x = self.ptr_add(x, self.mul(self.mul(group, shape.channels), self.size("x_channel")))
        if shape.lines is not None:
            self._by_lines(x, first, live, panels, *shape.lines)
        elif shape.by_channels:
            self._by_channels(x, first, live, panels)
        else:
            self._by_rows(x, first, live, panels)
        if shape.has_offsets:
            _, single = byte_tile_function(shape.tile, 1)
            ones = shape.tile.row_bytes * shape.steps * shape.groups * shape.tiles
            a = self.ptr_add(self.arguments.pointers["w"], ones)
            with self.loop(0, panels) as panel:
                onto = self.ptr_add(self.pixelsums, self.mul(panel, 4 * shape.tile.nr))
                self.call(single, a, self.panel(panel), onto, shape.steps, 4 * shape.strip)

    def _by_channels(self, x: Ptr, first: I64, live: I64, panels: I64) -> None:
        """Four channels of one tap at a time, interleaved as they are copied. Weights of padded channels are 0."""
        shape, blocks = self.shape, -(-self.shape.channels // 4)
        with self.loop(0, shape.taps) as tap:
            if shape.is_padded:
                # Pixels in the padding are the same for all channels of a tap.
                self._fill(self.four, self.mul(live, 4), self.moved("i8", self.zero, -128))
            seen = self._seen(tap, first, live)
            with self.loop(0, blocks) as block:
                channels = [self.smin(self.add(self.mul(block, 4), i), shape.channels - 1) for i in range(4)]
                planes = [self.ptr_add(x, self.mul(channel, self.size("x_channel"))) for channel in channels]
                with self._rows(seen) as (offset, pixel, count):
                    self._copy_four(
                        [self.ptr_add(plane, offset) for plane in planes],
                        self.ptr_add(self.four, self.mul(pixel, 4)),
                        count,
                        self.mul(self.size("x_column"), shape.strides[1]),
                    )
                self._spread(self.add(self.mul(tap, blocks), block), panels)

    def _by_lines(self, x: Ptr, first: I64, live: I64, panels: I64, rows: int, columns: int) -> None:
        """Four channels of all lines that the strip sees, interleaved; then one tap at a time, copied."""
        shape, blocks = self.shape, -(-self.shape.channels // 4)
        if shape.is_padded:
            whole = I64(str(4 * blocks * rows * columns))
            self._fill(self.seen_lines, whole, self.moved("i8", self.zero, -128))
        width = self.size("out_width")
        last = self.add(first, live)
        top, end = self.udiv(first, width), self._ceil_by(last, width)
        before = self.size("before")
        count = self.smin(self.size("width"), self.sub(columns, before))
        seen = self.add(self.mul(self.sub(self.sub(end, top), 1), shape.strides[0]), self._reach_down() + 1)
        with self.loop(0, blocks) as block, self.loop(0, seen) as row:
            line = self.sub(self.add(self.mul(top, shape.strides[0]), row), self.size("above"))
            with self.when(self.icmp("ult", line, self.size("height"))):
                channels = [self.smin(self.add(self.mul(block, 4), i), shape.channels - 1) for i in range(4)]
                offset = self.mul(line, self.size("x_row"))
                planes = [self.add(self.mul(channel, self.size("x_channel")), offset) for channel in channels]
                at = self.add(self.mul(self.add(self.mul(block, rows), row), columns), before)
                sources = [self.ptr_add(x, plane) for plane in planes]
                self._copy_four(sources, self.ptr_add(self.seen_lines, self.mul(at, 4)), count, self.size("x_column"))
        with self.loop(0, shape.taps) as tap, self.loop(0, blocks) as block:
            down = self.mul(self.udiv(tap, shape.window[1]), shape.dilations[0])
            across = self.mul(self.urem(tap, shape.window[1]), shape.dilations[1])
            with self.loop(top, end) as row:
                start = self.mul(row, width)
                begin = self.smax(0, self.sub(first, start))
                pixels = self.sub(self.smin(width, self.sub(last, start)), begin)
                line = self.add(self.mul(self.sub(row, top), shape.strides[0]), down)
                at = self.add(self.mul(self.add(self.mul(block, rows), line), columns), across)
                source = self.ptr_add(self.seen_lines, self.mul(self.add(at, self.mul(begin, shape.strides[1])), 4))
                target = self.ptr_add(self.four, self.mul(self.sub(self.add(start, begin), first), 4))
                self._copy_words(source, target, pixels)
            self._spread(self.add(self.mul(tap, blocks), block), panels)

    def _reach_down(self) -> int:
        return (self.shape.window[0] - 1) * self.shape.dilations[0]

    def _copy_words(self, source: Ptr, target: Ptr, count: I64) -> None:
        """Interleaved pixels of one row of the result; contiguous ones four at a time, the last four over others."""
        step = self.shape.strides[1]
        if step != 1:
            with self.loop(0, count) as at:
                self._copy_word(source, target, self.mul(at, 4 * step), self.mul(at, 4))
            return
        wide = self.icmp("sge", count, 4)
        with self.when(wide):
            last = self.mul(self.sub(count, 4), 4)
            with self.steps(0, last, VECTOR) as at:
                self._copy_vector(source, target, at, _RAW)
            self._copy_vector(source, target, last, _RAW)
        with self.unless(wide), self.loop(0, count) as at:
            self._copy_word(source, target, self.mul(at, 4), self.mul(at, 4))

    def _copy_word(self, source: Ptr, target: Ptr, here: I64, there: I64) -> None:
        word = self.let(f"load i32, ptr {self.ptr_add(source, here)}, align 1")
        self.emit(f"store i32 {word}, ptr {self.ptr_add(target, there)}, align 1")

    def _copy_four(self, sources: list[Ptr], target: Ptr, count: I64, step: Int) -> None:
        """The bytes of four planes, those of one pixel next to each other; the last vector over the one before."""
        if str(step) != "1":
            with self.loop(0, count) as at:
                self._copy_pixel(sources, self.mul(at, step), self.ptr_add(target, self.mul(at, 4)))
            return
        wide = self.icmp("sge", count, VECTOR)
        with self.when(wide):
            last = self.sub(count, VECTOR)
            with self.steps(0, last, VECTOR) as at:
                self._interleave_at(sources, target, at, VECTOR)
            self._interleave_at(sources, target, last, VECTOR)
        with self.unless(wide):
            above = VECTOR
            for lanes in (8, 4):
                with self.when(self.and_(self.icmp("slt", count, above), self.icmp("sge", count, lanes))):
                    self._interleave_at(sources, target, I64("0"), lanes)
                    self._interleave_at(sources, target, self.sub(count, lanes), lanes)
                above = lanes
            with self.when(self.icmp("slt", count, above)), self.loop(0, count) as at:
                self._copy_pixel(sources, at, self.ptr_add(target, self.mul(at, 4)))

    def _copy_pixel(self, sources: list[Ptr], offset: I64, target: Ptr) -> None:
        whole = "0"
        for i, source in enumerate(sources):
            byte = self.let(f"load i8, ptr {self.ptr_add(source, offset)}, align 1")
            wide = self.let(f"shl i32 {self.let(f'zext i8 {byte} to i32')}, {8 * i}")
            whole = self.let(f"or i32 {whole}, {wide}")
        self.emit(f"store i32 {self.moved('i32', whole, -0x7F7F7F80)}, ptr {target}, align 1")

    def _interleave_at(self, sources: list[Ptr], target: Ptr, at: I64, lanes: int) -> None:
        kind = f"<{lanes} x i8>"
        rows = [self.let(f"load {kind}, ptr {self.ptr_add(source, at)}, align 1") for source in sources]
        interleaved = self._interleaved(rows, lanes)
        self.emit(f"store <{4 * lanes} x i8> {interleaved}, ptr {self.ptr_add(target, self.mul(at, 4))}, align 1")

    def _interleaved(self, rows: list[str], lanes: int) -> str:
        """Four vectors as one, in the sign that the tile multiplies."""
        kind, both, wide = (f"<{n * lanes} x i8>" for n in (1, 2, 4))
        pairs = ", ".join(f"i32 {i}" for i in range(2 * lanes))
        quads = ", ".join(f"i32 {i}" for i in range(4 * lanes))
        mask = ", ".join(f"i32 {part * lanes + pixel}" for pixel in range(lanes) for part in range(4))
        low, high = (
            self.let(f"shufflevector {kind} {a}, {kind} {b}, <{2 * lanes} x i32> <{pairs}>")
            for a, b in (rows[:2], rows[2:])
        )
        joined = self.let(f"shufflevector {both} {low}, {both} {high}, <{4 * lanes} x i32> <{quads}>")
        joined_rows = self.let(f"shufflevector {wide} {joined}, {wide} poison, <{4 * lanes} x i32> <{mask}>")
        return self.moved(wide, joined_rows, -128, 4 * lanes)

    def moved(self, kind: str, x: str, by: int, lanes: int = 0) -> str:
        """Bytes in the sign that the tile multiplies."""
        if self.shape.is_signed == self.shape.tile.shape.signed:
            return x
        return self.let(f"xor {kind} {x}, {f'splat (i8 {by})' if lanes else by}")

    def _fill(self, target: Ptr, count: I64, byte: str) -> None:
        """A byte `count` times; the last vector may go beyond."""
        fill = self.let(f"insertelement {_RAW} poison, i8 {byte}, i64 0")
        fill = self.let(f"shufflevector {_RAW} {fill}, {_RAW} poison, <{VECTOR} x i32> zeroinitializer")
        with self.steps(0, count, VECTOR) as at:
            self.emit(f"store {_RAW} {fill}, ptr {self.ptr_add(target, at)}, align 1")

    def _spread(self, step: I64, panels: I64) -> None:
        """Interleaved pixels of one step along k, panel by panel."""
        tile = self.shape.tile
        kind = f"<{tile.step_bytes} x i8>"
        with self.loop(0, panels) as panel:
            vector = self.let(f"load {kind}, ptr {self.ptr_add(self.four, self.mul(panel, tile.step_bytes))}, align 1")
            onto = self.ptr_add(self.panel(panel), self.mul(step, tile.step_bytes))
            self.emit(f"store {kind} {vector}, ptr {onto}, align 16")

    def _by_rows(self, x: Ptr, first: I64, live: I64, panels: I64) -> None:
        """Four rows of the patch matrix at a time, copied and then interleaved."""
        shape = self.shape
        whole, more = divmod(shape.deep, 4)
        with self.loop(0, whole) as step:
            for i in range(4):
                self._patch_row(x, self.add(self.mul(step, 4), i), i, first, live)
            self._interleave(step, panels)
        if more:
            for i in range(more):
                self._patch_row(x, I64(str(4 * whole + i)), i, first, live)
            self._interleave(I64(str(whole)), panels)

    def _patch_row(self, x: Ptr, k: I64, i: int, first: I64, live: I64) -> None:
        """What one tap of one channel sees at the pixels of the strip."""
        shape = self.shape
        channel, tap = self.udiv(k, shape.taps), self.urem(k, shape.taps)
        target = self.ptr_add(self.four, i * shape.strip)
        if shape.is_padded:
            self._fill(target, live, self.zero)
        plane = self.ptr_add(x, self.mul(channel, self.size("x_channel")))
        with self._rows(self._seen(tap, first, live)) as (offset, pixel, count):
            self._copy(self.ptr_add(plane, offset), self.ptr_add(target, pixel), count)

    def _seen(self, tap: I64, first: I64, live: I64) -> _Seen:
        """What a tap sees of the rows that the strip goes through."""
        shape = self.shape
        down, across = self.udiv(tap, shape.window[1]), self.urem(tap, shape.window[1])
        width, stride = self.size("out_width"), shape.strides[1]
        last = self.add(first, live)
        across = self.sub(self.mul(across, shape.dilations[1]), self.size("before"))
        low = self.smax(0, self.ceil_div(self.smax(0, self.sub(0, across)), stride))
        high = self.smin(width, self.ceil_div(self.smax(0, self.sub(self.size("width"), across)), stride))
        above = self.sub(self.mul(down, shape.dilations[0]), self.size("above"))
        return _Seen(first, last, self.udiv(first, width), self._ceil_by(last, width), above, across, low, high)

    @contextmanager
    def _rows(self, seen: _Seen) -> Generator[tuple[I64, I64, I64]]:
        """Each row of the result that sees pixels: the offset of the first in its plane, its number, and how many."""
        shape, width = self.shape, self.size("out_width")
        # The first row and the last one may be there in part.
        with self.loop(seen.top, seen.end) as row:
            line = self.add(self.mul(row, shape.strides[0]), seen.down)
            start = self.mul(row, width)
            begin = self.smax(seen.low, self.sub(seen.first, start))
            count = self.sub(self.smin(seen.high, self.sub(seen.last, start)), begin)
            inside = self.and_(self.icmp("ult", line, self.size("height")), self.icmp("sgt", count, 0))
            with self.when(inside):
                column = self.add(self.mul(begin, shape.strides[1]), seen.across)
                offset = self.add(self.mul(line, self.size("x_row")), self.mul(column, self.size("x_column")))
                yield offset, self.sub(self.add(start, begin), seen.first), count

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
        wide = self.icmp("sge", count, VECTOR)
        with self.when(wide):
            last = self.sub(count, VECTOR)
            with self.steps(0, last, VECTOR) as at:
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
        vector = self.let(f"load {kind}, ptr {self.ptr_add(source, at)}, align 1")
        self.emit(f"store {kind} {vector}, ptr {self.ptr_add(target, at)}, align 1")

    def _interleave(self, step: I64, panels: I64) -> None:
        """Four rows as panels: the four bytes of a pixel are neighbours."""
        shape, tile = self.shape, self.shape.tile
        with self.loop(0, panels) as panel:
            onto = self.ptr_add(self.panel(panel), self.mul(step, tile.step_bytes))
            start = self.ptr_add(self.four, self.mul(panel, tile.nr))
            for vector in range(tile.nr // VECTOR):
                here = [self.ptr_add(start, i * shape.strip + vector * VECTOR) for i in range(4)]
                interleaved = self._interleaved([self.let(f"load {_RAW}, ptr {at}, align 1") for at in here], VECTOR)
                there = self.ptr_add(onto, 4 * VECTOR * vector)
                self.emit(f"store <{4 * VECTOR} x i8> {interleaved}, ptr {there}, align 16")


def int8_conv_code(shape: ByteImage, epilogue: Kernel) -> KernelCode:
    """The kernel with its epilogue."""
    driver = _Driver(shape, epilogue)
    code = assemble_with("int8_conv", [driver.function(DRIVER, attributes="nounwind")], [epilogue])
    heights = (shape.tile.mr, 1) if shape.has_offsets else (shape.tile.mr,)
    parts = [byte_tile_function(shape.tile, rows) for rows in heights]
    uses = (*code.uses, *(signature.declaration for _, signature in parts))
    return KernelCode(code.name, code.text, uses, tuple(part for part, _ in parts))


class _Driver(Packer):
    """The function that goes through cells."""

    def __init__(self, shape: ByteImage, epilogue: Kernel) -> None:
        super().__init__(shape, epilogue)
        self.strips = self.ceil(self.size("pixels"), shape.strip)
        with self.loop(BEGIN, END) as cell:
            self._cell(cell)

    def _cell(self, cell: I64) -> None:
        shape = self.shape
        block, number = self.urem(cell, shape.blocks), self.udiv(cell, shape.blocks)
        strip, image = self.urem(number, self.strips), self.udiv(number, self.strips)
        group, image = self.urem(image, shape.groups), self.udiv(image, shape.groups)
        first = self.mul(strip, shape.strip)
        live = self.smin(shape.strip, self.sub(self.size("pixels"), first))
        panels = self.ceil(live, shape.tile.nr)
        with self.when(once_for(self, SCRATCH, 0, number)):
            self.pack(image, group, first, live, panels)
        weights = shape.tile.row_bytes * shape.steps
        start = self.add(self.mul(group, shape.tiles), self.mul(block, INT8.filters // shape.tile.mr))
        filters = self.smin(INT8.filters, self.sub(shape.filters, self.mul(block, INT8.filters)))
        w = self.ptr_add(self.arguments.pointers["w"], self.mul(start, weights))
        _, full = byte_tile_function(shape.tile, shape.tile.mr)
        pitch = 4 * shape.strip
        with self.loop(0, panels) as panel:
            b = self.panel(panel)
            onto = self.ptr_add(self.sums, self.mul(panel, 4 * shape.tile.nr))
            with self.loop(0, self.ceil(filters, shape.tile.mr)) as at:
                there = self.ptr_add(onto, self.mul(at, shape.tile.mr * pitch))
                self.call(full, self.ptr_add(w, self.mul(at, weights)), b, there, shape.steps, pitch)
        number = self.add(self.mul(group, shape.filters), self.mul(block, INT8.filters))
        self._epilogue_words(image, number, first, live)
        self.emit(f"call void @{inner_name(self.epilogue)}(ptr {self.words}, i64 0, i64 {filters}, ptr null)")

    def _epilogue_words(self, image: I64, number: I64, pixel: I64, live: I64) -> None:
        """The words of the epilogue for this cell."""
        shape = self.shape
        words: list[Ptr | I64] = [
            self.sums,
            self.pixelsums,
            self.ptr_add(self.arguments.pointers["c"], self.mul(number, 8)),
        ]
        if "z" in shape.pointers:
            words.append(self.arguments.pointers["z"])
        for name in (*shape.operands, "y"):
            at = self.ptr_add(self.arguments.pointers[name], self.mul(image, self.size(f"{name}_image")))
            at = self.ptr_add(at, self.mul(number, self.size(f"{name}_row")))
            words.append(self.ptr_add(at, self.mul(pixel, self.size(f"{name}_column"))))
        words += [live if size == LIVE else self.arguments.sizes[str(size)] for size in self.epilogue.sizes]
        store_words(self, words, self.words)
