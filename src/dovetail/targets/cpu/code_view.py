"""The code of CPU kernels for people: LLVM, and the assembly that it becomes on this host."""

from __future__ import annotations

from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.jit import assembly
from dovetail.targets.runtime.building.code_view import code_view
from dovetail.targets.runtime.building.compiler import Module
from dovetail.targets.target import Notation

LLVM = Notation("llvm", "LLVM", "LLVM, as it is compiled")
ASM = Notation("asm", "assembly", "assembly for this host")


def _llvm(module: Module) -> str:
    return module.text


def _assembly(module: Module) -> str:
    return assembly(module.text, vectorize=module.vectorize, optimize=module.optimize)


CODE = code_view(BACKEND, {LLVM: _llvm, ASM: _assembly})

__all__ = ["ASM", "CODE", "LLVM"]
