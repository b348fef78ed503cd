"""Products with weights of two bytes: some rows of f32 times KC steps of one panel.

Wide vectors of f16 are converted (VCVTPH2PS). With vectors of 128 bits a shift and a mask take less time: the bits of
an f16, moved to the place of an f32's, are a float that is smaller by 2^112, and rows are scaled by powers of two
beforehand, so that products come out right. Sums have one order in every tile: how rows are cut changes no bit.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, Ptr, Vec, VectorType
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.simd import Emit, PhiLoop, SimdBuilder, Stream, same, zeros
from dovetail.dataclass import dataclass
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.policy import HALVES, HalfTile

STEPS = 4
"""Steps along k in an iteration."""
HEAD = LINE = 64
"""Bytes of a row before its numbers: what its sums are multiplied with; and of a cache line, for prefetching."""
_LANES = 4
"""Of the vectors that rows are scaled in."""
_FLOATS, _INTS = VectorType(_LANES, "float"), VectorType(_LANES, "i32")
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


@cache
def rows_function(of: HalfKernel, rows: int, *, is_spread: bool) -> tuple[SharedFunction, Signature]:
    """Adds products of rows with a panel, or one that is spelled out, to sums, unless they are fresh.

    `(rows, pitch, panel, sums, stride, deep, fresh, ahead)`; `ahead` is prefetched while the panel is multiplied.
    """
    is_ordered = of.is_moved and rows == 1 and not is_spread
    return shared_function((_RowInOrder if is_ordered else _Rows)(of, rows, is_spread=is_spread).written())


@cache
def spread_function(of: HalfKernel) -> tuple[SharedFunction, Signature]:
    """Spells a panel out as f32: `(panel, target, deep)`."""
    t = _Halves(of)
    with t.loop(0, I64("%deep")) as step:
        vectors = t.weights(t.ptr_add(Ptr("%panel"), t.mul(step, 2 * t.columns)), 0)
        there = t.ptr_add(Ptr("%target"), t.mul(step, 4 * t.columns))
        for v, vector in enumerate(vectors):
            t.store_lanes(vector, t.ptr_add(there, 4 * t.lanes * v), 16)
    parameters = (Parameter("ptr", "panel"), Parameter("ptr", "target"), Parameter("i64", "deep"))
    return shared_function(t.function(Signature(f"halves.spread.{of.name}", parameters)))


@cache
def row_function(of: HalfKernel) -> tuple[SharedFunction, Signature]:
    """Writes a row for its products, scaled, with what its sums are multiplied with in front: `(x, target, deep)`."""
    t = Largest()
    # The factor makes up for the exponents of the weights, too.
    scale, factor = t.powers(least=_LEAST, most=_MOST, above=_ABOVE) if of.is_moved else ("1.0", "1.0")
    t.emit(f"store float {scale}, ptr %target, align 4")
    spread = t.spread(factor, _FLOATS)
    with t.loop(0, I64("%deep"), step=_LANES) as step:
        at = t.mul(step, 4)
        x = t.load_lanes(_FLOATS, t.ptr_add(Ptr("%x"), at))
        there = t.ptr_add(t.ptr_add(Ptr("%target"), HEAD), at)
        t.store_lanes(t.fmul(x, spread), there, 16)
    parameters = (Parameter("ptr", "x"), Parameter("ptr", "target"), Parameter("i64", "deep"))
    return shared_function(t.function(Signature(f"halves.row.{of.name}", parameters)))


class _Halves(SimdBuilder):
    """Shared code of the functions: weights as floats."""

    def __init__(self, of: HalfKernel) -> None:
        super().__init__()
        self.of, self.lanes, self.vectors, self.columns = of, of.tile.lanes, of.tile.vectors, of.tile.columns
        self.floats = VectorType(self.lanes, "float")

    def weights(self, panel: Ptr, step: int) -> list[Vec]:
        """The vectors of a step along k."""
        start = self.ptr_add(panel, 2 * step * self.columns)
        if not self.of.tile.by_lane:
            at = [self.ptr_add(start, 2 * self.lanes * v) for v in range(self.vectors)]
            return [self.widened(self.load_lanes(self.floats.of("i16"), there, 16)) for there in at]
        return [
            self.widened(some, is_moved=self.is_moved(half))
            for pair in range(self.vectors // 2)
            for half, some in enumerate(self.halves(start, pair))
        ]

    def halves(self, start: Ptr, pair: int, *, volatile: bool = False) -> list[Vec]:
        """Two vectors of one load, as they are stored."""
        at = self.ptr_add(start, 4 * self.lanes * pair)
        two = self.load_lanes(VectorType(2 * self.lanes, "i16"), at, 16, volatile=volatile)
        return [self.some_lanes(two, range(first, first + self.lanes)) for first in (0, self.lanes)]

    def is_moved(self, v: int) -> bool:
        """Whether a vector is widened by moving bits: every other one is, as conversions use another pipe."""
        return self.of.is_moved and v % 2 == 0

    def widened(self, some: Vec, *, is_moved: bool = False) -> Vec:
        if is_moved:
            return self.bitcast(self.cleared(self.moved(some)), "float")
        if self.of.name == "bf16":
            return self.bitcast(self.lanewise("shl", self.convert("zext", some, "i32"), 16), "float")
        return self.convert("fpext", self.bitcast(some, "half"), "float")

    def moved(self, some: Vec) -> Vec:
        """Bits of f16 at the place of an f32's: the sign is carried along to the three bits below its place."""
        return self.lanewise("shl", self.convert("sext", some, "i32"), _PLACE)

    def cleared(self, bits: Vec) -> Vec:
        """Clear these three bits."""
        return self.lanewise("and", bits, _KEPT)


class _Rows(_Halves):
    """The function that multiplies rows with a part of a panel, and adds that to sums."""

    def __init__(self, of: HalfKernel, rows: int, *, is_spread: bool) -> None:
        super().__init__(of)
        self.rows, self.is_spread = rows, is_spread
        self.x = [self.ptr_add(Ptr("%rows"), self.mul(I64("%pitch"), row)) for row in range(rows)]

    def written(self) -> Function:
        there = {(row, v): self._place(row, v) for row in range(self.rows) for v in range(self.vectors)}
        start = {cell: self._held(place) for cell, place in there.items()}
        along = PhiLoop(self)
        step, panel = along.carry(I64("0")), along.carry(Ptr("%panel"))
        accumulators = {cell: along.carry(start[cell]) for cell in there}
        updated = dict(accumulators)
        self._prefetch(panel, step)
        at = self.mul(step, 4)
        factors = [self._factors(self.ptr_add(self.ptr_add(row, HEAD), at)) for row in self.x]
        self.multiply(panel, factors, updated)
        following = self.let(f"add nuw nsw i64 {step}, {STEPS}")
        after = self.ptr_add(panel, STEPS * self.columns * (4 if self.is_spread else 2))
        again = self.icmp("slt", I64(following), I64("%deep"))
        along.end(
            [(step, I64(following)), (panel, after), *[(phi, updated[cell]) for cell, phi in accumulators.items()]],
            again,
        )
        for (row, v), place in there.items():
            y = updated[row, v]
            if self.of.is_moved:
                scale = self._spread(self.x[row])
                if not self.is_moved(v):
                    y = self.fmul(y, same(self.floats, _MOVED))
                y = self.fmul(y, scale)
            self.store_lanes(y, place)
        kinds = ("ptr rows", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 deep", "i1 fresh", "ptr ahead")
        parameters = tuple([Parameter(*each.split()) for each in kinds])
        how = "spread" if self.is_spread else self.of.name
        return self.function(Signature(f"halves.{how}.{self.rows}", parameters))

    def multiply(self, panel: Ptr, factors: list[list[Vec]], accumulators: dict[tuple[int, int], Vec]) -> None:
        """Add products of an iteration to sums."""
        for part in range(STEPS):
            weights = self._floats(panel, part) if self.is_spread else self.weights(panel, part)
            for row in range(self.rows):
                for v in range(self.vectors):
                    accumulators[row, v] = self.fma(weights[v], factors[row][part], accumulators[row, v])

    def _floats(self, panel: Ptr, step: int) -> list[Vec]:
        """The vectors of a step along k of a panel that is spelled out."""
        at = [self.ptr_add(panel, 4 * (step * self.columns + self.lanes * v)) for v in range(self.vectors)]
        return [self.load_lanes(self.floats, there, 16) for there in at]

    def _prefetch(self, panel: Ptr, step: I64) -> None:
        """Prefetch weights further along k: where a panel is spelled out, a step of what follows for each step."""
        start = self.ptr_add(panel, HALVES.prefetch_distance)
        if self.is_spread:
            start = self.ptr_add(Ptr("%ahead"), self.mul(step, 2 * self.columns))
        for line in range(0, 0 if self.of.tile.by_lane else 2 * STEPS * self.columns, LINE):
            self.prefetch(self.ptr_add(start, line))

    def _place(self, row: int, v: int) -> Ptr:
        return self.ptr_add(self.ptr_add(Ptr("%sums"), self.mul(I64("%stride"), row)), 4 * self.lanes * v)

    def _held(self, there: Ptr) -> Vec:
        """The sums of the steps before."""
        return self.select_vec(I1("%fresh"), zeros(self.floats), self.load_lanes(self.floats, there))

    def _factors(self, x: Ptr) -> list[Vec]:
        """Numbers of a row, each in all lanes; NEON takes them out of one register."""
        if self.of.tile.by_lane:
            some = self.load_lanes(self.floats, x, 16)
            return [self.splat_lane(some, part) for part in range(STEPS)]
        numbers = [self.load_f32(self.ptr_add(x, 4 * part)) for part in range(STEPS)]
        return [self._in_all_lanes(number) for number in numbers]

    def _spread(self, there: Ptr) -> Vec:
        return self._in_all_lanes(self.load_f32(there))

    def _in_all_lanes(self, number: str) -> Vec:
        one = Vec(self.let(f"insertelement {self.floats} poison, float {number}, i64 0"), self.floats)
        return self.splat_lane(one, 0)


class _RowInOrder(_Rows):
    """One row times f16 with NEON, whose instructions stay in the order they are written in.

    Both sequences that widen and all multiply-adds together take as long as two pipes need for them: a step is widened
    among the products of the step before, and lines are prefetched from far into L2 and from near into L1.
    """

    def multiply(self, panel: Ptr, factors: list[list[Vec]], accumulators: dict[tuple[int, int], Vec]) -> None:
        products = Stream()
        for part in range(STEPS):
            start = self.ptr_add(panel, 2 * part * self.columns)
            if 2 * part * self.columns % LINE == 0:
                self.prefetch(self.ptr_add(start, HALVES.prefetch_distance))
                self.prefetch(self.ptr_add(start, HALVES.far_distance), level=2)
            weights: dict[int, Vec] = {}
            loaded = [self.halves(start, pair, volatile=True) for pair in range(self.vectors // 2)]
            for pair, (moved, other) in enumerate(loaded):
                # Two vectors, one each way, among products of the step before.
                weights[2 * pair + 1] = self.placed(self.widened(other))
                bits = self.placed(self.moved(moved))
                products.next(2)
                weights[2 * pair] = self.bitcast(self.placed(self.cleared(bits)), "float")
            products = Stream([self._product(v, weights, factors[0][part], accumulators) for v in range(self.vectors)])
        products.rest()

    def _product(self, v: int, weights: dict[int, Vec], factor: Vec, accumulators: dict[tuple[int, int], Vec]) -> Emit:
        def add() -> None:
            # Placed before and after: LLVM would otherwise compute it right after its weights.
            held = self.placed(accumulators[0, v])
            accumulators[0, v] = self.placed(self.fma(weights[v], factor, held))

        return add

    def _prefetch(self, panel: Ptr, step: I64) -> None:
        """Steps prefetch a line each."""


class Largest(SimdBuilder):
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
        along = PhiLoop(self)
        step, held = along.carry(I64("0")), along.carry(zeros(_INTS))
        x = self.load_lanes(_INTS, self.ptr_add(Ptr("%x"), self.mul(step, 4)))
        most = self.intrinsic("umax", held, self.lanewise("and", x, 0x7FFFFFFF))
        following = I64(self.let(f"add nuw nsw i64 {step}, {_LANES}"))
        along.end([(step, following), (held, most)], self.icmp("slt", following, I64("%deep")))
        return self.reduced("umax", most)


__all__ = ["HEAD", "STEPS", "HalfKernel", "Largest", "row_function", "rows_function", "spread_function"]
