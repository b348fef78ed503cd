"""A kernel made of functions: those of its own, and those that it shares with other kernels of the process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.codegen.llvm.arguments import Arguments
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature, content_name, named
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.maths import functions as maths
from dovetail.ir.dim import Size
from dovetail.kernels.spec import Part, Template

KERNEL = Signature(
    "kernel",
    (
        Parameter("ptr", "arguments", "noalias readonly"),
        Parameter("i64", "begin"),
        Parameter("i64", "end"),
        Parameter("ptr", "scratch", "noalias"),
    ),
)
"""How a kernel is called: its words, the tiles from `begin` to before `end`, and the worker's workspace."""
WORDS, BEGIN, END, SCRATCH = Ptr("%arguments"), I64("%begin"), I64("%end"), Ptr("%scratch")


@dataclass(frozen=True, slots=True)
class KernelCode:
    """The text of a kernel: its content name, what it uses, and functions that it shares with others."""

    name: str
    text: str
    uses: tuple[str, ...]
    shared: tuple[Part, ...]

    def template(self, pointers: Iterable[str], sizes: tuple[Size, ...], scratch: Size) -> Template:
        """The kernel with what it is given."""
        return Template(self.name, self.text, self.uses, tuple(pointers), sizes, scratch, self.shared, final(self.uses))


def kernel_function(t: Builder, *, attributes: str = "nounwind optsize") -> Function:
    """The kernel's own function; its instructions are few next to those of the functions that it calls."""
    return t.function(KERNEL, attributes=attributes)


def assemble(stem: str, own: Sequence[Function], shared: Sequence[Function]) -> KernelCode:
    """A kernel whose `own` functions are called @kernel and @kernel.something; `shared` ones get content names."""
    text = "\n".join(f.text for f in own)
    uses = dict.fromkeys(use for f in own for use in f.uses)
    parts: list[Part] = []
    for function in shared:
        part, signature = shared_function(function)
        # Some are called only where an activation needs them.
        if f"@{function.name}(" in text:
            text = text.replace(f"@{function.name}(", f"@{part.name}(")
            parts.append(part)
            uses[signature.declaration] = None
    name, text = named(stem, text)
    return KernelCode(name, text, tuple(uses), tuple(parts))


def shared_function(function: Function) -> tuple[Part, Signature]:
    """A function as a module of its own that kernels share, and how to call it."""
    name = content_name(function.name.removeprefix("kernel."), function.text)
    text = function.text.replace(f"void @{function.name}(", f"void @{name}(")
    part = Part(name, "\n".join([maths.library(function.uses), text]), not final(function.uses))
    return part, function.signature.renamed(name)


def one_of(name: str, members: Mapping[int, Function]) -> Function:
    """A function that calls the member whose number is its last argument."""
    first = next(iter(members.values())).signature
    signature = Signature(name, (*first.parameters, Parameter("i64", "which")))
    passed = ", ".join(f"{p.type} %{p.name}" for p in first.parameters)
    cases = " ".join(f"i64 {number}, label %of{number}" for number in members)
    lines = [f"  switch i64 %which, label %end [ {cases} ]"]
    for number, member in members.items():
        lines += [f"of{number}:", f"  tail call void @{member.name}({passed})", "  ret void"]
    lines += ["end:", "  ret void"]
    text = "\n".join([*(m.text for m in members.values()), signature.define(lines)])
    return Function(signature, text, tuple(dict.fromkeys(use for m in members.values() for use in m.uses)))


def final(uses: Iterable[str]) -> bool:
    """Whether a text needs no optimiser: it is written with vectors, and calls no scalar function such as exp."""
    return all(use.startswith("declare ") for use in uses)


__all__ = [
    "BEGIN", "END", "KERNEL", "SCRATCH", "WORDS", "Arguments", "KernelCode", "assemble", "final", "kernel_function",
    "one_of", "shared_function",
]  # fmt: skip
