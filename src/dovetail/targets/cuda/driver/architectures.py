"""The architectures of NVIDIA GPUs that we compile for, and what each has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dovetail.errors import UnsupportedError
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.matrix_instruction import MMA, WGMMA, MatrixInstruction

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "sm_80": "+ptx70",
        "sm_89": "+ptx78",
        "sm_90": "+ptx80",
        "sm_90a": "+ptx80",
        "sm_100": "+ptx86",
        "sm_100a": "+ptx86",
        "sm_120": "+ptx87",
    }
)
"""The architectures that we compile for, and the oldest PTX version that has them: drivers read older ones."""

_ALONE = "a"
"""Ends the name of an architecture whose code no later device runs."""


def architecture_of(capability: tuple[int, int]) -> str:
    """The newest architecture whose PTX a device of a compute capability runs."""
    number = capability[0] * 10 + capability[1]
    own = f"sm_{number}{_ALONE}"
    if own in ARCHITECTURES:
        # Code for one architecture alone may use what later ones do not have, such as products by warpgroups.
        return own
    runs = [name for name in ARCHITECTURES if not name.endswith(_ALONE) and int(name.removeprefix("sm_")) <= number]
    if not runs:
        major, minor = capability
        raise UnsupportedError(f"compute capability {major}.{minor}", hint="GPUs from sm_80 (Ampere) on are supported")
    return max(runs, key=lambda name: int(name.removeprefix("sm_")))


def matrix_instructions(architecture: str) -> tuple[MatrixInstruction, ...]:
    """The matrix instructions that kernels use: by warps everywhere, by warpgroups on sm_90a alone."""
    return (*MMA, *WGMMA) if architecture == "sm_90a" else MMA


def moves_registers(architecture: str) -> bool:
    """Whether warps of a block may give registers to others (setmaxnreg): of the architectures here, those that no
    later device runs code for."""
    return architecture.endswith(_ALONE)


H200 = GpuDevice(
    "sm_90a",
    multiprocessors=132,
    shared_bytes=227 << 10,
    l2_bytes=50 << 20,
    matrix_instructions=(*MMA, *WGMMA),
    converts_fp8=True,
)
"""What code is shown for where no device is."""

__all__ = ["ARCHITECTURES", "H200", "architecture_of", "matrix_instructions", "moves_registers"]
