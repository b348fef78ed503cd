"""Convolution along one axis by im2col: what each output pixel sees becomes a row, and rows are multiplied with panels.

A cell is one panel of filters for one block of pixels; pixels are numbered through all images.
"""

from __future__ import annotations

from dovetail.codegen.llvm.arguments import Words, store_words
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, DRIVER, END, SCRATCH, WORDS, KernelCode, assemble_with, inner_name
from dovetail.codegen.llvm.once import HEAD, once_for
from dovetail.dataclass import dataclass
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32
from dovetail.kernels.loops.ir import Call, Extent, Kernel, Load, Loop, Name, Store, Tensor
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.gemm.driver import LIVE, words_bytes
from dovetail.targets.cpu.gemm.f32.block import block_function
from dovetail.targets.cpu.gemm.tile import Tile

FIRST = symbol("first_pixel")
"""The first pixel of a block, as the epilogue names it."""


@dataclass(frozen=True, slots=True)
class Conv1d:
    """What the code depends on; everything else is an argument, named in `sizes`."""

    tile: Tile
    channels: int
    taps: int
    stride: int
    dilation: int
    filters: int
    dense: str
    """The axis of x along which elements are contiguous: `step` or `channel`, if any."""
    operands: tuple[str, ...]
    """Pointers that the epilogue reads in addition to the sums."""
    pointers: tuple[str, ...]
    sizes: tuple[str, ...]

    @property
    def deep(self) -> int:
        return self.channels * self.taps

    @property
    def along_channels(self) -> bool:
        """Whether channels are innermost in a row, and not taps: whatever there is more of."""
        return self.channels >= self.taps

    @property
    def panels(self) -> int:
        return -(-self.filters // self.tile.columns)

    @property
    def pitch(self) -> int:
        """Bytes between rows."""
        return 4 * self.deep + 64

    @property
    def pieces(self) -> int:
        """The short sums that one sum is split into."""
        return -(-self.deep // BLOCKS.conv1d.piece)

    def totals(self, epilogue: Kernel) -> int:
        """Offset of the sums of all pieces from the end of the workspace's head."""
        return words_bytes(epilogue) + words_bytes(_added(self.tile))


def conv1d_code(shape: Conv1d, epilogue: Kernel) -> KernelCode:
    """The kernel with its epilogue."""
    driver = _Driver(shape, epilogue)
    part, block = block_function(shape.tile)
    code = assemble_with("conv1d", [driver.function(DRIVER, attributes="nounwind")], [epilogue, driver.added])
    return KernelCode(code.name, code.text, (*code.uses, block.declaration), (part,))


def _added(tile: Tile) -> Kernel:
    """Adds the sums of a piece to those of the pieces before."""
    at = (Name("row"), Name("column"))
    sums, totals = (Tensor(name, f32, (tile.row_bytes, f32.itemsize)) for name in ("sums", "totals"))
    store = Store(totals, at, Call("add", (Load(totals, at), Load(sums, at)), f32))
    body = (Loop("column", Extent(tile.columns), (store,), lanes=tile.lanes),)
    return Kernel("add", ("sums", "totals"), ("totals",), "row", body)


class _Driver(Builder):
    """The function that goes through cells."""

    def __init__(self, shape: Conv1d, epilogue: Kernel) -> None:
        super().__init__()
        self.shape = shape
        self.epilogue = epilogue
        self.added = _added(shape.tile)
        self.given = Words.load(self, WORDS, shape.pointers, shape.sizes)
        self.room = self.ptr_add(SCRATCH, HEAD)
        with self.loop(BEGIN, END) as cell:
            self._cell(cell)

    def size(self, name: str) -> Int:
        return f32.itemsize if name == self.shape.dense else self.given.sizes[name]

    def _cell(self, cell: I64) -> None:
        shape, tile = self.shape, self.shape.tile
        panel, block = self.urem(cell, shape.panels), self.udiv(cell, shape.panels)
        pixels, blocks = self.size("pixels"), self.size("blocks")
        height = self.udiv(self.sub(self.add(pixels, blocks), 1), blocks)
        first = self.mul(block, height)
        count = self.smin(height, self.sub(pixels, first))
        totals = self.ptr_add(self.room, shape.totals(self.epilogue))
        sums = self.ptr_add(SCRATCH, self.size("sums"))
        rows = self.ptr_add(SCRATCH, self.size("copy"))
        with self.when(once_for(self, SCRATCH, 0, block)), self.loop(0, count) as row:
            self._row(self.add(first, row), self.ptr_add(rows, self.mul(row, shape.pitch)))
        column = self.mul(panel, tile.columns)
        columns = self.smin(tile.columns, self.sub(shape.filters, column))
        self._epilogue_words(totals, first, column, columns)
        self._clear(totals, 0, self.mul(count, tile.columns))
        self._multiply(rows, sums, totals, panel, count)
        self.emit(f"call void @{inner_name(self.epilogue)}(ptr {self.room}, i64 0, i64 {count}, ptr null)")

    def _multiply(self, rows: Ptr, sums: Ptr, totals: Ptr, panel: I64, count: I64) -> None:
        """Multiply the rows of a block with a panel of filters, piece by piece."""
        shape, tile = self.shape, self.shape.tile
        words = self.ptr_add(self.room, words_bytes(self.epilogue))
        store_words(self, [sums, totals], words)
        panels = self.ptr_add(self.given.pointers["w"], self.mul(panel, shape.deep * tile.row_bytes))
        added = Ptr(f"@{inner_name(self.added)}")
        _, block = block_function(tile)
        with self.loop(0, shape.pieces) as piece:
            start = self.mul(piece, BLOCKS.conv1d.piece)
            steps = self.smin(BLOCKS.conv1d.piece, self.sub(shape.deep, start))
            a, b = self.ptr_add(rows, self.mul(start, 4)), self.ptr_add(panels, self.mul(start, tile.row_bytes))
            # A width of 0: results are far apart, and are not prefetched.
            self.call(block, a, shape.pitch, b, count, steps, sums, sums, 0, 0, added, words)

    def _row(self, pixel: I64, target: Ptr) -> None:
        """What one pixel sees, zeros beyond the ends."""
        shape = self.shape
        image, along = self.udiv(pixel, self.size("positions")), self.urem(pixel, self.size("positions"))
        source = self.ptr_add(self.given.pointers["x"], self.size("x_offset"))
        source = self.ptr_add(source, self.mul(image, self.size("image")))
        start = self.sub(self.mul(along, shape.stride), self.size("before"))
        if shape.along_channels:
            self._row_by_taps(source, start, target)
        else:
            self._row_by_channels(source, start, target)

    def _row_by_taps(self, source: Ptr, start: I64, target: Ptr) -> None:
        shape = self.shape
        with self.loop(0, shape.taps) as tap:
            at = self.add(start, self.mul(tap, shape.dilation))
            onto = self.ptr_add(target, self.mul(tap, 4 * shape.channels))
            inside = self.icmp("ult", at, self.size("length"))
            with self.when(inside):
                here = self.ptr_add(source, self.mul(at, self.size("step")))
                self._copy(here, self.size("channel"), onto, 0, shape.channels)
            with self.unless(inside):
                self._clear(onto, 0, shape.channels)

    def _row_by_channels(self, source: Ptr, start: I64, target: Ptr) -> None:
        shape, step = self.shape, self.size("step")
        low, high = self._taps_before(0, start), self._taps_before(self.size("length"), start)
        with self.loop(0, shape.channels) as channel:
            onto = self.ptr_add(target, self.mul(channel, 4 * shape.taps))
            here = self.ptr_add(source, self.mul(channel, self.size("channel")))
            here = self.ptr_add(here, self.mul(start, step))
            self._clear(onto, 0, low)
            self._copy(here, self.mul(step, shape.dilation), onto, low, high)
            self._clear(onto, high, shape.taps)

    def _taps_before(self, end: Int, start: I64) -> I64:
        """How many taps are before an element, the first one at `start`."""
        dilation = self.shape.dilation
        distance = self.smax(self.sub(end, start), 0)
        return self.smin(self.udiv(self.add(distance, dilation - 1), dilation), self.shape.taps)

    def _copy(self, source: Ptr, step: Int, target: Ptr, first: Int, end: Int) -> None:
        with self.loop(first, end) as i:
            found = self.load_f32(self.ptr_add(source, self.mul(i, step)))
            self.store_f32(found, self.element(target, "float", i))

    def _clear(self, target: Ptr, first: Int, end: Int) -> None:
        with self.loop(first, end) as i:
            self.emit(f"store float 0.0, ptr {self.element(target, 'float', i)}, align 4")

    def _epilogue_words(self, totals: Ptr, first: I64, column: I64, columns: I64) -> None:
        """The words of the epilogue for this cell."""
        given: list[Ptr | I64] = [totals]
        for name in (*self.shape.operands, "y"):
            given.append(self.ptr_add(self.given.pointers[name], self.mul(column, self.size(f"{name}_filter"))))
        known = {LIVE: columns, FIRST: first}
        given += [known[size] if size in known else self.given.sizes[str(size)] for size in self.epilogue.sizes]
        store_words(self, given, self.room)
