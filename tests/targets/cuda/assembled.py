"""Kernels as machine code, where an assembler is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from dovetail.targets.cuda.code import is_whole
from dovetail.targets.cuda.gpu_kernel import GpuKernel
from dovetail.targets.cuda.ptx_compiler import to_ptx


def assembled(made: GpuKernel, architecture: str, folder: Path) -> str:
    """What the assembler says of a kernel, or nothing where it is not installed."""
    ptx = to_ptx(made.text, architecture)
    assert f".target {architecture}" in ptx and "__local_depot" not in ptx
    assembler = shutil.which("ptxas")
    if assembler is None:
        return ""
    source = folder / "kernel.ptx"
    source.write_text(ptx, encoding="utf-8")
    # As it is loaded: the driver's linker takes a kernel as a part of a larger program, with fewer registers.
    whole = [] if is_whole(ptx) else ["-c"]
    command = [assembler, f"-arch={architecture}", "-v", *whole, "-o", str(folder / "kernel.cubin"), str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def spilled_bytes(told: str) -> int:
    """Bytes that all kernels keep in local memory for want of registers, by what the assembler says; 0 of nothing."""
    found = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", told)
    assert found or not told, f"the assembler says nothing of spills: {told}"
    return sum([int(stored) + int(loaded) for stored, loaded in found])


__all__ = ["assembled", "spilled_bytes"]
