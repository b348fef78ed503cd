"""Functions as objects: what defines one also declares and calls it, and its name is a digest of its text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from dovetail.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function: its type, its name without %, and attributes such as noalias."""

    type: str
    name: str
    attributes: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's name without @ and its parameters: what defines it, declares it and calls it."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def declaration(self) -> str:
        return f"declare void @{self.name}({', '.join(p.type for p in self.parameters)})"

    @property
    def spelled(self) -> str:
        """The name and the parameters, as a definition spells them."""
        parameters = ", ".join(" ".join(filter(None, (p.type, p.attributes, f"%{p.name}"))) for p in self.parameters)
        return f"@{self.name}({parameters})"

    def renamed(self, name: str) -> Signature:
        return Signature(name, self.parameters)

    def define(self, body: Iterable[object], *, linkage: str = "", attributes: str = "nounwind") -> str:
        """The text of the function with this body."""
        head = " ".join(filter(None, ("define", linkage, "void", self.spelled, attributes)))
        return "\n".join([f"{head} {{", *map(str, body), "}"])


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is written: its signature, its text, and the declarations and maths functions that it uses."""

    signature: Signature
    text: str
    uses: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.signature.name


PLACEHOLDER = "kernel"
"""What a function is called until its text is known."""


def content_name(stem: str, text: str) -> str:
    """Name a function by its text: equal texts are one function in a process, whichever program they come from."""
    return f"{stem}_{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}"


def named(stem: str, text: str) -> tuple[str, str]:
    """The content name of a text that calls itself @kernel, and the text with that name."""
    name = content_name(stem, text)
    return name, text.replace(f"@{PLACEHOLDER}", f"@{name}")
