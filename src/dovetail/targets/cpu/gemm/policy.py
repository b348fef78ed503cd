"""Tile shapes and cache blocks of matrix multiplication, by what a device has. A new ISA is a new row of `TILES`."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.kernels.device import Capability, CpuDevice


@dataclass(frozen=True, slots=True)
class FloatsPolicy:
    """How products with weights in blocks are cut whose codes become floats."""

    vectors: int = 4
    """Vectors of a panel's columns: one row has a sum for each, and they do not wait for each other."""
    many_registers: int = 32
    """Registers from which on several rows multiply all vectors at once; otherwise half of them."""
    tiles: tuple[int, ...] = (6, 4, 2, 1)
    """Rows of register tiles, most first."""
    steps: int = 8
    """Steps along k in an iteration, which divide every group."""
    rows: int = 128
    """Rows of a block, at most."""
    share: tuple[int, int] = (1, 2)
    """The part of L2 that rows of a block may take."""
    l1_share: tuple[int, int] = (1, 2)
    """The part of L1 that KC steps of a spelled panel take."""


FLOATS = FloatsPolicy()


@dataclass(frozen=True, slots=True)
class GemmTiles:
    """The MR×NR register tile of devices with a way to broadcast and a number of registers."""

    by_lane: bool
    """Whether FMAs multiply by one lane of a register; otherwise they broadcast a scalar in memory."""
    registers: int
    """Vector registers, at least."""
    mr: int
    vectors: int
    """Vectors of a row: NR is their columns."""
    even: tuple[int, int] | None = None
    """MR and vectors where a panel has an even number of streams; None where they are the same."""
    narrow: tuple[int, int] | None = None
    """MR and vectors of products of two activations whose columns would leave lanes of the tile empty."""
    tall: int | None = None
    """MR where rows of A are packed side by side for products of two activations; None where a row is better read
    where it is, as a scalar that is broadcast has no need of packing."""


TILES = (
    GemmTiles(True, 32, 6, 3, narrow=(8, 2), tall=8),
    GemmTiles(True, 16, 4, 2, tall=4),
    # Wider and lower: fewer instructions per product, which counts where a core is shared.
    GemmTiles(False, 32, 9, 3, even=(12, 2), narrow=(12, 2)),
    GemmTiles(False, 16, 6, 2),
)
"""The first row that a device meets: the largest tile that leaves registers for the operands."""


@dataclass(frozen=True, slots=True)
class GemmPolicy:
    """How the loops around a register tile are cut, and what they prefetch. Distances were measured."""

    unroll: int = 4
    """Steps along k in an iteration, where one step has too little work to hide the loop."""
    prefetch_distance: int = 512
    """Bytes of the panel, for each lane of a vector, between what the micro-kernel reads and what it prefetches."""
    small_m: int = 8
    """Rows up to which bandwidth is the limit, so that the micro-kernel prefetches in several streams."""
    smallest_m: int = 4
    """Rows up to which it prefetches in many."""
    rows_per_pointer: int = 4
    """Rows of A that share a pointer: a register holds the stride, and addresses are computed from both."""
    kc: int = 192
    """Steps along k before the next rows, at most."""
    kc_prefetching: int = 512
    """KC for many rows: the panel streams from L2 as fast as it is multiplied, and accumulators stay put."""
    kc_small_m: int = 1024
    """KC for few rows: the prefetch distance equals KC, long enough that streams fall into different pages."""
    panel_share: tuple[int, int] = (3, 4)
    """The part of L1 that a panel may take while rows come and go."""
    least_rows: int = 6
    """Rows that a tile needs to keep the FMA units busy."""
    a_share: tuple[int, int] = (13, 16)
    """The part of L2 that a block of MC rows of A may take: it stays there while all panels go over it."""
    most_tiles: int = 15
    """Row tiles of a block, at most."""
    few_tiles: int = 4
    """Row tiles of a block where there are at most `few_panels` panels, so that threads share the rows."""
    few_panels: int = 3


GEMM = GemmPolicy()


@dataclass(frozen=True, slots=True)
class PairPolicy:
    """How products of two activations are cut into cells, and what they pack."""

    few_tiles: int = 2
    """Tiles of rows up to which packing does not pay."""
    steps: int = 4
    """Steps along k that are packed together where they are contiguous across k."""
    prefetch_distance: int = 128
    """Bytes between what is packed and what is prefetched where an operand is contiguous along k."""
    a_prefetch_distance: int = 512
    """Bytes of packed rows of A between what the micro-kernel reads and what it prefetches from L2."""
    rows_together: int = 16
    """Rows that are transposed together: cache lines of more rows, a power of two apart, evict each other from L1."""
    narrow_cost: float = 1.02
    """Cost of the narrow tile, relative to the other."""
    pack_cost: float = 1.5
    """Packing an element costs as much as these vectors of multiplications: memory is no faster for wider ones."""
    read_cost: float = 0.5
    """Reading an element of A that is not packed costs as much as these, once in each cell."""
    few_cells: float = 0.05
    """Cost of one cell for each thread, with none to steal from a straggler."""
    cells: int = 2
    """Cells for each thread from which on that costs nothing."""
    l2_share: tuple[int, int] = (5, 8)
    """The part of L2 that the packed operands and the sums of a cell may take."""
    panel_share: tuple[int, int] = (3, 8)
    """The part of L1 that a panel may take: a tile of packed rows is nearly as large, and both stay there."""
    most_blocks: int = 2
    """Blocks of KC that are packed together, at most: C is read and written from L1 between them."""
    group_share: tuple[int, int] = (1, 5)
    """The part of L2 that panels of B take that are packed together."""
    sides: tuple[int, ...] = (1536, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 16, 1)
    """Rows and columns of a cell, about: whole tiles and panels, and equal parts."""
    unknown: int = 96
    """Rows and columns of a cell where a shape is known at run time only."""


PAIR = PairPolicy()


@dataclass(frozen=True, slots=True)
class NarrowPolicy:
    """Which products have too few columns for a register tile, and how they are cut."""

    most_columns: int = 8
    """Columns whose sums are in registers together, at most."""
    least_vectors: int = 4
    """Vectors along k from which on adding up lanes does not show."""
    most_rows: int = 8
    """Rows whose sums are computed at once, at most."""
    steps: int = 128
    """Vectors along k that are summed apart, at most."""
    block: int = 64
    """Rows of a cell."""


NARROW = NarrowPolicy()


@dataclass(frozen=True, slots=True)
class FewRowsPolicy:
    """How a few rows are multiplied by a matrix that is read once, where it is."""

    most: int = 4
    """Rows; more of them are worth packing the matrix."""
    sums: tuple[int, int] = (3, 4)
    """The part of the registers that sums take."""
    steps: int = 256
    """Steps along k that are summed apart, at most."""
    ahead: int = 2
    """Rows of the matrix between what is read and what is prefetched."""


FEW_ROWS = FewRowsPolicy()


@dataclass(frozen=True, slots=True)
class Int8Tile:
    """The MR×NR register tile of byte products for a dot instruction."""

    capability: Capability
    intrinsic: str
    signed: bool
    """Whether the instruction takes the factor of a run as signed bytes; weights always are."""
    by_lane: bool
    """Whether it multiplies by one lane of a register; otherwise a scalar is broadcast."""
    lanes: int
    """Sums in a vector."""
    mr: int
    vectors: int
    """Vectors of a row: NR is their columns."""
    others: tuple[tuple[int, int], ...] = ()
    """MR and vectors of narrower tiles, for columns that would leave lanes of the widest empty."""
    pairs: str | None = None
    """The instruction that adds pairs of 16-bit lanes, where the first one multiplies bytes to such pairs."""


INT8_TILES = (
    Int8Tile(
        "vnni", "llvm.x86.avx512.vpdpbusd.512", signed=False, by_lane=False, lanes=16, mr=8, vectors=3,
        others=((8, 2), (16, 1)),
    ),
    Int8Tile(
        "int8_dot", "llvm.aarch64.neon.sdot.v4i32.v16i8", signed=True, by_lane=True, lanes=4, mr=4, vectors=4,
        others=((8, 3), (8, 2)),
    ),
)  # fmt: skip
"""The first row whose capability a device has."""

BLOCK_DOTS = (
    *INT8_TILES,
    Int8Tile("avx_vnni", "llvm.x86.avx512.vpdpbusd.256", signed=False, by_lane=False, lanes=8, mr=4, vectors=2),
    Int8Tile(
        "byte_pairs", "llvm.x86.avx512.pmaddubs.w.512", signed=False, by_lane=False, lanes=16, mr=4, vectors=2,
        pairs="llvm.x86.avx512.pmaddw.d.512",
    ),
    Int8Tile(
        "byte_pairs", "llvm.x86.avx2.pmadd.ub.sw", signed=False, by_lane=False, lanes=8, mr=4, vectors=2,
        pairs="llvm.x86.avx2.pmadd.wd",
    ),
)  # fmt: skip
"""Dot products with weights in blocks: the first row whose capability a device has, with as many lanes. Of the others,
kernels of bytes have no tile: 16 bits would not hold their sums."""


@dataclass(frozen=True, slots=True)
class Int8Policy:
    """How the loops around a tile of bytes are cut."""

    block: int = 64
    """Rows of a block: as bytes they stay in L2. A multiple of every MR."""
    filters: int = 32
    """Filters of a convolution that share a strip of packed pixels. A multiple of every MR."""
    strip: int = 144
    """Pixels of a strip, at most; it has whole panels."""
    lines: int = 256 << 10
    """Bytes of interleaved lines that a strip sees, at most: they stay in L2 while all taps are packed."""
    packing: int = 24
    """Filters whose products take as long as packing a strip."""
    vectors: int = 4
    """Vectors of the epilogue that are computed at once. A power of two."""


INT8 = Int8Policy()


@dataclass(frozen=True, slots=True)
class BlocksPolicy:
    """How products with weights in blocks are cut."""

    columns: int = 16
    """NR with 128-bit vectors: sums of three limbs leave registers for the codes of a step."""
    least_vectors: int = 2
    """Wider vectors: those of a panel, at least; each stream of columns has one."""
    registers: int = 8
    """Registers for each of the rows times vectors of columns whose sums of three limbs are computed at once."""
    most_cells: int = 8
    """Rows times vectors of columns of exact mode where sums of three limbs leave a quarter of 32 registers."""
    rows: int = 64
    """Rows of a block, at most."""
    rows_in_l1: int = 16
    """Rows of a block with NEON, where rows share no expanded blocks."""
    rows_in_l2: int = 128
    """Rows of a block with NEON, where they do."""
    least_expanded: int = 32
    """Rows from which on blocks of one group with codes of less than a byte are expanded, too, with NEON."""
    many_rows: int = 8
    """Rows from which on arithmetic is the limit, not the unpacking of codes."""
    share: tuple[int, int] = (1, 2)
    """The part of L2 that rows of a block may take as limbs."""
    prefetched_share: tuple[int, int] = (5, 2)
    """That part with NEON, where rows share expanded blocks: a tile prefetches rows of the next, from L3 as well."""
    l1_parts: int = 3
    """Parts of L1 of which KC steps of a panel take one: rows as limbs and what is prefetched are there, too."""
    fast_share: tuple[int, int] = (5, 16)
    """The part of L1 that these steps may take with NEON in fast mode, where rows have few limbs."""
    prefetch_distance: int = 8192
    """Bytes of a panel between what one pass reads and what it prefetches into L2, which has more requests under way
    than L1: with wide vectors memory is the limit."""
    wide_distance: int = 6720
    """The distance from the next block on, where one row unpacks blocks with two levels of scales in registers."""
    nested_distance: int = 2048
    """The distance for one row with NEON where bytes with two codes are multiplied as they are."""
    speed: int = 2
    """Multiplications in the time of one of f32, where chunks for threads are cut."""


BLOCKS = BlocksPolicy()


@dataclass(frozen=True, slots=True)
class HalfTile:
    """Register tiles of products with weights of two bytes."""

    by_lane: bool
    """Whether FMAs multiply by one lane of a register; otherwise they broadcast a scalar in memory."""
    registers: int
    """Vector registers, at least."""
    vectors: int
    """Vectors of a panel's row."""
    rows: tuple[int, ...]
    """Rows of tiles, most first."""
    least_spread: int
    """Rows from which on a panel is spelled out as f32 first."""
    lanes: int = 4

    @property
    def columns(self) -> int:
        """NR."""
        return self.vectors * self.lanes


HALF_TILES = (
    HalfTile(True, 32, 4, (4, 2, 1), 4),
    HalfTile(False, 32, 4, (6, 4, 2, 1), 7),
    HalfTile(False, 16, 2, (4, 2, 1), 5),
)
"""The first row that a device meets."""


@dataclass(frozen=True, slots=True)
class HalvesPolicy:
    """How products with weights of two bytes are cut."""

    l1_parts: int = 2
    """Parts of L1 of which KC steps of a panel, spelled out, take one."""
    prefetch_distance: int = 2048
    """Bytes of a panel between what is read and what is prefetched."""
    far_distance: int = 8192
    """The distance of prefetches into L2, for one row of f16 with NEON."""


HALVES = HalvesPolicy()


@dataclass(frozen=True, slots=True)
class AmxPolicy:
    """How products of many rows are cut for tiles of AMX."""

    least: int = 32
    """Rows from which on a block of rows is multiplied on tiles."""
    rows: int = 512
    """Rows of a block, at most: a panel is expanded for each of them."""
    few_rows: int = 128
    """Rows of a block where threads would have too few panels each, at least."""
    panels: int = 4
    """Panels for each thread that are enough."""
    columns: int = 32
    """Columns of a panel that are expanded at once: sums of fewer columns wait in memory less often."""
    l2_share: tuple[int, int] = (3, 4)
    """The part of L2 that rows of a block may take."""
    l1_share: tuple[int, int] = (2, 3)
    """The part of L1 that KC steps of an expanded panel may take."""
    x_ahead: int = 1
    """Tiles of rows between what is multiplied and what is prefetched into L1; 0 for none."""
    speed: int = 8
    """Multiplications in the time of one of f32, where chunks for threads are cut."""


AMX = AmxPolicy()


@dataclass(frozen=True, slots=True)
class Bf16Policy:
    """How products whose factors are all rounded to bf16 are cut (`precision="bf16"`)."""

    vectors: int = 4
    """Vectors of a panel's columns."""
    rows: tuple[int, ...] = (4, 1)
    """Rows of register tiles, most first; each divides the rows of a tile of AMX."""
    least: int = 2
    """Rows from which on they are multiplied on tiles of AMX, which may be partly empty."""
    block: int = 256
    """Rows of a block, at most."""
    pairs: int = 2
    """Pairs of steps along k in an iteration."""
    prefetch_tiles: int = 2
    """Tiles of 32 steps along k between what is multiplied and what is prefetched."""
    speed: int = 2
    """Multiplications without AMX in the time of one of f32."""


BF16 = Bf16Policy()


def is_by_lane(device: CpuDevice) -> bool:
    """With four lanes, broadcasting a lane costs at most the shuffle that a broadcasting load would need too."""
    return device.has("fma_by_lane") or device.lanes == GEMM.unroll


def tiles_of(device: CpuDevice) -> GemmTiles:
    """The row of the table that a device meets."""
    by_lane = is_by_lane(device)
    fitting = [row for row in TILES if row.by_lane == by_lane]
    return next((row for row in fitting if device.registers >= row.registers), fitting[-1])


__all__ = [
    "AMX", "BF16", "BLOCKS", "BLOCK_DOTS", "FEW_ROWS", "FLOATS", "GEMM", "HALF_TILES", "HALVES", "INT8", "INT8_TILES",
    "NARROW", "PAIR", "HalfTile", "Int8Tile", "is_by_lane", "tiles_of",
]  # fmt: skip
