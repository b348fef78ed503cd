"""Packed panels as tiles of bf16, for products of many rows: [column / 16][k / 2][16][2].

A weight is computed in f32, and rounded once.
"""

from __future__ import annotations

from functools import cache, partial

from dovetail.codegen.llvm.amx import COLUMNS, ROW_BYTES, TileBuilder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr, Vec, VectorType
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout
from dovetail.targets.cpu.gemm.blocks.unpack import PackedBlockReader, joined_bits
from dovetail.targets.cpu.gemm.blocks.words import Term

_FLOATS = VectorType(COLUMNS, "float")
_PARAMETERS = (
    Parameter("ptr", "panel"),
    Parameter("ptr", "target"),
    Parameter("i64", "count"),
    Parameter("i64", "pitch"),
)


class _Blocks(TileBuilder):
    """The function that expands blocks, one vector of columns after the other."""

    def __init__(self, of: BlockLayout, *, emulated: bool) -> None:
        super().__init__(emulated=emulated)
        self.of, self.reader = of, PackedBlockReader(self, of, COLUMNS)

    def written(self) -> Function:
        of = self.of
        with self.loop(0, I64("%count")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, of.block_bytes))
            target = self.ptr_add(Ptr("%target"), self.mul(block, of.block // 2 * ROW_BYTES))
            with self.loop(0, of.columns // COLUMNS) as vector:
                self._block(panel, vector, self.ptr_add(target, self.mul(vector, I64("%pitch"))))
        return self.function(Signature(f"amx.{of.name}.{of.columns}", _PARAMETERS))

    def _block(self, panel: Ptr, vector: I64, target: Ptr) -> None:
        of = self.of
        words = self.ptr_add(panel, self.add(self.mul(vector, 4 * COLUMNS), of.head_bytes))
        scales = self.ptr_add(panel, self.mul(vector, COLUMNS * of.scales.itemsize))
        scale = self.reader.block_scale(scales)
        low = self.reader.block_scale(self.ptr_add(scales, of.scale_bytes)) if of.has_low else None
        for group in range(of.groups):
            factor = self.reader.of_group(scale, words, of.words.scales, group)
            added = self._added(factor, low, words, group)
            for step, terms in enumerate(of.words.codes[group]):
                four = [self._weight(words, terms, byte, factor, added) for byte in range(4)]
                row = of.block // of.groups // 2 * group + 2 * step
                for pair in range(2):
                    there = self.ptr_add(target, ROW_BYTES * (row + pair))
                    self.store_row(self.paired(*four[2 * pair : 2 * pair + 2]), there)

    def _added(self, factor: Vec, low: Vec | None, words: Ptr, group: int) -> Vec | None:
        """What is added to codes times their scale: lows, less what stored codes are above the codes."""
        of = self.of
        added = None if low is None else self.reader.low_of_group(low, words, group)
        if of.zero:
            # Exact: scales have few bits, and what codes are above is a power of two, or 7.
            above = self.lanewise("fmul", factor, float(-of.zero))
            added = above if added is None else self.fadd(added, above)
        return added

    def _weight(self, words: Ptr, terms: tuple[Term, ...], byte: int, factor: Vec, added: Vec | None) -> Vec:
        """The weights of a step along k: those of a byte of the words."""
        if len(terms) == 1:
            (term,) = terms
            moved = (Term(term.word, term.shift + 8 * byte, term.mask),)
            code = joined_bits(self, moved, partial(self.reader.word, words, kind=self.reader.ints))
        else:
            whole = self.bitcast(self.reader.codes(words, terms), "i32", COLUMNS)
            code = joined_bits(self, (Term(0, 8 * byte, 255),), lambda _: whole)
        number = self.convert("sitofp", code, "float")
        return self.fmul(number, factor) if added is None else self.fma(number, factor, added)


class _Halves(TileBuilder):
    """The function that does it with two steps along k of weights of two bytes at a time."""

    def __init__(self, name: str, columns: int, some: int, *, emulated: bool) -> None:
        super().__init__(emulated=emulated)
        self.name, self.columns, self.some = name, columns, some

    def written(self) -> Function:
        with self.loop(0, I64("%count")) as pair:
            panel = self.ptr_add(Ptr("%panel"), self.mul(pair, 4 * self.columns))
            target = self.ptr_add(Ptr("%target"), self.mul(pair, ROW_BYTES))
            for vector in range(self.some // COLUMNS):
                two = [self.ptr_add(panel, 2 * (self.columns * step + COLUMNS * vector)) for step in range(2)]
                self.store_row(self._two_steps(two), self.ptr_add(target, self.mul(I64("%pitch"), vector)))
        return self.function(Signature(f"amx.{self.name}.{self.columns}.{self.some}", _PARAMETERS))

    def _two_steps(self, two: list[Ptr]) -> str:
        if self.name == "bf16":
            return self.paired_halves(*[self.load_lanes(_FLOATS.of("i16"), at, 2) for at in two])
        steps = [self.load_lanes(_FLOATS.of("half"), at, 2) for at in two]
        return self.paired(*[self.convert("fpext", x, "float") for x in steps])


@cache
def blocks_function(of: BlockLayout, *, emulated: bool) -> tuple[SharedFunction, Signature]:
    """Expands `count` blocks of a panel to strips of 16 columns that are `pitch` bytes apart."""
    return shared_function(_Blocks(of, emulated=emulated).written())


@cache
def halves_function(name: str, columns: int, some: int, *, emulated: bool) -> tuple[SharedFunction, Signature]:
    """Expand `some` columns of a panel of two bytes for each weight, `count` pairs of steps along k of it."""
    return shared_function(_Halves(name, columns, some, emulated=emulated).written())


__all__ = ["blocks_function", "halves_function"]
