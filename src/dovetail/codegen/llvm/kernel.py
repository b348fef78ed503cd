"""A kernel made of functions: those of its own, and those that it shares with other kernels of the process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dovetail.codegen.llvm import loops
from dovetail.codegen.llvm.arguments import Arguments
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import PLACEHOLDER, Function, Parameter, Signature, content_name, named
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.maths import functions as maths
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import SharedFunction, Template

_PARAMETERS = (Parameter("ptr", "arguments", "noalias readonly"), Parameter("i64", "begin"), Parameter("i64", "end"))
KERNEL = Signature("kernel", (*_PARAMETERS, Parameter("ptr", "scratch", "noalias")))
"""How a kernel is called: its words, the tiles from `begin` to before `end`, and the worker's workspace."""
DRIVER = Signature("kernel", (*_PARAMETERS, Parameter("ptr", "scratch")))
"""The same for a kernel that hands parts of its workspace to functions which also read them by other pointers."""
WORDS, BEGIN, END, SCRATCH = Ptr("%arguments"), I64("%begin"), I64("%end"), Ptr("%scratch")


@dataclass(frozen=True, slots=True)
class KernelCode:
    """The text of a kernel: its content name, what it uses, and functions that it shares with others."""

    name: str
    text: str
    uses: tuple[str, ...]
    shared: tuple[SharedFunction, ...] = ()
    is_final: bool = False
    """Whether LLVM's optimiser would only take its time: the text is written with vectors."""
    is_vectorised: bool = False
    """Whether LLVM optimises it, but neither vectorises nor unrolls its loops."""

    def template(self, pointers: Iterable[str], sizes: tuple[Size, ...], scratch: Size) -> Template:
        """Bind tensors, sizes and scratch memory to the kernel."""
        bound = Template(self.name, self.text, self.uses, tuple(pointers), sizes, scratch, self.shared, self.is_final)
        return replace(bound, is_vectorised=self.is_vectorised)


def kernel_function(t: Builder, *, attributes: str = "nounwind optsize") -> Function:
    """The kernel's own function; its instructions are few next to those of the functions that it calls."""
    return t.function(KERNEL, attributes=attributes)


def assemble_with(stem: str, own: Sequence[Function], inner: Sequence[Kernel]) -> KernelCode:
    """A kernel whose functions call kernels of the loop language, such as an epilogue: @kernel.epilogue and so on."""
    printed = [loops.function(replace(k, name=inner_name(k))) for k in inner]
    texts = [text.replace("define void", "define internal void") for text, _ in printed]
    name, text = named(stem, "\n".join([*texts, *(f.text for f in own)]))
    uses = [use for _, used in printed for use in used]
    uses += [use for f in own for use in f.uses]
    return KernelCode(name, text, tuple(dict.fromkeys(uses)))


def shared_kernel(stem: str, inner: Kernel, around: Function | None) -> tuple[SharedFunction, Signature]:
    """A kernel of the loop language as a function that kernels share, and how to call it.

    `around` is called in its place, and calls it by its `inner_name`.
    """
    own = PLACEHOLDER if around is None else inner_name(inner)
    text, uses = loops.function(replace(inner, name=own))
    if around is not None:
        text = "\n".join([text.replace(f"define void @{own}(", f"define internal void @{own}("), around.text])
        uses = tuple(dict.fromkeys((*uses, *around.uses)))
    name, text = named(stem, text)
    return SharedFunction(name, "\n".join([maths.library(uses), text]), optimize=True), DRIVER.renamed(name)


def inner_name(kernel: Kernel) -> str:
    """What a kernel of the loop language is called inside another kernel."""
    return f"{PLACEHOLDER}.{kernel.name}"


def assemble(
    stem: str, own: Sequence[Function], shared: Sequence[Function] = (), *, optimize: bool = False
) -> KernelCode:
    """A kernel whose `own` functions are called @kernel and @kernel.something; `shared` ones get content names.

    LLVM optimises kernels that call scalar functions such as exp, and all kernels with `optimize`.
    """
    text = "\n".join(f.text for f in own)
    uses = dict.fromkeys(use for f in own for use in f.uses)
    parts: list[SharedFunction] = []
    for function in shared:
        part, signature = shared_function(function)
        # Some are called only where an activation needs them.
        if f"@{function.name}(" in text:
            text = text.replace(f"@{function.name}(", f"@{part.name}(")
            parts.append(part)
            uses[signature.declaration] = None
    name, text = named(stem, text)
    return KernelCode(name, text, tuple(uses), tuple(parts), final(uses) and not optimize)


def shared_function(function: Function) -> tuple[SharedFunction, Signature]:
    """A function as a module of its own that kernels share, and how to call it."""
    name = content_name(function.name.removeprefix("kernel."), function.text)
    text = function.text.replace(f"void @{function.name}(", f"void @{name}(")
    part = SharedFunction(name, "\n".join([maths.library(function.uses), text]), not final(function.uses))
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
    "BEGIN", "DRIVER", "END", "KERNEL", "SCRATCH", "WORDS", "Arguments", "KernelCode", "assemble", "assemble_with",
    "final", "inner_name", "kernel_function", "one_of", "shared_function", "shared_kernel",
]  # fmt: skip
