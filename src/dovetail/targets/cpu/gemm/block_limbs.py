"""Rows of products with weights in blocks, as limbs: bytes that integer dot products multiply with codes.

A group of a row, as many numbers as share a scale of the weights, becomes integers times one scale. With three limbs
the integers have 22 bits and a power of two as scale: what that rounds is less than what f32 rounds in the sum. With
one limb they have 7 bits, which is the fast form. Limbs are signed bytes, lowest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.block_pack import BlockLayout
from dovetail.targets.cpu.gemm.policy import BLOCKS, Int8Tile

EXACT, FAST = 3, 1
"""Limbs."""
LOW_AT = 4
"""Bytes of a group of limbs before its sum, which the lows of the weights multiply; its scale is first."""
STARTS_AT = 16
"""Bytes of a group of limbs before what the sums of each run start with."""
MAGIC = 0x4B400000
"""The bits of 1.5 * 2^23 in f32: an integer below 2^22 that is added to them is added to the float."""


@dataclass(frozen=True, slots=True)
class BlockKernel:
    """What the code depends on."""

    layout: BlockLayout
    dot: Int8Tile
    limbs: int
    emulated: bool = False
    """Whether the dot instruction is spelled out in plain vector code."""

    @property
    def group(self) -> int:
        return self.layout.format.group

    @property
    def vectors(self) -> int:
        """Vectors of a panel's row."""
        return self.layout.columns // self.dot.lanes

    @property
    def cells(self) -> int:
        """Rows times vectors of columns whose sums are computed at once."""
        return BLOCKS.cells_fast if self.limbs == FAST else BLOCKS.cells

    @property
    def tiles(self) -> tuple[int, ...]:
        """Rows of tiles, most first: rows share unpacked codes, and little else."""
        most = self.cells if self.layout.is_narrow else self.cells // 2
        return tuple([1 << power for power in reversed(range(most.bit_length()))])

    @property
    def runs(self) -> tuple[tuple[int, ...], ...]:
        """Limbs whose sums are one integer, highest first: all of them, where the sum of a group fits 32 bits."""
        limbs = tuple(reversed(range(self.limbs)))
        return (limbs,) if self.limbs == 1 or self.layout.format.bits < 8 else (limbs[:1], limbs[1:])

    @property
    def starts_bytes(self) -> int:
        """Bytes of what a run starts with: a vector where a scalar would have to be broadcast by an instruction."""
        return 4 * self.dot.lanes if self.dot.by_lane else 4

    def start_at(self, run: int) -> int:
        """Bytes of a group before what a run starts with."""
        return STARTS_AT + run * self.starts_bytes

    @property
    def limbs_at(self) -> int:
        """Bytes of a group before its limbs: its scale, its sum, and what each run starts with."""
        return -(-self.start_at(len(self.runs)) // 16) * 16

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
    return shared_function(_Limbs(of).written())


def splat(value: str, count: int, kind: str) -> str:
    """A vector of equal numbers."""
    return f"<{', '.join([f'{kind} {value}'] * count)}>"


class _Limbs(Builder):
    """The function that turns a row into limbs, group by group."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__()
        self.of = of
        self.ints, self.floats = f"<{of.group} x i32>", f"<{of.group} x float>"

    def written(self) -> Function:
        of = self.of
        with self.loop(0, I64("%groups")) as group:
            source = self.ptr_add(Ptr("%x"), self.mul(group, 4 * of.group))
            target = self.ptr_add(Ptr("%limbs"), self.mul(group, of.group_bytes))
            x = self.let(f"load {self.floats}, ptr {source}, align 4")
            scale, inverse = self._exact_scale(x) if of.limbs > 1 else self._fast_scale(x)
            integers = self._integers(x, inverse)
            self._store(integers, scale, target)
        given = (Parameter("ptr", "x"), Parameter("ptr", "limbs"), Parameter("i64", "groups"))
        return self.function(Signature(f"limbs.{of.group}.{of.limbs}.{of.layout.zero}.{len(of.runs)}", given))

    def _reduced(self, how: str, x: str) -> str:
        name = f"llvm.vector.reduce.{how}.v{self.of.group}i32"
        self.use(f"declare i32 @{name}({self.ints})")
        return self.let(f"call i32 @{name}({self.ints} {x})")

    def _largest(self, x: str) -> str:
        """The bits of the largest magnitude; infinities and NaN are above all numbers."""
        bits = self.let(f"bitcast {self.floats} {x} to {self.ints}")
        mask = splat("2147483647", self.of.group, "i32")
        return self._reduced("umax", self.let(f"and {self.ints} {bits}, {mask}"))

    def _exact_scale(self, x: str) -> tuple[str, str]:
        """A power of two that leaves 22 bits, and its inverse; NaN where the group holds no finite number."""
        exponent = self.let(f"lshr i32 {self._largest(x)}, 23")
        odd = self.let(f"icmp eq i32 {exponent}, 255")
        low = self.let(f"icmp ult i32 {exponent}, 22")
        finite = self.let(f"select i1 {odd}, i32 254, i32 {exponent}")
        kept = self.let(f"select i1 {low}, i32 22, i32 {finite}")
        unit = self._power(self.let(f"sub i32 {kept}, 21"))
        scale = self.let(f"select i1 {odd}, float 0x7FF8000000000000, float {unit}")
        return scale, self._power(self.let(f"sub i32 275, {kept}"))

    def _power(self, exponent: str) -> str:
        return self.let(f"bitcast i32 {self.let(f'shl i32 {exponent}, 23')} to float")

    def _fast_scale(self, x: str) -> tuple[str, str]:
        """The scale that makes the largest magnitude 127, and its inverse."""
        bits = self._largest(x)
        odd = self.let(f"icmp uge i32 {bits}, 2139095040")
        # Below 2^-100 a group is 0: the inverse of its scale might not be finite.
        none = self.let(f"icmp ult i32 {bits}, {27 << 23}")
        largest = self.let(f"bitcast i32 {bits} to float")
        scale = self.let(f"fmul float {largest}, 0x3F80204080000000")
        inverse = self.let(f"fdiv float 127.0, {largest}")
        held = self.let(f"select i1 {none}, float 0.0, float {scale}")
        made = self.let(f"select i1 {none}, float 0.0, float {inverse}")
        return self.let(f"select i1 {odd}, float 0x7FF8000000000000, float {held}"), made

    def _integers(self, x: str, inverse: str) -> str:
        group = self.of.group
        one = self.let(f"insertelement {self.floats} poison, float {inverse}, i64 0")
        factor = self.let(f"shufflevector {self.floats} {one}, {self.floats} poison, <{group} x i32> zeroinitializer")
        scaled = self.let(f"fmul {self.floats} {x}, {factor}")
        for name, given, made in (
            (f"llvm.roundeven.v{group}f32", self.floats, self.floats),
            (f"llvm.fptosi.sat.v{group}i32.v{group}f32", self.floats, self.ints),
        ):
            self.use(f"declare {made} @{name}({given})")
            scaled = self.let(f"call {made} @{name}({given} {scaled})")
        return scaled

    def _store(self, integers: str, scale: str, target: Ptr) -> None:
        of = self.of
        self.emit(f"store float {scale}, ptr {target}, align 4")
        if of.layout.has_low:
            total = self.let(f"sitofp i32 {self._reduced('add', integers)} to float")
            there = self.ptr_add(target, LOW_AT)
            self.emit(f"store float {self.let(f'fmul float {total}, {scale}')}, ptr {there}, align 4")
        left = integers
        digits: list[str] = []
        for limb in range(of.limbs):
            digit = left
            if limb < of.limbs - 1:
                places, byte = splat("24", of.group, "i32"), splat("8", of.group, "i32")
                digit = self.let(f"ashr {self.ints} {self.let(f'shl {self.ints} {left}, {places}')}, {places}")
                left = self.let(f"ashr {self.ints} {self.let(f'sub {self.ints} {left}, {digit}')}, {byte}")
            digits.append(digit)
            small = self.let(f"trunc {self.ints} {digit} to <{of.group} x i8>")
            there = self.ptr_add(target, of.limbs_at + limb * of.group)
            self.emit(f"store <{of.group} x i8> {small}, ptr {there}, align 16")
        for number, run in enumerate(of.runs):
            self._store_start(run, digits, self.ptr_add(target, of.start_at(number)))

    def _store_start(self, run: tuple[int, ...], digits: list[str], there: Ptr) -> None:
        """What the sums of a run start with: what stored codes are above the codes counts less."""
        of = self.of
        start = str(MAGIC if len(run) == 1 else 0)
        if of.layout.zero:
            total = ""
            for limb in run:
                found = self._reduced("add", digits[limb])
                total = self.let(f"add i32 {self.let(f'shl i32 {total}, 8')}, {found}") if total else found
            start = self.let(f"add i32 {self.let(f'mul i32 {total}, {-of.layout.zero}')}, {start}")
        count = of.starts_bytes // 4
        one = self.let(f"insertelement <{count} x i32> poison, i32 {start}, i64 0")
        zeros = f"<{count} x i32> zeroinitializer"
        spread = self.let(f"shufflevector <{count} x i32> {one}, <{count} x i32> poison, {zeros}")
        self.emit(f"store <{count} x i32> {spread}, ptr {there}, align 4")


__all__ = [
    "EXACT", "FAST", "LOW_AT", "MAGIC", "STARTS_AT", "BlockKernel", "limbs_function", "splat",
]  # fmt: skip
