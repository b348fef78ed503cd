"""A few rows of limbs times blocks with two levels of scales, which are unpacked in registers with NEON.

To expand a block in L1 takes as long as the products of four rows with it: stores and loads, and no products among
them. Here each group is unpacked once for all rows of a tile, among the products of the group before. Sums are those of
expanded blocks, in the same order: how rows are cut changes no bit.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.expand import moved_up
from dovetail.targets.cpu.gemm.blocks.in_order import STEPS, Cell, InOrder, Loaded, Place
from dovetail.targets.cpu.gemm.blocks.limbs import BlockKernel
from dovetail.targets.cpu.gemm.blocks.rows import LINE
from dovetail.targets.cpu.gemm.blocks.unpack import At, Integers, Unpacking

NEAR, FAR = 1, 3
"""Blocks between the one that is multiplied and those that are prefetched into L1 and into L2."""
MOST = 4
"""Rows that are not worth expanding blocks for: five and more have several tiles, which would each unpack them."""
_NAMES = ("ptr limbs", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 blocks")
TILE_PARAMETERS = tuple([Parameter(kind, name) for kind, name in map(str.split, _NAMES)])
"""Rows of limbs and the bytes between them, a panel, sums and the bytes between their rows, and blocks along k."""


@cache
def few_rows_function(of: BlockKernel, rows: int) -> tuple[SharedFunction, Signature]:
    """Products of a tile of rows with a whole panel of blocks."""
    return shared_function((ScaledPairs if of.sums_are_scaled else FewRows)(of, rows).written())


def few_rows(of: BlockKernel, most: int) -> tuple[int, ...]:
    """Rows of tiles for blocks of at most `most` rows: where these are few, their number is known before a run."""
    few = MOST if of.dot.by_lane else of.rows_of_all_vectors
    return (most,) if 2 <= most <= few else tuple(range(2, few + 1)) if most > few else ()


class FewRows(InOrder, Unpacking):
    """The function that multiplies a tile of rows, a vector of columns of a block after the other."""

    def __init__(self, of: BlockKernel, rows: int) -> None:
        super().__init__(of, rows)
        self.width = 1
        self.cells = [(row, 0) for row in range(rows)]
        self.scale = ""
        """The scale of a block."""
        self.integers = Integers(self, At(self, Ptr("%panel"), Ptr("%limbs")))

    def written(self) -> Function:
        of, packed, lanes = self.of, self.of.packed, self.of.dot.lanes
        share = packed.block_bytes // self.passes
        for row in range(self.rows):
            for vector in range(self.passes):
                place = self.ptr_add(Ptr("%sums"), self.add(self.mul(I64("%stride"), row), 4 * lanes * vector))
                self.emit(f"store {self.floats} zeroinitializer, ptr {place}, align 4")
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, packed.block_bytes))
            into = self.mul(block, packed.groups * of.group_bytes)
            x = [self.opaque(self.ptr_add(row, into)) for row in self.limbs]
            with self.loop(0, self.passes) as number:
                first = self.mul(number, lanes)
                words = self.ptr_add(panel, self.add(self.mul(first, 4), packed.head_bytes))
                halves = self.ptr_add(panel, self.mul(first, packed.scales.itemsize))
                ahead = self.ptr_add(self.ptr_add(panel, NEAR * packed.block_bytes), self.mul(number, share))
                start = self.ptr_add(Ptr("%sums"), self.mul(first, 4))
                sums = {(row, 0): self.ptr_add(start, self.mul(I64("%stride"), row)) for row in range(self.rows)}
                held = {cell: self.let(f"load {self.floats}, ptr {at}, align 4") for cell, at in sums.items()}
                for cell, found in self._block(words, halves, ahead, x, held).items():
                    self.emit(f"store {self.floats} {found}, ptr {sums[cell]}, align 4")
        return self.function(Signature(f"{of.name}.few.{self.rows}", TILE_PARAMETERS))

    def _block(self, words: Ptr, halves: Ptr, ahead: Ptr, x: list[Ptr], held: dict[Cell, str]) -> dict[Cell, str]:
        """Sums plus the products with a block."""
        of, packed = self.of, self.of.packed
        self.scale = self.placed(self.scales(halves, 0, packed), self.floats)
        self.integers = Integers(self, At(self, words, x[0]))
        places = [
            Place([self.ptr_add(row, group * of.group_bytes) for row in x], halves, words, group)
            for group in range(packed.groups)
        ]
        lines = [self.ptr_add(ahead, line) for line in range(0, packed.block_bytes // self.passes, LINE)]
        ends = [group * len(lines) // len(places) for group in range(len(places) + 1)]
        return self._groups(places, [lines[first:end] for first, end in pairwise(ends)], held)

    def _groups(self, places: list[Place], lines: list[list[Ptr]], held: dict[Cell, str]) -> dict[Cell, str]:
        """Sums plus the products with all groups of a block; each group prefetches some lines."""
        loaded = self.first(places[0])
        for number, at in enumerate(places):
            self.fetch(lines[number])
            # After the last group there is none to load: its own numbers are loaded again.
            after = places[min(number + 1, len(places) - 1)]
            held, loaded = self.products(loaded, held, at, after, [])
        return held

    def fetch(self, lines: list[Ptr]) -> None:
        for line in lines:
            self.prefetch(line)
            self.prefetch(self.ptr_add(line, (FAR - NEAR) * self.of.packed.block_bytes), level=2)

    def factors(self, group: int) -> str:
        """The integers of a group, which multiply the scale of its block."""
        return self.integers.floats(self.of.packed.words.scales[group])

    def scales_at(self, at: Place, vector: int) -> str:
        """Scales of a group in f32."""
        return self.let(f"fmul {self.floats} {self.scale}, {self.factors(at.group)}")

    def four_codes(self, at: Place, vector: int, step: int) -> str:
        """Codes of a step of a group."""
        terms = self.of.packed.words.codes[at.group][step]

        def load(word: int) -> str:
            there = self.ptr_add(at.codes, 4 * word * self.of.packed.columns)
            return self.let(f"load volatile {self.raw}, ptr {there}, align 16")

        if self.of.packed.is_nested:
            return self.placed(moved_up(self, terms, self.of.dot.lanes, load), self.raw)
        return self.placed(self.codes_of(load, terms), self.raw)


class ScaledPairs(FewRows):
    """The same with one limb: sums of two groups are scaled at once.

    A multiply-add takes two cycles more than SDOT, and where one follows the other a pipe writes nothing for a cycle or
    two: alone among products, each multiply-add takes as long as two of them.
    """

    def _groups(self, places: list[Place], lines: list[list[Ptr]], held: dict[Cell, str]) -> dict[Cell, str]:
        loaded = self.first(places[0])
        starts = {(0, row): loaded.starts[0, row, 0] for row in range(self.rows)}
        starts |= {(1, row): self.start(places[1].x, 0, (row, 0)) for row in range(self.rows)}
        for first in range(0, len(places), 2):
            # After the last groups there are none to load: their own numbers are loaded again.
            pair, after = places[first : first + 2], places[min(first + 2, len(places) - 2) :][:2]
            sums, totals, factors = starts, dict[tuple[int, int], str](), list[str]()
            for number, at in enumerate(pair):
                self.fetch(lines[first + number])
                then = after[0] if number else pair[1]
                for turn, start in enumerate(self.starts):
                    following = (then, self.starts[0]) if start == self.starts[-1] else (at, self.starts[turn + 1])
                    if number and following[0] is then:
                        factors = [self.placed(self.factors(each.group), self.floats) for each in pair]
                    self._four_products(number, sums, loaded, following)
            for row in range(self.rows):
                totals[0, row] = self.joined_by(0, sums[0, row], None, pair[0].x[row])
            held, starts = self._scaled(pair, after, sums, totals, factors, held)
        return held

    def _four_products(
        self, number: int, sums: dict[tuple[int, int], str], loaded: Loaded, following: tuple[Place, int]
    ) -> None:
        """Add the products of four steps of one of two groups, and load what the steps that follow need."""
        then, start = following
        for step in range(STEPS):
            for row in range(self.rows):
                codes, limbs = loaded.codes[0, step], loaded.limbs[row]
                sums[number, row] = self.dot_by_lane(sums[number, row], codes, limbs, step)
                if step == STEPS - 1:
                    loaded.limbs[row] = self.four_steps(then.x[row], start, 0)
            loaded.codes[0, step] = self.four_codes(then, 0, start + step)

    def _scaled(
        self, pair: list[Place], after: list[Place], sums: dict[tuple[int, int], str],
        totals: dict[tuple[int, int], str], factors: list[str], held: dict[Cell, str],
    ) -> tuple[dict[Cell, str], dict[tuple[int, int], str]]:  # fmt: skip
        """Sums plus those of two groups times their scales, and what those of the next two start with."""
        starts: dict[tuple[int, int], str] = {}
        scales = [self.let(f"fmul {self.floats} {self.scale}, {each}") for each in factors]
        scales = [self.placed(each, self.floats) for each in scales]
        for number in range(2):
            for row in range(self.rows) if number else ():
                totals[1, row] = self.joined_by(0, sums[1, row], None, pair[1].x[row])
            for row in range(self.rows):
                starts[number, row] = self.start(after[number].x, 0, (row, 0))
                found = self.fma(totals[number, row], scales[number], held[row, 0])
                held = {**held, (row, 0): self.placed(found, self.floats)}
        return held, starts


__all__ = ["MOST", "TILE_PARAMETERS", "few_rows", "few_rows_function"]
