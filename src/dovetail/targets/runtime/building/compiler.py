"""The compiler that a target supplies: kernels to modules, to object files, to code in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import Template
from dovetail.targets.runtime.building.store import CodeStore


@dataclass(frozen=True, slots=True)
class Module:
    """A function that is compiled on its own, as a complete module in the target's text."""

    name: str
    text: str
    optimize: bool = True
    is_shared: bool = False
    """Whether kernels call it."""
    vectorize: bool = True
    """Whether the optimiser vectorises and unrolls loops."""


class LoadedCode(Protocol):
    """Machine code in memory, for as long as this object lives."""

    def address(self, function: str) -> int: ...


class Compiler(Protocol):
    """Compiles kernels: text to an object file to loaded code."""

    @property
    def threads(self) -> int:
        """Threads that may compile at the same time."""
        ...

    def modules(self, kernel: Kernel | Template) -> tuple[Module, ...]:
        """The modules of the functions that a kernel shares with others, then its own."""
        ...

    def compile(self, module: Module, store: CodeStore | None) -> bytes:
        """The object file of a module, from the store where it has one; it holds names as plain bytes."""
        ...

    def load(self, objects: Sequence[bytes]) -> LoadedCode:
        """Object files in memory; they may call each other, and functions that `define` announced."""
        ...

    def define(self, name: str, address: int) -> None:
        """Announce a function to code that is loaded later."""
        ...


__all__ = ["Compiler", "LoadedCode", "Module"]
