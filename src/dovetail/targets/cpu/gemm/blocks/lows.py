"""What blocks with two levels of lows subtract: integers of all groups of a block times the sums of a row in them.

Sums of a block's groups become limbs, as numbers of a row do, and integer dot products multiply them with the integers
of four groups at once. That is exact up to the conversion of the sum of a block. It is added once products are.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr, Vec
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.simd import zeros
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.builder import BlockBuilder
from dovetail.targets.cpu.gemm.blocks.kernel import EXACT, FAST, LOW_AT, BlockKernel
from dovetail.targets.cpu.gemm.blocks.limbs import LimbBuilder
from dovetail.targets.cpu.gemm.blocks.unpack import joined_bits
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
    return shared_function(_sums(of))


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


def _sums(of: BlockKernel) -> Function:
    """The function that turns sums of groups into limbs, block by block."""
    t = LimbBuilder(of, of.packed.groups)
    with t.loop(0, I64("%blocks")) as block:
        source = t.ptr_add(Ptr("%limbs"), t.mul(block, t.count * of.group_bytes))
        target = t.ptr_add(Ptr("%sums"), t.mul(block, sums_bytes(of)))
        x = "poison"
        for group in range(t.count):
            one = t.load_f32(t.ptr_add(source, group * of.group_bytes + LOW_AT))
            x = t.let(f"insertelement {t.floats} {x}, float {one}, i64 {group}")
        bits, sums = _BITS * (_limbs(of) - 1) + _TOP, Vec(x, t.floats)
        scale, inverse = t.exact_scale(sums, bits)
        # Lows are subtracted.
        t.emit(f"store float {t.let(f'fneg float {scale}')}, ptr {target}, align 4")
        integers = t.integers(t.times(sums, inverse), bits + 1)
        for limb, digit in enumerate(t.digits(integers, _limbs(of), _BITS)):
            t.store_bytes(digit, target, LIMBS_AT + limb * t.count)
    given = (Parameter("ptr", "limbs"), Parameter("ptr", "sums"), Parameter("i64", "blocks"))
    return t.function(Signature(f"{of.name}.sums", given))


class _Lows(BlockBuilder):
    """The function that takes lows away, a vector of columns of a block after the other."""

    def written(self) -> Function:
        of, packed, lanes = self.of, self.of.packed, self.of.dot.lanes
        quads = integer_quads(packed.words.lows)
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, packed.block_bytes))
            lows, words = self.ptr_add(panel, packed.scale_bytes), self.ptr_add(panel, packed.head_bytes)
            below = [self.scales(lows, vector, packed) for vector in range(of.vectors)]
            integers = [
                [joined_bits(self, terms, load) for terms in quads]
                for load in (self.words_at(self.ptr_add(words, 4 * lanes * vector)) for vector in range(of.vectors))
            ]
            x = self.ptr_add(Ptr("%limbs"), self.mul(block, sums_bytes(of)))
            with self.loop(0, I64("%rows")) as row:
                here = self.ptr_add(x, self.mul(row, I64("%pitch")))
                sums = self.ptr_add(Ptr("%sums"), self.mul(row, I64("%stride")))
                scale, factors = self.load_spread(self.floats, here), self._factors(here)
                for vector in range(of.vectors):
                    there = self.ptr_add(sums, 4 * lanes * vector)
                    scales = self.fmul(below[vector], scale)
                    held = self.load_lanes(self.floats, there)
                    self.store_lanes(self.fma(self._total(integers[vector], factors), scales, held), there)
        kinds = ("ptr limbs", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 blocks", "i64 rows")
        return self.function(Signature(f"{of.name}.lows", tuple([Parameter(*each.split()) for each in kinds])))

    def _factors(self, x: Ptr) -> list[Vec]:
        """Limbs of the sums of four groups, in all lanes; those of a limb follow each other."""
        found: list[Vec] = []
        for at in range(0, sums_bytes(self.of) - LIMBS_AT, 16):
            some = self.load_lanes(self.ints, self.ptr_add(x, LIMBS_AT + at), 16)
            found += [self.four_bytes(some, lane) for lane in range(4)]
        return found

    def _total(self, integers: list[Vec], factors: list[Vec]) -> Vec:
        """The integers of a block times the sums of its groups, from the highest limb down."""
        total, count = zeros(self.ints), len(integers)
        for limb in reversed(range(_limbs(self.of))):
            if total != "zeroinitializer":
                total = self.lanewise("shl", total, _BITS)
            for quad, four in enumerate(integers):
                total = self.dot(total, four, factors[limb * count + quad])
        return self.convert("sitofp", total, "float")


__all__ = ["LIMBS_AT", "integer_quads", "lows_function", "sums_bytes", "sums_function"]
