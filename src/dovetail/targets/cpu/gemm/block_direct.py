"""One row of limbs times blocks with two levels of scales, which are unpacked in registers.

Several rows share what is expanded into L1 once; for one row the way there and back would cost more than its products.
Each group is computed as from expanded blocks, in the same order: how rows are cut changes no bit.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.block_expand import four_codes
from dovetail.targets.cpu.gemm.block_kernel import LINE, Rows
from dovetail.targets.cpu.gemm.block_limbs import FAST, BlockKernel, splat
from dovetail.targets.cpu.gemm.block_words import Integer, Term, in_byte

TOGETHER, EXACT_TOGETHER = 4, 2
"""Groups whose products are computed at once, at most: each has a sum and four steps of a row, of each limb."""
AHEAD = 2
"""Blocks between the one that is multiplied and the one that is prefetched."""
_PARAMETERS = (
    Parameter("ptr", "limbs"), Parameter("ptr", "panel"), Parameter("ptr", "sums"), Parameter("i64", "blocks"),
)  # fmt: skip


@cache
def direct_function(of: BlockKernel) -> tuple[SharedFunction, Signature]:
    """Products of a row of limbs with a whole panel of blocks: `(limbs, panel, sums, blocks)`."""
    return shared_function(_Direct(of).written())


class _Direct(Rows):
    """The function that multiplies one row, a vector of columns of a block after the other."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of, 1)
        self.width = 1
        self.sets = _sets(of.packed.words.codes, TOGETHER if of.limbs == FAST else EXACT_TOGETHER)

    def written(self) -> Function:
        of, packed, lanes = self.of, self.of.packed, self.of.dot.lanes
        share = packed.block_bytes // self.passes
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, packed.block_bytes))
            x = self.ptr_add(Ptr("%limbs"), self.mul(block, packed.groups * of.group_bytes))
            fresh = self.icmp("eq", block, 0)
            with self.loop(0, self.passes) as number:
                ahead = self.ptr_add(self.ptr_add(panel, AHEAD * packed.block_bytes), self.mul(number, share))
                first = self.mul(number, lanes)
                words = self.ptr_add(panel, self.add(self.mul(first, 4), packed.head_bytes))
                halves = self.ptr_add(panel, self.mul(first, packed.scales.itemsize))
                there = self.ptr_add(Ptr("%sums"), self.mul(first, 4))
                kept = self.let(f"load {self.floats}, ptr {there}, align 4")
                held = self.let(f"select i1 {fresh}, {self.floats} zeroinitializer, {self.floats} {kept}")
                found = self._block(words, halves, ahead, x, held)
                self.emit(f"store {self.floats} {found}, ptr {there}, align 4")
        return self.function(Signature(f"{of.name}.direct", _PARAMETERS))

    def _block(self, words: Ptr, halves: Ptr, ahead: Ptr, x: Ptr, held: str) -> str:
        """Sums plus the products with a block."""
        of, packed = self.of, self.of.packed
        lines = list(range(0, packed.block_bytes // self.passes, LINE))
        integers = _Integers(self, words)
        scale = self.scales(halves, 0, packed)
        totals: dict[int, str] = {}
        done = 0
        for number, some in enumerate(self.sets):
            for line in lines[number :: len(self.sets)]:
                self.prefetch(self.ptr_add(ahead, line))
            here = {group: self.ptr_add(x, group * of.group_bytes) for group in some}
            totals |= self._set(words, here)
            words, x = self.after(words, totals[some[-1]]), self.after(x, totals[some[-1]])
            integers.words = words
            while done in totals:
                factor = integers.floats(packed.words.scales[done])
                steps = self.let(f"fmul {self.floats} {scale}, {factor}")
                held = self.added(totals.pop(done), steps, self.ptr_add(x, done * of.group_bytes), held)
                done += 1
        return held

    def _set(self, words: Ptr, x: dict[int, Ptr]) -> dict[int, str]:
        """The integers of some groups times their codes, in f32: words that have codes of several are loaded once."""
        of = self.of
        sums = {
            (group, limb): self.number(self.ptr_add(here, of.start_at(limb)), "i32")
            for group, here in x.items()
            for limb in range(of.limbs)
        }
        last = list(sums.values())[-1]
        words, x = self.after(words, last, self.ints), {g: self.after(here, last, self.ints) for g, here in x.items()}
        for step in range(of.group // 4):
            loaded: dict[int, str] = {}
            codes = {group: self._codes(words, loaded, of.packed.words.codes[group][step]) for group in x}
            for limb in range(of.limbs):
                for group, here in x.items():
                    factor = self.factor(here, limb, step)
                    sums[group, limb] = self.dot(sums[group, limb], codes[group], factor)
        return {group: self.joined([sums[group, limb] for limb in range(of.limbs)], here) for group, here in x.items()}

    def _codes(self, words: Ptr, loaded: dict[int, str], terms: tuple[Term, ...]) -> str:
        def load(word: int) -> str:
            if word not in loaded:
                loaded[word] = self.word(words, word)
            return loaded[word]

        found = sorted(terms, key=lambda term: term.mask)
        if len(found) != 2 or found[0].mask != 15 or found[0].shift not in (0, 4) or found[1].mask & 15:
            return four_codes(self, terms, self.of.dot.lanes, load)
        low, high = found
        if low.shift == 0:
            both = self._inserted("vsli", load(low.word), self._moved(load(high.word), high.shift + 4))
            return self._masked(both, 15 | high.mask, 255 >> max(high.shift, 0))
        above = self._masked(self._moved(load(high.word), high.shift), high.mask, 255 >> max(high.shift, 0))
        return self._inserted("vsri", above, load(low.word))

    def _moved(self, x: str, places: int) -> str:
        """Bytes shifted right, or left."""
        if places == 0:
            return x
        how, count = ("lshr" if places > 0 else "shl"), 4 * self.of.dot.lanes
        return self.let(f"{how} {self.raw} {x}, {splat(str(abs(places)), count, 'i8')}")

    def _masked(self, x: str, mask: int, possible: int) -> str:
        """Some bits of bytes that can have certain bits; the lowest four do not matter."""
        if possible | 15 == mask | 15:
            return x
        return self.let(f"and {self.raw} {x}, {splat(str(mask), 4 * self.of.dot.lanes, 'i8')}")

    def _inserted(self, how: str, into: str, x: str) -> str:
        """Bytes whose upper or lower halves are the lower or upper ones of other bytes."""
        name = f"llvm.aarch64.neon.{how}.v{4 * self.of.dot.lanes}i8"
        self.use(f"declare {self.raw} @{name}({self.raw}, {self.raw}, i32)")
        return self.let(f"call {self.raw} @{name}({self.raw} {into}, {self.raw} {x}, i32 4)")

    def word(self, words: Ptr, word: int) -> str:
        """A word of some columns, as bytes."""
        at = self.ptr_add(words, 4 * word * self.of.packed.columns)
        return self.let(f"load {self.raw}, ptr {at}, align 16")


class _Integers:
    """The integers of a block's groups for some columns: those of four groups are the bytes of words, made at once."""

    def __init__(self, into: _Direct, words: Ptr) -> None:
        self.into, self.words = into, words
        self.made: dict[tuple[tuple[Term, ...], int], str] = {}

    def floats(self, integer: Integer) -> str:
        """One of them, as a float."""
        into, lanes = self.into, self.into.of.dot.lanes
        place, inside = in_byte(integer)
        if (inside, integer.offset) not in self.made:
            self.made[inside, integer.offset] = self._bytes(inside, integer.offset)
        # Bytes go to the highest place of their lanes, where a sign is one; the 24 zeros below are after the point.
        mask = [4 * lane + place if part == 3 else 4 * lanes for lane in range(lanes) for part in range(4)]
        places = f"<{4 * lanes} x i32> <{', '.join([f'i32 {at}' for at in mask])}>"
        made = self.made[inside, integer.offset]
        top = into.let(f"shufflevector {into.raw} {made}, {into.raw} zeroinitializer, {places}")
        kind = "s" if integer.sign or integer.offset else "u"
        name = f"llvm.aarch64.neon.vcvtfx{kind}2fp.v{lanes}f32.v{lanes}i32"
        into.use(f"declare {into.floats} @{name}({into.ints}, i32)")
        wide = into.let(f"bitcast {into.raw} {top} to {into.ints}")
        return into.let(f"call {into.floats} @{name}({into.ints} {wide}, i32 24)")

    def _bytes(self, terms: tuple[Term, ...], offset: int) -> str:
        into = self.into
        found = four_codes(into, terms, into.of.dot.lanes, lambda word: into.word(self.words, word))
        if offset:
            found = into.let(f"add {into.raw} {found}, {splat(str(offset), 4 * into.of.dot.lanes, 'i8')}")
        return found


def _sets(codes: tuple[tuple[tuple[Term, ...], ...], ...], most: int) -> list[list[int]]:
    """Groups whose codes are in the same words, those with the most words in common first."""
    words = [{term.word for term in steps[0]} for steps in codes]
    left, found = list(range(len(codes))), list[list[int]]()
    while left:
        first, *others = left
        shared = [group for group in others if words[group] & words[first]]
        shared.sort(key=lambda group: -len(words[group] & words[first]))
        found.append(sorted([first, *shared[: most - 1]]))
        left = [group for group in left if group not in found[-1]]
    return found


__all__ = ["direct_function"]
