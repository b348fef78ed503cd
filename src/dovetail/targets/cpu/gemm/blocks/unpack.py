"""Codes of blocks with two levels of scales, and the integers of these, unpacked in registers with NEON."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.codegen.llvm.handles import Ptr
from dovetail.targets.cpu.gemm.blocks.expand import four_codes
from dovetail.targets.cpu.gemm.blocks.limbs import splat
from dovetail.targets.cpu.gemm.blocks.rows import Rows
from dovetail.targets.cpu.gemm.blocks.words import Integer, Term, in_byte


class Unpacking(Rows):
    """A function that reads blocks as they are."""

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

    def __init__(self, into: Unpacking, words: Ptr, x: Ptr) -> None:
        self.into, self.words, self.x = into, words, x

    def wait_for(self, found: str, kind: str) -> None:
        """Load no more before this is computed, as far as LLVM is concerned."""
        self.words, self.x = (self.into.after(pointer, found, kind) for pointer in (self.words, self.x))


class Integers:
    """The integers of a block's groups for some columns: those of four groups are the bytes of words, made at once."""

    def __init__(self, into: Unpacking, at: At) -> None:
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


__all__ = ["At", "Integers", "Unpacking"]
