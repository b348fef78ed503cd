"""The builder with vectors of any element type: floats, halves, codes in bytes, words.

A vector knows its type (`Vec.lanes`), so that an instruction is written with its operands alone. `VectorBuilder` adds
what is usual for f32 in vectors as wide as those of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, TypeVar, cast

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import F32, I1, I64, ElementType, Handle, Phi, Ptr, Vec, VectorType

H = TypeVar("H", I64, Ptr, Vec)
T = TypeVar("T")
Lanewise: TypeAlias = Literal[
    "add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr", "fadd", "fsub", "fmul", "fdiv"
]
Conversion: TypeAlias = Literal["sext", "zext", "trunc", "sitofp", "uitofp", "fptosi", "fpext", "fptrunc"]
Emit: TypeAlias = Callable[[], None]
"""An instruction, or a few, that are written when this is called."""
_IN_REGISTER = {16: "w", 32: "x", 64: "v"}
"""What LLVM calls operands in registers of NEON, AVX2 and AVX-512, by their bytes."""


class SimdBuilder(Builder):
    """One function while it is written, with arithmetic on vectors that know their type."""

    float_lanes: VectorType | None = None
    """The type of vectors that do not say theirs."""

    def type_of(self, x: Handle) -> str:
        return str(self.lanes_of(x)) if isinstance(x, Vec) else super().type_of(x)

    def lanes_of(self, x: Vec) -> VectorType:
        lanes = self.float_lanes if x.lanes is None else x.lanes
        assert lanes is not None, f"{x} says no type"
        return lanes

    # Arithmetic, lane by lane.

    def lanewise(self, op: Lanewise, x: Vec, y: Vec | float) -> Vec:
        """An instruction on two vectors, or on a vector and a number."""
        kind = self.lanes_of(x)
        if not isinstance(y, Vec):
            y = same(kind, y)
        assert self.lanes_of(y) == kind, f"{op} of {kind} and {self.lanes_of(y)}"
        return Vec(self.let(f"{op} {kind} {x}, {y}"), x.lanes)

    def fadd(self, x: Vec, y: Vec) -> Vec:
        return self.lanewise("fadd", x, y)

    def fsub(self, x: Vec, y: Vec) -> Vec:
        return self.lanewise("fsub", x, y)

    def fmul(self, x: Vec, y: Vec) -> Vec:
        return self.lanewise("fmul", x, y)

    def fdiv(self, x: Vec, y: Vec) -> Vec:
        return self.lanewise("fdiv", x, y)

    def fneg(self, x: Vec) -> Vec:
        return Vec(self.let(f"fneg {self.lanes_of(x)} {x}"), x.lanes)

    def intrinsic(self, name: str, *operands: Vec) -> Vec:
        """An LLVM intrinsic on vectors of one type, such as fma."""
        kind = self.lanes_of(operands[0])
        full = f"llvm.{name}.{kind.mangled}"
        self.use(f"declare {kind} @{full}({', '.join([str(kind)] * len(operands))})")
        return Vec(self.let(f"call {kind} @{full}({', '.join(f'{kind} {x}' for x in operands)})"), operands[0].lanes)

    def fma(self, x: Vec, y: Vec, z: Vec) -> Vec:
        return self.intrinsic("fma", x, y, z)

    def instruction(self, name: str, result: VectorType, *operands: Vec | int) -> Vec:
        """A machine's own instruction, by the name of its intrinsic; integers are constants of 32 bits."""
        kinds = ["i32" if isinstance(x, int) else str(self.lanes_of(x)) for x in operands]
        self.use(f"declare {result} @{name}({', '.join(kinds)})")
        passed = ", ".join([f"{kind} {x}" for kind, x in zip(kinds, operands, strict=True)])
        return Vec(self.let(f"call {result} @{name}({passed})"), result)

    def select_vec(self, condition: I1, x: Vec, y: Vec) -> Vec:
        """One vector or the other."""
        kind = self.lanes_of(x)
        return Vec(self.let(f"select i1 {condition}, {kind} {x}, {kind} {y}"), x.lanes)

    def convert(self, how: Conversion, x: Vec, element: ElementType) -> Vec:
        """The same numbers in another type."""
        kind = self.lanes_of(x)
        return Vec(self.let(f"{how} {kind} {x} to {kind.of(element)}"), kind.of(element))

    def bitcast(self, x: Vec, element: ElementType, count: int | None = None) -> Vec:
        """The same bits, as as many elements, or as some, of another type."""
        kind = self.lanes_of(x)
        to = VectorType(kind.count if count is None else count, element)
        return Vec(self.let(f"bitcast {kind} {x} to {to}"), to)

    # Memory.

    def load_lanes(self, kind: VectorType, pointer: Ptr, align: int = 4, *, volatile: bool = False) -> Vec:
        """A vector from memory; where it is volatile, it is loaded where this is written."""
        return Vec(self.let(f"load {'volatile ' if volatile else ''}{kind}, ptr {pointer}, align {align}"), kind)

    def store_lanes(self, x: Vec, pointer: Ptr, align: int = 4) -> None:
        self.emit(f"store {self.lanes_of(x)} {x}, ptr {pointer}, align {align}")

    def load_spread(self, kind: VectorType, pointer: Ptr) -> Vec:
        """The element at a pointer, in all lanes."""
        return self.spread(self.let(f"load {kind.element}, ptr {pointer}, align 4"), kind)

    # Lanes.

    def spread(self, x: str, kind: VectorType) -> Vec:
        """A scalar in all lanes."""
        one = self.let(f"insertelement {kind} poison, {kind.element} {x}, i64 0")
        return Vec(self.let(f"shufflevector {kind} {one}, {kind} poison, {kind.of('i32')} zeroinitializer"), kind)

    def shuffle(self, x: Vec, y: Vec, lanes: Sequence[int]) -> Vec:
        """Lanes of x and y, numbered through both."""
        kind, order = self.lanes_of(x), ", ".join([f"i32 {i}" for i in lanes])
        shuffled = self.let(f"shufflevector {kind} {x}, {kind} {y}, <{len(lanes)} x i32> <{order}>")
        return Vec(shuffled, x.lanes if len(lanes) == kind.count else VectorType(len(lanes), kind.element))

    def some_lanes(self, x: Vec, lanes: Sequence[int]) -> Vec:
        """Lanes of one vector."""
        return self.shuffle(x, Vec("poison", x.lanes), lanes)

    def splat_lane(self, x: Vec, lane: int) -> Vec:
        """One lane of a vector in every lane."""
        return self.some_lanes(x, [lane] * self.lanes_of(x).count)

    def extract(self, x: Vec, lane: int) -> F32:
        return F32(self.let(f"extractelement {self.lanes_of(x)} {x}, i64 {lane}"))

    def reduced(self, how: str, x: Vec) -> str:
        """One number from all lanes, such as by add."""
        kind = self.lanes_of(x)
        name = f"llvm.vector.reduce.{how}.{kind.mangled}"
        self.use(f"declare {kind.element} @{name}({kind})")
        return self.let(f"call {kind.element} @{name}({kind} {x})")

    # Order.

    def after(self, pointer: Ptr, x: Vec) -> Ptr:
        """The same pointer, which LLVM believes to depend on a vector.

        Otherwise it would load much at once, and spill it. No instruction comes of it: the machine loads as early as it
        likes.
        """
        kind = self.lanes_of(x)
        how = _IN_REGISTER[kind.bytes]
        return Ptr(self.let(f'call ptr asm "", "=r,0,{how}"(ptr {pointer}, {kind} {x})'))

    def placed(self, x: Vec) -> Vec:
        """The same vector, computed before the next one that is placed. With NEON; no instruction comes of it."""
        kind = self.lanes_of(x)
        return Vec(self.let(f'call {kind} asm sideeffect "", "=w,0"({kind} {x})'), x.lanes)


class PhiLoop:
    """Begin a loop of at least one iteration whose phis are carried one by one."""

    def __init__(self, t: Builder) -> None:
        self.t, self.before = t, t.block
        self.head, self.after = t.fresh("along"), t.fresh("done")
        self.phis: dict[str, Phi] = {}
        t.emit(f"br label %{self.head}")
        t.label(self.head)

    def carry(self, start: H) -> H:
        """What was this at first, and is what `end` says from then on."""
        phi = self.t.phi(self.t.type_of(start))
        phi.add(start, self.before)
        self.phis[phi.name] = phi
        return cast(H, Vec(phi.name, start.lanes) if isinstance(start, Vec) else type(start)(phi.name))

    def end(self, following: Iterable[tuple[Handle, Handle]], again: I1) -> None:
        """Go back to the beginning, where a condition holds, with the next of everything that is carried."""
        for name, x in following:
            self.phis.pop(name).add(x, self.t.block)
        assert not self.phis, "everything that is carried has a next one"
        self.t.emit(f"br i1 {again}, label %{self.head}, label %{self.after}")
        self.t.label(self.after)


class Stream:
    """Instructions that are written among others, in their order: the explicit interleaving of a hand-made schedule."""

    def __init__(self, steps: Iterable[Emit] = ()) -> None:
        self.steps = list(steps)

    def next(self, count: int = 1) -> None:
        """Write the next ones, as far as there are any."""
        for _ in range(min(count, len(self.steps))):
            self.steps.pop(0)()

    def rest(self) -> None:
        """Write all that wait."""
        self.next(len(self.steps))


def due(items: Sequence[T], turn: int, turns: int) -> Sequence[T]:
    """The items that are due at one of equal turns."""
    return items[turn * len(items) // turns : (turn + 1) * len(items) // turns]


def same(kind: VectorType, x: float | str) -> Vec:
    """A constant: the same number in every lane."""
    return numbers(kind, [x] * kind.count)


def numbers(kind: VectorType, xs: Sequence[float | str]) -> Vec:
    """A constant vector."""
    return Vec(f"<{', '.join([f'{kind.element} {x}' for x in xs])}>", kind)


def zeros(kind: VectorType) -> Vec:
    return Vec("zeroinitializer", kind)


__all__ = ["Emit", "H", "PhiLoop", "SimdBuilder", "Stream", "due", "numbers", "same", "zeros"]
