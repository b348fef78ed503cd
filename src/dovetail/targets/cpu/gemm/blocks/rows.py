"""Rows of limbs times codes, in an order that LLVM chooses: one panel, or blocks of two levels on wide vectors.

Codes are loaded and unpacked once for all rows of a tile.
"""

from __future__ import annotations

from typing import Literal

from dovetail.codegen.llvm.function import Function, Signature
from dovetail.codegen.llvm.handles import I1, I64, Ptr, Vec
from dovetail.codegen.llvm.simd import PhiLoop, due
from dovetail.targets.cpu.gemm.blocks.builder import AccumulatorKey, Accumulators, BlockBuilder, parameters
from dovetail.targets.cpu.gemm.blocks.kernel import LINE, BlockKernel
from dovetail.targets.cpu.gemm.blocks.unpack import PackedBlockReader, joined_bits, moved_up
from dovetail.targets.cpu.gemm.blocks.words import Term
from dovetail.targets.cpu.gemm.policy import BLOCKS

PANEL = parameters(
    "ptr limbs", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 groups", "i1 fresh",
)  # fmt: skip
"""Rows of limbs and the bytes between them, a panel, sums and the bytes between their rows, groups along k, and whether
they are the first."""
AHEAD = parameters("ptr ahead")
"""Packed blocks that are expanded later, where their lines are prefetched among products."""
TILE = parameters("ptr limbs", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 blocks")
"""Of tiles of rows that read blocks of two levels as they are: blocks along k in place of groups."""
ROW = parameters("ptr limbs", "ptr panel", "ptr sums", "i64 blocks")
"""Of functions that multiply one row with such blocks."""


class RowsFunction(BlockBuilder):
    """The function that multiplies rows with a panel, some vectors of columns at a time."""

    def __init__(self, of: BlockKernel, rows: int) -> None:
        super().__init__(of)
        self.rows = rows
        self.width = max(1, min(of.vectors, of.cells // rows))
        self.cells = [(row, vector) for vector in range(self.width) for row in range(rows)]
        # Vectors of a row start alike: LLVM would load that once and copy registers, or spill what it loads early.
        self.volatile = self.width > 1 or of.limbs > 1
        # Steps along k whose codes are unpacked at once; products that are added apart wait in registers, too.
        self.depth = 2 if self.width > 1 else of.group // (4 if of.dot.pairs is None else 8)
        # Many rows leave few registers: limbs of four steps are loaded when those before are multiplied.
        self.in_order = of.sums_are_scaled and rows > 4 and not of.emulated
        if self.in_order:
            self.depth = 4
        self.moves_sums = of.moves_sums(rows)
        if self.moves_sums:
            self.depth = min(self.depth, of.group // 8)
        self.in_memory = of.fills_registers and len(self.cells) == of.cells
        """Whether sums of the groups before wait in memory: those of limbs take three quarters of the registers."""
        if self.in_memory:
            self.depth = 1
        self.places: dict[AccumulatorKey, Ptr] = {}
        self.due: list[Ptr] = []
        """Lines that are prefetched among the products of a group, into this level."""
        self.level: Literal[1, 2] = 1
        self.limbs = [self.ptr_add(Ptr("%limbs"), self.mul(I64("%pitch"), row)) for row in range(rows)]

    def written(self) -> Function:
        of, lanes = self.of, self.of.dot.lanes
        with self.loop(0, self.passes) as number:
            panel = self.ptr_add(Ptr("%panel"), self.mul(number, self.width * lanes * of.layout.scales.itemsize))
            codes = self.mul(number, self.width * lanes * 4)
            codes = self.ptr_add(self.ptr_add(Ptr("%panel"), of.layout.head_bytes), codes)
            start = self.ptr_add(Ptr("%sums"), self.mul(number, 4 * lanes * self.width))
            self.places = {
                (row, vector): self.ptr_add(self.ptr_add(start, self.mul(I64("%stride"), row)), 4 * lanes * vector)
                for row, vector in self.cells
            }
            held = {cell: self.held(there, I1("%fresh")) for cell, there in self.places.items()}
            self._keep(held)
            for cell, total in self._along(panel, codes, self._ahead(number), held).items():
                self.store_lanes(total, self.places[cell])
        parameters = (*PANEL, *AHEAD) if of.prefetches_packed else PANEL
        return self.function(Signature(f"{of.name}.{self.rows}", parameters))

    @property
    def pace(self) -> int:
        """Bytes that a pass prefetches for each group."""
        of = self.of
        each = of.packed.block_bytes // of.packed.groups if of.prefetches_packed else of.layout.group_bytes
        return each // self.passes

    @property
    def passes(self) -> int:
        """How often a panel is read, some vectors of columns at a time."""
        return self.of.vectors // self.width

    def _ahead(self, number: I64) -> Ptr:
        """Return the lines that a pass prefetches of the next panel: all passes but the first read L1 or L2."""
        share = self.mul(I64("%groups"), self.pace)
        start = Ptr("%ahead")
        if not self.of.prefetches_packed:
            start = self.ptr_add(Ptr("%panel"), self.mul(I64("%groups"), self.of.layout.group_bytes))
        return self.ptr_add(start, self.mul(number, share))

    def _keep(self, accumulators: Accumulators) -> None:
        """Write sums to memory where they wait there."""
        for cell, total in accumulators.items() if self.in_memory else ():
            self.store_lanes(total, self.places[cell])

    def _along(self, panel: Ptr, codes: Ptr, ahead: Ptr, held: Accumulators) -> Accumulators:
        """Go along k: the sums of each row and vector of columns."""
        of, pace, along = self.of, self.pace, PhiLoop(self)
        group, panel, codes = along.carry(I64("0")), along.carry(panel), along.carry(codes)
        limbs, ahead = along.carry(I64("0")), along.carry(ahead)
        accumulators = {} if self.in_memory else {cell: along.carry(held[cell]) for cell in self.cells}
        if of.prefetches_packed:
            self.prefetch_lines(ahead, pace, level=2)
        elif self.passes > 1 and not of.layout.is_expanded:
            self.prefetch_lines(ahead, pace)
        elif self.moves_sums or (not of.dot.by_lane and not of.layout.is_expanded):
            distance, level = (BLOCKS.nested_distance, 1) if self.moves_sums else (BLOCKS.prefetch_distance, 2)
            self.prefetch_lines(self.ptr_add(panel, distance), of.layout.group_bytes, level=level)
        x = [self.ptr_add(start, limbs) for start in self.limbs]
        updated = self.with_group(panel, codes, x, accumulators)
        following = self.following(group)
        along.end(
            [
                (group, following),
                (panel, self.ptr_add(panel, of.layout.group_bytes)),
                (ahead, self.ptr_add(ahead, pace)),
                (codes, self.ptr_add(codes, of.layout.group_bytes)),
                (limbs, self.add(limbs, of.group_bytes)),
                *[(phi, updated[cell]) for cell, phi in accumulators.items()],
            ],
            self.icmp("slt", following, I64("%groups")),
        )
        return updated

    def with_group(self, panel: Ptr, codes: Ptr, x: list[Ptr], held: Accumulators) -> Accumulators:
        """Sums plus the products with a group, by its scales and codes."""
        of, accumulators = self.of, Accumulators()
        totals = self.group(codes, x, of.layout.words.codes[0])
        for vector in range(self.width):
            scales = self.scales(panel, vector)
            for row in range(self.rows):
                cell = row, vector
                before = self.load_lanes(self.floats, self.places[cell]) if self.in_memory else held[cell]
                accumulators[cell] = self.added(totals[cell], scales, x[row], before)
        if of.layout.has_low:
            lows = self.ptr_add(panel, of.layout.scale_bytes)
            for vector in range(self.width):
                low = self.scales(lows, vector)
                for row in range(self.rows):
                    accumulators[row, vector] = self.low_added(low, x[row], accumulators[row, vector])
        self._keep(accumulators)
        return accumulators

    def group(self, codes: Ptr, x: list[Ptr], terms: tuple[tuple[Term, ...], ...]) -> Accumulators:
        """The integers of a group times its codes, in f32, for each row and vector of columns."""
        of, cells = self.of, self.cells
        accumulators = {
            (limb, row, vector): self.number(self.ptr_add(x[row], of.first_at(limb, self.rows)), self.ints)
            for limb in range(of.limbs)
            for row, vector in cells
        }
        order = list(range(len(terms)))
        if not of.dot.by_lane:
            # Steps whose codes are in the same words follow each other: these are loaded once.
            order.sort(key=lambda step: [(term.word, term.shift) for term in terms[step][::-1]])
        x = list(x)
        for first in range(0, len(order), self.depth):
            some = order[first : first + self.depth]
            if self.moves_sums and 2 * first == len(order):
                # Sums of the low halves of bytes as those of whole bytes count.
                accumulators = {cell: self.lanewise("shl", held, 4) for cell, held in accumulators.items()}
            if first and self.in_order:
                x = [self.after(pointer, accumulators[0, row, 0]) for row, pointer in enumerate(x)]
            weights = {(v, step): self.codes(codes, v, terms[step]) for v in range(self.width) for step in some}
            # Neighbours belong to different sums: the queue of instructions that wait is short.
            for limb in range(of.limbs):
                turn, turns = first // self.depth * of.limbs + limb, -(-len(order) // self.depth) * of.limbs
                for line in due(self.due, turn, turns):
                    self.prefetch(self.after(line, accumulators[limb, 0, 0]), level=self.level)
                for step in some:
                    for row, vector in cells:
                        factor = self.factor(x[row], limb, step)
                        accumulators[limb, row, vector] = self.dot(
                            accumulators[limb, row, vector], weights[vector, step], factor
                        )
        if self.in_order:
            x = [self.after(pointer, accumulators[0, row, 0]) for row, pointer in enumerate(x)]
        return {
            (row, v): self.joined([accumulators[limb, row, v] for limb in range(of.limbs)], x[row]) for row, v in cells
        }

    def prefetch_lines(self, start: Ptr, size: int, level: Literal[1, 2] = 1) -> None:
        """Prefetch lines: one by one among the products of the group that follows, or at once.

        At once they wait for each other. One by one LLVM would spill sums of several rows.
        """
        lines = [self.ptr_add(start, line) for line in range(0, size, LINE)]
        if self.of.dot.by_lane or self.of.emulated or self.rows > 1:
            for line in lines:
                self.prefetch(line, level=level)
        else:
            self.due, self.level = lines, level

    def codes(self, codes: Ptr, vector: int, terms: tuple[Term, ...]) -> Vec:
        """Stored codes of a vector of columns, four steps along k in each lane."""
        of, is_narrow = self.of, self.of.layout.is_narrow
        # NEON's steps share words, and LLVM would load them once and spill.
        volatile = of.dot.by_lane and is_narrow and self.depth < of.group // 4
        if self.in_memory and is_narrow:
            # LLVM would load a word of several steps once, and spill it.
            codes = self.opaque(codes)

        def load(word: int) -> Vec:
            at = self.ptr_add(codes, 4 * (word * of.layout.columns + of.dot.lanes * vector))
            return self.load_lanes(self.raw, at, 16, volatile=volatile)

        is_moved = of.is_nested and not self.moves_sums and not of.layout.is_expanded
        return (moved_up if is_moved else joined_bits)(self, terms, load)


class RowsByGroup(RowsFunction):
    """The function that multiplies a tile of rows with blocks of two levels: each group is expanded for its products.

    While a whole block is expanded in L1, nothing is multiplied, and little is read from memory. Sums are those of
    expanded blocks, in the same order.
    """

    def __init__(self, of: BlockKernel, rows: int) -> None:
        super().__init__(of, rows)
        assert self.passes == 1, "a group is expanded for all vectors"
        self.in_memory = True
        self.reader = PackedBlockReader(self, of.packed, of.dot.lanes)

    def written(self) -> Function:
        of, packed, read = self.of, self.of.packed, self.of.layout
        expanded = Ptr(self.let(f"alloca [{read.group_bytes} x i8], align {LINE}"))
        for row, vector in self.cells:
            self.places[row, vector] = self.place(row, 4 * of.dot.lanes * vector)
            self.clear(self.places[row, vector])
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
        return self.function(Signature(f"{of.name}.by_group.{self.rows}", TILE))

    def _expand(self, group: int, panel: Ptr, expanded: Ptr) -> None:
        packed, lanes = self.of.packed, self.of.dot.lanes
        for vector in range(self.of.vectors):
            scales = self.ptr_add(panel, vector * lanes * packed.scales.itemsize)
            scale, low = self.reader.block_scale(scales), None
            if self.of.layout.has_low:
                low = self.reader.block_scale(self.ptr_add(scales, packed.scale_bytes))
            words = self.ptr_add(panel, packed.head_bytes + 4 * vector * lanes)
            self.reader.expand(group, words, scale, low, self.ptr_add(expanded, 4 * vector * lanes))


class WideRow(RowsFunction):
    """The function that multiplies one row with blocks of two levels, which are unpacked in wide registers.

    Each group unpacks its codes where they are multiplied, and prefetches its share of a later block: where a block is
    expanded first, all its lines are prefetched meanwhile, and none while it is multiplied.
    """

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of, 1)
        self.reader = PackedBlockReader(self, of.packed, of.dot.lanes)
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
                held = [self.held(there, fresh) for there in places]
                for total, there in zip(self._block(halves, ahead, x, held), places, strict=True):
                    self.store_lanes(total, there)
        return self.function(Signature(f"{of.name}.wide", ROW))

    def _block(self, halves: Ptr, ahead: Ptr, x: Ptr, held: list[Vec]) -> list[Vec]:
        """Sums plus the products with a block."""
        of, packed, vectors = self.of, self.of.packed, range(self.width)
        lines = list(range(0, packed.block_bytes // self.passes, LINE))
        scale = [self.scales(halves, v, packed) for v in vectors]
        lows = self.ptr_add(halves, packed.scale_bytes)
        low = [self.scales(lows, v, packed) for v in vectors] if of.layout.has_low else []
        for group in range(packed.groups):
            for line in due(lines, group, packed.groups):
                self.prefetch(self.ptr_add(ahead, line), level=2)
            # LLVM would load words that have codes of several groups once, and spill them.
            self.words = self.opaque(self.words)
            here = self.group_at(x, group)
            totals = self.group(self.words, [here], packed.words.codes[group])
            for v in vectors:
                factor = self.reader.of_group(scale[v], self._words_of(v), packed.words.scales, group)
                held[v] = self.added(totals[0, v], factor, here, held[v])
            for v in vectors if low else ():
                factor = self.reader.low_of_group(low[v], self._words_of(v), group)
                held[v] = self.low_added(factor, here, held[v])
        return held

    def codes(self, codes: Ptr, vector: int, terms: tuple[Term, ...]) -> Vec:
        return self.reader.codes(self._words_of(vector), terms)

    def _words_of(self, vector: int) -> Ptr:
        return self.ptr_add(self.words, 4 * self.of.dot.lanes * vector)


__all__ = ["PANEL", "ROW", "TILE", "RowsByGroup", "RowsFunction", "WideRow"]
