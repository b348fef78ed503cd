"""The register tile of byte products: MR rows times NR columns, four products along k added to each 32-bit lane.

Every ISA has the same tile with its own dot instruction: SDOT multiplies signed bytes, VPDPBUSD multiplies unsigned by
signed ones. Rows are packed [k / 4][MR][4] and columns [k / 4][NR][4]. Sums wrap modulo 2³², as sums of i32 do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
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
    found = next((row for row in INT8_TILES if device.has(row.capability)), None)
    return None if found is None else ByteTile(found, not device.emits(found.capability))


def fitting_tile(tile: ByteTile, rows: int, columns: int) -> ByteTile:
    """The tile of a device that computes the fewest sums for rows and columns, those that it pads included."""
    shapes = [tile.shape, *(replace(tile.shape, mr=mr, vectors=v) for mr, v in tile.shape.others)]
    sizes = [(s.mr, s.lanes * s.vectors) for s in shapes]
    sums = [-(-rows // mr) * mr * -(-columns // nr) * nr for mr, nr in sizes]
    return replace(tile, shape=shapes[sums.index(min(sums))])


@cache
def byte_tile_function(tile: ByteTile, rows: int) -> tuple[SharedFunction, Signature]:
    """The tile with MR rows, or with fewer, as a function that kernels share, and how to call it."""
    return shared_function(_function(tile, rows))


def _function(tile: ByteTile, rows: int) -> Function:
    t = Builder()
    shape = tile.shape
    kind, raw = f"<{shape.lanes} x i32>", f"<{4 * shape.lanes} x i8>"
    cells = [(i, j) for i in range(rows) for j in range(shape.vectors)]
    t.emit("br label %along")
    t.label("along")
    k = t.phi("i64")
    held = {cell: t.phi(kind) for cell in cells}
    rows_at, columns_at = t.phi("ptr"), t.phi("ptr")
    four, panel = Ptr(rows_at.name), Ptr(columns_at.name)
    columns = [
        t.let(f"load {raw}, ptr {t.ptr_add(panel, 4 * shape.lanes * j)}, align 16") for j in range(shape.vectors)
    ]
    for i in range(rows):
        row = _broadcast(t, tile, four, i, rows)
        x = t.let(f"bitcast {kind} {row} to {raw}")
        for j, column in enumerate(columns):
            phi = held[i, j]
            phi.add("zeroinitializer", "entry")
            factor, weights = (column, x) if tile.weights_are_rows else (x, column)
            phi.add(_dot(t, tile, phi.name, factor, weights), "along")
    following = I64(t.let(f"add nuw nsw i64 {k.name}, 1"))
    k.add("0", "entry")
    k.add(following, "along")
    for phi, start, by in ((rows_at, "%a", tile.row_bytes), (columns_at, "%b", tile.step_bytes)):
        phi.add(Ptr(start), "entry")
        phi.add(t.ptr_add(Ptr(phi.name), by), "along")
    t.emit(f"br i1 {t.icmp('slt', following, I64('%steps'))}, label %along, label %done")
    t.label("done")
    for (i, j), phi in held.items():
        there = t.ptr_add(t.ptr_add(Ptr("%sums"), t.mul(I64("%pitch"), i)), 4 * j * shape.lanes)
        t.emit(f"store {kind} {phi.incoming[1][0]}, ptr {there}, align 16")
    name = f"bytes.{rows}x{tile.nr}{'.rows' if tile.weights_are_rows else ''}"
    return t.function(Signature(name, _PARAMETERS))


def _broadcast(t: Builder, tile: ByteTile, four: Ptr, i: int, rows: int) -> str:
    """Four bytes of a row in every lane; NEON takes them out of a register of four rows."""
    kind, lanes = f"<{tile.shape.lanes} x i32>", tile.shape.lanes
    if tile.shape.by_lane and rows > 1:
        found = t.let(f"load {kind}, ptr {t.ptr_add(four, 4 * (i - i % 4))}, align 16")
        mask = ", ".join([f"i32 {i % 4}"] * lanes)
        return t.let(f"shufflevector {kind} {found}, {kind} poison, <{lanes} x i32> <{mask}>")
    word = t.let(f"load i32, ptr {t.ptr_add(four, 4 * i)}, align 4")
    one = t.let(f"insertelement {kind} poison, i32 {word}, i64 0")
    return t.let(f"shufflevector {kind} {one}, {kind} poison, <{lanes} x i32> zeroinitializer")


def _dot(t: Builder, tile: ByteTile, held: str, factor: str, weights: str) -> str:
    """Sums plus the products of four bytes of the factor with four weights in each lane."""
    shape = tile.shape
    kind, raw = f"<{shape.lanes} x i32>", f"<{4 * shape.lanes} x i8>"
    if tile.emulated:
        return _plain(t, shape, held, factor, weights)
    t.use(f"declare {kind} @{shape.intrinsic}({kind}, {raw}, {raw})")
    # Of two signed operands the instruction takes the broadcast one by lane only where it is the last.
    first, last = (weights, factor) if shape.signed and not tile.weights_are_rows else (factor, weights)
    return t.let(f"call {kind} @{shape.intrinsic}({kind} {held}, {raw} {first}, {raw} {last})")


def _plain(t: Builder, shape: Int8Tile, held: str, factor: str, weights: str) -> str:
    """The same without a dot instruction."""
    count = 4 * shape.lanes
    raw, wide = f"<{count} x i8>", f"<{count} x i32>"
    x = t.let(f"{'sext' if shape.signed else 'zext'} {raw} {factor} to {wide}")
    products = t.let(f"mul {wide} {x}, {t.let(f'sext {raw} {weights} to {wide}')}")
    for part in range(4):
        mask = ", ".join(f"i32 {4 * lane + part}" for lane in range(shape.lanes))
        some = t.let(f"shufflevector {wide} {products}, {wide} poison, <{shape.lanes} x i32> <{mask}>")
        held = t.let(f"add <{shape.lanes} x i32> {held}, {some}")
    return held


__all__ = ["ByteTile", "byte_tile_function", "byte_tile_of", "fitting_tile"]
