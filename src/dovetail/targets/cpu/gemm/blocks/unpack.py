"""Codes and scales of packed blocks, unpacked in registers, and blocks of two levels expanded into L1.

A reader has a function that loads a word of some columns. Codes of four steps along k are the bytes of each lane.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr, Vec, VectorType
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.simd import SimdBuilder, zeros
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.kernel import LINE
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout
from dovetail.targets.cpu.gemm.blocks.words import Integer, Term, in_byte

LoadWord = Callable[[int], Vec]
"""Loads a word of some columns."""
_LOW_HALF = 15


def joined_bits(t: SimdBuilder, terms: tuple[Term, ...], load: LoadWord) -> Vec:
    """The bits of all terms, in elements of the words."""
    joined: list[Vec] = []
    for term in terms:
        word = load(term.word)
        bits = 8 * t.lanes_of(word).bytes // t.lanes_of(word).count
        if term.shift:
            word = t.lanewise("lshr" if term.shift > 0 else "shl", word, abs(term.shift))
        if term.mask != ((1 << bits) - 1) >> max(term.shift, 0):
            word = t.lanewise("and", word, term.mask)
        joined.append(word if not joined else t.lanewise("or", joined[-1], word))
    return joined[-1]


def moved_up(t: SimdBuilder, terms: tuple[Term, ...], load: LoadWord) -> Vec:
    """Codes of bytes with two: 16 (l - 8) of codes l in their low halves, or these bytes as they are."""
    (term,) = terms
    word = load(term.word)
    return word if term.mask == 255 else t.lanewise("xor", t.lanewise("shl", word, 4), -128)


def neon_codes(t: SimdBuilder, terms: tuple[Term, ...], load: LoadWord) -> Vec:
    """Join bits of bytes as `joined_bits` does, by instructions of NEON that insert bits of one register."""
    if _is_chain(terms):
        first, *others = sorted(terms, key=lambda term: term.shift)
        whole = _moved(t, load(first.word), first.shift)
        for term in others:
            whole = _inserted(t, "vsri", whole, load(term.word), term.shift)
        return whole
    halves = sorted(terms, key=lambda term: term.mask)
    if len(halves) != 2 or halves[0].mask != _LOW_HALF or halves[0].shift not in (0, 4) or halves[1].mask & _LOW_HALF:
        return joined_bits(t, terms, load)
    low, high = halves
    possible = 255 >> max(high.shift, 0)
    if low.shift == 0:
        both = _inserted(t, "vsli", load(low.word), _moved(t, load(high.word), high.shift + 4))
        return _masked(t, both, _LOW_HALF | high.mask, possible)
    above = _masked(t, _moved(t, load(high.word), high.shift), high.mask, possible)
    return _inserted(t, "vsri", above, load(low.word))


def _is_chain(terms: tuple[Term, ...]) -> bool:
    """Whether each term has the highest bits of its byte, and those of the next one follow."""
    least = 8 - min([term.shift for term in terms])
    for term in sorted(terms, key=lambda term: term.shift):
        if term.shift <= 0 or term.mask.bit_length() != least or 8 - term.shift != least:
            return False
        least = (term.mask & -term.mask).bit_length() - 1
    return least == 0


def _moved(t: SimdBuilder, x: Vec, places: int) -> Vec:
    """Bytes shifted right, or left."""
    return x if places == 0 else t.lanewise("lshr" if places > 0 else "shl", x, abs(places))


def _masked(t: SimdBuilder, x: Vec, mask: int, possible: int) -> Vec:
    """Some bits of bytes that can have certain bits; the lowest four do not matter."""
    return x if possible | _LOW_HALF == mask | _LOW_HALF else t.lanewise("and", x, mask)


def _inserted(t: SimdBuilder, how: str, into: Vec, x: Vec, places: int = 4) -> Vec:
    """Bytes whose upper or lower bits are the lower or upper ones of other bytes."""
    kind = t.lanes_of(into)
    return t.instruction(f"llvm.aarch64.neon.{how}.{kind.mangled}", kind, into, x, places)


class NeonIntegers:
    """The integers of a block's groups for some columns: four groups are the bytes of words, decoded at once."""

    def __init__(self, t: SimdBuilder, of: BlockLayout, words: Ptr, lanes: int) -> None:
        self.t, self.of, self.words, self.lanes = t, of, words, lanes
        self.bytes_of: dict[tuple[tuple[Term, ...], int], Vec] = {}

    def floats(self, integer: Integer) -> Vec:
        """One of them, as a float."""
        t, lanes = self.t, self.lanes
        place, inside = in_byte(integer)
        if (inside, integer.offset) not in self.bytes_of:
            self.bytes_of[inside, integer.offset] = self._bytes(inside, integer.offset)
        # Bytes go to the highest place of their lanes, where a sign is one; the 24 zeros below are after the point.
        order = [4 * lane + place if part == 3 else 4 * lanes for lane in range(lanes) for part in range(4)]
        bytes_at = self.bytes_of[inside, integer.offset]
        wide = t.bitcast(t.shuffle(bytes_at, zeros(t.lanes_of(bytes_at)), order), "i32", lanes)
        kind = "s" if integer.sign or integer.offset else "u"
        to = VectorType(lanes, "float")
        return t.instruction(f"llvm.aarch64.neon.vcvtfx{kind}2fp.{to.mangled}.{to.of('i32').mangled}", to, wide, 24)

    def _bytes(self, terms: tuple[Term, ...], offset: int) -> Vec:
        joined = joined_bits(self.t, terms, self._word)
        return self.t.lanewise("add", joined, offset) if offset else joined

    def _word(self, word: int) -> Vec:
        at = self.t.ptr_add(self.words, 4 * word * self.of.columns)
        return self.t.load_lanes(VectorType(4 * self.lanes, "i8"), at, 16)


class PackedBlockReader:
    """Reads packed blocks in a function, a vector of columns at a time."""

    def __init__(self, t: SimdBuilder, of: BlockLayout, lanes: int) -> None:
        self.t, self.of = t, of
        self.ints, self.floats = VectorType(lanes, "i32"), VectorType(lanes, "float")
        self.bytes = VectorType(4 * lanes, "i8")

    def word(self, words: Ptr, word: int, kind: VectorType) -> Vec:
        """A word of each column."""
        return self.t.load_lanes(kind, self.t.ptr_add(words, 4 * word * self.of.columns))

    def codes(self, words: Ptr, terms: tuple[Term, ...]) -> Vec:
        """Stored codes, four steps along k in the bytes of each lane."""
        return joined_bits(self.t, terms, partial(self.word, words, kind=self.bytes))

    def of_group(self, scale: Vec, words: Ptr, integers: tuple[Integer, ...], group: int) -> Vec:
        """The scale of a group, by the block's own."""
        if not integers:
            return scale
        t, integer = self.t, integers[group]
        values = joined_bits(t, integer.terms, partial(self.word, words, kind=self.ints))
        if integer.sign:
            places = 32 - integer.sign
            values = t.lanewise("ashr", t.lanewise("shl", values, places), places)
        if integer.offset:
            values = t.lanewise("add", values, integer.offset)
        return t.fmul(scale, t.convert("sitofp", values, "float"))

    def low_of_group(self, low: Vec, words: Ptr, group: int) -> Vec:
        """What is added to codes of a group times their scale, by what the block has."""
        low_scale = self.of_group(low, words, self.of.words.lows, group)
        return self.t.fneg(low_scale) if self.of.words.lows else low_scale

    def block_scale(self, pointer: Ptr, layout: BlockLayout | None = None) -> Vec:
        """The scale, or low, of a block in f32."""
        if (layout or self.of).scales.itemsize == 4:
            return self.t.load_lanes(self.floats, pointer)
        return self.t.convert("fpext", self.t.load_lanes(self.floats.of("half"), pointer, 2), "float")

    def expand(self, group: int, words: Ptr, scale: Vec, low: Vec | None, there: Ptr) -> None:
        """Write a group as products read it, by the scale and the low of its block."""
        t, read = self.t, self.of.expanded
        t.store_lanes(self.of_group(scale, words, self.of.words.scales, group), there)
        if low is not None:
            lows = t.ptr_add(there, read.scale_bytes)
            t.store_lanes(self.low_of_group(low, words, group), lows)
        codes = t.ptr_add(there, read.head_bytes)
        for step, terms in enumerate(self.of.words.codes[group]):
            how = moved_up if self.of.is_nested else joined_bits
            expanded = how(t, terms, partial(self.word, words, kind=self.bytes))
            t.store_lanes(expanded, t.ptr_add(codes, 4 * step * self.of.columns))


@cache
def expand_function(of: BlockLayout, lanes: int) -> tuple[SharedFunction, Signature]:
    """Expands blocks of a panel, one vector of columns after the other: `(panel, expanded, blocks)`."""
    return shared_function(_expand(of, lanes))


def _expand(of: BlockLayout, lanes: int) -> Function:
    t, read, vectors = SimdBuilder(), of.expanded, of.columns // lanes
    reader, share = PackedBlockReader(t, of, lanes), of.block_bytes // vectors
    with t.loop(0, I64("%blocks")) as block:
        panel = t.ptr_add(Ptr("%panel"), t.mul(block, of.block_bytes))
        expanded = t.ptr_add(Ptr("%expanded"), t.mul(block, of.groups * read.group_bytes))
        with t.loop(0, vectors) as vector:
            # With NEON the block that follows arrives while this one is multiplied; wide vectors multiply so fast
            # that all its lines at once would wait for each other, and products prefetch them.
            ahead = t.ptr_add(t.ptr_add(panel, of.block_bytes), t.mul(vector, share))
            lines = list(range(0, share, LINE)) if of.by_lane else []
            words = t.ptr_add(panel, t.add(t.mul(vector, 4 * lanes), of.head_bytes))
            target = t.ptr_add(expanded, t.mul(vector, 4 * lanes))
            scales = t.ptr_add(panel, t.mul(vector, lanes * of.scales.itemsize))
            scale = reader.block_scale(scales)
            low = reader.block_scale(t.ptr_add(scales, of.scale_bytes)) if read.has_low else None
            for group in range(of.groups):
                for line in lines[group :: of.groups]:
                    t.prefetch(t.ptr_add(ahead, line))
                reader.expand(group, words, scale, low, t.ptr_add(target, group * read.group_bytes))
    parameters = (Parameter("ptr", "panel"), Parameter("ptr", "expanded"), Parameter("i64", "blocks"))
    return t.function(Signature(f"expand.{of.name}.{of.columns}", parameters))


__all__ = ["LoadWord", "NeonIntegers", "PackedBlockReader", "expand_function", "joined_bits", "moved_up", "neon_codes"]
