"""Kernels as machine code, where an assembler is installed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from dovetail.targets.cuda.code.code import is_whole
from dovetail.targets.cuda.code.code_view import tool
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.gpu.kernel import GpuKernel


def assembled(made: GpuKernel, architecture: str, folder: Path) -> str:
    """What the assembler says of a kernel, or nothing where it is not installed."""
    ptx = to_ptx(made.text, architecture)
    assert f".target {architecture}" in ptx and "__local_depot" not in ptx
    # As it is loaded: the driver's linker takes a kernel as a part of a larger program, with fewer registers.
    return "" if tool("ptxas") is None else told_of(ptx, architecture, folder, () if is_whole(ptx) else ("-c",))


def told_of(ptx: str, architecture: str, folder: Path, options: Sequence[str] = ()) -> str:
    """What the assembler says of PTX; without one the test is skipped."""
    source = folder / "kernel.ptx"
    source.write_text(ptx, encoding="utf-8")
    files = ["-o", str(source.with_suffix(".cubin")), str(source)]
    done = subprocess.run(
        [_assembler(), f"-arch={architecture}", "-v", *options, *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def spilled_bytes(told: str) -> int:
    """Bytes that all kernels keep in local memory for want of registers, by what the assembler says; without one the
    test is skipped."""
    if not told:
        _assembler()
    found = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", told)
    assert found, f"the assembler says nothing of spills: {told}"
    return sum([int(stored) + int(loaded) for stored, loaded in found])


def _assembler() -> str:
    found = tool("ptxas")
    if found is None:
        pytest.skip("ptxas is neither on the PATH nor in a wheel such as nvidia-cuda-nvcc")
    return found


__all__ = ["assembled", "spilled_bytes", "told_of"]
