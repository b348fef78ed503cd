"""What blocks with two levels of lows subtract: integers of all groups of a block times the sums of a row in them.

Sums of a block's groups become limbs, as numbers of a row do, and integer dot products multiply them with the integers
of four groups at once. That is exact up to the conversion of the sum of a block. It is added once products are.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.expand import four_codes
from dovetail.targets.cpu.gemm.blocks.limbs import EXACT, FAST, LOW_AT, BlockKernel, Limbs, splat
from dovetail.targets.cpu.gemm.blocks.rows import Rows
from dovetail.targets.cpu.gemm.blocks.words import Integer, Term, in_byte

LIMBS_AT = 16
"""Bytes of the sums of a block before their limbs; minus their scale is first."""
_BITS, _TOP = 8, 5
"""Of a limb, and the exponent of the largest ones of the highest limb: sums of 16 products with 6 bits fit 32."""


def _limbs(of: BlockKernel) -> int:
    """Of a sum: rows of one limb have sums with few bits, too."""
    return EXACT if of.limbs > FAST else EXACT - 1


def sums_bytes(of: BlockKernel) -> int:
    """Bytes of the sums of a row in the groups of a block, as limbs."""
    return LIMBS_AT + -(-_limbs(of) * of.packed.groups // 16) * 16


@cache
def sums_function(of: BlockKernel) -> tuple[SharedFunction, Signature]:
    """Writes the sums of a row's groups as limbs: `(limbs, sums, blocks)`, the row's own limbs first."""
    return shared_function(_Sums(of).written())


@cache
def lows_function(of: BlockKernel) -> tuple[SharedFunction, Signature]:
    """Takes lows of a panel away: `(limbs, pitch, panel, sums, stride, blocks, rows)`, with sums as limbs."""
    return shared_function(_Lows(of).written())


def integer_quads(of: tuple[Integer, ...]) -> list[tuple[Term, ...]]:
    """Where the integers of four groups each are: in order in the bytes of words."""
    found = [in_byte(integer) for integer in of]
    assert [place for place, _ in found] == [group % 4 for group in range(len(of))], "four are the bytes of a word"
    quads = [[terms for _, terms in found[first : first + 4]] for first in range(0, len(of), 4)]
    assert all(terms == four[0] for four in quads for terms in four), "four are at the same place of bytes"
    return [four[0] for four in quads]


class _Sums(Limbs):
    """The function that turns sums of groups into limbs, block by block."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of, of.packed.groups)

    def written(self) -> Function:
        of = self.of
        with self.loop(0, I64("%blocks")) as block:
            source = self.ptr_add(Ptr("%limbs"), self.mul(block, self.count * of.group_bytes))
            target = self.ptr_add(Ptr("%sums"), self.mul(block, sums_bytes(of)))
            x = "poison"
            for group in range(self.count):
                at = self.ptr_add(source, group * of.group_bytes + LOW_AT)
                one = self.let(f"load float, ptr {at}, align 4")
                x = self.let(f"insertelement {self.floats} {x}, float {one}, i64 {group}")
            bits = _BITS * (_limbs(of) - 1) + _TOP
            scale, inverse = self.exact_scale(x, bits)
            # Lows are subtracted.
            self.emit(f"store float {self.let(f'fneg float {scale}')}, ptr {target}, align 4")
            integers = self.integers(self.times(x, inverse), bits + 1)
            for limb, digit in enumerate(self.digits(integers, _limbs(of), _BITS)):
                self.store_bytes(digit, target, LIMBS_AT + limb * self.count)
        given = (Parameter("ptr", "limbs"), Parameter("ptr", "sums"), Parameter("i64", "blocks"))
        return self.function(Signature(f"{of.name}.sums", given))


class _Lows(Rows):
    """The function that takes lows away, a vector of columns of a block after the other."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of, 1)
        self.quads = integer_quads(of.packed.words.lows)

    def written(self) -> Function:
        of, packed, lanes = self.of, self.of.packed, self.of.dot.lanes
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, packed.block_bytes))
            lows, words = self.ptr_add(panel, packed.scale_bytes), self.ptr_add(panel, packed.head_bytes)
            below = [self.scales(lows, vector, packed) for vector in range(of.vectors)]
            integers = [self._integers(self.ptr_add(words, 4 * lanes * vector)) for vector in range(of.vectors)]
            x = self.ptr_add(Ptr("%limbs"), self.mul(block, sums_bytes(of)))
            with self.loop(0, I64("%rows")) as row:
                here = self.ptr_add(x, self.mul(row, I64("%pitch")))
                sums = self.ptr_add(Ptr("%sums"), self.mul(row, I64("%stride")))
                scale, factors = self.load_splat(here, "float", self.floats), self._factors(here)
                for vector in range(of.vectors):
                    there = self.ptr_add(sums, 4 * lanes * vector)
                    scales = self.let(f"fmul {self.floats} {below[vector]}, {scale}")
                    held = self.let(f"load {self.floats}, ptr {there}, align 4")
                    found = self.fma(self._total(integers[vector], factors), scales, held)
                    self.emit(f"store {self.floats} {found}, ptr {there}, align 4")
        kinds = ("ptr limbs", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 blocks", "i64 rows")
        return self.function(Signature(f"{of.name}.lows", tuple([Parameter(*each.split()) for each in kinds])))

    def _integers(self, words: Ptr) -> list[str]:
        """Those of four groups each, of some columns."""

        def load(word: int) -> str:
            return self.let(f"load {self.raw}, ptr {self.ptr_add(words, 4 * word * self.of.packed.columns)}, align 16")

        return [four_codes(self, terms, self.of.dot.lanes, load) for terms in self.quads]

    def _factors(self, x: Ptr) -> list[str]:
        """Limbs of the sums of four groups, in all lanes; those of a limb follow each other."""
        lanes, found = self.of.dot.lanes, list[str]()
        for at in range(0, sums_bytes(self.of) - LIMBS_AT, 16):
            some = self.let(f"load {self.ints}, ptr {self.ptr_add(x, LIMBS_AT + at)}, align 16")
            for lane in range(4):
                mask = splat(str(lane), lanes, "i32")
                four = self.let(f"shufflevector {self.ints} {some}, {self.ints} poison, <{lanes} x i32> {mask}")
                found.append(self.let(f"bitcast {self.ints} {four} to {self.raw}"))
        return found

    def _total(self, integers: list[str], factors: list[str]) -> str:
        """The integers of a block times the sums of its groups, from the highest limb down."""
        total, count = "zeroinitializer", len(integers)
        for limb in reversed(range(_limbs(self.of))):
            if total != "zeroinitializer":
                total = self.let(f"shl {self.ints} {total}, {splat(str(_BITS), self.of.dot.lanes, 'i32')}")
            for quad, four in enumerate(integers):
                total = self.dot(total, four, factors[limb * count + quad])
        return self.let(f"sitofp {self.ints} {total} to {self.floats}")


__all__ = ["LIMBS_AT", "integer_quads", "lows_function", "sums_bytes", "sums_function"]
