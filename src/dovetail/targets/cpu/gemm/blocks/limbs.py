"""Vectors of numbers that become integers, and their limbs: bytes that integer dot products multiply.

Rows of products with weights in blocks, as limbs: bytes that integer dot products multiply with codes.

A group of a row, as many numbers as share a scale of the weights, becomes integers times one scale. With three limbs
the integers have 22 bits and a power of two as scale: what that rounds is less than what f32 rounds in the sum. With
one limb they have 7 bits, which is the fast form. Limbs are signed bytes, lowest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.scalar import literal
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout
from dovetail.targets.cpu.gemm.blocks.words import LEVELS, NESTED
from dovetail.targets.cpu.gemm.policy import BLOCKS, Int8Tile

MAGIC = 0x4B400000
"""The bits of 1.5 * 2^23 in f32: an integer below 2^22 that is added to them is added to the float."""
BIAS = 3 << 22
"""That float."""
MOST_ADDED = 22
"""Bits of integers that can be added to it, without their sign."""
IN_REGISTER = {4: "w", 8: "x", 16: "v"}
"""What LLVM calls operands in registers of NEON, AVX2 and AVX-512, by lanes of 32 bits."""


def splat(value: str, count: int, kind: str) -> str:
    """A vector of equal numbers."""
    return f"<{', '.join([f'{kind} {value}'] * count)}>"


class LimbBuilder(Builder):
    """What functions that turn numbers into limbs share."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.ints, self.floats = f"<{count} x i32>", f"<{count} x float>"

    def reduced(self, how: str, x: str) -> str:
        name = f"llvm.vector.reduce.{how}.v{self.count}i32"
        self.use(f"declare i32 @{name}({self.ints})")
        return self.let(f"call i32 @{name}({self.ints} {x})")

    def largest(self, x: str) -> str:
        """The bits of the largest magnitude; infinities and NaN are above all numbers."""
        bits = self.let(f"bitcast {self.floats} {x} to {self.ints}")
        mask = splat("2147483647", self.count, "i32")
        return self.reduced("umax", self.let(f"and {self.ints} {bits}, {mask}"))

    def exact_scale(self, x: str, bits: int) -> tuple[str, str]:
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

    def times(self, x: str, factor: str) -> str:
        """Numbers times one."""
        one = self.let(f"insertelement {self.floats} poison, float {factor}, i64 0")
        lanes = f"<{self.count} x i32> zeroinitializer"
        return self.let(
            f"fmul {self.floats} {x}, {self.let(f'shufflevector {self.floats} {one}, {self.floats} poison, {lanes}')}"
        )

    def integers(self, x: str, bits: int) -> str:
        """Numbers below 2^`bits` rounded; where one is not finite they mean nothing."""
        count = self.count
        if bits <= MOST_ADDED:
            added = self.let(f"bitcast {self.floats} {self.biased(x)} to {self.ints}")
            return self.let(f"sub {self.ints} {added}, {splat(str(MAGIC), count, 'i32')}")
        for name, given, made in (
            (f"llvm.roundeven.v{count}f32", self.floats, self.floats),
            (f"llvm.fptosi.sat.v{count}i32.v{count}f32", self.floats, self.ints),
        ):
            self.use(f"declare {made} @{name}({given})")
            x = self.let(f"call {made} @{name}({given} {x})")
        return x

    def biased(self, x: str) -> str:
        """Numbers added to a float of 24 bits, which rounds them, and has them in its lowest bits."""
        return self.let(f"fadd {self.floats} {x}, {splat(f'{float(BIAS)}', self.count, 'float')}")

    def digits(self, integers: str, limbs: int, bits: int) -> Iterator[str]:
        """Limbs of integers, lowest first."""
        left = integers
        for limb in range(limbs):
            digit = left
            if limb < limbs - 1:
                places, byte = (
                    splat(f"{32 - bits}", self.count, "i32"),
                    splat(f"{bits}", self.count, "i32"),
                )
                digit = self.let(f"ashr {self.ints} {self.let(f'shl {self.ints} {left}, {places}')}, {places}")
                left = self.let(f"ashr {self.ints} {self.let(f'sub {self.ints} {left}, {digit}')}, {byte}")
            yield digit

    def store_bytes(self, digit: str, target: Ptr, offset: int) -> None:
        small = self.let(f"trunc {self.ints} {digit} to <{self.count} x i8>")
        there = self.ptr_add(target, offset)
        self.emit(f"store <{self.count} x i8> {small}, ptr {there}, align {min(self.count, 16)}")


EXACT, FAST = 3, 1
"""Limbs."""
DIGIT_BITS = 8
"""Of a limb."""
LOW_AT = 4
"""Bytes of a group of limbs before its sum, which the lows of the weights multiply; its scale is first."""
ABOVE = 2
"""Numbers of a group before 16 times its scale, where low halves and whole bytes have a sum each."""
NUMBERS_AT = 16
"""Bytes of a group of limbs before what its sums start with."""
MOST_NEXT_TO_EXPANDED = 4
"""Rows of a tile whose panel is expanded in L1, with NEON."""
TOGETHER = 2
"""Groups of a row that are written at once."""
LARGEST_SCALED = 127 + 109
"""The exponent from which on a row of one limb is too large where sums are scaled before that float is taken away."""


@dataclass(frozen=True, slots=True)
class BlockKernel:
    """What the code depends on."""

    packed: BlockLayout
    dot: Int8Tile
    limbs: int
    registers: int = 32
    emulated: bool = False
    """Whether the dot instruction is spelled out in plain vector code."""
    expands: bool = False
    """Whether blocks of one group are expanded, too."""

    @classmethod
    def of(cls, name: str, dot: Int8Tile, *, exact: bool, registers: int, emulated: bool = False) -> BlockKernel:
        """The kernel of a format on a device with a dot instruction."""
        columns = max(BLOCKS.columns // dot.lanes, BLOCKS.least_vectors) * dot.lanes
        is_nested = dot.by_lane and not exact and name in NESTED
        layout = BlockLayout(name, columns, dot.signed, by_lane=dot.by_lane, is_nested=is_nested)
        return cls(layout, dot, EXACT if exact else FAST, registers, emulated)

    @property
    def layout(self) -> BlockLayout:
        """Of the panels that rows are multiplied with."""
        return self.packed.expanded if self.expands else self.packed.read

    @property
    def for_many(self) -> BlockKernel:
        """The kernel of many rows: with NEON each tile would take a tenth of its time to unpack codes of few bits."""
        expands = self.dot.by_lane and self.packed.is_narrow and self.packed.groups == 1
        return replace(self, expands=True) if expands else self

    @property
    def magnitude(self) -> int:
        """The exponent of the largest integers of several limbs; the highest limb is at most 64."""
        return min(DIGIT_BITS * (self.limbs - 1) + 5, 23)

    @property
    def group(self) -> int:
        return self.layout.format.group

    @property
    def is_nested(self) -> bool:
        """Whether codes in the low halves of bytes count 16 times what whole bytes do."""
        return self.layout.is_nested

    @property
    def starts(self) -> int:
        """Numbers that sums of a group start with: of each limb, or of one row and of several."""
        return 2 if self.is_nested else self.limbs

    @property
    def lows_apart(self) -> bool:
        """Whether what blocks subtract is added once their products are."""
        return self.packed.has_low and not self.layout.has_low

    @property
    def sums_apart(self) -> bool:
        """Whether one row has a sum for low halves of bytes and one for whole bytes, and takes away lows itself."""
        return self.is_nested and self.lows_apart

    @property
    def prefetches_packed(self) -> bool:
        """Whether products with expanded blocks prefetch packed ones: memory would wait while they are multiplied."""
        return self.layout.is_expanded and not self.dot.by_lane

    @property
    def vectors(self) -> int:
        """Vectors of a panel's row."""
        return self.layout.columns // self.dot.lanes

    @property
    def cells(self) -> int:
        """Rows times vectors of columns whose sums are computed at once."""
        if self.fills_registers:
            return BLOCKS.most_cells
        # Products that are added by an instruction of their own wait in registers.
        each = BLOCKS.registers * (1 + (self.dot.pairs is not None))
        return max(1, self.registers // each) * (2 if self.limbs == FAST else 1)

    @property
    def fills_registers(self) -> bool:
        """Whether sums of exact mode take three quarters of the registers: limbs are broadcast once for two vectors."""
        adds = not self.dot.by_lane and self.dot.pairs is None
        return adds and self.limbs == EXACT and self.registers >= 4 * BLOCKS.most_cells

    @property
    def tiles(self) -> tuple[int, ...]:
        """Rows of tiles, most first: rows share unpacked codes, and with NEON a tile of one vector is in order.

        Codes of a byte need no unpacking, and tiles of half the rows have more vectors.
        """
        shares = (self.packed.is_narrow or self.dot.by_lane) and not self.fills_registers
        most = self.cells if shares else max(1, self.cells // 2)
        return tuple([1 << power for power in reversed(range(most.bit_length()))])

    @property
    def many_tiles(self) -> tuple[int, ...]:
        """The same for many rows: where limbs are broadcast from memory, vectors of a tile share these loads.

        With NEON rows of a tile, and of the next, are in L1 next to what is expanded there, so that they are few.
        """
        most = self.tiles[0]
        if self.dot.by_lane and self.layout.is_expanded:
            most = min(most, MOST_NEXT_TO_EXPANDED)
        elif not self.dot.by_lane and self.limbs != FAST and self.cells >= 4:
            most = min(most, self.cells // 2)
        return tuple([rows for rows in self.tiles if rows <= most])

    @property
    def reads_once(self) -> int:
        """Rows that read a panel once, so that no part of it has to stay in L1: those of a tile with all its vectors.

        Expanded blocks have no room for more than a part, and with NEON rows go over a panel several times.
        """
        return 0 if self.dot.by_lane or self.layout.is_expanded else self.rows_of_all_vectors

    @property
    def rows_of_all_vectors(self) -> int:
        """Rows of the largest tile that has all vectors of a panel."""
        return self.cells // self.vectors

    @property
    def number_bytes(self) -> int:
        """Bytes of a number that others are added to: a vector where an instruction would have to broadcast it."""
        return 4 * self.dot.lanes if self.dot.by_lane else 4

    def start_at(self, limb: int) -> int:
        """Bytes of a group before what the sums of a limb start with, or those of one row and of several."""
        return NUMBERS_AT + limb * self.number_bytes

    @property
    def joined_at(self) -> int | None:
        """Bytes of a group before minus what sums of all limbs are too large by; None where it is a constant."""
        return self.start_at(self.starts) if self.dot.by_lane else None

    @property
    def alone_at(self) -> int:
        """The same of one row with two sums."""
        return self.start_at(self.starts + 1)

    @property
    def sums_are_scaled(self) -> bool:
        """Whether that is for sums times the group's scale: one instruction scales them and takes it away."""
        return self.dot.by_lane and self.limbs == FAST

    @property
    def bias(self) -> float:
        """What sums of all limbs, taken as floats, are too large by."""
        return float(BIAS * sum([self.place(limb) for limb in range(self.limbs)]))

    @property
    def limbs_at(self) -> int:
        """Bytes of a group before its limbs: its scale, its sum, and what sums start and end with."""
        count = self.starts + (self.joined_at is not None) + self.sums_apart
        return -(-self.start_at(count) // 16) * 16

    def place(self, limb: int) -> int:
        """What one of a limb counts."""
        return 1 << DIGIT_BITS * limb

    @property
    def group_bytes(self) -> int:
        """Bytes of a group of a row once it is limbs."""
        return self.limbs_at + self.limbs * self.group

    @property
    def name(self) -> str:
        return f"blocks.{self.layout.name}.{self.layout.columns}.{self.limbs}"


@cache
def limbs_function(of: BlockKernel) -> tuple[SharedFunction, Signature]:
    """Writes a row of f32 as limbs: `(x, limbs, groups)`."""
    return shared_function((_NestedRow if of.is_nested else _Row)(of).written())


class Limbs(LimbBuilder):
    """What functions that turn groups of a kernel into limbs share."""

    def __init__(self, of: BlockKernel, count: int) -> None:
        super().__init__(count)
        self.of = of


class _Row(Limbs):
    """The function that turns a row into limbs, group by group."""

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
                for i, x in enumerate([self.let(f"load {self.floats}, ptr {at}, align 4") for at in places]):
                    self.write(x, self.ptr_add(target, of.group_bytes * i))
        given = (Parameter("ptr", "x"), Parameter("ptr", "limbs"), Parameter("i64", "groups"))
        return self.function(Signature(f"limbs.{of.group}.{of.limbs}.{of.layout.zero}", given))

    def write(self, x: str, target: Ptr) -> None:
        """Write a group."""
        bits = self.of.magnitude
        scale, inverse = self.exact_scale(x, bits) if self.of.limbs > 1 else self.fast_scale(x, 127)
        self._store(self.integers(self.times(x, inverse), bits + 1), scale, target)

    def fast_scale(self, x: str, levels: int) -> tuple[str, str]:
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
        made = self.let(f"select i1 {none}, float 0.0, float {inverse}")
        return self.let(f"select i1 {odd}, float 0x7FF8000000000000, float {held}"), made

    def _store(self, integers: str, scale: str, target: Ptr) -> None:
        of = self.of
        self.emit(f"store float {scale}, ptr {target}, align 4")
        if of.packed.has_low:
            total = self.let(f"sitofp i32 {self.reduced('add', integers)} to float")
            there = self.ptr_add(target, LOW_AT)
            self.emit(f"store float {self.let(f'fmul float {total}, {scale}')}, ptr {there}, align 4")
        if of.joined_at is not None:
            above = f"{-of.bias}"
            if of.sums_are_scaled:
                above = self.let(f"fmul float {scale}, {above}")
            self.store_number("float", above, self.ptr_add(target, of.joined_at))
        for limb, digit in enumerate(self.digits(integers, of.limbs, DIGIT_BITS)):
            self.store_bytes(digit, target, of.limbs_at + limb * of.group)
            self._store_start(digit, self.ptr_add(target, of.start_at(limb)))

    def _store_start(self, digit: str, there: Ptr) -> None:
        """What the sums of a limb start with: what stored codes are above the codes counts less."""
        of = self.of
        start = str(MAGIC)
        if of.layout.zero:
            above = self.let(f"mul i32 {self.reduced('add', digit)}, {-of.layout.zero}")
            start = self.let(f"add i32 {above}, {MAGIC}")
        self.store_number("i32", start, there)

    def store_number(self, kind: str, number: str, there: Ptr) -> None:
        """A number that others are added to."""
        count = self.of.number_bytes // 4
        vector = f"<{count} x {kind}>"
        one = self.let(f"insertelement {vector} poison, {kind} {number}, i64 0")
        spread = self.let(f"shufflevector {vector} {one}, {vector} poison, <{count} x i32> zeroinitializer")
        self.emit(f"store {vector} {spread}, ptr {there}, align 4")


class _NestedRow(_Row):
    """The same where bytes have two codes: those of their high halves are the second half of a group."""

    def write(self, x: str, target: Ptr) -> None:
        of, zero = self.of, self.of.layout.zero
        whole, inverse = self.fast_scale(x, LEVELS)
        # Sums are 16 times the products.
        scale = self.let(f"fmul float {whole}, 0.0625")
        if of.sums_apart:
            scale = self._of_few_bits(scale)
        scaled = self.times(x, inverse)
        scaled = self.let(f"fsub {self.floats} {scaled}, {self._sixteenths(scaled)}")
        integers = self.integers(scaled, LEVELS.bit_length())
        low, high = (self._half(integers, half) for half in range(2))
        self.emit(f"store float {scale}, ptr {target}, align 4")
        if of.packed.has_low:
            total = self.let(f"sitofp i32 {_weighted(self, low, 16, high, 17)} to float")
            there = self.ptr_add(target, LOW_AT)
            self.emit(f"store float {self.let(f'fmul float {total}, {scale}')}, ptr {there}, align 4")
        assert of.joined_at is not None, "one instruction scales sums"
        # What stored codes are above the codes counts less, and what flipped bits take away counts more.
        missing = _weighted(self, low, -16 * zero, high, 16 * (8 - zero) - zero)
        # One row moves its sums of low halves up by four bits, with their start: what that loses is added last.
        kept = self.let(f"ashr i32 {missing}, 4")
        alone = self.let(f"add i32 {kept}, {MAGIC >> 4}")
        if of.sums_apart:
            # Or it has another for whole bytes, and what both are too large by is added first.
            alone = self.let(f"add i32 {missing}, {MAGIC}")
            many = self.let(f"fmul float {scale}, 16.0")
            self.emit(f"store float {many}, ptr {self.ptr_add(target, 4 * ABOVE)}, align 4")
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

    def _sixteenths(self, x: str) -> str:
        """A sixteenth of the second half, rounded to integers, in place of the first, and zeros after it."""
        count, biases = self.count // 2, splat(f"{float(BIAS)}", self.count, "float")
        floats = self.let(f"fsub {self.floats} {self.biased(x)}, {biases}")
        mask = ", ".join([f"i32 {min(i, count) + count}" for i in range(self.count)])
        moved = self.let(
            f"shufflevector {self.floats} {floats}, {self.floats} zeroinitializer, <{self.count} x i32> <{mask}>"
        )
        return self.let(f"fmul {self.floats} {moved}, {splat('0.0625', self.count, 'float')}")

    def _half(self, integers: str, half: int) -> str:
        """The sum of a half."""
        count = self.count // 2
        mask = ", ".join([f"i32 {half * count + i}" for i in range(count)])
        found = self.let(f"shufflevector {self.ints} {integers}, {self.ints} poison, <{count} x i32> <{mask}>")
        name = f"llvm.vector.reduce.add.v{count}i32"
        self.use(f"declare i32 @{name}(<{count} x i32>)")
        return self.let(f"call i32 @{name}(<{count} x i32> {found})")


def _weighted(into: Builder, x: str, one: int, y: str, other: int) -> str:
    """The sum of two numbers, each times one."""
    return into.let(f"add i32 {into.let(f'mul i32 {x}, {one}')}, {into.let(f'mul i32 {y}, {other}')}")


__all__ = [
    "ABOVE", "BIAS", "EXACT", "FAST", "IN_REGISTER", "LOW_AT", "MAGIC", "BlockKernel", "Limbs", "limbs_function",
    "splat",
]  # fmt: skip
