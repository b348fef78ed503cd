"""The epilogue on finished rows: the function that kernels share, and how a kernel calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.codegen.llvm import loops
from dovetail.codegen.llvm.arguments import More, NamedArguments, store_words
from dovetail.codegen.llvm.arguments import words_bytes as bytes_of
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import PLACEHOLDER, Parameter, Signature, content_name
from dovetail.codegen.llvm.handles import I64, NULL, Int, Ptr
from dovetail.codegen.llvm.kernel import Arguments
from dovetail.codegen.llvm.maths import functions as maths
from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.problems.epilogue import COUNT, PITCH, RowEpilogue, RowSteps
from dovetail.kernels.spec import SharedFunction

WORDS_REGION = "epilogue_words"
"""The part of the workspace where a kernel writes the words of its epilogue."""


def signature(name: str) -> Signature:
    """How a kernel of the loop language is called: its words, rows from `begin` to before `end`, no workspace."""
    parameters = (
        Parameter("ptr", "words"),
        Parameter("i64", "begin"),
        Parameter("i64", "end"),
        Parameter("ptr", "scratch"),
    )
    return Signature(name, parameters)


def shared_loops(kernel: Kernel) -> SharedFunction:
    """A kernel of the loop language as a function that other kernels call; LLVM optimises and vectorises it."""
    text, uses = loops.function(kernel)
    named = text.replace(f"@{kernel.name}", f"@{PLACEHOLDER}")
    name = content_name(kernel.name, named)
    return SharedFunction(name, "\n".join([maths.library(uses), named.replace(f"@{PLACEHOLDER}", f"@{name}")]), True)


def row_epilogue(steps: RowSteps) -> tuple[RowEpilogue, SharedFunction]:
    """What kernels know of an epilogue, and its function."""
    kernel, function = steps.kernel, shared_loops(steps.kernel)
    sizes = tuple(map(str, kernel.sizes))
    return RowEpilogue(function.name, kernel.pointers[1:], sizes, steps.axes), function


def more(rows: RowEpilogue | None) -> More:
    """The arguments that an epilogue adds to those of a kernel."""
    return More() if rows is None else More(rows.operands, rows.strides, (WORDS_REGION,))


def words_of(rows: RowEpilogue) -> int:
    """Bytes of the words of an epilogue."""
    return bytes_of(1 + len(rows.pointers) + len(rows.sizes))


def call_epilogue(t: Builder, rows: RowEpilogue, words: Ptr, arguments: Sequence[Ptr | I64], count: Int) -> None:
    """Write the words of an epilogue, the rows first, then pointers and sizes, and apply it to `count` rows."""
    store_words(t, arguments, words)
    called = signature(rows.function)
    t.use(called.declaration)
    t.call(called, words, 0, count, NULL)


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Calls the epilogue: where its operands and results are, and their strides."""

    rows: RowEpilogue
    arguments: NamedArguments
    first: Ptr
    """The first result."""

    @staticmethod
    def of(
        t: Builder, arguments: Arguments[object], rows: RowEpilogue | None, words: Ptr, scratch: Ptr, first: Ptr
    ) -> RowWriter | None:
        """Loads the arguments of the epilogue, among the first instructions of a kernel."""
        return None if rows is None else RowWriter(rows, arguments.load_more(t, words, scratch), first)

    def write(self, t: Builder, rows: Ptr, pitch: Int, count: Int, elements: Int, corner: Mapping[str, Int]) -> None:
        """Apply the steps to `count` rows of `elements` each; `corner` is the index of the first, by axis."""
        known: dict[str, Int] = {PITCH: pitch, COUNT: elements}
        pointers = [self._at(t, name, corner) for name in self.rows.pointers]
        sizes = [_i64(known[name] if name in known else self.arguments.sizes[name]) for name in self.rows.sizes]
        call_epilogue(t, self.rows, self.arguments.pointers[WORDS_REGION], [rows, *pointers, *sizes], count)

    def _at(self, t: Builder, name: str, corner: Mapping[str, Int]) -> Ptr:
        base = self.arguments.pointers.get(name, self.first)
        place: Int = self.arguments.sizes[f"{name}_offset"]
        for axis, index in corner.items():
            if index != 0:
                place = t.add(place, t.mul(index, self.arguments.sizes[f"{name}_{axis}"]))
        return t.ptr_add(base, place)


def _i64(x: Int) -> I64:
    return x if isinstance(x, I64) else I64(str(x))


__all__ = ["WORDS_REGION", "RowWriter", "call_epilogue", "more", "row_epilogue", "words_of"]
