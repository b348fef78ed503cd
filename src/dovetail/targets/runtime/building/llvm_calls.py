"""Calls of LLVM that take long, without the lock that llvmlite holds in every call: threads compile at the same time.

Each thread has a module in a context of its own, and a target machine of its own.
"""

from __future__ import annotations

import ctypes
from typing import Any


class _Llvm:
    """llvmlite's binding of LLVM, imported on first use: programs that were saved run where it is not installed."""

    def __getattr__(self, name: str) -> Any:
        import llvmlite.binding as untyped  # pyright: ignore[reportMissingTypeStubs]

        return getattr(untyped, name)


llvm: Any = _Llvm()


def parsed(text: str) -> Any:
    """The module of LLVM text in a context of its own, after LLVM's verifier."""
    content, said, context = text.encode(), llvm.ffi.OutputString(), llvm.create_context()
    module = llvm.ModuleRef(_freely("LLVMPY_ParseAssembly")(context, ctypes.c_char_p(content), said), context)
    if said:
        module.close()
        raise RuntimeError(f"LLVM IR parsing error\n{said}")
    module.verify()
    return module


def optimize(module: Any, machine: Any, tuning: Any) -> None:
    """Run LLVM's passes for a machine over a module."""
    builder = llvm.create_pass_builder(machine, tuning)
    passes = builder.getModulePassManager()
    try:
        _freely("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    finally:
        # llvmlite inherits the disposer in an order that hides it: every pipeline would leak 60 KB.
        llvm.ffi.lib.LLVMPY_DisposeNewModulePassManger(passes)
        passes.detach()


def emitted(module: Any, machine: Any, *, is_object: bool) -> bytes:
    """The object file of a module, or its assembly."""
    failed = llvm.ffi.OutputString()
    buffer = _freely("LLVMPY_TargetMachineEmitToMemory")(machine, module, int(is_object), failed)
    if not buffer:
        raise RuntimeError(str(failed))
    library = llvm.ffi.lib
    try:
        return ctypes.string_at(library.LLVMPY_GetBufferStart(buffer), library.LLVMPY_GetBufferSize(buffer))
    finally:
        library.LLVMPY_DisposeMemoryBuffer(buffer)


def _freely(name: str) -> Any:
    """A function of LLVM without llvmlite's lock: threads may call it concurrently, each for a context of its own."""
    function = getattr(llvm.ffi.lib, name)
    return getattr(function, "_cfn", function)


__all__ = ["emitted", "llvm", "optimize", "parsed"]
