"""LLVM text to PTX with the NVPTX back end that llvmlite brings; no CUDA toolkit is needed."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

import llvmlite.binding as _untyped  # pyright: ignore[reportMissingTypeStubs]

from dovetail.codegen.llvm.nvptx import nvvm
from dovetail.errors import UnsupportedError
from dovetail.targets.cuda.driver.architectures import ARCHITECTURES
from dovetail.targets.runtime.building.llvm_calls import emitted, optimize, parsed

llvm: Any = _untyped


_lock = Lock()


def _target() -> Any:
    with _lock:  # options of LLVM may be given once
        return _started()


@cache
def _started() -> Any:
    for option in nvvm.OPTIONS:
        llvm.set_option("dovetail", option)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(nvvm.TRIPLE)


def verified(text: str) -> Any:
    """The module of LLVM text, after LLVM's verifier."""
    return parsed(text)


def to_ptx(text: str, architecture: str) -> str:
    """A module of LLVM text, verified, optimised and compiled to PTX."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedError(f"PTX for {architecture}", hint=f"the architectures are {known}")
    target = _target()
    module = verified(text)
    machine = target.create_target_machine(cpu=architecture, features=ARCHITECTURES[architecture], opt=3)
    optimize(module, machine, llvm.create_pipeline_tuning_options(speed_level=3))
    return emitted(module, machine, is_object=False).decode()


__all__ = ["to_ptx", "verified"]
