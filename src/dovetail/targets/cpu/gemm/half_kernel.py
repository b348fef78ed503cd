"""Products with weights of two bytes: some rows of f32 times one panel, along all of k.

The bits of an f16, moved to the place of an f32's, are a float that is smaller by 2^112: a shift and a mask take less
time than a conversion on cores with vectors of 128 bits. Rows are scaled by powers of two beforehand, so that products
come out right. Sums have one order in every tile: how rows are cut changes no bit.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Phi, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.dataclass import dataclass
from dovetail.kernels.spec import SharedFunction

COLUMNS, LANES, STEPS = 16, 4, 4
"""Of a panel, of a vector, and steps along k in an iteration."""
VECTORS = COLUMNS // LANES
HEAD = 64
"""Bytes of a row before its numbers: what its sums are multiplied with."""
_FLOATS, _INTS, _SHORTS = f"<{LANES} x float>", f"<{LANES} x i32>", f"<{2 * LANES} x i16>"
_PLACE, _KEPT = 13, -1879056384
"""Bits that an f16 moves up, and those that are its own afterwards: 0x8FFFE000."""
_LEAST, _MOST = 112, 254
"""Exponents of the largest number of a row: outside of these, powers of two would not be finite."""


@dataclass(frozen=True, slots=True)
class HalfKernel:
    """What the code depends on."""

    name: str
    """Of the type of the weights: f16 or bf16."""
    rounds: bool = False
    """Whether rows are rounded to f16 and multiplied by f16 arithmetic."""

    @property
    def tiles(self) -> tuple[int, ...]:
        """Rows of tiles, most first."""
        return (4, 2, 1)

    @property
    def least_spread(self) -> int:
        """Rows from which on a panel is spelled out as f32 first."""
        return 4


def splat(number: int | str, kind: str = "i32", count: int = LANES) -> str:
    """A vector of equal numbers."""
    return f"<{', '.join([f'{kind} {number}'] * count)}>"


class _Halves(Builder):
    """What the functions share: weights as floats."""

    def __init__(self, of: HalfKernel) -> None:
        super().__init__()
        self.of = of

    def weights(self, panel: Ptr, step: int) -> list[str]:
        """The vectors of a step along k."""
        found: list[str] = []
        for pair in range(VECTORS // 2):
            at = self.ptr_add(panel, 2 * (step * COLUMNS + 2 * LANES * pair))
            eight = self.let(f"load {_SHORTS}, ptr {at}, align 16")
            for half in range(2):
                mask = ", ".join([f"i32 {LANES * half + lane}" for lane in range(LANES)])
                four = self.let(f"shufflevector {_SHORTS} {eight}, {_SHORTS} poison, <{LANES} x i32> <{mask}>")
                found.append(self._widened(four))
        return found

    def _widened(self, four: str) -> str:
        if self.of.name == "bf16":
            wide = self.let(f"zext <{LANES} x i16> {four} to {_INTS}")
            bits = self.let(f"shl {_INTS} {wide}, {splat(16)}")
        else:
            # The sign is carried along to the three bits below its place, which are cleared.
            wide = self.let(f"sext <{LANES} x i16> {four} to {_INTS}")
            bits = self.let(f"and {_INTS} {self.let(f'shl {_INTS} {wide}, {splat(_PLACE)}')}, {splat(_KEPT)}")
        return self.let(f"bitcast {_INTS} {bits} to {_FLOATS}")

    def floats(self, panel: Ptr, step: int) -> list[str]:
        """The same of a panel that is spelled out."""
        at = [self.ptr_add(panel, 4 * (step * COLUMNS + LANES * v)) for v in range(VECTORS)]
        return [self.let(f"load {_FLOATS}, ptr {there}, align 16") for there in at]


class _Rows(_Halves):
    """The function that multiplies rows with a panel."""

    def __init__(self, of: HalfKernel, rows: int, *, is_spread: bool) -> None:
        super().__init__(of)
        self.rows, self.is_spread = rows, is_spread
        self.x = [self.ptr_add(Ptr("%rows"), self.mul(I64("%pitch"), row)) for row in range(rows)]

    def written(self) -> Function:
        before = self.block
        along, after = self.fresh("along"), self.fresh("done")
        self.emit(f"br label %{along}")
        self.label(along)
        step, panel_at = self.phi("i64"), self.phi("ptr")
        sums = {(row, v): self.phi(_FLOATS) for row in range(self.rows) for v in range(VECTORS)}
        found = {cell: phi.name for cell, phi in sums.items()}
        at = self.mul(I64(step.name), 4)
        x = [self.let(f"load {_FLOATS}, ptr {self.ptr_add(self.ptr_add(row, HEAD), at)}, align 16") for row in self.x]
        for part in range(STEPS):
            read = self.floats if self.is_spread else self.weights
            weights = read(Ptr(panel_at.name), part)
            for row in range(self.rows):
                factor = self._lane(x[row], part)
                for v in range(VECTORS):
                    found[row, v] = self._fma(weights[v], factor, found[row, v])
        following = I64(self.let(f"add nuw nsw i64 {step.name}, {STEPS}"))
        pace = STEPS * COLUMNS * (4 if self.is_spread else 2)
        carried: list[tuple[Phi, object, object]] = [
            (step, 0, following),
            (panel_at, Ptr("%panel"), self.ptr_add(Ptr(panel_at.name), pace)),
            *[(phi, "zeroinitializer", found[cell]) for cell, phi in sums.items()],
        ]
        for phi, start, next_one in carried:
            phi.add(str(start), before)
            phi.add(str(next_one), self.block)
        self.emit(f"br i1 {self.icmp('slt', following, I64('%deep'))}, label %{along}, label %{after}")
        self.label(after)
        for row in range(self.rows):
            scale = self._loaded_splat(self.x[row])
            for v in range(VECTORS):
                there = self.ptr_add(self.ptr_add(Ptr("%sums"), self.mul(I64("%stride"), row)), 4 * LANES * v)
                y = self.let(f"fmul {_FLOATS} {found[row, v]}, {scale}")
                self.emit(f"store {_FLOATS} {y}, ptr {there}, align 4")
        kinds = ("ptr rows", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 deep")
        given = tuple([Parameter(*each.split()) for each in kinds])
        how = "spread" if self.is_spread else self.of.name
        return self.function(Signature(f"halves.{how}.{self.rows}", given))

    def _lane(self, x: str, lane: int) -> str:
        return self.let(f"shufflevector {_FLOATS} {x}, {_FLOATS} poison, {_INTS} {splat(lane)}")

    def _loaded_splat(self, pointer: Ptr) -> str:
        number = self.let(f"load float, ptr {pointer}, align 4")
        one = self.let(f"insertelement {_FLOATS} poison, float {number}, i64 0")
        return self._lane(one, 0)

    def _fma(self, x: str, y: str, z: str) -> str:
        name = f"llvm.fma.v{LANES}f32"
        self.use(f"declare {_FLOATS} @{name}({_FLOATS}, {_FLOATS}, {_FLOATS})")
        return self.let(f"call {_FLOATS} @{name}({_FLOATS} {x}, {_FLOATS} {y}, {_FLOATS} {z})")


class _Spread(_Halves):
    """The function that spells a panel out."""

    def written(self) -> Function:
        with self.loop(0, I64("%deep")) as step:
            vectors = self.weights(self.ptr_add(Ptr("%panel"), self.mul(step, 2 * COLUMNS)), 0)
            there = self.ptr_add(Ptr("%target"), self.mul(step, 4 * COLUMNS))
            for v, vector in enumerate(vectors):
                self.emit(f"store {_FLOATS} {vector}, ptr {self.ptr_add(there, 4 * LANES * v)}, align 16")
        given = (Parameter("ptr", "panel"), Parameter("ptr", "target"), Parameter("i64", "deep"))
        return self.function(Signature(f"halves.spread.{self.of.name}", given))


class Largest(Builder):
    """A function that starts with the largest magnitude of a row."""

    def powers(self, *, least: int, most: int, above: int = 0) -> tuple[str, str]:
        """A power of two of the size of the row's largest number, or `above` powers above it, and a factor for the row.

        Exponents are kept within bounds; the factor's is what is left of both bounds together.
        """
        exponent = self.let(f"lshr i32 {self._largest()}, 23")
        exponent = exponent if not above else self.let(f"add i32 {exponent}, {above}")
        for name, bound in (("umax", least), ("umin", most)):
            self.use(f"declare i32 @llvm.{name}.i32(i32, i32)")
            exponent = self.let(f"call i32 @llvm.{name}.i32(i32 {exponent}, i32 {bound})")
        return self._power(exponent), self._power(self.let(f"sub i32 {least + most}, {exponent}"))

    def _power(self, exponent: str) -> str:
        return self.let(f"bitcast i32 {self.let(f'shl i32 {exponent}, 23')} to float")

    def _largest(self) -> str:
        """The bits of the largest magnitude of the row."""
        before = self.block
        along, after = self.fresh("along"), self.fresh("done")
        self.emit(f"br label %{along}")
        self.label(along)
        step, held = self.phi("i64"), self.phi(_INTS)
        x = self.let(f"load {_INTS}, ptr {self.ptr_add(Ptr('%x'), self.mul(I64(step.name), 4))}, align 4")
        size = self.let(f"and {_INTS} {x}, {splat(0x7FFFFFFF)}")
        self.use(f"declare {_INTS} @llvm.umax.v{LANES}i32({_INTS}, {_INTS})")
        most = self.let(f"call {_INTS} @llvm.umax.v{LANES}i32({_INTS} {held.name}, {_INTS} {size})")
        following = I64(self.let(f"add nuw nsw i64 {step.name}, {LANES}"))
        for phi, start, next_one in ((step, "0", str(following)), (held, "zeroinitializer", most)):
            phi.add(start, before)
            phi.add(next_one, self.block)
        self.emit(f"br i1 {self.icmp('slt', following, I64('%deep'))}, label %{along}, label %{after}")
        self.label(after)
        self.use(f"declare i32 @llvm.vector.reduce.umax.v{LANES}i32({_INTS})")
        return self.let(f"call i32 @llvm.vector.reduce.umax.v{LANES}i32({_INTS} {most})")


class _Scaled(Largest):
    """The function that writes a row for its products: scaled, with what its sums are multiplied with in front."""

    def __init__(self, of: HalfKernel) -> None:
        super().__init__()
        self.of = of

    def written(self) -> Function:
        # The factor makes up for the exponents of the weights, too.
        scale, factor = ("1.0", "1.0") if self.of.name == "bf16" else self.powers(least=_LEAST, most=_MOST)
        self.emit(f"store float {scale}, ptr %target, align 4")
        one = self.let(f"insertelement {_FLOATS} poison, float {factor}, i64 0")
        spread = self.let(f"shufflevector {_FLOATS} {one}, {_FLOATS} poison, {_INTS} zeroinitializer")
        with self.loop(0, I64("%deep"), step=LANES) as step:
            at = self.mul(step, 4)
            x = self.let(f"load {_FLOATS}, ptr {self.ptr_add(Ptr('%x'), at)}, align 4")
            there = self.ptr_add(self.ptr_add(Ptr("%target"), HEAD), at)
            self.emit(f"store {_FLOATS} {self.let(f'fmul {_FLOATS} {x}, {spread}')}, ptr {there}, align 16")
        given = (Parameter("ptr", "x"), Parameter("ptr", "target"), Parameter("i64", "deep"))
        return self.function(Signature(f"halves.row.{self.of.name}", given))


@cache
def rows_function(of: HalfKernel, rows: int, *, is_spread: bool) -> tuple[SharedFunction, Signature]:
    """Products of rows with a panel, or one that is spelled out: `(rows, pitch, panel, sums, stride, deep)`."""
    return shared_function(_Rows(of, rows, is_spread=is_spread).written())


@cache
def spread_function(of: HalfKernel) -> tuple[SharedFunction, Signature]:
    """Spells a panel out as f32: `(panel, target, deep)`."""
    return shared_function(_Spread(of).written())


@cache
def row_function(of: HalfKernel) -> tuple[SharedFunction, Signature]:
    """Writes a row for its products: `(x, target, deep)`."""
    return shared_function(_Scaled(of).written())


__all__ = [
    "COLUMNS",
    "HEAD",
    "STEPS",
    "VECTORS",
    "HalfKernel",
    "Largest",
    "row_function",
    "rows_function",
    "splat",
    "spread_function",
]  # fmt: skip
