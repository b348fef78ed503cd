"""One row of limbs times blocks with two levels of scales, which are unpacked in registers.

Several rows share what is expanded into L1 once; for one row the way there and back would cost more than its products.
In exact mode each group is computed as from expanded blocks, in the same order: how rows are cut changes no bit. In
fast mode the scale of a block multiplies the sum of its groups, which takes an instruction less for each of them.
"""

from __future__ import annotations

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.targets.cpu.gemm.block_codes import At, Integers, Unpacking
from dovetail.targets.cpu.gemm.block_kernel import LINE
from dovetail.targets.cpu.gemm.block_limbs import BlockKernel
from dovetail.targets.cpu.gemm.block_words import Term

TOGETHER = 2
"""Groups whose products are computed at once, at most: each has a sum and four steps of a row, of each limb."""
AHEAD = 2
"""Blocks between the one that is multiplied and the one that is prefetched."""
ROW_PARAMETERS = (
    Parameter("ptr", "limbs"), Parameter("ptr", "panel"), Parameter("ptr", "sums"), Parameter("i64", "blocks"),
)  # fmt: skip
"""Of functions that multiply one row."""


class Direct(Unpacking):
    """The function that multiplies one row, a vector of columns of a block after the other."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of, 1)
        self.width = 1
        self.parameters = ROW_PARAMETERS
        self.sets = word_sets(of.packed.words.codes, TOGETHER)
        self.scales_blocks = of.sums_are_scaled
        """Whether the scale of a block multiplies the sum of its groups."""
        self.ahead = AHEAD

    def written(self) -> Function:
        of, packed, lanes = self.of, self.of.packed, self.of.dot.lanes
        share = packed.block_bytes // self.passes
        for vector in range(self.passes):
            place = self.ptr_add(Ptr("%sums"), 4 * lanes * vector)
            self.emit(f"store {self.floats} zeroinitializer, ptr {place}, align 4")
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, packed.block_bytes))
            x = self.ptr_add(Ptr("%limbs"), self.mul(block, packed.groups * of.group_bytes))
            self.at_block(block)
            with self.loop(0, self.passes) as number:
                ahead = self.ptr_add(self.ptr_add(panel, self.ahead * packed.block_bytes), self.mul(number, share))
                first = self.mul(number, lanes)
                words = self.ptr_add(panel, self.add(self.mul(first, 4), packed.head_bytes))
                halves = self.ptr_add(panel, self.mul(first, packed.scales.itemsize))
                there = self.ptr_add(Ptr("%sums"), self.mul(first, 4))
                held = self.let(f"load {self.floats}, ptr {there}, align 4")
                found = self.block_sums(words, halves, ahead, x, held)
                self.emit(f"store {self.floats} {found}, ptr {there}, align 4")
        return self.function(Signature(f"{of.name}.direct", self.parameters))

    def at_block(self, block: I64) -> None:
        """Compute what all vectors of columns of a block share."""

    def block_sums(self, words: Ptr, halves: Ptr, ahead: Ptr, x: Ptr, held: str) -> str:
        """Sums plus the products with a block."""
        packed = self.of.packed
        lines = list(range(0, packed.block_bytes // self.passes, LINE))
        at = At(self, words, x)
        integers = Integers(self, at)
        scale = self.scales(halves, 0, packed)
        totals: dict[int, str] = {}
        done, inside = 0, "zeroinitializer"
        for number, some in enumerate(self.sets):
            share = slice(number, None, len(self.sets))
            for line in lines[share]:
                self.prefetch(self.ptr_add(ahead, line))
            totals |= self._set(at, some)
            at.wait_for(totals[some[-1]], self.floats)
            while done in totals:
                factor, total = integers.floats(packed.words.scales[done]), totals.pop(done)
                if self.scales_blocks:
                    inside = self.plus(total, factor, inside)
                else:
                    steps = self.let(f"fmul {self.floats} {scale}, {factor}")
                    held = self.added(total, steps, self.group_at(at.x, done), held)
                done += 1
        return self.fma(inside, scale, held) if self.scales_blocks else held

    def _set(self, at: At, groups: list[int]) -> dict[int, str]:
        """The integers of some groups times their codes, in f32: words that have codes of several are loaded once."""
        of = self.of
        starts = [(group, limb) for group in groups for limb in range(of.limbs)]
        sums = {
            (group, limb): self.number(self.ptr_add(self.group_at(at.x, group), of.start_at(limb)), "i32")
            for group, limb in starts
        }
        at.wait_for(sums[starts[-1]], self.ints)
        for step in range(of.group // 4):
            loaded: dict[int, str] = {}
            codes = {group: self._codes(at.words, loaded, of.packed.words.codes[group][step]) for group in groups}
            for limb in range(of.limbs):
                for group in groups:
                    factor = self.factor(self.group_at(at.x, group), limb, step)
                    sums[group, limb] = self.dot(sums[group, limb], codes[group], factor)
        return {g: self.joined([sums[g, limb] for limb in range(of.limbs)], self.group_at(at.x, g)) for g in groups}

    def plus(self, x: str, y: str, z: str) -> str:
        """A product that is added to a number, or to nothing, which would take a register to be cleared."""
        return self.let(f"fmul {self.floats} {x}, {y}") if z == "zeroinitializer" else self.fma(x, y, z)

    def group_at(self, x: Ptr, group: int) -> Ptr:
        """The limbs of one group of a block."""
        return self.ptr_add(x, group * self.of.group_bytes)

    def _codes(self, words: Ptr, loaded: dict[int, str], terms: tuple[Term, ...]) -> str:
        def load(word: int) -> str:
            if word not in loaded:
                loaded[word] = self.word(words, word)
            return loaded[word]

        return self.codes_of(load, terms)


def word_sets(codes: tuple[tuple[tuple[Term, ...], ...], ...], most: int) -> list[list[int]]:
    """Groups whose codes are in the same words, those with the most words in common first."""
    words = [{term.word for term in steps[0]} for steps in codes]
    left, found = list(range(len(codes))), list[list[int]]()
    while left:
        some = [left.pop(0)]
        while len(some) < most:
            held = set[int]().union(*[words[group] for group in some])
            shared = max(left, key=lambda group: len(words[group] & held), default=None)
            if shared is None or not words[shared] & held:
                break
            some.append(shared)
            left.remove(shared)
        found.append(sorted(some))
    return found


__all__ = ["ROW_PARAMETERS", "Direct", "word_sets"]
