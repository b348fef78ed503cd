"""The builder with vectors of f32: what templates write their hot loops with. The device says how wide they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from dovetail.codegen.llvm.casts import of_bf16, to_bf16
from dovetail.codegen.llvm.handles import F32, I1, I64, Handle, Int, Mask, Ptr, Vec, VecI32, VecI64, VectorType
from dovetail.codegen.llvm.scalar import literal
from dovetail.codegen.llvm.simd import SimdBuilder
from dovetail.ir.dtype import f32
from dovetail.kernels.device import CpuDevice

Stored: TypeAlias = Literal["float", "half", "bfloat", "i8"]
STORED_BYTES: dict[Stored, int] = {"float": 4, "half": 2, "bfloat": 2, "i8": 1}
"""Types of elements in memory that are computed with as f32, and their bytes."""
FloatOrder: TypeAlias = Literal["oeq", "ogt", "oge", "olt", "ole", "one", "une", "uno", "ord"]
ZERO = Vec("zeroinitializer")
NO_LANES = Mask("zeroinitializer")
_POISON = Vec("poison")


class VectorBuilder(SimdBuilder):
    """One function while it is written, with arithmetic on vectors of f32."""

    def __init__(self, device: CpuDevice) -> None:
        super().__init__()
        self.device = device
        self.lanes = device.lanes
        self.bytes = 4 * device.lanes
        """Bytes of a vector."""
        self.floats = self.float_lanes = VectorType(device.lanes, "float")
        self.vec = str(self.floats)
        self.int_vec = f"<{self.lanes} x i32>"
        self.long_vec = f"<{self.lanes} x i64>"
        self.mask_vec = f"<{self.lanes} x i1>"
        self._full: dict[str, I1] = {}
        """By mask, where LLVM spells masked loads and stores lane by lane: whether all lanes are within it."""

    def type_of(self, x: Handle) -> str:
        match x:
            case VecI32():
                return self.int_vec
            case VecI64():
                return self.long_vec
            case Mask():
                return self.mask_vec
            case _:
                return super().type_of(x)

    # Arithmetic.

    def constant(self, x: float) -> Vec:
        """The same number in every lane."""
        return Vec(f"splat (float {literal(x, f32)})")

    def fma_broadcast(self, x: Vec, pointer: Ptr, z: Vec) -> Vec:
        """x times the scalar at a pointer, plus z: one instruction with an embedded broadcast.

        LLVM would load a scalar once that is used several times, and so take an instruction more.
        """
        if not self.device.emits("embedded_broadcast"):
            return self.fma(x, self.load_splat(pointer), z)
        multiply = 'asm "vfmadd231ps $2{1to16}, $1, $0", "=v,v,*m,0"'
        operands = f"{self.vec} {x}, ptr elementtype(float) {pointer}, {self.vec} {z}"
        return Vec(self.let(f"call {self.vec} {multiply}({operands})"))

    def in_order(self, xs: Sequence[Vec] = ()) -> list[Vec]:
        """Nothing that follows is loaded before; the vectors are made before.

        A step along k that leaves one or two registers free must not overlap with the next: LLVM would load the columns
        of that one early and spill accumulators.
        """
        if not self.device.emits("embedded_broadcast"):
            return list(xs)
        if not xs:
            self.emit('call void asm sideeffect "", "~{memory}"()')
        return [Vec(self.let(f'call {self.vec} asm sideeffect "", "=v,0,~{{memory}}"({self.vec} {x})')) for x in xs]

    def fma_memory(self, x: Vec, pointer: Ptr, z: Vec) -> Vec:
        """x times the vector at a pointer, plus z: one instruction with a memory operand, which takes no register."""
        if not self.device.emits("embedded_broadcast"):
            return self.fma(x, self.load(pointer), z)
        multiply = 'asm "vfmadd231ps $2, $1, $0", "=v,v,*m,0"'
        operands = f"{self.vec} {x}, ptr elementtype({self.vec}) {pointer}, {self.vec} {z}"
        return Vec(self.let(f"call {self.vec} {multiply}({operands})"))

    def fcmp(self, order: FloatOrder, x: Vec, y: Vec) -> Mask:
        return Mask(self.let(f"fcmp {order} {self.vec} {x}, {y}"))

    def select(self, where: Mask, x: Vec, y: Vec) -> Vec:
        """Lane by lane."""
        return Vec(self.let(f"select {self.mask_vec} {where}, {self.vec} {x}, {self.vec} {y}"))

    def select_mask(self, condition: I1, x: Mask, y: Mask) -> Mask:
        """One mask or the other."""
        return Mask(self.let(f"select i1 {condition}, {self.mask_vec} {x}, {self.mask_vec} {y}"))

    def fmax(self, x: Vec, y: Vec) -> Vec:
        """The larger of two; y where x is NaN."""
        return self.select(self.fcmp("ogt", x, y), x, y)

    def clamp(self, x: Vec, low: float, high: float) -> Vec:
        """The nearest number in a range; NaN stays, and of two zeros the bound is taken."""
        x = self.select(self.fcmp("ole", x, self.constant(low)), self.constant(low), x)
        return self.select(self.fcmp("ogt", x, self.constant(high)), self.constant(high), x)

    def polynomial(self, x: Vec, coefficients: Sequence[float]) -> Vec:
        """Horner's scheme, the highest power first."""
        total = self.constant(coefficients[0])
        for c in coefficients[1:]:
            total = self.fma(total, x, self.constant(c))
        return total

    def mask_and(self, x: Mask, y: Mask) -> Mask:
        return Mask(self.let(f"and {self.mask_vec} {x}, {y}"))

    def bits(self, mask: Mask) -> I64:
        """A mask as an integer: the bit of the first lane is the lowest."""
        narrow = self.let(f"bitcast {self.mask_vec} {mask} to i{self.lanes}")
        return I64(self.let(f"zext i{self.lanes} {narrow} to i64"))

    # Memory.

    def load(self, pointer: Ptr, align: int = 4) -> Vec:
        return Vec(self.let(f"load {self.vec}, ptr {pointer}, align {align}"))

    def store(self, x: Vec, pointer: Ptr, align: int = 4) -> None:
        self.emit(f"store {self.vec} {x}, ptr {pointer}, align {align}")

    def load_splat(self, pointer: Ptr) -> Vec:
        """The scalar at a pointer, broadcast."""
        return self.splat(self.load_f32(pointer))

    def load_masked(self, mask: Mask, pointer: Ptr, otherwise: Vec = ZERO) -> Vec:
        """Lanes of memory where the mask holds; the others are not read."""
        if (full := self._full.get(mask)) is None:
            return self._load_masked(mask, pointer, otherwise)
        ends = self.either(full, lambda: self.load(pointer), lambda: self._load_masked(mask, pointer, otherwise))
        phi = self.phi(self.vec)
        for x, block in ends:
            phi.add(x, block)
        return Vec(phi.name)

    def _load_masked(self, mask: Mask, pointer: Ptr, otherwise: Vec) -> Vec:
        return Vec(self.load_where(self.floats, mask, pointer, otherwise, 4))

    def load_first(self, pointer: Ptr, count: int) -> Vec:
        """The first lanes from memory, zeros in the others; nothing after them is read."""
        return self._load_masked(self.first_lanes(count), pointer, ZERO)

    def store_masked(self, mask: Mask, x: Vec, pointer: Ptr) -> None:
        """Write the lanes where the mask holds."""
        if (full := self._full.get(mask)) is None:
            self._store_masked(mask, x, pointer)
            return
        self.either(full, lambda: self.store(x, pointer), lambda: self._store_masked(mask, x, pointer))

    def _store_masked(self, mask: Mask, x: Vec, pointer: Ptr) -> None:
        self.store_where(self.floats, mask, x, pointer, 4)

    def gather(self, mask: Mask, pointer: Ptr, stride: Int, otherwise: Vec) -> Vec:
        """Elements that are `stride` bytes apart, where the mask holds."""
        offsets = self.let(f"mul {self.long_vec} {self.splat_i64(stride)}, {self.lane_numbers()}")
        addresses = self.let(f"getelementptr i8, ptr {pointer}, {self.long_vec} {offsets}")
        return Vec(self.gather_where(self.floats, mask, addresses, otherwise, 4))

    def variable(self, start: Vec) -> Ptr:
        """A vector that changes: a stack slot that LLVM promotes to a register."""
        slot = self.alloca(self.vec)
        self.set(start, slot)
        return slot

    def get(self, slot: Ptr) -> Vec:
        return self.load(slot, self.bytes)

    def set(self, x: Vec, slot: Ptr) -> None:
        self.store(x, slot, self.bytes)

    # Elements that are stored in another type.

    def stored_vec(self, stored: Stored) -> VectorType:
        """A vector of stored elements: bfloat as i16, which every machine has."""
        return VectorType(self.lanes, "i16" if stored == "bfloat" else stored)

    def load_as_f32(self, pointer: Ptr, stored: Stored) -> Vec:
        """Elements of another type as f32; bytes are unsigned integers."""
        if stored == "float":
            return self.load(pointer)
        raw = self.let(f"load {self.stored_vec(stored)}, ptr {pointer}, align {STORED_BYTES[stored]}")
        return self.widen(raw, stored)

    def widen(self, x: str, stored: Stored) -> Vec:
        """A vector of stored elements, as it was loaded, as f32."""
        if stored == "float":
            return Vec(x)
        if stored == "bfloat":
            return Vec(of_bf16(self, x, self.lanes))
        how = "uitofp" if stored == "i8" else "fpext"
        return Vec(self.let(f"{how} {self.stored_vec(stored)} {x} to {self.vec}"))

    def store_from_f32(self, x: Vec, pointer: Ptr, stored: Stored) -> None:
        """Write a vector in another type of floats."""
        if stored == "float":
            self.store(x, pointer)
            return
        kind = self.stored_vec(stored)
        narrow = to_bf16(self, x, self.lanes) if stored == "bfloat" else self.let(f"fptrunc {self.vec} {x} to {kind}")
        self.emit(f"store {kind} {narrow}, ptr {pointer}, align {STORED_BYTES[stored]}")

    def load_scalar_as_f32(self, pointer: Ptr, stored: Stored) -> F32:
        """One element of another type as f32."""
        if stored == "bfloat":
            return F32(of_bf16(self, self.let(f"load i16, ptr {pointer}, align 2")))
        loaded = self.let(f"load {stored}, ptr {pointer}, align {STORED_BYTES[stored]}")
        if stored == "float":
            return F32(loaded)
        return F32(self.let(f"{'uitofp' if stored == 'i8' else 'fpext'} {stored} {loaded} to float"))

    def store_scalar_from_f32(self, x: F32, pointer: Ptr, stored: Stored) -> None:
        """Write one f32 in another type of floats."""
        if stored == "bfloat":
            self.emit(f"store i16 {to_bf16(self, x)}, ptr {pointer}, align 2")
            return
        rounded = x if stored == "float" else self.let(f"fptrunc float {x} to {stored}")
        self.emit(f"store {stored} {rounded}, ptr {pointer}, align {STORED_BYTES[stored]}")

    # Lanes.

    def first_lanes(self, count: int) -> Mask:
        """The lanes below a number that is known."""
        return Mask(f"<{', '.join('i1 true' if i < count else 'i1 false' for i in range(self.lanes))}>")

    def lanes_below(self, count: I64) -> Mask:
        """The lanes below a number that is known at run time."""
        return Mask(self.let(f"icmp slt {self.long_vec} {self.lane_numbers()}, {self.splat_i64(count)}"))

    def lanes_within(self, first: Int, count: Int) -> Mask:
        """The lanes for which `first` + lane is at least 0 and below `count`."""
        at = self.let(f"add {self.int_vec} {self.splat_i32(first)}, {self.lane_numbers_i32()}")
        mask = Mask(self.let(f"icmp ult {self.int_vec} {at}, {self.splat_i32(count)}"))
        if not self.device.has("masked_memory"):
            last = self.icmp("sle", self.add(first, self.lanes), count)
            self._full[mask] = self.and_(self.icmp("sge", first, 0), last)
        return mask

    def lane_numbers(self) -> VecI64:
        return VecI64(f"<{', '.join(f'i64 {i}' for i in range(self.lanes))}>")

    def lane_numbers_i32(self, first: int = 0) -> VecI32:
        return VecI32(f"<{', '.join(f'i32 {first + i}' for i in range(self.lanes))}>")

    def splat(self, x: F32) -> Vec:
        """A scalar in every lane."""
        one = Vec(self.let(f"insertelement {self.vec} poison, float {x}, i64 0"))
        return self.splat_lane(one, 0)

    def is_below(self, x: VecI32, end: Int) -> Mask:
        """Which lanes of x are less than an integer."""
        return Mask(self.let(f"icmp slt {self.int_vec} {x}, {self.splat_i32(end)}"))

    def splat_i32(self, x: Int) -> VecI32:
        """An integer, truncated to 32 bits, in every lane."""
        narrow = self.let(f"trunc i64 {x} to i32")
        one = self.let(f"insertelement {self.int_vec} poison, i32 {narrow}, i64 0")
        kind = self.int_vec
        return VecI32(self.let(f"shufflevector {kind} {one}, {kind} poison, {kind} zeroinitializer"))

    def splat_i64(self, x: Int) -> VecI64:
        one = self.let(f"insertelement {self.long_vec} poison, i64 {x}, i64 0")
        kind = self.long_vec
        return VecI64(self.let(f"shufflevector {kind} {one}, {kind} poison, {self.int_vec} zeroinitializer"))

    def reduce_lanes(self, how: str, x: Vec) -> F32:
        """One number from all lanes, such as by fmax."""
        full = f"llvm.vector.reduce.{how}.v{self.lanes}f32"
        self.use(f"declare float @{full}({self.vec})")
        return F32(self.let(f"call float @{full}({self.vec} {x})"))

    def reduce_add(self, x: Vec) -> F32:
        """The sum of all lanes as a tree: halves are added, then their halves."""
        width = self.lanes // 2
        while width:
            lanes = [i + width if i < width else i for i in range(self.lanes)]
            x = self.fadd(x, self.shuffle(x, _POISON, lanes))
            width //= 2
        return self.extract(x, 0)

    def transpose_add(self, rows: Sequence[Vec]) -> Vec:
        """The sums of as many vectors as there are lanes, one in each lane: a transpose that adds as it goes."""
        vectors, width = list(rows), self.lanes // 2
        while width:
            low, high = self._halves(width)
            half = len(vectors) // 2
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [self.fadd(self.shuffle(x, y, low), self.shuffle(x, y, high)) for x, y in pairs]
            width //= 2
        return vectors[0]

    def transpose(self, rows: Sequence[Vec]) -> list[Vec]:
        """A square of as many vectors as lanes, columns for rows: halves are swapped, then their halves."""
        vectors, width = list(rows), self.lanes // 2
        while width:
            low, high = self._halves(width)
            for i in range(self.lanes):
                if i % (2 * width) < width:
                    x, y = vectors[i], vectors[i + width]
                    vectors[i], vectors[i + width] = self.shuffle(x, y, low), self.shuffle(x, y, high)
            width //= 2
        return vectors

    def _halves(self, width: int) -> tuple[list[int], list[int]]:
        """Lanes that interleave the lower and the upper halves of groups in two vectors."""
        low = [i if i % (2 * width) < width else i - width + self.lanes for i in range(self.lanes)]
        high = [i + width if i % (2 * width) < width else i + self.lanes for i in range(self.lanes)]
        return low, high


__all__ = ["NO_LANES", "STORED_BYTES", "ZERO", "FloatOrder", "Stored", "VectorBuilder"]
