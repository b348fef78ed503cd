"""Blocks with two levels of scales, expanded where products read them: codes in bytes, a scale in f32 for each group.

A part of a panel is expanded once for all rows of a cell, into L1; memory holds the bytes of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout
from dovetail.targets.cpu.gemm.blocks.words import Integer, Term

LINE = 64
"""Bytes of a cache line, as far as prefetching goes."""


def four_codes(into: Builder, terms: tuple[Term, ...], lanes: int, load: Callable[[int], str]) -> str:
    """Stored codes of some columns, four steps along k in the bytes of each lane."""
    return joined_bits(into, terms, (4 * lanes, 8), load)


def moved_up(into: Builder, terms: tuple[Term, ...], lanes: int, load: Callable[[int], str]) -> str:
    """The same of bytes with two codes: 16 (l - 8) of codes l in their low halves, or these bytes as they are."""
    ((word, _, mask),) = [(term.word, term.shift, term.mask) for term in terms]
    found, kind = load(word), f"<{4 * lanes} x i8>"
    if mask == 255:
        return found
    four, flipped = (f"<{', '.join([f'i8 {number}'] * (4 * lanes))}>" for number in (4, -128))
    return into.let(f"xor {kind} {into.let(f'shl {kind} {found}, {four}')}, {flipped}")


def joined_bits(into: Builder, terms: tuple[Term, ...], of: tuple[int, int], load: Callable[[int], str]) -> str:
    """The bits of all terms, in vectors of integers: their number and bits."""
    count, bits = of
    kind, found = f"<{count} x i{bits}>", list[str]()

    def splat(number: int) -> str:
        return f"<{', '.join([f'i{bits} {number}'] * count)}>"

    for term in terms:
        word = load(term.word)
        if term.shift:
            how = "lshr" if term.shift > 0 else "shl"
            word = into.let(f"{how} {kind} {word}, {splat(abs(term.shift))}")
        if term.mask != ((1 << bits) - 1) >> max(term.shift, 0):
            word = into.let(f"and {kind} {word}, {splat(term.mask)}")
        found.append(word if not found else into.let(f"or {kind} {found[-1]}, {word}"))
    return found[-1]


def group_scale(into: Builder, scale: str, lanes: int, integer: Integer, load: Callable[[int], str]) -> str:
    """The scale of some columns times the integer of a group."""
    ints, floats = f"<{lanes} x i32>", f"<{lanes} x float>"

    def splat(number: int) -> str:
        return f"<{', '.join([f'i32 {number}'] * lanes)}>"

    found = joined_bits(into, integer.terms, (lanes, 32), load)
    if integer.sign:
        places = splat(32 - integer.sign)
        found = into.let(f"ashr {ints} {into.let(f'shl {ints} {found}, {places}')}, {places}")
    if integer.offset:
        found = into.let(f"add {ints} {found}, {splat(integer.offset)}")
    return into.let(f"fmul {floats} {scale}, {into.let(f'sitofp {ints} {found} to {floats}')}")


@cache
def expand_function(of: BlockLayout, lanes: int) -> tuple[SharedFunction, Signature]:
    """Expands blocks of a panel: `(panel, expanded, blocks)`."""
    return shared_function(_Expand(of, lanes).written())


class BlockReader:
    """Reads packed blocks in a function, a vector of columns at a time."""

    def __init__(self, into: Builder, of: BlockLayout, lanes: int) -> None:
        self.into, self.of, self.lanes = into, of, lanes
        self.ints, self.floats, self.bytes = f"<{lanes} x i32>", f"<{lanes} x float>", f"<{4 * lanes} x i8>"

    def word(self, words: Ptr, word: int, kind: str) -> str:
        """A word of each column."""
        return self.into.let(f"load {kind}, ptr {self.into.ptr_add(words, 4 * word * self.of.columns)}, align 4")

    def of_group(self, scale: str, words: Ptr, integers: tuple[Integer, ...], group: int) -> str:
        """The scale of a group, by the block's own."""
        if not integers:
            return scale
        return group_scale(self.into, scale, self.lanes, integers[group], partial(self.word, words, kind=self.ints))

    def low_of_group(self, low: str, words: Ptr, group: int) -> str:
        """What is added to codes of a group times their scale, by what the block has."""
        found = self.of_group(low, words, self.of.words.lows, group)
        return self.into.let(f"fneg {self.floats} {found}") if self.of.words.lows else found

    def block_scale(self, pointer: Ptr) -> str:
        """The scale, or low, of a block in f32."""
        into, half = self.into, f"<{self.lanes} x half>"
        if self.of.scales.itemsize == 4:
            return into.let(f"load {self.floats}, ptr {pointer}, align 4")
        return into.let(f"fpext {half} {into.let(f'load {half}, ptr {pointer}, align 2')} to {self.floats}")

    def expand(self, group: int, words: Ptr, scale: str, low: str | None, there: Ptr) -> None:
        """Write a group as products read it, by the scale and the low of its block."""
        read = self.of.expanded
        self._store(self.floats, self.of_group(scale, words, self.of.words.scales, group), there)
        if low is not None:
            lows = self.into.ptr_add(there, read.scale_bytes)
            self._store(self.floats, self.low_of_group(low, words, group), lows)
        codes = self.into.ptr_add(there, read.head_bytes)
        for step, terms in enumerate(self.of.words.codes[group]):
            how = moved_up if self.of.is_nested else four_codes
            found = how(self.into, terms, self.lanes, partial(self.word, words, kind=self.bytes))
            self._store(self.bytes, found, self.into.ptr_add(codes, 4 * step * self.of.columns))

    def _store(self, kind: str, x: str, there: Ptr) -> None:
        self.into.emit(f"store {kind} {x}, ptr {there}, align 4")


class _Expand(Builder):
    """The function that expands blocks, one vector of columns after the other."""

    def __init__(self, of: BlockLayout, lanes: int) -> None:
        super().__init__()
        self.of, self.reader = of, BlockReader(self, of, lanes)

    def written(self) -> Function:
        of, read, lanes = self.of, self.of.expanded, self.reader.lanes
        vectors = of.columns // lanes
        share = of.block_bytes // vectors
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, of.block_bytes))
            expanded = self.ptr_add(Ptr("%expanded"), self.mul(block, of.groups * read.group_bytes))
            with self.loop(0, vectors) as vector:
                # With NEON the block that follows arrives while this one is multiplied; wide vectors multiply so fast
                # that all its lines at once would wait for each other, and products prefetch them.
                ahead = self.ptr_add(self.ptr_add(panel, of.block_bytes), self.mul(vector, share))
                lines = list(range(0, share, LINE)) if of.by_lane else []
                words = self.ptr_add(panel, self.add(self.mul(vector, 4 * lanes), of.head_bytes))
                target = self.ptr_add(expanded, self.mul(vector, 4 * lanes))
                scales = self.ptr_add(panel, self.mul(vector, lanes * of.scales.itemsize))
                scale = self.reader.block_scale(scales)
                low = self.reader.block_scale(self.ptr_add(scales, of.scale_bytes)) if read.has_low else None
                for group in range(of.groups):
                    for line in lines[group :: of.groups]:
                        self.prefetch(self.ptr_add(ahead, line))
                    self.reader.expand(group, words, scale, low, self.ptr_add(target, group * read.group_bytes))
        given = (Parameter("ptr", "panel"), Parameter("ptr", "expanded"), Parameter("i64", "blocks"))
        return self.function(Signature(f"expand.{of.name}.{of.columns}", given))


__all__ = ["BlockReader", "expand_function", "four_codes", "joined_bits", "moved_up"]
