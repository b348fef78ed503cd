"""The register tile of byte products: MR rows times NR columns, four products along k added to each 32-bit lane.

Every ISA has the same tile with its own dot instruction: SDOT multiplies signed bytes, VPDPBUSD multiplies unsigned by
signed ones. Rows are packed [k / 4][MR][4] and columns [k / 4][NR][4]. Sums wrap modulo 2³², as sums of i32 do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr, Vec, VectorType
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.simd import PhiLoop, SimdBuilder, same, zeros
from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.policy import INT8_TILES, Int8Tile

_PARAMETERS = (
    Parameter("ptr", "a", "noalias readonly"),
    Parameter("ptr", "b", "noalias readonly"),
    Parameter("ptr", "sums", "noalias"),
    Parameter("i64", "steps"),
    Parameter("i64", "pitch"),
)
"""Packed rows, packed columns, room for sums, steps of four along k, and the bytes between rows of sums."""


@dataclass(frozen=True, slots=True)
class ByteTile:
    """The tile of a device."""

    shape: Int8Tile
    emulated: bool = False
    """Whether the dot instruction is spelled out in plain vector code."""
    weights_are_rows: bool = False
    """Whether rows are the weights, which are signed bytes, and columns the factor of a run."""

    @property
    def mr(self) -> int:
        return self.shape.mr

    @property
    def nr(self) -> int:
        """Columns of a panel."""
        return self.shape.lanes * self.shape.vectors

    @property
    def step_bytes(self) -> int:
        """Bytes of a panel of columns for four steps along k."""
        return 4 * self.nr

    @property
    def row_bytes(self) -> int:
        """Bytes of a tile of rows for four steps along k."""
        return 4 * self.mr

    def steps(self, deep: int) -> int:
        """Steps of four along k."""
        return -(-deep // 4)


def byte_tile_of(device: CpuDevice) -> ByteTile | None:
    """The tile of the first dot instruction that a device has; None where it has none."""
    kind = next((row for row in INT8_TILES if device.has(row.capability)), None)
    return None if kind is None else ByteTile(kind, not device.emits(kind.capability))


def fitting_tile(tile: ByteTile, rows: int, columns: int) -> ByteTile:
    """The tile of a device that computes the fewest sums for rows and columns, those that it pads included."""
    shapes = [tile.shape, *(replace(tile.shape, mr=mr, vectors=v) for mr, v in tile.shape.others)]
    sizes = [(s.mr, s.lanes * s.vectors) for s in shapes]
    padded = [-(-rows // mr) * mr * -(-columns // nr) * nr for mr, nr in sizes]
    return replace(tile, shape=shapes[padded.index(min(padded))])


@cache
def byte_tile_function(tile: ByteTile, rows: int) -> tuple[SharedFunction, Signature]:
    """The tile with MR rows, or with fewer, as a function that kernels share, and how to call it."""
    return shared_function(_function(tile, rows))


def _function(tile: ByteTile, rows: int) -> Function:
    t = SimdBuilder()
    shape = tile.shape
    kind, raw = VectorType(shape.lanes, "i32"), VectorType(4 * shape.lanes, "i8")
    along = PhiLoop(t)
    k = along.carry(I64("0"))
    accumulators = {(i, j): along.carry(zeros(kind)) for i in range(rows) for j in range(shape.vectors)}
    four, panel = along.carry(Ptr("%a")), along.carry(Ptr("%b"))
    columns = [t.load_lanes(raw, t.ptr_add(panel, 4 * shape.lanes * j), 16) for j in range(shape.vectors)]
    totals: dict[tuple[int, int], Vec] = {}
    for i in range(rows):
        x = t.bitcast(_broadcast(t, tile, four, i, rows), "i8", raw.count)
        for j, column in enumerate(columns):
            factor, weights = (column, x) if tile.weights_are_rows else (x, column)
            totals[i, j] = _dot(t, tile, accumulators[i, j], factor, weights)
    following = t.following(k)
    moved = [(rows_at, t.ptr_add(rows_at, by)) for rows_at, by in ((four, tile.row_bytes), (panel, tile.step_bytes))]
    again = t.icmp("slt", following, I64("%steps"))
    along.end([(k, following), *moved, *[(phi, totals[cell]) for cell, phi in accumulators.items()]], again)
    for (i, j), x in totals.items():
        there = t.ptr_add(t.ptr_add(Ptr("%sums"), t.mul(I64("%pitch"), i)), 4 * j * shape.lanes)
        t.store_lanes(x, there, 16)
    name = f"bytes.{rows}x{tile.nr}{'.rows' if tile.weights_are_rows else ''}"
    return t.function(Signature(name, _PARAMETERS))


def _broadcast(t: SimdBuilder, tile: ByteTile, four: Ptr, i: int, rows: int) -> Vec:
    """Four bytes of a row in every lane; NEON takes them out of a register of four rows."""
    kind = VectorType(tile.shape.lanes, "i32")
    if tile.shape.by_lane and rows > 1:
        return t.splat_lane(t.load_lanes(kind, t.ptr_add(four, 4 * (i - i % 4)), 16), i % 4)
    return t.load_spread(kind, t.ptr_add(four, 4 * i))


def _dot(t: SimdBuilder, tile: ByteTile, held: Vec, factor: Vec, weights: Vec) -> Vec:
    """Sums plus the products of four bytes of the factor with four weights in each lane."""
    if tile.emulated:
        return plain_dot(t, held, factor, weights, signed=tile.shape.signed)
    # Of two signed operands the instruction takes the broadcast one by lane only where it is the last.
    two = (weights, factor) if tile.shape.signed and not tile.weights_are_rows else (factor, weights)
    return dot(t, tile.shape, held, *two)


def dot(t: SimdBuilder, of: Int8Tile, held: Vec, x: Vec, y: Vec) -> Vec:
    """Sums plus four products of bytes in each lane; where one operand is unsigned it is the first."""
    kind = t.lanes_of(held)
    if of.pairs is None:
        return t.instruction(of.intrinsic, kind, held, x, y)
    # By way of sums of two products in 16 bits, none of which is large enough to saturate.
    half = VectorType(2 * kind.count, "i16")
    two = t.instruction(of.intrinsic, half, x, y)
    return t.lanewise("add", held, t.instruction(of.pairs, kind, two, same(half, 1)))


def plain_dot(t: SimdBuilder, held: Vec, x: Vec, y: Vec, *, signed: bool) -> Vec:
    """Emulate a dot instruction; y is signed."""
    wide = t.convert("sext" if signed else "zext", x, "i32")
    products = t.lanewise("mul", wide, t.convert("sext", y, "i32"))
    for part in range(4):
        held = t.lanewise("add", held, t.some_lanes(products, range(part, 4 * t.lanes_of(held).count, 4)))
    return held


__all__ = ["ByteTile", "byte_tile_function", "byte_tile_of", "dot", "fitting_tile", "plain_dot"]
