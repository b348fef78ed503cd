"""Kernels of the loop language as LLVM's text.

A kernel becomes `void name(ptr arguments, i64 begin, i64 end, ptr scratch)`: it runs the tiles from `begin` to before
`end`. The arguments are 64-bit words: the pointers of the kernel in their order, then its sizes. Vectors are left to
LLVM's loop vectoriser, which knows the machine; pointers are declared not to overlap, so that it can.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I1, I64
from dovetail.dataclass import dataclass
from dovetail.errors import GraphError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bool_
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    Threaded,
    ThreadIndex,
    When,
)
from dovetail.kernels.loops.requantise import Requantiser
from dovetail.kernels.loops.reversal import width_of_reversed

REASSOCIATED = "reassoc contract"
CONTRACTED = "contract"
"""A product that is added may be rounded once instead of twice, under strict=True as well: that option is about what
becomes of the graph, and a step that rounds less often than NumPy is as near to its meaning as NumPy's own."""


@dataclass(frozen=True, slots=True)
class Note:
    """The metadata of a loop for LLVM."""

    lanes: int = 0
    """Iterations that go together in a vector; 0 where LLVM decides."""
    is_short: bool = False
    """Whether the loop is unrolled as a whole, after it is vectorized and not before."""
    is_rolled: bool = False
    """Whether the loop is not unrolled at all."""


class Printer:
    """Prints the body of one kernel for a CPU; printers for other targets redefine what differs."""

    def __init__(self, kernel: Kernel) -> None:
        self.text = Builder()
        self.pointers = {name: f"%p{i}" for i, name in enumerate(kernel.pointers)}
        self.pointers |= {"scratch": "%scratch"}
        self.sizes = {size: f"%s{i}" for i, size in enumerate(kernel.sizes)}
        self.names: dict[str, str] = {}
        self.notes: list[Note] = []
        self.slots: dict[str, tuple[str, DType]] = {}
        self.reassociate = False
        self.printed: dict[int, str] = {}
        """What the expressions of one statement are called, so that a shared one is printed once."""

    def statements(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self.printed = {}
            match statement:
                case Store():
                    self.store(statement)
                case Set():
                    self.set(statement)
                case Loop():
                    self.loop(statement)
                case When():
                    with self.text.when(I1(self.value(statement.condition))):
                        self.statements(statement.body)
                case _:
                    self.threaded(statement)

    def threaded(self, statement: Threaded) -> None:
        """What only threads of a GPU's block do."""
        raise GraphError(f"{type(statement).__name__} in a kernel for a CPU", hint="schedule the kernel for a GPU")

    def index(self, expr: ThreadIndex) -> str:
        """Which block, warp, thread or lane runs this."""
        raise GraphError(f"the index of a {expr.kind} in a kernel for a CPU", hint="schedule the kernel for a GPU")

    def pointer(self, tensor: Tensor) -> str:
        """The type of a pointer to a tensor."""
        return "ptr"

    def apart(self, tensor: Tensor) -> str:
        """What an access of a tensor says of others that it is apart from."""
        return ""

    def store(self, statement: Store) -> None:
        dtype = statement.tensor.dtype
        value = self.value(Requantiser().rewritten(statement.value))
        if dtype is bool_:
            value = self.text.let(f"zext i1 {value} to i8")
        target = f"{self.pointer(statement.tensor)} {self.address(statement.tensor, statement.at)}"
        note = self.apart(statement.tensor)
        self.text.emit(f"store {scalar.stored(dtype)} {value}, {target}, align {dtype.itemsize}{note}")

    def set(self, statement: Set) -> None:
        dtype = statement.value.dtype
        value = self.taken(statement) if self.reassociate else self.value(Requantiser().rewritten(statement.value))
        self.keep(statement.name, value, dtype)

    def keep(self, name: str, value: str, dtype: DType) -> None:
        """Keep a scalar under a name."""
        if name not in self.slots:
            self.slots[name] = (self.text.alloca(scalar.spelled(dtype)), dtype)
        slot, declared = self.slots[name]
        if declared is not dtype:
            raise GraphError(f"{name} is {declared.name} and {dtype.name} at once", hint="cast it first")
        self.text.emit(f"store {scalar.spelled(dtype)} {value}, ptr {slot}")

    def taken(self, statement: Set) -> str:
        """A scalar that is set to itself with one more element in it: only this step may be reordered."""
        match statement.value:
            case Call(op, (Name(statement.name) as kept, x), dtype):
                operands = [self.value(kept), self.value(x)]
                return scalar.apply(self.text, op, operands, [kept.dtype, x.dtype], dtype, REASSOCIATED)
            case other:
                return self.value(other)

    def loop(self, statement: Loop) -> None:
        before, self.reassociate = self.reassociate, statement.reassociate
        hidden = self.slots.pop(statement.variable, None)
        self.iterations(statement)
        self.reassociate = before
        if hidden is not None:
            self.slots[statement.variable] = hidden

    def iterations(self, statement: Loop) -> None:
        """The iterations of a loop, one after the other; LLVM's vectoriser takes what it can."""
        with self.text.loop(0, I64(self.value(statement.extent)), self.marked(statement)) as variable:
            self.names[statement.variable] = variable
            self.statements(statement.body)

    def marked(self, loop: Loop) -> str:
        """Says to LLVM how many iterations go together and what is not unrolled; `function` defines the note."""
        if not loop.lanes:
            lanes = width_of_reversed(loop.variable, loop.extent, loop.body, reassociate=loop.reassociate)
            return self.note(Note(lanes, is_rolled=loop.rolled))
        count = loop.extent.size if isinstance(loop.extent, Extent) else None
        is_short = isinstance(count, int) and count <= _SHORT and count % loop.lanes == 0
        return self.note(Note(loop.lanes, is_short, loop.rolled))

    def note(self, note: Note) -> str:
        if note == Note():
            return ""
        self.notes.append(note)
        return f", !llvm.loop !{_NOTE}{len(self.notes) - 1}"

    def value(self, expr: Expr) -> str:
        """The name of an expression, operands first; a chain may be longer than Python's stack."""
        stack = [expr]
        while stack:
            top = stack[-1]
            if id(top) not in self.printed and isinstance(top, Call):
                pending = [x for x in top.operands if id(x) not in self.printed]
                if pending:
                    stack += reversed(pending)
                    continue
            stack.pop()
            if id(top) not in self.printed:
                self.printed[id(top)] = self.one(top)
        return self.printed[id(expr)]

    def one(self, expr: Expr) -> str:
        """One expression whose operands are printed."""
        match expr:
            case Number():
                return scalar.literal(expr.value, expr.dtype)
            case Extent():
                return self.size(expr.size)
            case Name():
                if expr.name in self.slots:
                    slot, dtype = self.slots[expr.name]
                    return self.text.let(f"load {scalar.spelled(dtype)}, ptr {slot}")
                return self.names[expr.name]
            case ThreadIndex():
                return self.index(expr)
            case Load():
                return self.load(expr)
            case Call():
                operands = [self.printed[id(x)] for x in expr.operands]
                dtypes = [x.dtype for x in expr.operands]
                return scalar.apply(self.text, expr.op, operands, dtypes, expr.dtype, CONTRACTED)

    def load(self, expr: Load) -> str:
        dtype = expr.dtype
        source = f"{self.pointer(expr.tensor)} {self.address(expr.tensor, expr.at)}"
        note = self.apart(expr.tensor)
        loaded = self.text.let(f"load {scalar.stored(dtype)}, {source}, align {dtype.itemsize}{note}")
        return self.text.let(f"trunc i8 {loaded} to i1") if dtype is bool_ else loaded

    def size(self, size: Size) -> str:
        return str(size) if isinstance(size, int) else self.sizes[size]

    def address(self, tensor: Tensor, at: Sequence[Expr]) -> str:
        """The last axis comes last, as an index of elements where it is dense: that is the form LLVM knows best."""
        place, pointer = self.pointers[tensor.pointer], self.pointer(tensor)
        if tensor.offset != 0:
            place = self.text.let(f"getelementptr i8, {pointer} {place}, i64 {self.size(tensor.offset)}")
        dense = None
        for stride, index in zip(tensor.strides, at, strict=True):
            if stride == tensor.dtype.itemsize and dense is None:
                dense = index
            elif stride != 0:
                offset = self.product(stride, index, tensor.dtype)
                place = place if offset == "0" else self.text.let(f"getelementptr i8, {pointer} {place}, i64 {offset}")
        if dense is None or dense == Extent(0):
            return place
        kind = scalar.stored(tensor.dtype)
        return self.text.let(f"getelementptr inbounds {kind}, {pointer} {place}, i64 {self.value(dense)}")

    def product(self, stride: Size, index: Expr, dtype: DType) -> str:
        if isinstance(index, Extent):
            whole = index.size * stride
            if isinstance(whole, int):
                return str(whole)
        return self.text.let(f"mul nsw i64 {self.value(index)}, {self.stride(stride, dtype)}")

    def stride(self, stride: Size, dtype: DType) -> str:
        """The bytes from one element of a tensor to the next along an axis."""
        return self.size(stride)


def function(kernel: Kernel) -> tuple[str, tuple[str, ...]]:
    """A kernel's text, and the functions that it calls."""
    printer = Printer(kernel)
    text = printer.text
    # LLVM must not choose the lanes of a loop with reversed accesses.
    lanes = width_of_reversed(kernel.tile, Name("end"), kernel.body, reassociate=False)
    with text.loop(I64("%begin"), I64("%end"), printer.note(Note(lanes))) as tile:
        printer.names[kernel.tile] = tile
        printer.statements(kernel.body)
    text.ret()
    inner = f"{kernel.name}.tiles"
    pointers = [f"ptr{_attributes(kernel, name)} %p{i}" for i, name in enumerate(kernel.pointers)]
    sizes = [f"i64 %s{i}" for i in range(len(kernel.sizes))]
    parameters = ", ".join([*pointers, *sizes, "i64 %begin", "i64 %end", "ptr noalias %scratch"])
    lines = [
        f"define internal void @{inner}({parameters}) alwaysinline nounwind {{",
        "entry:",
        *text.allocas,
        *map(str, text.lines),
        "}",
        f"define void @{kernel.name}(ptr noalias readonly %a, i64 %begin, i64 %end, ptr noalias %scratch) nounwind {{",
        *_unpacked(kernel),
        f"  call void @{inner}({_passed(kernel)})",
        "  ret void",
        "}",
    ]
    return _noted("\n".join(lines), printer.notes), tuple(text.uses)


_NOTE = "note"
_SHORT = 16
"""Iterations up to which LLVM unrolls a loop before it looks for vectors, and then finds none."""
_ROLLED = '!{!"llvm.loop.unroll.disable"}'
_UNROLLED_AFTER = f'{_ROLLED}, !{{!"llvm.loop.vectorize.followup_vectorized", !{{!"llvm.loop.unroll.full"}}}}'


def _noted(text: str, notes: Sequence[Note]) -> str:
    """The text with its notes to LLVM. A module numbers them; numbers are made of the text, so that they differ."""
    first = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=3).digest()) << 6
    for index, note in enumerate(notes):
        number = first + 4 * index
        text = text.replace(f"!{_NOTE}{index}\n", f"!{number}\n")
        nodes = [f"!{number}", *([f"!{number + 1}", f"!{number + 2}"] if note.lanes else [])]
        nodes += [_UNROLLED_AFTER] if note.is_short else [_ROLLED] if note.is_rolled else []
        text += f"\n!{number} = distinct !{{{', '.join(nodes)}}}"
        if note.lanes:
            text += f"""
!{number + 1} = !{{!"llvm.loop.vectorize.width", i32 {note.lanes}}}
!{number + 2} = !{{!"llvm.loop.interleave.count", i32 1}}"""
    return text


def _attributes(kernel: Kernel, name: str) -> str:
    if name in kernel.shared:
        return ""
    return " noalias" if name in kernel.written else " noalias readonly"


def _unpacked(kernel: Kernel) -> Iterator[str]:
    for i, kind in enumerate(["ptr"] * len(kernel.pointers) + ["i64"] * len(kernel.sizes)):
        yield f"  %q{i} = getelementptr i8, ptr %a, i64 {8 * i}"
        yield f"  %v{i} = load {kind}, ptr %q{i}, align 8"


def _passed(kernel: Kernel) -> str:
    count = len(kernel.pointers)
    pointers = [f"ptr %v{i}" for i in range(count)]
    sizes = [f"i64 %v{count + i}" for i in range(len(kernel.sizes))]
    return ", ".join([*pointers, *sizes, "i64 %begin", "i64 %end", "ptr %scratch"])


__all__ = ["Printer", "function"]
