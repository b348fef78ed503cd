"""Tiles of AMX: registers of 16 rows of 64 bytes, and products of bf16 that are added up in f32.

Every instruction of tiles is written here. A builder that emulates writes the same in plain vector code, with tiles on
the stack, so that a kernel runs on machines without them. Tiles hold nothing from one function to the next.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.casts import to_bf16
from dovetail.codegen.llvm.function import Function, Signature
from dovetail.codegen.llvm.handles import I64, Int, Ptr, Vec, VectorType
from dovetail.codegen.llvm.simd import SimdBuilder

ROWS, ROW_BYTES = 16, 64
"""Of a tile."""
TILE_BYTES = ROWS * ROW_BYTES
STEPS = 32
"""Products along k that a tile of bf16 holds."""
COLUMNS = 16
"""Sums of a row of a tile, and lanes of the vectors here."""
_TILES = 8
_FLOATS, _WORDS, _SHORTS = VectorType(COLUMNS, "float"), VectorType(COLUMNS, "i32"), VectorType(2 * COLUMNS, "i16")
_PALETTE = {0: 1, **{16 + 2 * tile: ROW_BYTES for tile in range(_TILES)}, **{48 + t: ROWS for t in range(_TILES)}}
"""The bytes of a configuration that are not 0: its kind, the bytes of a row of each tile, and its rows."""
_ROUNDED = "amx.emulated.rounded"
_JOIN, _DOT = "llvm.x86.avx512bf16.cvtne2ps2bf16.512", "llvm.x86.avx512bf16.dpbf16ps.512"


class PairBuilder(SimdBuilder):
    """A function that rounds numbers on their way into tiles."""

    emulated = False
    """Whether code is plain vector code."""
    _rounds = False

    def function(self, signature: Signature, *, linkage: str = "", attributes: str = "noinline nounwind") -> Function:
        function = super().function(signature, linkage=linkage, attributes=attributes)
        return replace(function, text=f"{_rounding()}\n{function.text}") if self._rounds else function

    def rounded(self, first: str, second: str) -> str:
        """Two vectors of f32 as one of bf16, one after the other."""
        if self.emulated:
            self._rounds = True
            return self.let(f"call {_SHORTS} @{_ROUNDED}({_FLOATS} {first}, {_FLOATS} {second})")
        kind = f"<{2 * COLUMNS} x bfloat>"
        self.use(f"declare {kind} @{_JOIN}({_FLOATS}, {_FLOATS})")
        both = self.let(f"call {kind} @{_JOIN}({_FLOATS} {second}, {_FLOATS} {first})")
        return self.let(f"bitcast {kind} {both} to {_SHORTS}")

    def paired(self, first: str, second: str) -> str:
        """Weights of two steps along k as a row of a tile: those of a column side by side."""
        both = self.rounded(first, second)
        return self.let(f"shufflevector {_SHORTS} {both}, {_SHORTS} poison, <{2 * COLUMNS} x i32> <{_ZIPPED}>")

    def paired_halves(self, first: str, second: str) -> str:
        """Pair weights that are bf16 already."""
        return _joined(self, first, second, _ZIPPED)

    def store_row(self, row: str, target: Ptr) -> None:
        """Write 64 bytes of a tile to memory."""
        self.emit(f"store {_SHORTS} {row}, ptr {target}, align 4")


class TileBuilder(PairBuilder):
    """A function that uses tiles."""

    def __init__(self, *, emulated: bool) -> None:
        super().__init__()
        self.emulated = emulated
        self._held: Ptr | None = None

    def configure(self) -> None:
        """Make all tiles 16 rows of 64 bytes: before this, an instruction of tiles is illegal."""
        if self.emulated:
            self._held = self.alloca(f"[{_TILES * TILE_BYTES} x i8], align 64")
            return
        room = self.alloca("[64 x i8], align 64")
        words = [sum(_PALETTE.get(8 * word + byte, 0) << 8 * byte for byte in range(8)) for word in range(8)]
        for at, word in enumerate(words):
            self.store_i64(word, self.ptr_add(room, 8 * at))
        self._tiles("ldtilecfg", "ptr", room)

    def release(self) -> None:
        """Give tiles back: a thread that goes on with them pays for saving them when it is switched."""
        if not self.emulated:
            self._tiles("tilerelease", "")

    def zero(self, tile: int) -> None:
        if not self.emulated:
            self._tiles("tilezero", "i8 immarg", tile)
            return
        with self.loop(0, ROWS) as row:
            self.emit(f"store {_FLOATS} zeroinitializer, ptr {self._row(tile, row)}, align 64")

    def load(self, tile: int, source: Ptr, stride: Int) -> None:
        """Fill a tile with rows that are `stride` bytes apart."""
        if not self.emulated:
            self._tiles("tileloadd64", "i8 immarg, ptr, i64", tile, source, stride)
            return
        with self.loop(0, ROWS) as row:
            line = self.let(f"load {_WORDS}, ptr {self.ptr_add(source, self.mul(row, stride))}, align 1")
            self.emit(f"store {_WORDS} {line}, ptr {self._row(tile, row)}, align 64")

    def store(self, tile: int, target: Ptr, stride: Int) -> None:
        if not self.emulated:
            self._tiles("tilestored64", "i8 immarg, ptr, i64", tile, target, stride)
            return
        with self.loop(0, ROWS) as row:
            line = self.let(f"load {_WORDS}, ptr {self._row(tile, row)}, align 64")
            self.emit(f"store {_WORDS} {line}, ptr {self.ptr_add(target, self.mul(row, stride))}, align 1")

    def multiply(self, sums: int, x: int, weights: int) -> None:
        """Add products of bf16: rows of x have 32 of them, rows of weights two for each of 16 columns."""
        if not self.emulated:
            self._tiles("tdpbf16ps", "i8 immarg, i8 immarg, i8 immarg", sums, x, weights)
            return
        with self.loop(0, ROWS) as row, self.loop(0, STEPS // 2) as pair:
            at = self.ptr_add(self._row(x, row), self.mul(pair, 4))
            left = self.pair_in_all_lanes(at)
            right = self.let(f"load {_WORDS}, ptr {self._row(weights, pair)}, align 64")
            held = self.let(f"load {_FLOATS}, ptr {self._row(sums, row)}, align 64")
            totals = self.dot(held, left, right)
            self.emit(f"store {_FLOATS} {totals}, ptr {self._row(sums, row)}, align 64")

    def dot(self, sums: str, x: str, weights: str) -> Vec:
        """Sums of f32 with the products of two pairs of bf16 in each lane added (VDPBF16PS); it needs no tiles."""
        if not self.emulated:
            kind = f"<{2 * COLUMNS} x bfloat>"
            self.use(f"declare {_FLOATS} @{_DOT}({_FLOATS}, {kind}, {kind})")
            a, b = (self.let(f"bitcast {_WORDS} {y} to {kind}") for y in (x, weights))
            return Vec(self.let(f"call {_FLOATS} @{_DOT}({_FLOATS} {sums}, {kind} {a}, {kind} {b})"), _FLOATS)
        for how in (f"shl {_WORDS} {{}}, {_splat(16)}", f"and {_WORDS} {{}}, {_splat(-65536)}"):
            a, b = (self.let(f"bitcast {_WORDS} {self.let(how.format(y))} to {_FLOATS}") for y in (x, weights))
            sums = self.let(f"fadd {_FLOATS} {sums}, {self.let(f'fmul {_FLOATS} {a}, {b}')}")
        return Vec(sums, _FLOATS)

    def pair_in_all_lanes(self, at: Ptr) -> str:
        """Two bf16 of a row, in each lane."""
        one = self.let(f"insertelement {_WORDS} poison, i32 {self.let(f'load i32, ptr {at}, align 4')}, i64 0")
        return self.let(f"shufflevector {_WORDS} {one}, {_WORDS} poison, {_WORDS} zeroinitializer")

    def _tiles(self, name: str, kinds: str, *arguments: int | Ptr | I64) -> None:
        self.use(f"declare void @llvm.x86.{name}({kinds})")
        types = [kind.split()[0] for kind in kinds.split(", ") if kind]
        passed = ", ".join([f"{kind} {x}" for kind, x in zip(types, arguments, strict=True)])
        self.emit(f"call void @llvm.x86.{name}({passed})")

    def _row(self, tile: int, row: Int) -> Ptr:
        assert self._held is not None, "tiles are configured first"
        return self.ptr_add(self._held, self.add(self.mul(row, ROW_BYTES), tile * TILE_BYTES))


def _joined(t: Builder, first: str, second: str, order: str) -> str:
    half = f"<{COLUMNS} x i16>"
    return t.let(f"shufflevector {half} {first}, {half} {second}, <{2 * COLUMNS} x i32> <{order}>")


@cache
def _rounding() -> str:
    """A function that rounds in plain vector code: in every place, it would take LLVM a long time."""
    t = Builder()
    order = ", ".join([f"i32 {i}" for i in range(2 * COLUMNS)])
    both = _joined(t, to_bf16(t, "%first", COLUMNS), to_bf16(t, "%second", COLUMNS), order)
    t.emit(f"ret {_SHORTS} {both}")
    signature = f"{_FLOATS} %first, {_FLOATS} %second"
    return "\n".join(
        [f"define internal {_SHORTS} @{_ROUNDED}({signature}) noinline nounwind {{", *map(str, t.body()), "}"]
    )


def _splat(number: int) -> str:
    return f"splat (i32 {number})"


_ZIPPED = ", ".join([f"i32 {COLUMNS * (i % 2) + i // 2}" for i in range(2 * COLUMNS)])

__all__ = ["COLUMNS", "ROWS", "ROW_BYTES", "STEPS", "TILE_BYTES", "PairBuilder", "TileBuilder"]
