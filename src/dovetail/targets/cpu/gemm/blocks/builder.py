"""The words of functions that multiply rows of limbs with codes: dot products, scales, numbers of a row's groups.

Each limb is multiplied by the codes exactly; sums of a group are scaled and added in f32, group after group, for every
row alike: how rows are cut changes no bit.
"""

from __future__ import annotations

from dovetail.codegen.llvm.function import Parameter
from dovetail.codegen.llvm.handles import I1, I64, Ptr, Vec, VectorType
from dovetail.codegen.llvm.simd import SimdBuilder, same
from dovetail.targets.cpu.gemm.blocks.kernel import LOW_AT, BlockKernel
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout
from dovetail.targets.cpu.gemm.blocks.unpack import LoadWord
from dovetail.targets.cpu.gemm.int8.tile import dot, plain_dot

AccumulatorKey = tuple[int, int]
"""A row and a vector of columns."""
Accumulators = dict[AccumulatorKey, Vec]


def parameters(*kinds: str) -> tuple[Parameter, ...]:
    """Parameters, each spelled as its type and name."""
    return tuple([Parameter(*each.split()) for each in kinds])


class BlockBuilder(SimdBuilder):
    """A function of some rows and columns while it is written."""

    volatile = False
    """Whether numbers of a row's groups are loaded where that is written."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__()
        lanes = of.dot.lanes
        self.of = of
        self.ints, self.floats = VectorType(lanes, "i32"), VectorType(lanes, "float")
        self.raw = VectorType(4 * lanes, "i8")

    # Codes and limbs.

    def words_at(self, words: Ptr, *, volatile: bool = False) -> LoadWord:
        """Loads words of a packed block for some columns, as bytes."""

        def load(word: int) -> Vec:
            at = self.ptr_add(words, 4 * word * self.of.packed.columns)
            return self.load_lanes(self.raw, at, 16, volatile=volatile)

        return load

    def four_bytes(self, limbs: Vec, lane: int) -> Vec:
        """One of the four steps in a register of limbs, in every lane."""
        return self.bitcast(self.splat_lane(limbs, lane), "i8", self.raw.count)

    def factor(self, x: Ptr, limb: int, step: int) -> Vec:
        """Four bytes of a limb in every lane; NEON takes them out of a register of four steps."""
        start = self.of.limbs_at + limb * self.of.group
        if self.of.dot.by_lane:
            some = self.load_lanes(self.ints, self.ptr_add(x, start + 4 * (step - step % 4)), 16)
            return self.four_bytes(some, step % 4)
        return self.bitcast(self.load_spread(self.ints, self.ptr_add(x, start + 4 * step)), "i8", self.raw.count)

    def dot_by_lane(self, held: Vec, codes: Vec, limbs: Vec, lane: int) -> Vec:
        """Sums plus codes times one of four steps in a register of limbs, in order, with NEON."""
        return self.placed(self.dot(held, codes, self.four_bytes(limbs, lane)))

    def dot(self, held: Vec, weights: Vec, factor: Vec) -> Vec:
        """Sums plus the products of four stored codes with four bytes of a limb in each lane."""
        if self.of.emulated:
            return plain_dot(self, held, weights, factor, signed=self.of.dot.signed)
        # Where one operand is unsigned it is the first, and codes are stored without a sign.
        return dot(self, self.of.dot, held, weights, factor)

    # Numbers of a row's groups.

    def number(self, pointer: Ptr, kind: VectorType) -> Vec:
        """A number of a row's group that others are added to, in all lanes."""
        if self.of.number_bytes == 4:
            return self.load_spread(kind, pointer)
        return self.load_lanes(kind, pointer, 16, volatile=self.volatile)

    def joined(self, sums: list[Vec], x: Ptr) -> Vec:
        """The sums of all limbs, which were added to the bits of a float, as one number."""
        of = self.of
        floats = [self.bitcast(held, "float") for held in sums]
        if of.sums_are_scaled and of.joined_at is not None:
            above = self.number(self.ptr_add(x, of.joined_at), self.floats)
            return self.fma(floats[0], self.load_spread(self.floats, x), above)
        if of.limbs == 1:
            return self.lanewise("fsub", floats[0], of.bias)
        # From the highest limb down each sum is exact up to the last: what is left to subtract has few bits.
        total = same(self.floats, -of.bias)
        if of.joined_at is not None:
            total = self.number(self.ptr_add(x, of.joined_at), self.floats)
        for limb in range(of.limbs - 1, 0, -1):
            total = self.fma(floats[limb], same(self.floats, float(of.place(limb))), total)
        return self.fadd(floats[0], total)

    def added(self, total: Vec, scales: Vec, x: Ptr, held: Vec) -> Vec:
        """Sums plus those of a group times its scales."""
        if not self.of.sums_are_scaled:
            scales = self.fmul(scales, self.load_spread(self.floats, x))
        return self.fma(total, scales, held)

    def low_added(self, low: Vec, x: Ptr, held: Vec) -> Vec:
        """Sums plus the low of a group times the sum of a row in it."""
        return self.fma(low, self.load_spread(self.floats, self.ptr_add(x, LOW_AT)), held)

    def plus(self, x: Vec, y: Vec, z: Vec) -> Vec:
        """A product that is added to a number, or to nothing, which would take a register to be cleared."""
        return self.fmul(x, y) if z == "zeroinitializer" else self.fma(x, y, z)

    def scales(self, pointer: Ptr, vector: int, layout: BlockLayout | None = None) -> Vec:
        """Scales of some columns in f32."""
        size = (layout or self.of.layout).scales.itemsize
        at = self.ptr_add(pointer, vector * self.of.dot.lanes * size)
        if size == 4:
            return self.load_lanes(self.floats, at)
        return self.convert("fpext", self.load_lanes(self.floats.of("half"), at, 2), "float")

    # Sums in memory.

    def place(self, row: int, offset: I64 | int) -> Ptr:
        """Sums of a row, some bytes from its first column on."""
        return self.ptr_add(Ptr("%sums"), self.add(self.mul(I64("%stride"), row), offset))

    def clear(self, there: Ptr) -> None:
        self.emit(f"store {self.floats} zeroinitializer, ptr {there}, align 4")

    def held(self, there: Ptr, fresh: I1) -> Vec:
        """The sums of the groups before, or zeros where there are none."""
        kept = self.load_lanes(self.floats, there)
        return Vec(self.let(f"select i1 {fresh}, {self.floats} zeroinitializer, {self.floats} {kept}"), self.floats)

    def group_at(self, x: Ptr, group: int) -> Ptr:
        """The limbs of one group of a block."""
        return self.ptr_add(x, group * self.of.group_bytes)


__all__ = ["AccumulatorKey", "BlockBuilder", "parameters"]
