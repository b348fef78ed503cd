"""One row of one limb times blocks with codes of six bits, whose instructions stay in the order they are written in.

LLVM has prefetches follow each other, more requests than L1 takes at once, and scales all sums of some groups at once.
Here a step of products has one line that is prefetched from far into L2 and one from near into L1, the words of the
step that follows are loaded, and each product is followed by an instruction that scales sums of the groups before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from dovetail.codegen.llvm.function import Signature
from dovetail.codegen.llvm.handles import Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.block_codes import At, Integers
from dovetail.targets.cpu.gemm.block_direct import Direct, word_sets
from dovetail.targets.cpu.gemm.block_kernel import LINE
from dovetail.targets.cpu.gemm.block_limbs import BlockKernel
from dovetail.targets.cpu.gemm.nested_direct import NestedDirect

TOGETHER = 4
"""Groups whose products are computed at once: their codes are in the same words."""
NEAR, FAR = 1, 3
"""Blocks between the one that is multiplied and those that are prefetched into L1 and into L2."""


@cache
def direct_function(of: BlockKernel) -> tuple[SharedFunction, Signature]:
    """Products of a row of limbs with a whole panel of blocks: `(limbs, panel, sums, blocks)`.

    Where it takes away lows, too, their limbs follow.
    Others take longer than memory does whatever their order is: codes of five bits have 10 GB/s.
    """
    if of.sums_apart:
        return shared_function(NestedDirect(of).written())
    is_ordered = of.packed.is_whole and of.sums_are_scaled
    return shared_function((InOrder if is_ordered else Direct)(of).written())


class InOrder(Direct):
    """The function that multiplies one row, a vector of columns of a block after the other."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of)
        self.sets = word_sets(of.packed.words.codes, TOGETHER)
        self.ahead = NEAR
        self.waiting: list[Callable[[], None]] = []
        """Instructions that scale sums of the groups before."""
        self.inside = "zeroinitializer"
        """The sum of a block's groups so far."""

    def block_sums(self, words: Ptr, halves: Ptr, ahead: Ptr, x: Ptr, held: str) -> str:
        """Sums plus the products with a block."""
        of, packed = self.of, self.of.packed
        turns = [(some, step) for some in self.sets for step in range(of.group // 4)]
        lines = [self.ptr_add(ahead, line) for line in range(0, packed.block_bytes // self.passes, LINE)]
        integers = Integers(self, At(self, words, x))
        self.inside, sums, limbs = "zeroinitializer", dict[int, str](), dict[int, str]()
        loaded = self._words(words, *turns[0])
        for number, (some, step) in enumerate(turns):
            groups = {group: self.group_at(x, group) for group in some}
            if step == 0:
                sums = {group: self.number(self.ptr_add(at, of.start_at(0)), "i32") for group, at in groups.items()}
                limbs = {group: self._loaded(self.ints, self.ptr_add(at, of.limbs_at)) for group, at in groups.items()}
            following = self._words(words, *turns[number + 1]) if number + 1 < len(turns) else {}
            for line in lines[number * len(lines) // len(turns) : (number + 1) * len(lines) // len(turns)]:
                self.prefetch(line)
                self.prefetch(self.ptr_add(line, (FAR - NEAR) * packed.block_bytes), level=2)
            self._products(some, step, loaded, limbs, sums)
            if step + 1 == of.group // 4:
                for group, at in groups.items():
                    self.waiting += self._scaled(integers, at, group, sums[group])
            loaded = following
        while self.waiting:
            self.waiting.pop(0)()
        return self.fma(self.inside, self.scales(halves, 0, packed), held)

    def _products(
        self, some: list[int], step: int, loaded: dict[int, str], limbs: dict[int, str], sums: dict[int, str]
    ) -> None:
        """Add the products of a step of some groups: codes that take several words come last."""
        terms = {group: self.of.packed.words.codes[group][step] for group in some}
        for group in sorted(some, key=lambda group: len(terms[group])):
            codes = self.placed(self.codes_of(loaded.__getitem__, terms[group]), self.raw)
            sums[group] = self.dot_by_lane(sums[group], codes, limbs[group], step)
            if self.waiting:
                self.waiting.pop(0)()

    def _scaled(self, integers: Integers, x: Ptr, group: int, sums: str) -> list[Callable[[], None]]:
        """Instructions that add the sums of a group times its scale, one after the other."""
        made: dict[str, str] = {}

        def join() -> None:
            made["total"] = self.placed(self.joined([sums], x), self.floats)

        def convert() -> None:
            made["factor"] = self.placed(integers.floats(self.of.packed.words.scales[group]), self.floats)

        def add() -> None:
            self.inside = self.placed(self.plus(made["total"], made["factor"], self.inside), self.floats)

        return [join, convert, add]

    def _words(self, words: Ptr, some: list[int], step: int) -> dict[int, str]:
        """The words of a step of some groups."""
        terms = [term for group in some for term in self.of.packed.words.codes[group][step]]
        found = dict.fromkeys([term.word for term in sorted(terms, key=lambda term: term.shift)])
        return {each: self._loaded(self.raw, self.ptr_add(words, 4 * each * self.of.packed.columns)) for each in found}

    def number(self, pointer: Ptr, kind: str) -> str:
        """A number of a row's group that others are added to, in all lanes."""
        return self._loaded(f"<{self.of.dot.lanes} x {kind}>", pointer)

    def _loaded(self, kind: str, pointer: Ptr) -> str:
        """A vector that is loaded where this is written."""
        return self.let(f"load volatile {kind}, ptr {pointer}, align 16")


__all__ = ["direct_function"]
