"""LLVM text to PTX with the NVPTX back end that llvmlite brings; no CUDA toolkit is needed."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as _untyped  # pyright: ignore[reportMissingTypeStubs]

from dovetail.codegen.llvm import nvvm
from dovetail.errors import UnsupportedError
from dovetail.targets.cuda.architectures import ARCHITECTURES
from dovetail.targets.cuda.early_addresses import with_early_addresses

llvm: Any = _untyped


@cache
def _target() -> Any:
    for option in nvvm.OPTIONS:
        llvm.set_option("dovetail", option)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(nvvm.TRIPLE)


def verified(text: str) -> Any:
    """The module of LLVM text, after LLVM's verifier."""
    module = llvm.parse_assembly(text, llvm.create_context())
    module.verify()
    return module


def to_ptx(text: str, architecture: str) -> str:
    """A module of LLVM text, verified, optimised and compiled to PTX."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedError(f"PTX for {architecture}", hint=f"the architectures are {known}")
    target = _target()
    module = verified(text)
    machine = target.create_target_machine(cpu=architecture, features=ARCHITECTURES[architecture], opt=3)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return with_early_addresses(str(machine.emit_assembly(module)))


__all__ = ["to_ptx", "verified"]
