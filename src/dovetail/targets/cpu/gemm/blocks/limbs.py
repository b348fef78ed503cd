"""Rows of products with weights in blocks, as limbs: bytes that integer dot products multiply with codes.

A group of a row, as many numbers as share a scale of the weights, becomes integers times one scale. With three limbs
the integers have 22 bits and a power of two as scale: what that rounds is less than what f32 rounds in the sum. With
one limb they have 7 bits, which is the fast form. Limbs are signed bytes, lowest first.

What blocks with two levels of lows subtract are integers of all groups of a block times the sums of a row in them. Such
sums become limbs, too, and integer dot products multiply them with the integers of four groups at once. That is exact
up to the conversion of the sum of a block. It is added once products are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Literal

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr, Vec, VectorType
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.scalar import literal
from dovetail.codegen.llvm.simd import SimdBuilder, same, zeros
from dovetail.ir.dtype import f32
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.builder import BlockBuilder, parameters
from dovetail.targets.cpu.gemm.blocks.kernel import (
    ABOVE,
    BIAS,
    DIGIT_BITS,
    EXACT,
    FAST,
    LOW_AT,
    MAGIC,
    BlockKernel,
)
from dovetail.targets.cpu.gemm.blocks.unpack import joined_bits
from dovetail.targets.cpu.gemm.blocks.words import LEVELS, Integer, Term, in_byte

MOST_ADDED = 22
"""Bits of integers that can be added to that float, without their sign."""
TOGETHER = 2
"""Groups of a row that are written at once."""
LARGEST_SCALED = 127 + 109
"""The exponent from which on a row of one limb is too large where sums are scaled before that float is taken away."""
LIMBS_AT = 16
"""Bytes of the sums of a block before their limbs; minus their scale is first."""
_SUM_BITS, _TOP = 8, 5
"""Of a limb, and the exponent of the largest ones of the highest limb: sums of 16 products with 6 bits fit 32."""


@cache
def limbs_function(of: BlockKernel) -> tuple[SharedFunction, Signature]:
    """Writes a row of f32 as limbs: `(x, limbs, groups)`."""
    return shared_function((_NestedRow if of.is_nested else _Row)(of).written())


class LimbBuilder(SimdBuilder):
    """Shared code of functions that split numbers into limbs; scalars are spelled."""

    def __init__(self, of: BlockKernel, count: int) -> None:
        super().__init__()
        self.of, self.count, self.floats = of, count, VectorType(count, "float")

    def largest(self, x: Vec) -> str:
        """The bits of the largest magnitude; infinities and NaN are above all numbers."""
        return self.reduced("umax", self.lanewise("and", self.bitcast(x, "i32"), 2147483647))

    def exact_scale(self, x: Vec, bits: int) -> tuple[str, str]:
        """A power of two that leaves integers with some bits, and its inverse; NaN where a number is not finite."""
        exponent = self.let(f"lshr i32 {self.largest(x)}, 23")
        odd = self.let(f"icmp eq i32 {exponent}, 255")
        low = self.let(f"icmp ult i32 {exponent}, {bits + 1}")
        finite = self.let(f"select i1 {odd}, i32 254, i32 {exponent}")
        kept = self.let(f"select i1 {low}, i32 {bits + 1}, i32 {finite}")
        unit = self.power(self.let(f"sub i32 {kept}, {bits}"))
        scale = self.let(f"select i1 {odd}, float 0x7FF8000000000000, float {unit}")
        return scale, self.power(self.let(f"sub i32 {254 + bits}, {kept}"))

    def power(self, exponent: str) -> str:
        return self.let(f"bitcast i32 {self.let(f'shl i32 {exponent}, 23')} to float")

    def times(self, x: Vec, factor: str) -> Vec:
        """Numbers times one."""
        return self.fmul(x, self.spread(factor, self.floats))

    def integers(self, x: Vec, bits: int) -> Vec:
        """Numbers below 2^`bits` rounded; where one is not finite they mean nothing."""
        if bits <= MOST_ADDED:
            return self.lanewise("sub", self.bitcast(self.biased(x), "i32"), MAGIC)
        to = self.floats.of("i32")
        rounded = self.intrinsic("roundeven", x)
        return self.instruction(f"llvm.fptosi.sat.{to.mangled}.{self.floats.mangled}", to, rounded)

    def biased(self, x: Vec) -> Vec:
        """Numbers added to a float of 24 bits, which rounds them, and has them in its lowest bits."""
        return self.fadd(x, same(self.floats, float(BIAS)))

    def digits(self, integers: Vec, limbs: int, bits: int) -> Iterator[Vec]:
        """Limbs of integers, lowest first."""
        left = integers
        for limb in range(limbs):
            digit = left
            if limb < limbs - 1:
                digit = self.lanewise("ashr", self.lanewise("shl", left, 32 - bits), 32 - bits)
                left = self.lanewise("ashr", self.lanewise("sub", left, digit), bits)
            yield digit

    def store_bytes(self, digit: Vec, target: Ptr, offset: int) -> None:
        small = self.convert("trunc", digit, "i8")
        self.store_lanes(small, self.ptr_add(target, offset), min(self.count, 16))


class _Row(LimbBuilder):
    """The function that splits a row into limbs, group by group."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of, of.group)

    def written(self) -> Function:
        of = self.of
        # Each step of a group waits for the one before: groups that are written at once do not wait for each other.
        together = self.mul(self.udiv(I64("%groups"), TOGETHER), TOGETHER)
        for first, end, step in ((0, together, TOGETHER), (together, I64("%groups"), 1)):
            with self.loop(first, end, step=step) as group:
                source = self.ptr_add(Ptr("%x"), self.mul(group, 4 * of.group))
                target = self.ptr_add(Ptr("%limbs"), self.mul(group, of.group_bytes))
                places = [self.ptr_add(source, 4 * of.group * i) for i in range(step)]
                for i, x in enumerate([self.load_lanes(self.floats, at) for at in places]):
                    self.write(x, self.ptr_add(target, of.group_bytes * i))
        parameters = (Parameter("ptr", "x"), Parameter("ptr", "limbs"), Parameter("i64", "groups"))
        return self.function(Signature(f"limbs.{of.group}.{of.limbs}.{of.layout.zero}", parameters))

    def write(self, x: Vec, target: Ptr) -> None:
        """Write a group."""
        bits = self.of.magnitude
        scale, inverse = self.exact_scale(x, bits) if self.of.limbs > 1 else self.fast_scale(x, 127)
        self._store(self.integers(self.times(x, inverse), bits + 1), scale, target)

    def fast_scale(self, x: Vec, levels: int) -> tuple[str, str]:
        """The scale that makes the largest magnitude `levels`, and its inverse; NaN where a number is too large."""
        bits = self.largest(x)
        # Sums that are scaled with what they are too large by must be finite.
        most = LARGEST_SCALED if self.of.sums_are_scaled else 255
        odd = self.let(f"icmp uge i32 {bits}, {most << 23}")
        # Below 2^-100 a group is 0: the inverse of its scale might not be finite.
        none = self.let(f"icmp ult i32 {bits}, {27 << 23}")
        largest = self.let(f"bitcast i32 {bits} to float")
        scale = self.let(f"fmul float {largest}, {literal(1.0 / levels, f32)}")
        inverse = self.let(f"fdiv float {float(levels)}, {largest}")
        held = self.let(f"select i1 {none}, float 0.0, float {scale}")
        factor = self.let(f"select i1 {none}, float 0.0, float {inverse}")
        return self.let(f"select i1 {odd}, float 0x7FF8000000000000, float {held}"), factor

    def store_scalar(self, kind: str, x: str, there: Ptr) -> None:
        self.emit(f"store {kind} {x}, ptr {there}, align 4")

    def store_total(self, total: str, scale: str, target: Ptr) -> None:
        """Write the sum of a group, which is an integer, in f32."""
        number = self.let(f"sitofp i32 {total} to float")
        there = self.ptr_add(target, LOW_AT)
        self.store_scalar("float", self.let(f"fmul float {number}, {scale}"), there)

    def _store(self, integers: Vec, scale: str, target: Ptr) -> None:
        of = self.of
        self.store_scalar("float", scale, target)
        if of.packed.has_low:
            self.store_total(self.reduced("add", integers), scale, target)
        if of.joined_at is not None:
            above = f"{-of.bias}"
            if of.sums_are_scaled:
                above = self.let(f"fmul float {scale}, {above}")
            self.store_number("float", above, self.ptr_add(target, of.joined_at))
        for limb, digit in enumerate(self.digits(integers, of.limbs, DIGIT_BITS)):
            self.store_bytes(digit, target, of.limbs_at + limb * of.group)
            self._store_start(digit, self.ptr_add(target, of.start_at(limb)))

    def _store_start(self, digit: Vec, there: Ptr) -> None:
        """Store the initial accumulator of a limb: what stored codes are above the codes counts less."""
        of = self.of
        start = str(MAGIC)
        if of.layout.zero:
            above = self.let(f"mul i32 {self.reduced('add', digit)}, {-of.layout.zero}")
            start = self.let(f"add i32 {above}, {MAGIC}")
        self.store_number("i32", start, there)

    def store_number(self, kind: Literal["float", "i32"], number: str, there: Ptr) -> None:
        """A number that others are added to."""
        self.store_lanes(self.spread(number, VectorType(self.of.number_bytes // 4, kind)), there)


class _NestedRow(_Row):
    """The function for bytes that have two codes: those of their high halves are the second half of a group."""

    def write(self, x: Vec, target: Ptr) -> None:
        of, zero = self.of, self.of.layout.zero
        whole, inverse = self.fast_scale(x, LEVELS)
        # Sums are 16 times the products.
        scale = self.let(f"fmul float {whole}, 0.0625")
        if of.sums_apart:
            scale = self._of_few_bits(scale)
        scaled = self.times(x, inverse)
        scaled = self.fsub(scaled, self._sixteenths(scaled))
        integers = self.integers(scaled, LEVELS.bit_length())
        half = self.count // 2
        low, high = (self.reduced("add", self.some_lanes(integers, range(n, n + half))) for n in (0, half))
        self.store_scalar("float", scale, target)
        if of.packed.has_low:
            self.store_total(self._weighted(low, 16, high, 17), scale, target)
        assert of.joined_at is not None, "one instruction scales sums"
        # What stored codes are above the codes counts less, and what flipped bits take away counts more.
        missing = self._weighted(low, -16 * zero, high, 16 * (8 - zero) - zero)
        # One row moves its sums of low halves up by four bits, with their start: what that loses is added last.
        kept = self.let(f"ashr i32 {missing}, 4")
        alone = self.let(f"add i32 {kept}, {MAGIC >> 4}")
        if of.sums_apart:
            # Or it has another for whole bytes, and what both are too large by is added first.
            alone = self.let(f"add i32 {missing}, {MAGIC}")
            many = self.let(f"fmul float {scale}, 16.0")
            self.store_scalar("float", many, self.ptr_add(target, 4 * ABOVE))
            above = self.let(f"fmul float {scale}, {-17.0 * BIAS}")
            self.store_number("float", above, self.ptr_add(target, of.alone_at))
        self.store_number("i32", alone, self.ptr_add(target, of.start_at(0)))
        lost = self.let(f"sitofp i32 {self.let(f'and i32 {missing}, 15')} to float")
        last = self.let(f"fsub float {lost}, {of.bias}")
        # Several rows share codes that are moved up, less 8.
        start = self.let(f"add i32 {self.let(f'shl i32 {kept}, 4')}, {MAGIC}")
        start = self.let(f"add i32 {start}, {self.let(f'shl i32 {low}, 7')}")
        self.store_number("i32", start, self.ptr_add(target, of.start_at(1)))
        self.store_number("float", self.let(f"fmul float {scale}, {last}"), self.ptr_add(target, of.joined_at))
        self.store_bytes(integers, target, of.limbs_at)

    def _of_few_bits(self, scale: str) -> str:
        """A scale rounded to 16 bits: what sums are too large by, times it, is exact in f32."""
        bits = self.let(f"add i32 {self.let(f'bitcast float {scale} to i32')}, 128")
        return self.let(f"bitcast i32 {self.let(f'and i32 {bits}, -256')} to float")

    def _sixteenths(self, x: Vec) -> Vec:
        """A sixteenth of the second half, rounded to integers, in place of the first, and zeros after it."""
        half = self.count // 2
        rounded = self.fsub(self.biased(x), same(self.floats, float(BIAS)))
        moved = self.shuffle(rounded, zeros(self.floats), [min(i, half) + half for i in range(self.count)])
        return self.lanewise("fmul", moved, 0.0625)

    def _weighted(self, x: str, one: int, y: str, other: int) -> str:
        """The sum of two integers, each times one."""
        return self.let(f"add i32 {self.let(f'mul i32 {x}, {one}')}, {self.let(f'mul i32 {y}, {other}')}")


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
    terms_at = [in_byte(integer) for integer in of]
    assert [place for place, _ in terms_at] == [group % 4 for group in range(len(of))], "four are the bytes of a word"
    quads = [[terms for _, terms in terms_at[first : first + 4]] for first in range(0, len(of), 4)]
    assert all(terms == four[0] for four in quads for terms in four), "four are at the same place of bytes"
    return [four[0] for four in quads]


def _sums(of: BlockKernel) -> Function:
    """The function that splits sums of groups into limbs, block by block."""
    t = LimbBuilder(of, of.packed.groups)
    with t.loop(0, I64("%blocks")) as block:
        source = t.ptr_add(Ptr("%limbs"), t.mul(block, t.count * of.group_bytes))
        target = t.ptr_add(Ptr("%sums"), t.mul(block, sums_bytes(of)))
        x = "poison"
        for group in range(t.count):
            one = t.load_f32(t.ptr_add(source, group * of.group_bytes + LOW_AT))
            x = t.let(f"insertelement {t.floats} {x}, float {one}, i64 {group}")
        bits, sums = _SUM_BITS * (_limbs(of) - 1) + _TOP, Vec(x, t.floats)
        scale, inverse = t.exact_scale(sums, bits)
        # Lows are subtracted.
        t.emit(f"store float {t.let(f'fneg float {scale}')}, ptr {target}, align 4")
        integers = t.integers(t.times(sums, inverse), bits + 1)
        for limb, digit in enumerate(t.digits(integers, _limbs(of), _SUM_BITS)):
            t.store_bytes(digit, target, LIMBS_AT + limb * t.count)
    parameters = (Parameter("ptr", "limbs"), Parameter("ptr", "sums"), Parameter("i64", "blocks"))
    return t.function(Signature(f"{of.name}.sums", parameters))


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
        return self.function(Signature(f"{of.name}.lows", parameters(*kinds)))

    def _factors(self, x: Ptr) -> list[Vec]:
        """Limbs of the sums of four groups, in all lanes; those of a limb follow each other."""
        factors: list[Vec] = []
        for at in range(0, sums_bytes(self.of) - LIMBS_AT, 16):
            some = self.load_lanes(self.ints, self.ptr_add(x, LIMBS_AT + at), 16)
            factors += [self.four_bytes(some, lane) for lane in range(4)]
        return factors

    def _total(self, integers: list[Vec], factors: list[Vec]) -> Vec:
        """The integers of a block times the sums of its groups, from the highest limb down."""
        total, count = zeros(self.ints), len(integers)
        for limb in reversed(range(_limbs(self.of))):
            if total != "zeroinitializer":
                total = self.lanewise("shl", total, _SUM_BITS)
            for quad, four in enumerate(integers):
                total = self.dot(total, four, factors[limb * count + quad])
        return self.convert("sitofp", total, "float")


__all__ = ["LIMBS_AT", "integer_quads", "limbs_function", "lows_function", "sums_bytes", "sums_function"]
