"""One row of limbs times blocks with two levels of scales, unpacked in registers of wide vectors.

Several rows share what is expanded into L1 once. For one row that is slower than memory: all lines of a block would
be prefetched while it is expanded, and none while it is multiplied. Here each group unpacks its codes where they are
multiplied, and prefetches its share of a later block. It computes what it would from expanded blocks, in that order.


A few rows of limbs times blocks with two levels of scales, expanded group by group for wide vectors.

While a whole block is expanded in L1, nothing is multiplied, and little is read from memory. Where all rows are one
tile, each group is expanded right before its products. Sums are those of expanded blocks, in the same order: how rows
are cut changes no bit.
"""

from __future__ import annotations

from functools import cache, partial

from dovetail.codegen.llvm.function import Function, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.expand import BlockReader, four_codes
from dovetail.targets.cpu.gemm.blocks.few_rows import TILE_PARAMETERS
from dovetail.targets.cpu.gemm.blocks.limbs import LOW_AT, BlockKernel
from dovetail.targets.cpu.gemm.blocks.one_row import ROW_PARAMETERS
from dovetail.targets.cpu.gemm.blocks.rows import LINE, Rows
from dovetail.targets.cpu.gemm.blocks.words import Term
from dovetail.targets.cpu.gemm.policy import BLOCKS


@cache
def wide_function(of: BlockKernel) -> tuple[SharedFunction, Signature]:
    """Products of a row of limbs with a whole panel of blocks: `(limbs, panel, sums, blocks)`."""
    return shared_function(_Wide(of).written())


class _Wide(Rows):
    """The function that multiplies one row, some vectors of columns of a block after the other."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of, 1)
        self.reader = BlockReader(self, of.packed, of.dot.lanes)
        self.words = Ptr("%panel")
        """Words of the first of the vectors."""

    def written(self) -> Function:
        of, packed, lanes = self.of, self.of.packed, self.of.dot.lanes
        share = packed.block_bytes // self.passes
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, packed.block_bytes))
            x = self.ptr_add(Ptr("%limbs"), self.mul(block, packed.groups * of.group_bytes))
            fresh = self.icmp("eq", block, 0)
            with self.loop(0, self.passes) as number:
                ahead = self.ptr_add(panel, packed.block_bytes + BLOCKS.wide_distance)
                ahead = self.ptr_add(ahead, self.mul(number, share))
                first = self.mul(number, self.width * lanes)
                self.words = self.ptr_add(panel, self.add(self.mul(first, 4), packed.head_bytes))
                halves = self.ptr_add(panel, self.mul(first, packed.scales.itemsize))
                places = [
                    self.ptr_add(Ptr("%sums"), self.mul(self.add(first, v * lanes), 4)) for v in range(self.width)
                ]
                held = [self._before(there, str(fresh)) for there in places]
                for found, there in zip(self._block(halves, ahead, x, held), places, strict=True):
                    self.emit(f"store {self.floats} {found}, ptr {there}, align 4")
        return self.function(Signature(f"{of.name}.wide", ROW_PARAMETERS))

    def _before(self, there: Ptr, fresh: str) -> str:
        kept = self.let(f"load {self.floats}, ptr {there}, align 4")
        return self.let(f"select i1 {fresh}, {self.floats} zeroinitializer, {self.floats} {kept}")

    def _block(self, halves: Ptr, ahead: Ptr, x: Ptr, held: list[str]) -> list[str]:
        """Sums plus the products with a block."""
        of, packed = self.of, self.of.packed
        lines = list(range(0, packed.block_bytes // self.passes, LINE))
        vectors = range(self.width)
        scale = [self.scales(halves, v, packed) for v in vectors]
        lows = self.ptr_add(halves, packed.scale_bytes)
        low = [self.scales(lows, v, packed) for v in vectors] if of.layout.has_low else []
        for group in range(packed.groups):
            for line in lines[group * len(lines) // packed.groups : (group + 1) * len(lines) // packed.groups]:
                self.prefetch(self.ptr_add(ahead, line), level=2)
            # LLVM would load words that have codes of several groups once, and spill them.
            self.words = self.opaque(self.words)
            here = self.ptr_add(x, group * of.group_bytes)
            totals = self.group(self.words, [here], packed.words.codes[group])
            for v in vectors:
                factor = self.reader.of_group(scale[v], self._words_of(v), packed.words.scales, group)
                held[v] = self.added(totals[0, v], factor, here, held[v])
            for v in vectors if low else ():
                factor = self.reader.low_of_group(low[v], self._words_of(v), group)
                total = self.load_splat(self.ptr_add(here, LOW_AT), "float", self.floats)
                held[v] = self.fma(factor, total, held[v])
        return held

    def codes(self, codes: Ptr, vector: int, terms: tuple[Term, ...]) -> str:
        """Stored codes of a vector of columns, four steps along k in each lane."""
        load = partial(self.reader.word, self._words_of(vector), kind=self.raw)
        return four_codes(self, terms, self.of.dot.lanes, load)

    def _words_of(self, vector: int) -> Ptr:
        return self.ptr_add(self.words, 4 * self.of.dot.lanes * vector)


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


__all__ = ["rows_by_group_function", "wide_function"]
