"""The builder of LLVM text: integers, memory, control flow with phis, prefetch and calls.

Every template and printer writes its functions with this one vocabulary. Instructions are named as LLVM names them, so
that signedness is explicit: `sdiv` and `udiv`, `smin`, `icmp("ult", …)`. Integers that are known are folded.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

from dovetail.codegen.llvm.folding import folded, i64, known
from dovetail.codegen.llvm.function import Function, Signature
from dovetail.codegen.llvm.handles import (
    F32,
    I1,
    I32,
    I64,
    Carried,
    Handle,
    Int,
    Order,
    Phi,
    Ptr,
    Vec,
    VectorType,
    carried_by,
)

_T = TypeVar("_T")


class Builder:
    """One function while it is written."""

    rounds_to_bf16 = False
    """Whether the machine has an instruction that rounds f32 to bf16."""
    takes_halves = False
    """Whether one instruction widens either half of a register, at the price of registers."""

    def __init__(self) -> None:
        self.lines: list[str | Phi] = []
        self.allocas: list[str] = []
        self.uses: dict[str, None] = {}
        """Declarations of intrinsics, and names of functions of the maths library."""
        self.block = "entry"
        self._count = 0

    # Emission.

    def emit(self, line: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {line}")

    def let(self, instruction: str) -> str:
        """The result of an instruction that no method here has; give it the handle of its kind."""
        name = self.fresh("%t")
        self.lines.append(f"  {name} = {instruction}")
        return name

    def use(self, function: str) -> None:
        self.uses[function] = None

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def new_block(self) -> None:
        """Begin another block: instructions are scheduled within one."""
        following = self.fresh("next")
        self.emit(f"br label %{following}")
        self.label(following)

    def phi(self, type: str) -> Phi:
        """A phi of the block that begins here."""
        phi = Phi(self.fresh("%phi"), type)
        self.lines.append(phi)
        return phi

    def body(self) -> list[object]:
        """The function's lines after `entry`, stack slots first."""
        return ["entry:", *self.allocas, *self.lines]

    def function(self, signature: Signature, *, linkage: str = "", attributes: str = "noinline nounwind") -> Function:
        """The function that was written; its last instruction returns."""
        self.ret()
        text = signature.define(self.body(), linkage=linkage, attributes=attributes)
        return Function(signature, text, tuple(self.uses))

    def type_of(self, x: Handle) -> str:
        """The LLVM type of a handle."""
        assert x.type, f"{type(x).__name__} needs a builder of vectors"
        return x.type

    # Integers.

    def add(self, x: Int, y: Int) -> I64:
        if known(x) == 0:
            return i64(y)
        if known(y) == 0:
            return i64(x)
        return self._integer("add", x, y)

    def sub(self, x: Int, y: Int) -> I64:
        return i64(x) if known(y) == 0 else self._integer("sub", x, y)

    def mul(self, x: Int, y: Int) -> I64:
        if 0 in (known(x), known(y)):
            return I64("0")
        if known(x) == 1:
            return i64(y)
        return i64(x) if known(y) == 1 else self._integer("mul", x, y)

    def sdiv(self, x: Int, y: Int) -> I64:
        return i64(x) if known(y) == 1 else self._integer("sdiv", x, y)

    def udiv(self, x: Int, y: Int) -> I64:
        return i64(x) if known(y) == 1 else self._integer("udiv", x, y)

    def srem(self, x: Int, y: Int) -> I64:
        return I64("0") if known(y) == 1 else self._integer("srem", x, y)

    def urem(self, x: Int, y: Int) -> I64:
        return I64("0") if known(y) == 1 else self._integer("urem", x, y)

    def shl(self, x: Int, bits: int) -> I64:
        return self._integer("shl", x, bits)

    def following(self, x: I64) -> I64:
        """The next of a count that does not overflow."""
        return I64(self.let(f"add nuw nsw i64 {x}, 1"))

    def preceding(self, x: I64) -> I64:
        return I64(self.let(f"add nsw i64 {x}, -1"))

    def ceil_div(self, x: Int, y: Int) -> I64:
        """The signed quotient, rounded up; x is not negative."""
        return self.sdiv(self.add(x, self.sub(y, 1)), y)

    def bit_length(self, x: I64) -> I64:
        """The place of the highest bit that is set, counted from 1; 0 for 0."""
        self.use("declare i64 @llvm.ctlz.i64(i64, i1)")
        return self.sub(64, I64(self.let(f"call i64 @llvm.ctlz.i64(i64 {x}, i1 false)")))

    def round_up(self, x: Int, multiple: Int) -> I64:
        """The next multiple."""
        return self.mul(self.ceil_div(x, multiple), multiple)

    def smin(self, x: Int, y: Int) -> I64:
        return self._extremum("smin", x, y)

    def smax(self, x: Int, y: Int) -> I64:
        return self._extremum("smax", x, y)

    def _extremum(self, name: str, x: Int, y: Int) -> I64:
        self.use(f"declare i64 @llvm.{name}.i64(i64, i64)")
        return I64(self.let(f"call i64 @llvm.{name}.i64(i64 {x}, i64 {y})"))

    def _integer(self, operation: str, x: Int, y: Int) -> I64:
        a, b = known(x), known(y)
        if a is not None and b is not None and (constant := folded(operation, a, b)) is not None:
            return I64(str(constant))
        return I64(self.let(f"{operation} i64 {x}, {y}"))

    def icmp(self, order: Order, x: Int, y: Int) -> I1:
        return I1(self.let(f"icmp {order} i64 {x}, {y}"))

    def ptr_ne(self, x: Ptr, y: Ptr) -> I1:
        return I1(self.let(f"icmp ne ptr {x}, {y}"))

    def and_(self, x: I1, y: I1) -> I1:
        return I1(self.let(f"and i1 {x}, {y}"))

    def or_(self, x: I1, y: I1) -> I1:
        return I1(self.let(f"or i1 {x}, {y}"))

    def not_(self, x: I1) -> I1:
        return I1(self.let(f"xor i1 {x}, true"))

    def zext(self, x: I1) -> I64:
        """0 or 1."""
        return I64(self.let(f"zext i1 {x} to i64"))

    def trunc(self, x: I64) -> I32:
        return I32(self.let(f"trunc i64 {x} to i32"))

    def sitofp(self, x: I64) -> F32:
        return F32(self.let(f"sitofp i64 {x} to float"))

    def select_int(self, condition: I1, x: Int, y: Int) -> I64:
        return I64(self.let(f"select i1 {condition}, i64 {x}, i64 {y}"))

    def select_ptr(self, condition: I1, x: Ptr, y: Ptr) -> Ptr:
        return Ptr(self.let(f"select i1 {condition}, ptr {x}, ptr {y}"))

    # Memory.

    def ptr_add(self, pointer: Ptr, offset: Int) -> Ptr:
        """A pointer moved by bytes."""
        if known(offset) == 0:
            return pointer
        return Ptr(self.let(f"getelementptr i8, ptr {pointer}, i64 {offset}"))

    def base(self, pointer: Ptr) -> Ptr:
        """The same pointer, whose sum LLVM does not look into; loop strength reduction tries every way to split it."""
        return Ptr(self.let(f"freeze ptr {pointer}"))

    def element(self, pointer: Ptr, type: str, index: Int) -> Ptr:
        """A pointer to an element of an array."""
        return Ptr(self.let(f"getelementptr {type}, ptr {pointer}, i64 {index}"))

    def load_i64(self, pointer: Ptr) -> I64:
        return I64(self.let(f"load i64, ptr {pointer}, align 8"))

    def load_ptr(self, pointer: Ptr) -> Ptr:
        return Ptr(self.let(f"load ptr, ptr {pointer}, align 8"))

    def load_f32(self, pointer: Ptr) -> F32:
        return F32(self.let(f"load float, ptr {pointer}, align 4"))

    def store_i64(self, x: Int, pointer: Ptr) -> None:
        self.emit(f"store i64 {x}, ptr {pointer}, align 8")

    def store_f32(self, x: F32, pointer: Ptr) -> None:
        self.emit(f"store float {x}, ptr {pointer}, align 4")

    # Memory under a mask. Intrinsics are declared here alone: LLVM 22 gave them other signatures.

    def load_where(self, kind: VectorType, mask: str, pointer: Ptr, otherwise: str, align: int) -> str:
        """Lanes of memory where a mask holds, and of another vector where not; the others are not read."""
        name, masks = f"@llvm.masked.load.{kind.mangled}.p0", kind.of("i1")
        self.use(f"declare {kind} {name}(ptr, {masks}, {kind})")
        return self.let(f"call {kind} {name}(ptr align {align} {pointer}, {masks} {mask}, {kind} {otherwise})")

    def store_where(self, kind: VectorType, mask: str, x: str, pointer: Ptr, align: int) -> None:
        """Write the lanes where a mask holds."""
        name, masks = f"@llvm.masked.store.{kind.mangled}.p0", kind.of("i1")
        self.use(f"declare void {name}({kind}, ptr, {masks})")
        self.emit(f"call void {name}({kind} {x}, ptr align {align} {pointer}, {masks} {mask})")

    def gather_where(self, kind: VectorType, mask: str, pointers: str, otherwise: str, align: int) -> str:
        """What pointers point to where a mask holds, and lanes of another vector where not."""
        places, masks = kind.of("ptr"), kind.of("i1")
        name = f"@llvm.masked.gather.{kind.mangled}.{places.mangled}"
        self.use(f"declare {kind} {name}({places}, {masks}, {kind})")
        operands = f"{places} align {align} {pointers}, {masks} {mask}, {kind} {otherwise}"
        return self.let(f"call {kind} {name}({operands})")

    def alloca(self, type: str) -> Ptr:
        """A stack slot for a scalar or vector that changes; LLVM promotes it to a register."""
        name = self.fresh("%slot")
        self.allocas.append(f"  {name} = alloca {type}")
        return Ptr(name)

    def prefetch(self, pointer: Ptr, *, for_write: bool = False, level: Literal[1, 2, 3] = 1) -> None:
        """Prefetch a cache line into L1, L2 or L3."""
        self.use("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(for_write)}, i32 {4 - level}, i32 1)")

    def opaque(self, pointer: Ptr) -> Ptr:
        """The pointer out of an empty asm, so that loop strength reduction does not re-derive it as base + index."""
        return Ptr(self.let(f'call ptr asm "", "=r,0"(ptr {pointer})'))

    # Control flow.

    @contextmanager
    def loop(self, first: Int, end: Int, metadata: str = "", step: Int = 1) -> Generator[I64]:
        """Instructions for every `step`-th integer from `first` to before `end`; gives the index."""
        head, body, after, before = self.fresh("head"), self.fresh("body"), self.fresh("after"), self.block
        self._branch(self.icmp("slt", first, end), head, after)
        self.label(head)
        index = self.phi("i64")
        index.add(str(first), before)
        self.emit(f"br label %{body}")
        self.label(body)
        yield I64(index.name)
        following = self.let(f"add nuw nsw i64 {index.name}, {step}")
        index.add(following, self.block)
        self._branch(self.icmp("slt", I64(following), end), head, after, metadata)
        self.label(after)

    @contextmanager
    def steps(self, first: Int, end: Int, step: int) -> Generator[I64]:
        """Instructions for first, first + step, … to before `end`, which the last step may overshoot."""
        count = self.sdiv(self.add(self.sub(end, first), step - 1), step)
        with self.loop(0, count) as i:
            yield self.add(first, self.mul(i, step))

    @contextmanager
    def carry(
        self, first: Int, end: Int, vectors: Sequence[Vec] = (), pointers: Sequence[Ptr] = ()
    ) -> Generator[Carried]:
        """A loop that hands values from iteration to iteration; it may have no iteration."""
        start = Carried(i64(first), list(vectors), list(pointers))
        head, after, before = self.fresh("head"), self.fresh("after"), self.block
        self._branch(self.icmp("slt", first, end), head, after)
        self.label(head)
        index = self.phi("i64")
        index.add(str(first), before)
        phis = self._phis(start, before)
        state = carried_by(start, phis, I64(index.name))
        yield state
        last = state.handles
        for phi, x in zip(phis, last, strict=True):
            phi.add(x, self.block)
        following = self.let(f"add nuw nsw i64 {index.name}, 1")
        index.add(following, self.block)
        more, source = self.icmp("slt", I64(following), end), self.block
        self._branch(more, head, after)
        self.label(after)
        state.set(self._merged(start.handles, before, last, source))

    @contextmanager
    def repeat(
        self, integers: Sequence[Int] = (), pointers: Sequence[Ptr] = (), vectors: Sequence[Vec] = ()
    ) -> Generator[Carried]:
        """A loop of at least one iteration: the body replaces what is carried and sets `again`."""
        state = Carried(I64("0"), list(vectors), list(pointers), [i64(x) for x in integers])
        with self.repeated(state):
            yield state

    @contextmanager
    def repeated(self, state: Carried) -> Generator[None]:
        """The same with a state that was carried through other loops before."""
        start = carried_by(state, (), state.index)
        head, after, before = self.fresh("repeat"), self.fresh("after"), self.block
        self.emit(f"br label %{head}")
        self.label(head)
        phis = self._phis(start, before)
        state.set([phi.name for phi in phis])
        yield
        for phi, x in zip(phis, state.handles, strict=True):
            phi.add(x, self.block)
        self._branch(state.again, head, after)
        self.label(after)

    def end_loop(
        self, carried: Iterable[tuple[Phi, object, object]], again: I1, *, before: str, along: str, after: str
    ) -> None:
        """End a loop whose phis are written out: each has a first value, which comes from `before`, and a next one."""
        for phi, first, following in carried:
            phi.add(str(first), before)
            phi.add(str(following), self.block)
        self._branch(again, along, after)
        self.label(after)

    def _phis(self, start: Carried, before: str) -> list[Phi]:
        phis: list[Phi] = []
        for x in start.handles:
            phis.append(self.phi(self.type_of(x)))
            phis[-1].add(x, before)
        return phis

    @contextmanager
    def guarded(self, condition: I1, state: Carried) -> Generator[None]:
        """Instructions that replace what is carried where a condition holds; after them it is what either path left."""
        inside, after, before = self.fresh("then"), self.fresh("after"), self.block
        start = state.handles
        self._branch(condition, inside, after)
        self.label(inside)
        yield
        last, source = state.handles, self.block
        self.emit(f"br label %{after}")
        self.label(after)
        state.set(self._merged(start, before, last, source))

    def _merged(self, start: Sequence[Handle], before: str, last: Sequence[Handle], source: str) -> list[str]:
        """What two paths left, in the block in which they meet."""
        merged: list[str] = []
        for initial, x in zip(start, last, strict=True):
            phi = self.phi(self.type_of(initial))
            phi.add(initial, before)
            phi.add(x, source)
            merged.append(phi.name)
        return merged

    @contextmanager
    def when(self, condition: I1) -> Generator[None]:
        """Instructions that run where a condition holds."""
        inside, after = self.fresh("then"), self.fresh("after")
        self._branch(condition, inside, after)
        self.label(inside)
        yield
        self.emit(f"br label %{after}")
        self.label(after)

    def either(self, condition: I1, then: Callable[[], _T], otherwise: Callable[[], _T]) -> tuple[tuple[_T, str], ...]:
        """One path where a condition holds and another where not: what each leaves, and the block in which it ends."""
        first, second, after = self.fresh("then"), self.fresh("else"), self.fresh("after")
        self._branch(condition, first, second)
        ends: list[tuple[_T, str]] = []
        for label, write in ((first, then), (second, otherwise)):
            self.label(label)
            ends.append((write(), self.block))
            self.emit(f"br label %{after}")
        self.label(after)
        return tuple(ends)

    @contextmanager
    def unless(self, condition: I1) -> Generator[None]:
        """Instructions that run where a condition does not hold."""
        with self.when(self.not_(condition)):
            yield

    @contextmanager
    def switch(self, x: I64, cases: Iterable[int]) -> Generator[Iterable[int]]:
        """Instructions for each of the values that an integer may have; iterate over what is given."""
        labels = {value: self.fresh("case") for value in cases}
        after = self.fresh("after")
        listed = " ".join(f"i64 {value}, label %{label}" for value, label in labels.items())
        self.emit(f"switch i64 {x}, label %{after} [ {listed} ]")

        def each() -> Generator[int]:
            for value, label in labels.items():
                self.label(label)
                yield value
                self.emit(f"br label %{after}")

        yield each()
        self.label(after)

    def _branch(self, condition: I1, then: str, otherwise: str, metadata: str = "") -> None:
        self.emit(f"br i1 {condition}, label %{then}, label %{otherwise}{metadata}")

    def call(self, function: Signature, *arguments: Handle | int) -> None:
        """Call a function; check the kinds of the arguments against its parameters."""
        assert len(arguments) == len(function.parameters), (
            f"@{function.name} takes {len(function.parameters)} arguments"
        )
        for p, x in zip(function.parameters, arguments, strict=True):
            actual = "i64" if isinstance(x, int) else self.type_of(x)
            assert actual == p.type, f"%{p.name} of @{function.name} is {p.type}, and {x} is {actual}"
        passed = ", ".join(f"{p.type} {x}" for p, x in zip(function.parameters, arguments, strict=True))
        self.emit(f"call void @{function.name}({passed})")

    def ret(self) -> None:
        self.emit("ret void")
