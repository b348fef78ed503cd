"""LLVM text to PTX with the NVPTX back end that llvmlite brings; no CUDA toolkit is needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import llvmlite.binding as _untyped  # pyright: ignore[reportMissingTypeStubs]

from dovetail.codegen.llvm import nvvm
from dovetail.errors import UnsupportedError

llvm: Any = _untyped

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "sm_80": "+ptx70",
        "sm_89": "+ptx78",
        "sm_90": "+ptx80",
        "sm_90a": "+ptx80",
        "sm_100": "+ptx86",
        "sm_120": "+ptx87",
    }
)
"""The architectures that we compile for, and the oldest PTX version that has them: drivers read older ones."""


def architecture_of(capability: tuple[int, int]) -> str:
    """The newest architecture whose PTX a device of a compute capability runs."""
    number = capability[0] * 10 + capability[1]
    own = f"sm_{number}a"
    if own in ARCHITECTURES:
        # Code for one architecture alone may use what later ones do not have, such as products by warpgroups.
        return own
    runs = [name for name in ARCHITECTURES if not name.endswith("a") and int(name.removeprefix("sm_")) <= number]
    if not runs:
        major, minor = capability
        raise UnsupportedError(f"compute capability {major}.{minor}", hint="GPUs from sm_80 (Ampere) on are supported")
    return max(runs, key=lambda name: int(name.removeprefix("sm_")))


def tensor_core_shapes(architecture: str) -> tuple[tuple[int, int, int], ...]:
    """M×N×K of the matrix instructions that kernels use: by warps everywhere, by warpgroups on sm_90a alone."""
    return ((16, 8, 16), (64, 256, 16)) if architecture == "sm_90a" else ((16, 8, 16),)


@cache
def _target() -> Any:
    for option in nvvm.OPTIONS:
        llvm.set_option("dovetail", option)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(nvvm.TRIPLE)


def to_ptx(text: str, architecture: str) -> str:
    """A module of LLVM text, verified, optimised and compiled to PTX."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedError(f"PTX for {architecture}", hint=f"the architectures are {known}")
    target = _target()
    context = llvm.create_context()
    module = llvm.parse_assembly(text, context)
    module.verify()
    machine = target.create_target_machine(cpu=architecture, features=ARCHITECTURES[architecture], opt=3)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


__all__ = ["ARCHITECTURES", "architecture_of", "tensor_core_shapes", "to_ptx"]
