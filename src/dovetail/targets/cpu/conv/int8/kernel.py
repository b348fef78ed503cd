"""Convolution of bytes: a strip of output pixels is packed as panels (im2col), then multiplied with filters.

A cell is one strip for one block of filters. The strip counts pixels of one image across its rows, so that narrow
images fill vectors too. The padding holds the zero point.
"""

from __future__ import annotations

from dovetail.codegen.llvm.arguments import store_words
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, DRIVER, END, SCRATCH, KernelCode, assemble_with, inner_name
from dovetail.codegen.llvm.once import once_for
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cpu.conv.int8.pack import Packer
from dovetail.targets.cpu.conv.int8.shape import ByteImage
from dovetail.targets.cpu.gemm.driver import LIVE
from dovetail.targets.cpu.gemm.int8.tile import byte_tile_function
from dovetail.targets.cpu.gemm.policy import INT8


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
        w = self.ptr_add(self.given.pointers["w"], self.mul(start, weights))
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
