"""The compiler of the CPU target: kernels as LLVM modules, compiled and loaded by LLVM."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from dovetail.codegen.llvm import loops as llvm
from dovetail.codegen.llvm.maths import functions as maths
from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import Template
from dovetail.targets.cpu.cores import available_threads
from dovetail.targets.cpu.isa import Host
from dovetail.targets.cpu.jit import Compiled, define, load, machine_code
from dovetail.targets.runtime.building.code_cache import shared_module
from dovetail.targets.runtime.building.compiler import Module
from dovetail.targets.runtime.building.store import CodeStore

_PLACEHOLDER = "kernel"


@dataclass(frozen=True, slots=True)
class LlvmCompiler:
    """Compiles LLVM text for this machine, or for another whose code is not loaded."""

    here: Host | None = None

    @property
    def threads(self) -> int:
        return available_threads()

    def modules(self, kernel: Kernel | Template) -> tuple[Module, ...]:
        """The modules of the functions that a kernel shares with others, then its own."""
        name, text, uses = written(kernel)
        whole = "\n".join([maths.library(uses), text])
        if not isinstance(kernel, Template):
            return (Module(name, whole),)
        own = Module(name, whole, optimize=not kernel.is_final, vectorize=not kernel.is_vectorised)
        return *map(shared_module, kernel.shared), own

    def compile(self, module: Module, store: CodeStore | None) -> bytes:
        return machine_code(
            module.text, vectorize=module.vectorize, optimize=module.optimize, store=store, here=self.here
        )

    def load(self, objects: Sequence[bytes]) -> Compiled:
        return load(objects)

    def define(self, name: str, address: int) -> None:
        define(name, address)


def written(kernel: Kernel | Template) -> tuple[str, str, tuple[str, ...]]:
    """The name of a kernel, which contains a hash of its text; the text; and the functions that it calls."""
    if isinstance(kernel, Template):
        return kernel.name, kernel.text, kernel.uses
    text, uses = llvm.function(replace(kernel, name=_PLACEHOLDER))
    name = f"{kernel.name}_{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}"
    return name, text.replace(f"@{_PLACEHOLDER}", f"@{name}"), uses


__all__ = ["LlvmCompiler", "written"]
