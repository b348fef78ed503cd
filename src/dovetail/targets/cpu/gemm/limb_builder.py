"""Vectors of numbers that become integers, and their limbs: bytes that integer dot products multiply."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import Ptr

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


__all__ = ["BIAS", "IN_REGISTER", "MAGIC", "LimbBuilder", "splat"]
