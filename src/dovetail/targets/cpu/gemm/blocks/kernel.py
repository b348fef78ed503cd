"""What the code of products with weights in blocks depends on, and which schedule multiplies what."""

from __future__ import annotations

from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.library.block_formats import FORMATS
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout
from dovetail.targets.cpu.gemm.blocks.words import NESTED
from dovetail.targets.cpu.gemm.policy import BLOCK_DOTS, BLOCKS, Int8Tile

MAGIC = 0x4B400000
"""The bits of 1.5 * 2^23 in f32: an integer below 2^22 that is added to them is added to the float."""
BIAS = 3 << 22
"""That float."""
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
LINE = 64
"""Bytes of a cache line, as far as prefetching goes."""


def block_dot(device: CpuDevice) -> Int8Tile | None:
    """The instruction that multiplies limbs with codes."""
    return next((row for row in BLOCK_DOTS if device.has(row.capability) and row.lanes == device.lanes), None)


def is_in_floats(name: str, dot: Int8Tile, *, exact: bool) -> bool:
    """Whether products are f32 on a device that adds pairs of products of bytes.

    Each limb takes three instructions there, and with codes of a byte 16 bits do not hold a pair.
    """
    return dot.pairs is not None and (exact or FORMATS[name].bits == 8)


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

    def moves_sums(self, rows: int) -> bool:
        """Whether sums of low halves of bytes are moved up; several rows share codes that are."""
        return self.is_nested and rows == 1 and not self.layout.is_expanded

    def first_at(self, limb: int, rows: int) -> int:
        """Bytes of a group before what sums of a tile of rows start with: codes that are moved up have their own."""
        return self.start_at(limb + int(self.is_nested and not self.moves_sums(rows)))

    @property
    def joined_at(self) -> int | None:
        """Bytes of a group before minus what sums of all limbs are too large by; None where it is a constant."""
        return self.start_at(self.starts) if self.dot.by_lane else None

    @property
    def alone_at(self) -> int:
        """Bytes of a group before that number for one row, which has two accumulators."""
        return self.start_at(self.starts + 1)

    @property
    def sums_are_scaled(self) -> bool:
        """Whether that is for sums times the group's scale: one instruction scales them and takes it away."""
        return self.dot.by_lane and self.limbs == FAST

    @property
    def bias(self) -> float:
        """Return by how much sums of all limbs, taken as floats, are too large."""
        return float(BIAS * sum([self.place(limb) for limb in range(self.limbs)]))

    @property
    def limbs_at(self) -> int:
        """Bytes of a group before its limbs: its scale, its sum, and what sums start and end with."""
        count = self.starts + (self.joined_at is not None) + self.sums_apart
        return -(-self.start_at(count) // 16) * 16

    def place(self, limb: int) -> int:
        """Return the weight of one unit of a limb."""
        return 1 << DIGIT_BITS * limb

    @property
    def group_bytes(self) -> int:
        """Bytes of a group of a row once it is limbs."""
        return self.limbs_at + self.limbs * self.group

    @property
    def name(self) -> str:
        return f"blocks.{self.layout.name}.{self.layout.columns}.{self.limbs}"


__all__ = [
    "ABOVE", "BIAS", "DIGIT_BITS", "EXACT", "FAST", "LINE", "LOW_AT", "MAGIC", "BlockKernel", "block_dot",
    "is_in_floats",
]  # fmt: skip
