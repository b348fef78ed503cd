"""One row of limbs times blocks with two levels of scales, which are unpacked in registers.

Several rows share what is expanded into L1 once; for one row the way there and back would cost more than its products.
In exact mode each group is computed as from expanded blocks, in the same order: how rows are cut changes no bit. In
fast mode the scale of a block multiplies the sum of its groups, which takes an instruction less for each of them.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.targets.cpu.gemm.block_expand import four_codes
from dovetail.targets.cpu.gemm.block_kernel import LINE, Rows
from dovetail.targets.cpu.gemm.block_limbs import BlockKernel, splat
from dovetail.targets.cpu.gemm.block_words import Integer, Term, in_byte

TOGETHER = 2
"""Groups whose products are computed at once, at most: each has a sum and four steps of a row, of each limb."""
AHEAD = 2
"""Blocks between the one that is multiplied and the one that is prefetched."""
ROW_PARAMETERS = (
    Parameter("ptr", "limbs"), Parameter("ptr", "panel"), Parameter("ptr", "sums"), Parameter("i64", "blocks"),
)  # fmt: skip
"""Of functions that multiply one row."""


class Direct(Rows):
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

    def codes_of(self, load: Callable[[int], str], terms: tuple[Term, ...]) -> str:
        """Stored codes of some columns, four steps along k in the bytes of each lane."""
        if _is_chain(terms):
            first, *others = sorted(terms, key=lambda term: term.shift)
            whole = self._moved(load(first.word), first.shift)
            for term in others:
                whole = self._inserted("vsri", whole, load(term.word), term.shift)
            return whole
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

    def _inserted(self, how: str, into: str, x: str, places: int = 4) -> str:
        """Bytes whose upper or lower bits are the lower or upper ones of other bytes."""
        name = f"llvm.aarch64.neon.{how}.v{4 * self.of.dot.lanes}i8"
        self.use(f"declare {self.raw} @{name}({self.raw}, {self.raw}, i32)")
        return self.let(f"call {self.raw} @{name}({self.raw} {into}, {self.raw} {x}, i32 {places})")

    def word(self, words: Ptr, word: int) -> str:
        """A word of some columns, as bytes."""
        at = self.ptr_add(words, 4 * word * self.of.packed.columns)
        return self.let(f"load {self.raw}, ptr {at}, align 16")


class At:
    """Pointers to the words of some columns and to the limbs of a block: what is loaded early would be spilled."""

    def __init__(self, into: Direct, words: Ptr, x: Ptr) -> None:
        self.into, self.words, self.x = into, words, x

    def wait_for(self, found: str, kind: str) -> None:
        """Load no more before this is computed, as far as LLVM is concerned."""
        self.words, self.x = (self.into.after(pointer, found, kind) for pointer in (self.words, self.x))


class Integers:
    """The integers of a block's groups for some columns: those of four groups are the bytes of words, made at once."""

    def __init__(self, into: Direct, at: At) -> None:
        self.into, self.at = into, at
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
        found = four_codes(into, terms, into.of.dot.lanes, lambda word: into.word(self.at.words, word))
        if offset:
            found = into.let(f"add {into.raw} {found}, {splat(str(offset), 4 * into.of.dot.lanes, 'i8')}")
        return found


def _is_chain(terms: tuple[Term, ...]) -> bool:
    """Whether each term has the highest bits of its byte, and those of the next one follow."""
    least = 8 - min([term.shift for term in terms])
    for term in sorted(terms, key=lambda term: term.shift):
        if term.shift <= 0 or term.mask.bit_length() != least or 8 - term.shift != least:
            return False
        least = (term.mask & -term.mask).bit_length() - 1
    return least == 0


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


__all__ = ["ROW_PARAMETERS", "At", "Direct", "Integers", "word_sets"]
