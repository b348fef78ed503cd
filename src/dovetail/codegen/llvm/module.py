"""The text of a kernel, and the functions that it shares with others: each is compiled once in a process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dovetail.codegen.llvm.maths import functions as maths
from dovetail.ir.dim import Size
from dovetail.kernels.spec import SharedFunction, Template

Written: TypeAlias = tuple[str, tuple[str, ...]]
"""The text of functions, and what they use."""


@dataclass(frozen=True, slots=True)
class Code:
    """The text of a kernel: its name, which tells the text, what it uses, and functions that it shares with others."""

    name: str
    text: str
    uses: tuple[str, ...]
    parts: tuple[SharedFunction, ...]

    @staticmethod
    def of(stem: str, own: Sequence[Written], shared: Sequence[Written]) -> Code:
        """`own` functions are called @kernel and @kernel.something; they get the kernel's name. `shared` ones, which
        call none of them, get names that tell their text."""
        text, uses = _joined(own)
        parts: list[SharedFunction] = []
        for function in shared:
            called, part = _part(function)
            parts.append(part)
            text = text.replace(f"@{called}(", f"@{part.name}(")
        # Some are called only where an activation needs them.
        parts = [part for part in parts if f"@{part.name}(" in text]
        name = f"{stem}_{_mark(text)}"
        declared = [part.declaration for part in parts]
        return Code(name, text.replace("@kernel", f"@{name}"), (*uses, *declared), tuple(parts))

    def template(self, pointers: Iterable[str], sizes: tuple[Size, ...], scratch: Size) -> Template:
        """The kernel with what it is given."""
        is_final = _is_final(self.uses)
        return Template(self.name, self.text, self.uses, tuple(pointers), sizes, scratch, self.parts, is_final)


def one_of(name: str, members: Mapping[int, Written]) -> Written:
    """A function that calls the one of several whose number it is told behind what they are all given."""
    text, uses = _joined(list(members.values()))
    given = text.partition("(")[2].partition(") ")[0]
    names = [re.findall(r"define internal void (@\S+?)\(", member)[-1] for member, _ in members.values()]
    cases = " ".join(f"i64 {number}, label %of{number}" for number in members)
    lines = [f"define void {name}({given}, i64 %which) nounwind {{", f"  switch i64 %which, label %end [ {cases} ]"]
    passed = re.sub(r" noalias| readonly", "", given)
    for number, member in zip(members, names, strict=True):
        lines += [f"of{number}:", f"  tail call void {member}({passed})", "  ret void"]
    return "\n".join([text, *lines, "end:", "  ret void", "}"]), uses


def _part(function: Written) -> tuple[str, SharedFunction]:
    """What a function is called where it is written, and the same as a module of its own."""
    text, uses = function
    called = re.findall(r"define void @(\S+?)\(", text)[-1]
    name = f"{called.removeprefix('kernel.')}_{_mark(text)}"
    text = text.replace(f"void @{called}(", f"void @{name}(")
    return called, SharedFunction(name, "\n".join([maths.library(uses), text]), not _is_final(uses))


def _joined(functions: Sequence[Written]) -> Written:
    uses = dict.fromkeys(use for _, used in functions for use in used)
    return "\n".join(text for text, _ in functions), tuple(uses)


def _mark(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _is_final(uses: Iterable[str]) -> bool:
    """Whether a text is written with vectors, as it should be; functions such as exp are left to LLVM."""
    return all(use.startswith("declare ") for use in uses)
