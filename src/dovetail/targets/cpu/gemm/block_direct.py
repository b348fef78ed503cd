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
from dovetail.targets.cpu.gemm.block_limbs import FAST, LOW_AT, BlockKernel, splat
from dovetail.targets.cpu.gemm.block_words import Integer, Term

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
    """The function that multiplies one row, a few vectors of columns of a block after the other."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of, 1)
        # Three limbs have enough to do for two vectors of columns; more would not stay in registers.
        self.width = 1 if of.limbs == FAST else 2
        self.cells = [(0, vector) for vector in range(self.width)]

    def written(self) -> Function:
        of, packed, lanes = self.of, self.of.packed, self.of.dot.lanes
        share = packed.block_bytes // self.passes
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, packed.block_bytes))
            x = self.ptr_add(Ptr("%limbs"), self.mul(block, packed.groups * of.group_bytes))
            fresh = self.icmp("eq", block, 0)
            with self.loop(0, self.passes) as number:
                ahead = self.ptr_add(self.ptr_add(panel, AHEAD * packed.block_bytes), self.mul(number, share))
                first = self.mul(number, self.width * lanes)
                words = self.ptr_add(panel, self.add(self.mul(first, 4), packed.head_bytes))
                halves = self.ptr_add(panel, self.mul(first, packed.scales.itemsize))
                start = self.ptr_add(Ptr("%sums"), self.mul(first, 4))
                there = [self.ptr_add(start, 4 * lanes * vector) for vector in range(self.width)]
                kept = [self.let(f"load {self.floats}, ptr {place}, align 4") for place in there]
                held = [
                    self.let(f"select i1 {fresh}, {self.floats} zeroinitializer, {self.floats} {some}") for some in kept
                ]
                for place, found in zip(there, self._block(words, halves, ahead, x, held), strict=True):
                    self.emit(f"store {self.floats} {found}, ptr {place}, align 4")
        return self.function(Signature(f"{of.name}.direct", _PARAMETERS))

    def _block(self, words: Ptr, halves: Ptr, ahead: Ptr, x: Ptr, held: list[str]) -> list[str]:
        """Sums plus the products with a block."""
        of, packed = self.of, self.of.packed
        lines = list(range(0, packed.block_bytes // self.passes, LINE))
        integers = [_Integers(self, words, vector) for vector in range(self.width)]
        scales = [self.scales(halves, vector, packed) for vector in range(self.width)]
        lows = self.ptr_add(halves, packed.scale_bytes)
        below = [self.scales(lows, vector, packed) for vector in range(self.width)] if packed.has_low else []
        for group in range(packed.groups):
            words, x = self.after(words, held[-1]), self.after(x, held[-1])
            for line in lines[group :: packed.groups]:
                self.prefetch(self.ptr_add(ahead, line))
            here = self.ptr_add(x, group * of.group_bytes)
            totals = self.group(words, [here], packed.words.codes[group])
            total = self.load_splat(self.ptr_add(here, LOW_AT), "float", self.floats)
            for vector in range(self.width):
                factor = integers[vector].floats(packed.words.scales[group])
                steps = self.let(f"fmul {self.floats} {scales[vector]}, {factor}")
                held[vector] = self.added(totals[0, vector], steps, here, held[vector])
                if below:
                    factor = integers[vector].floats(packed.words.lows[group])
                    low = self.let(f"fneg {self.floats} {self.let(f'fmul {self.floats} {below[vector]}, {factor}')}")
                    held[vector] = self.fma(low, total, held[vector])
        return held

    def codes(self, codes: Ptr, vector: int, terms: tuple[Term, ...]) -> str:
        def load(word: int) -> str:
            return self.word(codes, word, vector)

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

    def word(self, words: Ptr, word: int, vector: int) -> str:
        """A word of some columns, as bytes."""
        at = self.ptr_add(words, 4 * (word * self.of.packed.columns + vector * self.of.dot.lanes))
        return self.let(f"load {self.raw}, ptr {at}, align 16")


class _Integers:
    """The integers of a block's groups for some columns: those of four groups are the bytes of words, made at once."""

    def __init__(self, into: _Direct, words: Ptr, vector: int) -> None:
        self.into, self.words, self.vector = into, words, vector
        self.made: dict[tuple[tuple[Term, ...], int], str] = {}

    def floats(self, integer: Integer) -> str:
        """One of them, as a float."""
        into, lanes = self.into, self.into.of.dot.lanes
        # The byte of a word that has the lowest bit of a term.
        place, *others = {(term.shift + (term.mask & -term.mask).bit_length() - 1) // 8 for term in integer.terms}
        assert not others, "bits of an integer are in the same byte of words"
        inside = tuple([Term(term.word, term.shift - 8 * place, term.mask) for term in integer.terms])
        if (inside, integer.offset) not in self.made:
            self.made[inside, integer.offset] = self._bytes(inside, integer.offset)
        # Bytes go to the highest place of their lanes, where a sign is one; the 24 zeros below are after the point.
        mask = [4 * lane + place if part == 3 else 4 * lanes for lane in range(lanes) for part in range(4)]
        places = f"<{4 * lanes} x i32> <{', '.join([f'i32 {at}' for at in mask])}>"
        top = into.let(
            f"shufflevector {into.raw} {self.made[inside, integer.offset]}, {into.raw} zeroinitializer, {places}"
        )
        kind = "s" if integer.sign or integer.offset else "u"
        name = f"llvm.aarch64.neon.vcvtfx{kind}2fp.v{lanes}f32.v{lanes}i32"
        into.use(f"declare {into.floats} @{name}({into.ints}, i32)")
        wide = into.let(f"bitcast {into.raw} {top} to {into.ints}")
        return into.let(f"call {into.floats} @{name}({into.ints} {wide}, i32 24)")

    def _bytes(self, terms: tuple[Term, ...], offset: int) -> str:
        into = self.into
        found = four_codes(into, terms, into.of.dot.lanes, lambda word: into.word(self.words, word, self.vector))
        if offset:
            found = into.let(f"add {into.raw} {found}, {splat(str(offset), 4 * into.of.dot.lanes, 'i8')}")
        return found


__all__ = ["direct_function"]
