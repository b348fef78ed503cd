"""Products with weights in blocks by integer dot products.

A group of a row, as many numbers as share a scale of the weights, becomes integers times one scale. With three limbs
the integers have 22 bits and a power of two as scale: what that rounds is less than what f32 rounds in the sum. With
one limb they have 7 bits, which is the fast form. Limbs are signed bytes, lowest first; each is multiplied by the codes
exactly. Sums of a group are scaled and added in f32, group after group, for every row alike: how rows are cut changes
no bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Phi, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.block_pack import BlockLayout
from dovetail.targets.cpu.gemm.policy import Int8Tile

HEAD_BYTES = 32
"""Before the limbs of a group: its scale, its sum, and what the sums of each limb start with."""
EXACT, FAST = 3, 1
"""Limbs."""


@dataclass(frozen=True, slots=True)
class BlockKernel:
    """What the code depends on."""

    layout: BlockLayout
    dot: Int8Tile
    limbs: int
    emulated: bool = False
    """Whether the dot instruction is spelled out in plain vector code."""

    @property
    def group(self) -> int:
        return self.layout.format.group

    @property
    def vectors(self) -> int:
        """Vectors of a panel's row."""
        return self.layout.columns // self.dot.lanes

    @property
    def group_bytes(self) -> int:
        """Bytes of a group of a row once it is limbs."""
        return HEAD_BYTES + self.limbs * self.group

    @property
    def name(self) -> str:
        return f"blocks.{self.layout.name}.{self.layout.columns}.{self.limbs}"


@cache
def limbs_function(of: BlockKernel) -> tuple[SharedFunction, Signature]:
    """Writes a row of f32 as limbs: `(x, limbs, groups)`."""
    return shared_function(_Limbs(of).written())


@cache
def row_function(of: BlockKernel) -> tuple[SharedFunction, Signature]:
    """Multiplies a row of limbs with a panel: `(limbs, panel, sums, groups)`."""
    return shared_function(_Row(of).written())


def _splat(value: str, count: int, kind: str) -> str:
    return f"<{', '.join([f'{kind} {value}'] * count)}>"


class _Limbs(Builder):
    """The function that turns a row into limbs, group by group."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__()
        self.of = of
        self.ints, self.floats = f"<{of.group} x i32>", f"<{of.group} x float>"

    def written(self) -> Function:
        of = self.of
        with self.loop(0, I64("%groups")) as group:
            source = self.ptr_add(Ptr("%x"), self.mul(group, 4 * of.group))
            target = self.ptr_add(Ptr("%limbs"), self.mul(group, of.group_bytes))
            x = self.let(f"load {self.floats}, ptr {source}, align 4")
            scale, inverse = self._exact_scale(x) if of.limbs > 1 else self._fast_scale(x)
            integers = self._integers(x, inverse)
            self._store(integers, scale, target)
        given = (Parameter("ptr", "x"), Parameter("ptr", "limbs"), Parameter("i64", "groups"))
        return self.function(Signature(f"limbs.{of.group}.{of.limbs}.{of.layout.zero}", given))

    def _reduced(self, how: str, x: str) -> str:
        name = f"llvm.vector.reduce.{how}.v{self.of.group}i32"
        self.use(f"declare i32 @{name}({self.ints})")
        return self.let(f"call i32 @{name}({self.ints} {x})")

    def _largest(self, x: str) -> str:
        """The bits of the largest magnitude; infinities and NaN are above all numbers."""
        bits = self.let(f"bitcast {self.floats} {x} to {self.ints}")
        mask = _splat("2147483647", self.of.group, "i32")
        return self._reduced("umax", self.let(f"and {self.ints} {bits}, {mask}"))

    def _exact_scale(self, x: str) -> tuple[str, str]:
        """A power of two that leaves 22 bits, and its inverse; NaN where the group holds no finite number."""
        exponent = self.let(f"lshr i32 {self._largest(x)}, 23")
        odd = self.let(f"icmp eq i32 {exponent}, 255")
        low = self.let(f"icmp ult i32 {exponent}, 22")
        finite = self.let(f"select i1 {odd}, i32 254, i32 {exponent}")
        kept = self.let(f"select i1 {low}, i32 22, i32 {finite}")
        unit = self._power(self.let(f"sub i32 {kept}, 21"))
        scale = self.let(f"select i1 {odd}, float 0x7FF8000000000000, float {unit}")
        return scale, self._power(self.let(f"sub i32 275, {kept}"))

    def _power(self, exponent: str) -> str:
        return self.let(f"bitcast i32 {self.let(f'shl i32 {exponent}, 23')} to float")

    def _fast_scale(self, x: str) -> tuple[str, str]:
        """The scale that makes the largest magnitude 127, and its inverse."""
        bits = self._largest(x)
        odd = self.let(f"icmp uge i32 {bits}, 2139095040")
        # Below 2^-100 a group is 0: the inverse of its scale might not be finite.
        none = self.let(f"icmp ult i32 {bits}, {27 << 23}")
        largest = self.let(f"bitcast i32 {bits} to float")
        scale = self.let(f"fmul float {largest}, 0x3F80204080000000")
        inverse = self.let(f"fdiv float 127.0, {largest}")
        held = self.let(f"select i1 {none}, float 0.0, float {scale}")
        made = self.let(f"select i1 {none}, float 0.0, float {inverse}")
        return self.let(f"select i1 {odd}, float 0x7FF8000000000000, float {held}"), made

    def _integers(self, x: str, inverse: str) -> str:
        group = self.of.group
        one = self.let(f"insertelement {self.floats} poison, float {inverse}, i64 0")
        factor = self.let(f"shufflevector {self.floats} {one}, {self.floats} poison, <{group} x i32> zeroinitializer")
        scaled = self.let(f"fmul {self.floats} {x}, {factor}")
        for name, given, made in (
            (f"llvm.roundeven.v{group}f32", self.floats, self.floats),
            (f"llvm.fptosi.sat.v{group}i32.v{group}f32", self.floats, self.ints),
        ):
            self.use(f"declare {made} @{name}({given})")
            scaled = self.let(f"call {made} @{name}({given} {scaled})")
        return scaled

    def _store(self, integers: str, scale: str, target: Ptr) -> None:
        of = self.of
        self.emit(f"store float {scale}, ptr {target}, align 4")
        if of.layout.has_low:
            total = self.let(f"sitofp i32 {self._reduced('add', integers)} to float")
            self.emit(f"store float {self.let(f'fmul float {total}, {scale}')}, ptr {self.ptr_add(target, 4)}, align 4")
        left = integers
        for limb in range(of.limbs):
            digit = left
            if limb < of.limbs - 1:
                places, byte = _splat("24", of.group, "i32"), _splat("8", of.group, "i32")
                digit = self.let(f"ashr {self.ints} {self.let(f'shl {self.ints} {left}, {places}')}, {places}")
                left = self.let(f"ashr {self.ints} {self.let(f'sub {self.ints} {left}, {digit}')}, {byte}")
            small = self.let(f"trunc {self.ints} {digit} to <{of.group} x i8>")
            there = self.ptr_add(target, HEAD_BYTES + limb * of.group)
            self.emit(f"store <{of.group} x i8> {small}, ptr {there}, align 16")
            if of.layout.zero:
                start = self.let(f"mul i32 {self._reduced('add', digit)}, {-of.layout.zero}")
                self.emit(f"store i32 {start}, ptr {self.ptr_add(target, 8 + 4 * limb)}, align 4")


class _Row(Builder):
    """The function that multiplies a row with a panel."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__()
        self.of = of
        lanes = of.dot.lanes
        self.ints, self.floats, self.raw = f"<{lanes} x i32>", f"<{lanes} x float>", f"<{4 * lanes} x i8>"

    def written(self) -> Function:
        of = self.of
        self.emit("br label %along")
        self.label("along")
        group = self.phi("i64")
        sums = [self.phi(self.floats) for _ in range(of.vectors)]
        limbs_at, panel_at = self.phi("ptr"), self.phi("ptr")
        limbs, panel = Ptr(limbs_at.name), Ptr(panel_at.name)
        totals = self._totals(limbs, panel)
        scale = self._load_splat(limbs, "float", self.floats)
        low = self._load_splat(self.ptr_add(limbs, 4), "float", self.floats) if of.layout.has_low else ""
        for vector, (phi, total) in enumerate(zip(sums, totals, strict=True)):
            steps = self.let(f"fmul {self.floats} {self._scales(panel, vector)}, {scale}")
            found = self._fma(total, steps, phi.name)
            if low:
                lows = self._scales(self.ptr_add(panel, of.layout.scale_bytes), vector)
                found = self._fma(lows, low, found)
            self._carry(phi, "zeroinitializer", found)
        following = I64(self.let(f"add nuw nsw i64 {group.name}, 1"))
        self._carry(group, "0", following)
        self._carry(limbs_at, "%limbs", self.ptr_add(limbs, of.group_bytes))
        self._carry(panel_at, "%panel", self.ptr_add(panel, of.layout.group_bytes))
        self.emit(f"br i1 {self.icmp('slt', following, I64('%groups'))}, label %along, label %done")
        self.label("done")
        for vector, phi in enumerate(sums):
            there = self.ptr_add(Ptr("%sums"), 4 * of.dot.lanes * vector)
            self.emit(f"store {self.floats} {phi.incoming[1][0]}, ptr {there}, align 4")
        names = (("ptr", "limbs"), ("ptr", "panel"), ("ptr", "sums"), ("i64", "groups"))
        return self.function(Signature(of.name, tuple([Parameter(kind, name) for kind, name in names])))

    @staticmethod
    def _carry(phi: Phi, start: object, following: object) -> None:
        phi.add(str(start), "entry")
        phi.add(str(following), "along")

    def _load_splat(self, pointer: Ptr, kind: str, vector: str) -> str:
        one = self.let(
            f"insertelement {vector} poison, {kind} {self.let(f'load {kind}, ptr {pointer}, align 4')}, i64 0"
        )
        return self.let(f"shufflevector {vector} {one}, {vector} poison, <{self.of.dot.lanes} x i32> zeroinitializer")

    def _scales(self, pointer: Ptr, vector: int) -> str:
        """Scales of some columns in f32."""
        size, lanes = self.of.layout.format.scales.itemsize, self.of.dot.lanes
        at = self.ptr_add(pointer, vector * lanes * size)
        if size == 4:
            return self.let(f"load {self.floats}, ptr {at}, align 4")
        return self.let(
            f"fpext <{lanes} x half> {self.let(f'load <{lanes} x half>, ptr {at}, align 2')} to {self.floats}"
        )

    def _fma(self, x: str, y: str, z: str) -> str:
        name = f"llvm.fma.v{self.of.dot.lanes}f32"
        self.use(f"declare {self.floats} @{name}({self.floats}, {self.floats}, {self.floats})")
        return self.let(f"call {self.floats} @{name}({self.floats} {x}, {self.floats} {y}, {self.floats} {z})")

    def _totals(self, limbs: Ptr, panel: Ptr) -> list[str]:
        """The integers of a group times its codes, for each vector of columns, in f32."""
        of = self.of
        starts = ["zeroinitializer"] * of.limbs
        if of.layout.zero:
            starts = [self._load_splat(self.ptr_add(limbs, 8 + 4 * i), "i32", self.ints) for i in range(of.limbs)]
        sums = [[start] * of.vectors for start in starts]
        codes = self.ptr_add(panel, of.layout.head_bytes)
        per_load = 2 if of.layout.is_narrow else 1
        for step in range(0, of.group // 4, per_load):
            factors = [[self._factor(limbs, limb, step + half) for half in range(per_load)] for limb in range(of.limbs)]
            row = step // per_load * 4 * of.layout.columns
            for vector in range(of.vectors):
                for half, weights in enumerate(self._codes(self.ptr_add(codes, row + 4 * of.dot.lanes * vector))):
                    for limb in range(of.limbs):
                        sums[limb][vector] = self._dot(sums[limb][vector], weights, factors[limb][half])
        return [self._joined([sums[limb][vector] for limb in range(of.limbs)]) for vector in range(of.vectors)]

    def _codes(self, pointer: Ptr) -> list[str]:
        """Stored codes of four steps along k for a vector of columns, and of the next four where halves of bytes."""
        found = self.let(f"load {self.raw}, ptr {pointer}, align 16")
        if not self.of.layout.is_narrow:
            return [found]
        count = 4 * self.of.dot.lanes
        low = self.let(f"and {self.raw} {found}, {_splat('15', count, 'i8')}")
        return [low, self.let(f"lshr {self.raw} {found}, {_splat('4', count, 'i8')}")]

    def _factor(self, limbs: Ptr, limb: int, step: int) -> str:
        """Four bytes of a limb in every lane; NEON takes them out of a register of four steps."""
        of, lanes = self.of, self.of.dot.lanes
        start = HEAD_BYTES + limb * of.group
        if of.dot.by_lane:
            at = self.ptr_add(limbs, start + 4 * (step - step % 4))
            some = self.let(f"load {self.ints}, ptr {at}, align 16")
            mask = ", ".join([f"i32 {step % 4}"] * lanes)
            four = self.let(f"shufflevector {self.ints} {some}, {self.ints} poison, <{lanes} x i32> <{mask}>")
        else:
            four = self._load_splat(self.ptr_add(limbs, start + 4 * step), "i32", self.ints)
        return self.let(f"bitcast {self.ints} {four} to {self.raw}")

    def _dot(self, held: str, weights: str, factor: str) -> str:
        """Sums plus the products of four stored codes with four bytes of a limb in each lane."""
        dot = self.of.dot
        if self.of.emulated:
            return self._plain(held, weights, factor)
        self.use(f"declare {self.ints} @{dot.intrinsic}({self.ints}, {self.raw}, {self.raw})")
        # Where one operand is unsigned it is the first, and codes are stored without a sign.
        return self.let(
            f"call {self.ints} @{dot.intrinsic}({self.ints} {held}, {self.raw} {weights}, {self.raw} {factor})"
        )

    def _plain(self, held: str, weights: str, factor: str) -> str:
        """The same without a dot instruction."""
        lanes, wide = self.of.dot.lanes, f"<{4 * self.of.dot.lanes} x i32>"
        stored = self.let(f"{'sext' if self.of.dot.signed else 'zext'} {self.raw} {weights} to {wide}")
        products = self.let(f"mul {wide} {stored}, {self.let(f'sext {self.raw} {factor} to {wide}')}")
        for part in range(4):
            mask = ", ".join(f"i32 {4 * lane + part}" for lane in range(lanes))
            some = self.let(f"shufflevector {wide} {products}, {wide} poison, <{lanes} x i32> <{mask}>")
            held = self.let(f"add {self.ints} {held}, {some}")
        return held

    def _joined(self, sums: list[str]) -> str:
        """The sums of all limbs as one number."""
        low, lanes = sums[0], self.of.dot.lanes
        if len(sums) > 1:
            # The two lowest together fit an integer; all three may not.
            raised = self.let(f"shl {self.ints} {sums[1]}, {_splat('8', lanes, 'i32')}")
            low = self.let(f"add {self.ints} {raised}, {low}")
        found = self.let(f"sitofp {self.ints} {low} to {self.floats}")
        if len(sums) < 3:
            return found
        high = self.let(f"sitofp {self.ints} {sums[2]} to {self.floats}")
        return self._fma(high, _splat("65536.0", lanes, "float"), found)


__all__ = ["EXACT", "FAST", "BlockKernel", "limbs_function", "row_function"]
