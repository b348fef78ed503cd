"""Products with weights of two bytes: some rows of f32 times KC steps of one panel.

Wide vectors of f16 are converted (VCVTPH2PS). With vectors of 128 bits a shift and a mask take less time: the bits of
an f16, moved to the place of an f32's, are a float that is smaller by 2^112, and rows are scaled by powers of two
beforehand, so that products come out right. Sums have one order in every tile: how rows are cut changes no bit.


One row times f16 weights with NEON, whose instructions stay in the order they are written in.

Both ways of widening and all multiply-adds together take as long as two pipes need for them: a step is widened among
the products of the step before, and lines are prefetched from far into L2 and from near into L1. Sums have the order
that they have in every tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Phi, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.dataclass import dataclass
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.policy import HALVES, HalfTile

STEPS = 4
"""Steps along k in an iteration."""
HEAD = LINE = 64
"""Bytes of a row before its numbers: what its sums are multiplied with; and of a cache line, for prefetching."""
_LANES = 4
"""Of the vectors that rows are scaled in."""
_FLOATS, _INTS = f"<{_LANES} x float>", f"<{_LANES} x i32>"
_PLACE, _KEPT = 13, -1879056384
"""Bits that an f16 moves up, and those that are its own afterwards: 0x8FFFE000."""
_MOVED = f"0x{(1023 - 112) << 52:016X}"
"""2^-112: what moving the bits of an f16 makes of 1."""
_ABOVE = 17
"""Powers of two by which rows stay below what would make up for that: f16 that are not moved do not overflow."""
_LEAST, _MOST = 112, 254
"""Exponents of the largest number of a row: outside of these, powers of two would not be finite."""


@dataclass(frozen=True, slots=True)
class HalfKernel:
    """What the code depends on."""

    name: str
    """Of the type of the weights: f16 or bf16."""
    tile: HalfTile
    rounds: bool = False
    """Whether rows are rounded to f16 and multiplied by f16 arithmetic."""

    @property
    def is_moved(self) -> bool:
        """Whether bits of weights are moved to the place of an f32's, and rows scaled for that."""
        return self.name == "f16" and self.tile.by_lane


def splat(number: int | str, kind: str = "i32", count: int = _LANES) -> str:
    """A vector of equal numbers."""
    return f"<{', '.join([f'{kind} {number}'] * count)}>"


class _Halves(Builder):
    """What the functions share: weights as floats."""

    def __init__(self, of: HalfKernel) -> None:
        super().__init__()
        self.of, self.lanes, self.vectors, self.columns = of, of.tile.lanes, of.tile.vectors, of.tile.columns
        self.floating, self.ints, self.shorts = (f"<{self.lanes} x {kind}>" for kind in ("float", "i32", "i16"))

    def weights(self, panel: Ptr, step: int) -> list[str]:
        """The vectors of a step along k."""
        start = self.ptr_add(panel, 2 * step * self.columns)
        if self.of.tile.by_lane:
            return [four for pair in range(self.vectors // 2) for four in self._pair(start, pair)]
        at = [self.ptr_add(start, 2 * self.lanes * v) for v in range(self.vectors)]
        return [self.widened(self.let(f"load {self.shorts}, ptr {there}, align 16")) for there in at]

    def _pair(self, start: Ptr, pair: int) -> list[str]:
        """Two vectors of one load."""
        return [self.widened(some, is_moved=self.is_moved(half)) for half, some in enumerate(self.halves(start, pair))]

    def halves(self, start: Ptr, pair: int, how: str = "load") -> list[str]:
        """The same as they are stored."""
        both, found = f"<{2 * self.lanes} x i16>", list[str]()
        two = self.let(f"{how} {both}, ptr {self.ptr_add(start, 4 * self.lanes * pair)}, align 16")
        for half in range(2):
            mask = ", ".join([f"i32 {self.lanes * half + lane}" for lane in range(self.lanes)])
            found.append(self.let(f"shufflevector {both} {two}, {both} poison, {self.ints} <{mask}>"))
        return found

    def is_moved(self, v: int) -> bool:
        """Whether a vector's bits are moved: every other one is, as the two ways of widening use different pipes."""
        return self.of.is_moved and v % 2 == 0

    def widened(self, some: str, *, is_moved: bool = False) -> str:
        if is_moved:
            bits = self.cleared(self.moved(some))
        elif self.of.name == "bf16":
            bits = self._shifted("zext", some, 16)
        else:
            halves = f"<{self.lanes} x half>"
            return self.let(
                f"fpext {halves} {self.let(f'bitcast {self.shorts} {some} to {halves}')} to {self.floating}"
            )
        return self.let(f"bitcast {self.ints} {bits} to {self.floating}")

    def moved(self, some: str) -> str:
        """Bits of f16 at the place of an f32's: the sign is carried along to the three bits below its place."""
        return self._shifted("sext", some, _PLACE)

    def cleared(self, bits: str) -> str:
        """The same without these three."""
        return self.let(f"and {self.ints} {bits}, {splat(_KEPT, count=self.lanes)}")

    def _shifted(self, how: str, some: str, places: int) -> str:
        wide = self.let(f"{how} {self.shorts} {some} to {self.ints}")
        return self.let(f"shl {self.ints} {wide}, {splat(places, count=self.lanes)}")

    def floats(self, panel: Ptr, step: int) -> list[str]:
        """The same of a panel that is spelled out."""
        at = [self.ptr_add(panel, 4 * (step * self.columns + self.lanes * v)) for v in range(self.vectors)]
        return [self.let(f"load {self.floating}, ptr {there}, align 16") for there in at]


class Rows(_Halves):
    """The function that multiplies rows with a part of a panel, and adds that to sums."""

    def __init__(self, of: HalfKernel, rows: int, *, is_spread: bool) -> None:
        super().__init__(of)
        self.rows, self.is_spread = rows, is_spread
        self.x = [self.ptr_add(Ptr("%rows"), self.mul(I64("%pitch"), row)) for row in range(rows)]

    def written(self) -> Function:
        there = {(row, v): self._place(row, v) for row in range(self.rows) for v in range(self.vectors)}
        start = {cell: self._held(place) for cell, place in there.items()}
        before = self.block
        along, after = self.fresh("along"), self.fresh("done")
        self.emit(f"br label %{along}")
        self.label(along)
        step, panel_at = self.phi("i64"), self.phi("ptr")
        sums = {cell: self.phi(self.floating) for cell in there}
        found = {cell: phi.name for cell, phi in sums.items()}
        pace = STEPS * self.columns * (4 if self.is_spread else 2)
        self._prefetch(Ptr(panel_at.name), I64(step.name))
        at = self.mul(I64(step.name), 4)
        factors = [self._factors(self.ptr_add(self.ptr_add(row, HEAD), at)) for row in self.x]
        self.multiply(Ptr(panel_at.name), factors, found)
        following = I64(self.let(f"add nuw nsw i64 {step.name}, {STEPS}"))
        carried: list[tuple[Phi, object, object]] = [
            (step, 0, following),
            (panel_at, Ptr("%panel"), self.ptr_add(Ptr(panel_at.name), pace)),
            *[(phi, start[cell], found[cell]) for cell, phi in sums.items()],
        ]
        self.end_loop(carried, self.icmp("slt", following, I64("%deep")), before=before, along=along, after=after)
        for (row, v), place in there.items():
            y = found[row, v]
            if self.of.is_moved:
                scale = self._spread(self.let(f"load float, ptr {self.x[row]}, align 4"))
                if not self.is_moved(v):
                    y = self.let(f"fmul {self.floating} {y}, {splat(_MOVED, 'float', self.lanes)}")
                y = self.let(f"fmul {self.floating} {y}, {scale}")
            self.emit(f"store {self.floating} {y}, ptr {place}, align 4")
        kinds = ("ptr rows", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 deep", "i1 fresh", "ptr ahead")
        given = tuple([Parameter(*each.split()) for each in kinds])
        how = "spread" if self.is_spread else self.of.name
        return self.function(Signature(f"halves.{how}.{self.rows}", given))

    def multiply(self, panel: Ptr, factors: list[list[str]], found: dict[tuple[int, int], str]) -> None:
        """Add products of an iteration to sums."""
        for part in range(STEPS):
            read = self.floats if self.is_spread else self.weights
            weights = read(panel, part)
            for row in range(self.rows):
                for v in range(self.vectors):
                    found[row, v] = self.fma(weights[v], factors[row][part], found[row, v])

    def _prefetch(self, panel: Ptr, step: I64) -> None:
        """Prefetch weights further along k: where a panel is spelled out, a step of what follows for each step."""
        start = self.ptr_add(panel, HALVES.prefetch_distance)
        if self.is_spread:
            start = self.ptr_add(Ptr("%ahead"), self.mul(step, 2 * self.columns))
        for line in range(0, 0 if self.of.tile.by_lane else 2 * STEPS * self.columns, LINE):
            self.prefetch(self.ptr_add(start, line))

    def _place(self, row: int, v: int) -> Ptr:
        return self.ptr_add(self.ptr_add(Ptr("%sums"), self.mul(I64("%stride"), row)), 4 * self.lanes * v)

    def _held(self, there: Ptr) -> str:
        """The sums of the steps before."""
        kept = self.let(f"load {self.floating}, ptr {there}, align 4")
        return self.let(f"select i1 %fresh, {self.floating} zeroinitializer, {self.floating} {kept}")

    def _factors(self, x: Ptr) -> list[str]:
        """Numbers of a row, each in all lanes; NEON takes them out of one register."""
        if not self.of.tile.by_lane:
            numbers = [self.let(f"load float, ptr {self.ptr_add(x, 4 * part)}, align 4") for part in range(STEPS)]
            return [self._spread(number) for number in numbers]
        some = self.let(f"load {self.floating}, ptr {x}, align 16")
        return [self._lane(some, part) for part in range(STEPS)]

    def _spread(self, number: str) -> str:
        return self._lane(self.let(f"insertelement {self.floating} poison, float {number}, i64 0"), 0)

    def _lane(self, x: str, lane: int) -> str:
        mask = splat(lane, count=self.lanes)
        return self.let(f"shufflevector {self.floating} {x}, {self.floating} poison, {self.ints} {mask}")

    def fma(self, x: str, y: str, z: str) -> str:
        name, kind = f"llvm.fma.v{self.lanes}f32", self.floating
        self.use(f"declare {kind} @{name}({kind}, {kind}, {kind})")
        return self.let(f"call {kind} @{name}({kind} {x}, {kind} {y}, {kind} {z})")


class _Spread(_Halves):
    """The function that spells a panel out."""

    def written(self) -> Function:
        with self.loop(0, I64("%deep")) as step:
            vectors = self.weights(self.ptr_add(Ptr("%panel"), self.mul(step, 2 * self.columns)), 0)
            there = self.ptr_add(Ptr("%target"), self.mul(step, 4 * self.columns))
            for v, vector in enumerate(vectors):
                self.emit(f"store {self.floating} {vector}, ptr {self.ptr_add(there, 4 * self.lanes * v)}, align 16")
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
        self.use(f"declare {_INTS} @llvm.umax.v{_LANES}i32({_INTS}, {_INTS})")
        most = self.let(f"call {_INTS} @llvm.umax.v{_LANES}i32({_INTS} {held.name}, {_INTS} {size})")
        following = I64(self.let(f"add nuw nsw i64 {step.name}, {_LANES}"))
        for phi, start, next_one in ((step, "0", str(following)), (held, "zeroinitializer", most)):
            phi.add(start, before)
            phi.add(next_one, self.block)
        self.emit(f"br i1 {self.icmp('slt', following, I64('%deep'))}, label %{along}, label %{after}")
        self.label(after)
        self.use(f"declare i32 @llvm.vector.reduce.umax.v{_LANES}i32({_INTS})")
        return self.let(f"call i32 @llvm.vector.reduce.umax.v{_LANES}i32({_INTS} {most})")


class _Scaled(Largest):
    """The function that writes a row for its products: scaled, with what its sums are multiplied with in front."""

    def __init__(self, of: HalfKernel) -> None:
        super().__init__()
        self.of = of

    def written(self) -> Function:
        # The factor makes up for the exponents of the weights, too.
        scale, factor = self.powers(least=_LEAST, most=_MOST, above=_ABOVE) if self.of.is_moved else ("1.0", "1.0")
        self.emit(f"store float {scale}, ptr %target, align 4")
        one = self.let(f"insertelement {_FLOATS} poison, float {factor}, i64 0")
        spread = self.let(f"shufflevector {_FLOATS} {one}, {_FLOATS} poison, {_INTS} zeroinitializer")
        with self.loop(0, I64("%deep"), step=_LANES) as step:
            at = self.mul(step, 4)
            x = self.let(f"load {_FLOATS}, ptr {self.ptr_add(Ptr('%x'), at)}, align 4")
            there = self.ptr_add(self.ptr_add(Ptr("%target"), HEAD), at)
            self.emit(f"store {_FLOATS} {self.let(f'fmul {_FLOATS} {x}, {spread}')}, ptr {there}, align 16")
        given = (Parameter("ptr", "x"), Parameter("ptr", "target"), Parameter("i64", "deep"))
        return self.function(Signature(f"halves.row.{self.of.name}", given))


@cache
def spread_function(of: HalfKernel) -> tuple[SharedFunction, Signature]:
    """Spells a panel out as f32: `(panel, target, deep)`."""
    return shared_function(_Spread(of).written())


@cache
def row_function(of: HalfKernel) -> tuple[SharedFunction, Signature]:
    """Writes a row for its products: `(x, target, deep)`."""
    return shared_function(_Scaled(of).written())


@cache
def rows_function(of: HalfKernel, rows: int, *, is_spread: bool) -> tuple[SharedFunction, Signature]:
    """Adds products of rows with a panel, or one that is spelled out, to sums, unless they are fresh.

    `(rows, pitch, panel, sums, stride, deep, fresh, ahead)`; `ahead` is prefetched while the panel is multiplied.
    """
    is_ordered = of.is_moved and rows == 1 and not is_spread
    return shared_function((RowInOrder if is_ordered else Rows)(of, rows, is_spread=is_spread).written())


class RowInOrder(Rows):
    """The function that multiplies one row with a part of a panel, and adds that to sums."""

    def multiply(self, panel: Ptr, factors: list[list[str]], found: dict[tuple[int, int], str]) -> None:
        """Add products of an iteration to sums."""
        waiting: list[Callable[[], None]] = []
        for part in range(STEPS):
            start = self.ptr_add(panel, 2 * part * self.columns)
            if 2 * part * self.columns % LINE == 0:
                self.prefetch(self.ptr_add(start, HALVES.prefetch_distance))
                self.prefetch(self.ptr_add(start, HALVES.far_distance), level=2)
            weights: dict[int, str] = {}
            loaded = [self.halves(start, pair, how="load volatile") for pair in range(self.vectors // 2)]
            for pair, (moved, other) in enumerate(loaded):
                self._widen(pair, moved, other, weights, waiting)
            waiting = [self._product(v, weights, factors[0][part], found) for v in range(self.vectors)]
        for product in waiting:
            product()

    def _widen(
        self, pair: int, moved: str, other: str, weights: dict[int, str], waiting: list[Callable[[], None]]
    ) -> None:
        """Widen two vectors, one each way, among products of the step before."""
        weights[2 * pair + 1] = self._placed(self.widened(other), self.floating)
        bits = self._placed(self.moved(moved), self.ints)
        for _ in range(min(2, len(waiting))):
            waiting.pop(0)()
        bits = self._placed(self.cleared(bits), self.ints)
        weights[2 * pair] = self.let(f"bitcast {self.ints} {bits} to {self.floating}")

    def _product(
        self, v: int, weights: dict[int, str], factor: str, found: dict[tuple[int, int], str]
    ) -> Callable[[], None]:
        def add() -> None:
            # Placed before and after: LLVM would otherwise compute it right after its weights.
            held = self._placed(found[0, v], self.floating)
            found[0, v] = self._placed(self.fma(weights[v], factor, held), self.floating)

        return add

    def _prefetch(self, panel: Ptr, step: I64) -> None:
        """Steps prefetch a line each."""

    def _placed(self, x: str, kind: str) -> str:
        """The same numbers, computed before the next ones that are placed. No instruction comes of it."""
        return self.let(f'call {kind} asm sideeffect "", "=w,0"({kind} {x})')


__all__ = ["HEAD", "STEPS", "HalfKernel", "rows_function"]
