"""Codes of packed blocks as floats, for products with weights in blocks in f32, and what such a kernel depends on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.scalar import literal
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.gemm.block_expand import BlockReader, four_codes
from dovetail.targets.cpu.gemm.block_pack import BlockLayout
from dovetail.targets.cpu.gemm.block_words import Term
from dovetail.targets.cpu.gemm.float_policy import FLOATS
from dovetail.targets.cpu.gemm.limb_builder import IN_REGISTER, splat

_SUM_BYTES = 16
"""Bytes of a group of a row before its numbers, where their sum is first: lows of the weights multiply it."""
_MOST = 127
"""The largest code of a byte without a sign."""
_TABLE = 16
"""Floats that one instruction takes out of a register with AVX-512: those of codes of up to four bits."""

Code = Callable[[int], str]
"""The code of some columns, as floats, in one of four steps along k."""


@dataclass(frozen=True, slots=True)
class FloatKernel:
    """What the code depends on."""

    packed: BlockLayout
    lanes: int
    registers: int
    in_register: str
    """What LLVM calls an operand in a vector register; empty where instructions are emulated, and in any order."""

    @classmethod
    def of(cls, name: str, device: CpuDevice) -> FloatKernel:
        """The kernel of a format on a device."""
        lanes = device.lanes
        layout = BlockLayout(name, FLOATS.vectors * lanes, is_signed=True)
        return cls(layout, lanes, device.registers, "" if device.emulated else IN_REGISTER[lanes])

    @property
    def has_tables(self) -> bool:
        """Whether an instruction takes floats out of a table of 16."""
        return self.in_register == IN_REGISTER[_TABLE]

    @property
    def has_low(self) -> bool:
        return self.packed.has_low

    @property
    def group(self) -> int:
        """Codes that share a scale."""
        return self.packed.format.group

    @property
    def sum_bytes(self) -> int:
        """Bytes of a group of a row before its numbers."""
        return _SUM_BYTES if self.has_low else 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a group of a row."""
        return self.sum_bytes + 4 * self.group

    @property
    def head_bytes(self) -> int:
        """Bytes of scales and lows of a spelled group."""
        return 4 * self.packed.columns * (1 + self.has_low)

    @property
    def spelled_bytes(self) -> int:
        """Bytes of a group of a panel whose codes are floats."""
        return self.head_bytes + 4 * self.packed.columns * self.group

    @property
    def vectors(self) -> int:
        """Vectors of a panel's row."""
        return self.packed.columns // self.lanes

    @property
    def width(self) -> int:
        """Vectors whose sums several rows compute at once."""
        return self.vectors if self.registers >= FLOATS.many_registers else max(1, self.vectors // 2)

    def piece(self, room: int) -> int:
        """Groups of a block that are spelled out at once: a divisor of all, in some bytes where that is possible."""
        fitting = max(1, room // self.spelled_bytes)
        return max(
            count for count in range(1, self.packed.groups + 1) if self.packed.groups % count == 0 and count <= fitting
        )

    @property
    def pace(self) -> int:
        """Bytes of packed blocks for each group of a panel."""
        return self.packed.block_bytes // self.packed.groups


class Codes(Builder):
    """A function that reads packed blocks as floats."""

    def __init__(self, kernel: FloatKernel) -> None:
        super().__init__()
        self.kernel, self.of, self.lanes = kernel, kernel.packed, kernel.lanes
        self.reader = BlockReader(self, self.of, self.lanes)
        self.ints, self.floats, self.bytes = self.reader.ints, self.reader.floats, self.reader.bytes

    def codes(self, words: Ptr, terms: tuple[Term, ...]) -> Code:
        """The codes of some columns in four steps along k."""
        (first, *others) = terms
        if self.kernel.has_tables and not others and first.mask < _TABLE and first.shift >= 0:
            return partial(self._looked_up, words, first)
        four = four_codes(self, terms, self.lanes, partial(self.reader.word, words, kind=self.bytes))
        if self.of.zero:
            four = self.let(f"sub {self.bytes} {four}, {splat(str(self.of.zero), 4 * self.lanes, 'i8')}")
        whole = self.let(f"bitcast {self.bytes} {four} to {self.ints}")
        has_sign = self.of.zero > 0 or sum([term.mask for term in terms]) > _MOST
        return partial(self._extended, whole, has_sign=has_sign)

    def after(self, pointer: Ptr, sums: str) -> Ptr:
        """The same pointer, which LLVM believes to depend on sums: it would load much at once, and spill it."""
        how = self.kernel.in_register
        if not how:
            return pointer
        return Ptr(self.let(f'call ptr asm "", "=r,0,{how}"(ptr {pointer}, {self.floats} {sums})'))

    def store(self, floats: str, there: Ptr) -> None:
        self.emit(f"store {self.floats} {floats}, ptr {there}, align 4")

    def _looked_up(self, words: Ptr, term: Term, byte: int) -> str:
        """A code of four bits or fewer as an index of 16 floats, which has the bits above it, too."""
        word = self.reader.word(words, term.word, self.ints)
        index = self.let(f"lshr {self.ints} {word}, {splat(str(term.shift + 8 * byte), self.lanes, 'i32')}")
        found = [float((code & term.mask) - self.of.zero) for code in range(_TABLE)]
        table = f"<{', '.join([f'float {literal(code, f32)}' for code in found])}>"
        name = "llvm.x86.avx512.permvar.sf.512"
        self.use(f"declare {self.floats} @{name}({self.floats}, {self.ints})")
        return self.let(f"call {self.floats} @{name}({self.floats} {table}, {self.ints} {index})")

    def _extended(self, four: str, byte: int, *, has_sign: bool) -> str:
        """One of four bytes of each lane as a float."""
        steps = [("shl", 24 - 8 * byte), ("ashr", 24)] if has_sign else [("lshr", 8 * byte), ("and", 255)]
        for how, by in steps:
            if by and (how, byte) != ("and", 3):
                four = self.let(f"{how} {self.ints} {four}, {splat(str(by), self.lanes, 'i32')}")
        return self.let(f"sitofp {self.ints} {four} to {self.floats}")

    def fma(self, x: str, y: str, z: str) -> str:
        name = f"llvm.fma.v{self.lanes}f32"
        self.use(f"declare {self.floats} @{name}({self.floats}, {self.floats}, {self.floats})")
        return self.let(f"call {self.floats} @{name}({self.floats} {x}, {self.floats} {y}, {self.floats} {z})")

    def load(self, there: Ptr) -> str:
        return self.let(f"load {self.floats}, ptr {there}, align 4")

    def load_splat(self, there: Ptr) -> str:
        """A number in all lanes."""
        one = self.let(
            f"insertelement {self.floats} poison, float {self.let(f'load float, ptr {there}, align 4')}, i64 0"
        )
        return self.let(f"shufflevector {self.floats} {one}, {self.floats} poison, {self.ints} zeroinitializer")

    def vector(self, panel: Ptr, number: I64 | int) -> tuple[Ptr, Ptr]:
        """Scales and words of a vector of columns of a block."""
        first = self.mul(number, self.lanes)
        scales = self.ptr_add(panel, self.mul(first, self.of.scales.itemsize))
        return scales, self.ptr_add(panel, self.add(self.mul(first, 4), self.of.head_bytes))


__all__ = ["Codes", "FloatKernel"]
