"""A few rows of limbs times blocks with two levels of scales, expanded group by group for wide vectors.

While a whole block is expanded in L1, nothing is multiplied, and little is read from memory. Where all rows are one
tile, each group is expanded right before its products. Sums are those of expanded blocks, in the same order: how rows
are cut changes no bit.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.function import Function, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.block_expand import BlockReader
from dovetail.targets.cpu.gemm.block_kernel import LINE, Rows
from dovetail.targets.cpu.gemm.block_limbs import BlockKernel
from dovetail.targets.cpu.gemm.policy import BLOCKS
from dovetail.targets.cpu.gemm.rows_direct import TILE_PARAMETERS


@cache
def rows_by_group_function(of: BlockKernel, rows: int) -> tuple[SharedFunction, Signature]:
    """Products of a tile of rows with a whole panel of blocks."""
    return shared_function(_ByGroup(of, rows).written())


class _ByGroup(Rows):
    """The function that multiplies a tile of rows with all vectors of a panel."""

    def __init__(self, of: BlockKernel, rows: int) -> None:
        super().__init__(of, rows)
        assert self.passes == 1, "a group is expanded for all vectors"
        self.in_memory = True
        self.reader = BlockReader(self, of.packed, of.dot.lanes)

    def written(self) -> Function:
        of, packed, read = self.of, self.of.packed, self.of.layout
        expanded = Ptr(self.let(f"alloca [{read.group_bytes} x i8], align {LINE}"))
        for row, vector in self.cells:
            there = self.add(self.mul(I64("%stride"), row), 4 * of.dot.lanes * vector)
            self.places[row, vector] = self.ptr_add(Ptr("%sums"), there)
            self.emit(f"store {self.floats} zeroinitializer, ptr {self.places[row, vector]}, align 4")
        pace = packed.block_bytes // packed.groups
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, packed.block_bytes))
            ahead = self.ptr_add(panel, packed.block_bytes + BLOCKS.wide_distance)
            into = self.mul(block, packed.groups * of.group_bytes)
            with self.loop(0, packed.groups) as group:
                # Groups differ by the places of their bits; products have one code, as that for all groups of a block
                # would be more than the processor keeps decoded, and take a third longer.
                with self.switch(group, range(packed.groups)) as groups:
                    for number in groups:
                        self._expand(number, panel, expanded)
                self.prefetch_lines(self.ptr_add(ahead, self.mul(group, pace)), pace, level=2)
                at = self.add(into, self.mul(group, of.group_bytes))
                x = [self.ptr_add(row, at) for row in self.limbs]
                self.with_group(expanded, self.ptr_add(expanded, read.head_bytes), x, {})
        return self.function(Signature(f"{of.name}.by_group.{self.rows}", TILE_PARAMETERS))

    def _expand(self, group: int, panel: Ptr, expanded: Ptr) -> None:
        packed, lanes = self.of.packed, self.of.dot.lanes
        for vector in range(self.of.vectors):
            scales = self.ptr_add(panel, vector * lanes * packed.scales.itemsize)
            scale, low = self.reader.block_scale(scales), None
            if self.of.layout.has_low:
                low = self.reader.block_scale(self.ptr_add(scales, packed.scale_bytes))
            words = self.ptr_add(panel, packed.head_bytes + 4 * vector * lanes)
            self.reader.expand(group, words, scale, low, self.ptr_add(expanded, 4 * vector * lanes))


__all__ = ["rows_by_group_function"]
