"""Rotary embedding inside attention: queries and keys are rotated as they are read."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from dovetail.codegen.llvm.function import Parameter
from dovetail.codegen.llvm.handles import F32, I64, Int, Ptr, Vec
from dovetail.codegen.llvm.vector import STORED_BYTES, Stored, VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.library.rope import Form
from dovetail.targets.cpu.attention.parts import Shared, finished, integer, read, written


class _Rotation(VectorBuilder):
    """One row that is rotated. Positions are counted in bytes of f32, whatever the elements are stored as."""

    def __init__(self, device: CpuDevice, stored: Stored) -> None:
        super().__init__(device)
        self.stored: Stored = stored
        self.x, self.cos, self.sin, self.to = Ptr("%x"), Ptr("%cos"), Ptr("%sin"), Ptr("%to")

    def at(self, pointer: Ptr, position: Int) -> Ptr:
        """Where a stored row has a position."""
        scale = 4 // STORED_BYTES[self.stored]
        return self.ptr_add(pointer, self.sdiv(position, scale))

    def row(self, pointer: Ptr, position: Int) -> Vec:
        return self.load_as_f32(self.at(pointer, position), self.stored)

    def scalar(self, pointer: Ptr, position: Int) -> F32:
        return self.load_scalar_as_f32(self.at(pointer, position), self.stored)

    def rotate(self, position: Int, own: Vec, partner: Vec) -> None:
        """own · cos + partner · sin."""
        kept = self.fmul(own, self.row(self.cos, position))
        self.store(self.fma(partner, self.row(self.sin, position), kept), self.ptr_add(self.to, position))

    def rotate_scalar(self, position: Int, own: F32, partner: F32) -> None:
        kept = self.let(f"fmul float {own}, {self.scalar(self.cos, position)}")
        moved = self.let(f"fmul float {partner}, {self.scalar(self.sin, position)}")
        self.store_f32(F32(self.let(f"fadd float {kept}, {moved}")), self.ptr_add(self.to, position))

    def negated(self, x: F32) -> F32:
        return F32(self.let(f"fneg float {x}"))

    def each(self, first: int, end: int, whole: Callable[[I64], None], one: Callable[[I64], None]) -> None:
        """Vectors from a feature on, then single features; each is given its position."""
        vectors = (end - first) // self.lanes
        if vectors:
            with self.loop(0, vectors) as i:
                whole(self.add(self.mul(i, self.bytes), 4 * first))
        if first + vectors * self.lanes < end:
            with self.loop(first + vectors * self.lanes, end) as c:
                one(self.mul(c, 4))

    def halves(self, half: int) -> None:
        """Feature i is paired with feature i + half."""

        def whole(position: I64) -> None:
            other = self.add(position, 4 * half)
            low, high = self.row(self.x, position), self.row(self.x, other)
            self.rotate(position, low, self.fneg(high))
            self.rotate(other, high, low)

        def one(position: I64) -> None:
            other = self.add(position, 4 * half)
            low, high = self.scalar(self.x, position), self.scalar(self.x, other)
            self.rotate_scalar(position, low, self.negated(high))
            self.rotate_scalar(other, high, low)

        self.each(0, half, whole, one)

    def neighbours(self, rotated: int) -> None:
        """Feature 2i is paired with feature 2i + 1."""
        lanes = self.lanes
        vectors = rotated // lanes
        if vectors:
            with self.loop(0, vectors) as i:
                position = self.mul(i, self.bytes)
                own = self.row(self.x, position)
                swapped = self.shuffle(own, Vec("poison"), [i ^ 1 for i in range(lanes)])
                even = self.fneg(swapped)
                partner = self.shuffle(even, swapped, [i + lanes if i % 2 else i for i in range(lanes)])
                self.rotate(position, own, partner)
        with self.loop(vectors * lanes // 2, rotated // 2) as pair:
            position = self.mul(pair, 8)
            after = self.add(position, 4)
            even, odd = self.scalar(self.x, position), self.scalar(self.x, after)
            self.rotate_scalar(position, even, self.negated(odd))
            self.rotate_scalar(after, odd, even)


@lru_cache(64)
def rotate_function(device: CpuDevice, d: int, rotated: int, form: Form, stored: Stored) -> Shared:
    """to[r] = x[r] · cos[r] + partner(x[r]) · sin[r] in the first `rotated` features, x[r] in the others."""
    t = _Rotation(device, stored)
    x, cos, sin, to = t.x, t.cos, t.sin, t.to
    with t.loop(0, I64("%rows")) as r:
        t.x, t.cos, t.sin = (t.ptr_add(p, t.mul(r, I64(f"{p}_stride"))) for p in (x, cos, sin))
        t.to = t.ptr_add(to, t.mul(r, 4 * d))
        if form == "half":
            t.halves(rotated // 2)
        else:
            t.neighbours(rotated)
        t.each(
            rotated,
            d,
            lambda at: t.store(t.row(t.x, at), t.ptr_add(t.to, at)),
            lambda at: t.store_f32(t.scalar(t.x, at), t.ptr_add(t.to, at)),
        )
    angles = (Parameter("ptr", "cos", "readonly"), integer("cos_stride"), Parameter("ptr", "sin", "readonly"))
    given = (read("x"), integer("x_stride"), *angles, integer("sin_stride"), integer("rows"), written("to"))
    return finished(t, "attend_rotate", given)
