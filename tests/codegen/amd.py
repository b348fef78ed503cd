"""AMD's GPUs as devices, and their machine code by the back end that llvmlite brings; no tool of AMD's is needed."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as _untyped  # pyright: ignore[reportMissingTypeStubs]

from dovetail.codegen.llvm.amdgpu import amdgcn
from dovetail.codegen.llvm.amdgpu.machine import ARCHITECTURES
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.matrix_instruction import MFMA, WMMA_11, WMMA_12
from dovetail.targets.runtime.building.llvm_calls import emitted, optimize, parsed

llvm: Any = _untyped
_INSTRUCTIONS = {"gfx90a": MFMA, "gfx942": MFMA, "gfx1100": WMMA_11, "gfx1201": WMMA_12}
DEVICES = {
    name: GpuDevice(name, 104, 64 << 10, registers=131_072, warp=lanes, matrix_instructions=_INSTRUCTIONS[name])
    for name, lanes in ARCHITECTURES.items()
}
"""As kernels ask of them: 64 KiB of shared memory (LDS), registers of 512 KiB."""


@cache
def missing() -> str:
    """Why LLVM makes no code for AMD GPUs; "" where it does."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        llvm.Target.from_triple(amdgcn.TRIPLE)
    except RuntimeError as error:
        return str(error)
    return ""


def assembled(text: str, architecture: str, *, is_object: bool = True) -> bytes:
    """The object code or the assembly of a module, after LLVM's verifier and passes."""
    assert not missing(), missing()
    machine = llvm.Target.from_triple(amdgcn.TRIPLE).create_target_machine(cpu=architecture, features="", opt=3)
    module = parsed(text)
    module.data_layout = str(machine.target_data)
    optimize(module, machine, llvm.create_pipeline_tuning_options(speed_level=3))
    return emitted(module, machine, is_object=is_object)


__all__ = ["DEVICES", "assembled", "missing"]
