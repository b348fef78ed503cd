"""Matrix instructions of GPUs as records: dtypes, sizes, and which elements of matrices a lane holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, bf16, f8e4m3fn, f8e4m3fnuz, f16, f32, i8, i32

Move: TypeAlias = tuple[int, int]
"""Rows and columns."""
LANES = 32
"""Threads of a warp, where a device says nothing else: those of NVIDIA, and of AMD with wave32."""
LINE_BYTES = 128
"""A line of factors in shared memory: one of each of its 32 banks, which is what swizzling permutes the chunks of."""


@dataclass(frozen=True, slots=True)
class LinearLayout:
    """(lane, register) → (row, column), linear over exclusive or: what each bit of both numbers moves an element by."""

    lanes: tuple[Move, ...]
    """Of each bit of a lane's number, the lowest first. No move: lanes hold copies."""
    registers: tuple[Move, ...]
    """Of each bit of a register's number."""

    def place(self, lane: int, register: int) -> Move:
        """The row and column of an element."""
        moves = [m for i, m in enumerate(self.lanes) if lane >> i & 1]
        moves += [m for i, m in enumerate(self.registers) if register >> i & 1]
        return reduce(lambda x, y: (x[0] ^ y[0], x[1] ^ y[1]), moves, (0, 0))

    @property
    def count(self) -> int:
        """Registers of a lane, each with one element."""
        return 1 << len(self.registers)

    @property
    def shape(self) -> Move:
        """Rows and columns of the matrix."""
        row, column = (1 + sum([move[axis] for move in {*self.lanes, *self.registers}]) for axis in (0, 1))
        return row, column

    def runs(self, axis: int) -> tuple[tuple[int, int, int], ...]:
        """The bits of a lane's number that move along an axis: the first one, how many, and what it moves by."""
        runs: list[tuple[int, int, int]] = []
        for bit, move in enumerate(self.lanes):
            if not move[axis]:
                continue
            first, count, by = runs[-1] if runs else (-1, 0, 0)
            if runs and first + count == bit and move[axis] == by << count:
                runs[-1] = first, count + 1, by
            else:
                runs.append((bit, 1, move[axis]))
        return tuple(runs)


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """What the lanes of a warp, or of a group of warps, do at once: add the product of two matrices to sums."""

    name: str
    factors: DType
    totals: DType
    """What products are added up in."""
    m: int
    n: int
    k: int
    sums: LinearLayout
    """Row and column of a lane's sums."""
    left: LinearLayout | None = None
    """Row and k of a lane's elements; None where the instruction reads its factors in shared memory."""
    right: LinearLayout | None = None
    """The k and column."""
    by_lines: bool = False
    """Whether lanes load factors as 8 lines of 16 bytes at a time (ldmatrix)."""

    @property
    def lanes(self) -> int:
        return 1 << len(self.sums.lanes)

    @property
    def by_warpgroup(self) -> bool:
        """Whether several warps multiply together, out of shared memory."""
        return self.left is None


def instruction_for(every: Sequence[MatrixInstruction], factors: DType) -> MatrixInstruction | None:
    """The instruction by which a warp multiplies factors of a dtype; None where there is none."""
    return next((one for one in every if one.factors is factors and not one.by_warpgroup), None)


def _bits(count: int, axis: int, by: int = 1) -> tuple[Move, ...]:
    """Bits that move along an axis, each twice as far as the one before."""
    return tuple([(by << i, 0) if axis == 0 else (0, by << i) for i in range(count)])


_MMA_SUMS = LinearLayout((*_bits(2, 1, 2), *_bits(3, 0)), ((0, 1), (8, 0)))


def _mma(name: str, factors: DType, totals: DType) -> MatrixInstruction:
    """mma.sync of NVIDIA: 16 rows by 8 columns by 32 bytes of k; a lane has words of four bytes of both factors."""
    word = 4 // factors.itemsize
    within, k = word.bit_length() - 1, 8 * word
    left = LinearLayout((*_bits(2, 1, word), *_bits(3, 0)), (*_bits(within, 1), (8, 0), (0, 4 * word)))
    right = LinearLayout((*_bits(2, 0, word), *_bits(3, 1)), (*_bits(within, 0), (4 * word, 0)))
    return MatrixInstruction(f"mma.m16n8k{k}.{name}", factors, totals, 16, 8, k, _MMA_SUMS, left, right, by_lines=True)


def _wgmma(factors: DType) -> MatrixInstruction:
    """wgmma of NVIDIA: the four warps of a group have 16 rows each, of 256 columns at most."""
    sums = LinearLayout((*_MMA_SUMS.lanes, (16, 0), (32, 0)), (*_MMA_SUMS.registers, *_bits(5, 1, 8)))
    return MatrixInstruction(f"wgmma.m64n256k16.{factors.name}", factors, f32, 64, 256, 16, sums)


def _mfma(name: str, factors: DType, totals: DType, each: int) -> MatrixInstruction:
    """MFMA of AMD's CDNA, of 16×16 sums: lanes are 16 rows by 4 pieces of k, each with some elements."""
    bits = each.bit_length() - 1
    left = LinearLayout((*_bits(4, 0), *_bits(2, 1, each)), _bits(bits, 1))
    right = LinearLayout((*_bits(4, 1), *_bits(2, 0, each)), _bits(bits, 0))
    sums = LinearLayout((*_bits(4, 1), *_bits(2, 0, 4)), _bits(2, 0))
    return MatrixInstruction(f"mfma.16x16x{4 * each}.{name}", factors, totals, 16, 16, 4 * each, sums, left, right)


def _wmma_11(factors: DType) -> MatrixInstruction:
    """WMMA of AMD's RDNA 3: both halves of a warp have all of k, and sums of every other row."""
    left = LinearLayout((*_bits(4, 0), (0, 0)), _bits(4, 1))
    right = LinearLayout((*_bits(4, 1), (0, 0)), _bits(4, 0))
    sums = LinearLayout((*_bits(4, 1), (1, 0)), _bits(3, 0, 2))
    return MatrixInstruction(f"wmma.gfx11.16x16x16.{factors.name}", factors, f32, 16, 16, 16, sums, left, right)


def _wmma_12(factors: DType) -> MatrixInstruction:
    """WMMA of AMD's RDNA 4: each half of a warp has half of k, and sums of eight rows."""
    left = LinearLayout((*_bits(4, 0), (0, 8)), _bits(3, 1))
    right = LinearLayout((*_bits(4, 1), (8, 0)), _bits(3, 0))
    sums = LinearLayout((*_bits(4, 1), (8, 0)), _bits(3, 0))
    return MatrixInstruction(f"wmma.gfx12.16x16x16.{factors.name}", factors, f32, 16, 16, 16, sums, left, right)


MMA_F16, MMA_BF16 = _mma("f16", f16, f32), _mma("bf16", bf16, f32)
MMA_TF32 = _mma("tf32", f32, f32)
"""Of f32 whose fractions are cut to 10 bits: no device has it by default, as its sums are not those of f32."""
MMA_F8, MMA_I8 = _mma("e4m3", f8e4m3fn, f32), _mma("s8", i8, i32)
MMA = (MMA_F16, MMA_BF16)
WGMMA = (_wgmma(f16), _wgmma(bf16))
MFMA_F16, MFMA_BF16 = _mfma("f16", f16, f32, 4), _mfma("bf16", bf16, f32, 4)
MFMA_F32 = _mfma("f32", f32, f32, 1)
MFMA_F8, MFMA_I8 = _mfma("fp8", f8e4m3fnuz, f32, 8), _mfma("i8", i8, i32, 8)
MFMA = (MFMA_F16, MFMA_BF16)
WMMA_11, WMMA_12 = (_wmma_11(f16), _wmma_11(bf16)), (_wmma_12(f16), _wmma_12(bf16))
RECORDS = (*MMA, MMA_TF32, MMA_F8, MMA_I8, *WGMMA, *MFMA, MFMA_F32, MFMA_F8, MFMA_I8, *WMMA_11, *WMMA_12)


def mma_of(factors: DType) -> MatrixInstruction:
    """The mma.sync of a dtype."""
    instruction = instruction_for((MMA_F16, MMA_BF16, MMA_TF32, MMA_F8, MMA_I8), factors)
    assert instruction is not None, "kernels multiply what it takes"
    return instruction


__all__ = [
    "LANES", "LINE_BYTES", "MFMA", "MFMA_BF16", "MFMA_F8", "MFMA_F16", "MFMA_F32", "MFMA_I8", "MMA", "MMA_BF16",
    "MMA_F8", "MMA_F16", "MMA_I8", "MMA_TF32", "RECORDS", "WGMMA", "WMMA_11", "WMMA_12", "LinearLayout",
    "MatrixInstruction", "instruction_for", "mma_of",
]  # fmt: skip
