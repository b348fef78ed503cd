"""Packed panels as tiles of bf16, for products of many rows: [column / 16][k / 2][16][2].

A weight is computed in f32, and rounded once.
"""

from __future__ import annotations

from functools import cache, partial

from dovetail.codegen.llvm.amx import COLUMNS, ROW_BYTES, TileBuilder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.expand import BlockReader, four_codes, joined_bits
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout
from dovetail.targets.cpu.gemm.blocks.words import Term

_FLOATS, _WORDS, _BYTES = f"<{COLUMNS} x float>", f"<{COLUMNS} x i32>", f"<{4 * COLUMNS} x i8>"
_HALVES, _SHORTS = f"<{COLUMNS} x half>", f"<{COLUMNS} x i16>"
_GIVEN = (Parameter("ptr", "panel"), Parameter("ptr", "target"), Parameter("i64", "count"), Parameter("i64", "pitch"))


class _Blocks(TileBuilder):
    """The function that expands blocks, one vector of columns after the other."""

    def __init__(self, of: BlockLayout, *, emulated: bool) -> None:
        super().__init__(emulated=emulated)
        self.of, self.reader = of, BlockReader(self, of, COLUMNS)

    def written(self) -> Function:
        of = self.of
        with self.loop(0, I64("%count")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, of.block_bytes))
            target = self.ptr_add(Ptr("%target"), self.mul(block, of.block // 2 * ROW_BYTES))
            with self.loop(0, of.columns // COLUMNS) as vector:
                self._block(panel, vector, self.ptr_add(target, self.mul(vector, I64("%pitch"))))
        return self.function(Signature(f"amx.{of.name}.{of.columns}", _GIVEN))

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

    def _added(self, factor: str, low: str | None, words: Ptr, group: int) -> str | None:
        """What is added to codes times their scale: lows, less what stored codes are above the codes."""
        of = self.of
        added = None if low is None else self.reader.low_of_group(low, words, group)
        if of.zero:
            # Exact: scales have few bits, and what codes are above is a power of two, or 7.
            above = self.let(f"fmul {_FLOATS} {factor}, splat (float {float(-of.zero)})")
            added = above if added is None else self.let(f"fadd {_FLOATS} {added}, {above}")
        return added

    def _weight(self, words: Ptr, terms: tuple[Term, ...], byte: int, factor: str, added: str | None) -> str:
        """The weights of a step along k: those of a byte of the words."""
        if len(terms) == 1:
            (term,) = terms
            moved = (Term(term.word, term.shift + 8 * byte, term.mask),)
            code = joined_bits(self, moved, (COLUMNS, 32), partial(self.reader.word, words, kind=_WORDS))
        else:
            four = four_codes(self, terms, COLUMNS, partial(self.reader.word, words, kind=_BYTES))
            whole = (Term(0, 8 * byte, 255),)
            code = self.let(f"bitcast {_BYTES} {four} to {_WORDS}")
            code = joined_bits(self, whole, (COLUMNS, 32), lambda _, found=code: found)
        number = self.let(f"sitofp {_WORDS} {code} to {_FLOATS}")
        if added is None:
            return self.let(f"fmul {_FLOATS} {number}, {factor}")
        name = f"llvm.fma.v{COLUMNS}f32"
        self.use(f"declare {_FLOATS} @{name}({_FLOATS}, {_FLOATS}, {_FLOATS})")
        return self.let(f"call {_FLOATS} @{name}({_FLOATS} {number}, {_FLOATS} {factor}, {_FLOATS} {added})")


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
        return self.function(Signature(f"amx.{self.name}.{self.columns}.{self.some}", _GIVEN))

    def _two_steps(self, two: list[Ptr]) -> str:
        if self.name == "bf16":
            return self.paired_halves(*[self.let(f"load {_SHORTS}, ptr {at}, align 2") for at in two])
        found = [self.let(f"load {_HALVES}, ptr {at}, align 2") for at in two]
        return self.paired(*[self.let(f"fpext {_HALVES} {x} to {_FLOATS}") for x in found])


@cache
def blocks_function(of: BlockLayout, *, emulated: bool) -> tuple[SharedFunction, Signature]:
    """Expands `count` blocks of a panel to strips of 16 columns that are `pitch` bytes apart."""
    return shared_function(_Blocks(of, emulated=emulated).written())


@cache
def halves_function(name: str, columns: int, some: int, *, emulated: bool) -> tuple[SharedFunction, Signature]:
    """The same of `some` columns of a panel of two bytes for each weight, `count` pairs of steps along k of it."""
    return shared_function(_Halves(name, columns, some, emulated=emulated).written())


__all__ = ["blocks_function", "halves_function"]
