"""The code of GPU kernels for people: LLVM, PTX, and machine code where a disassembler is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from dovetail.errors import UnsupportedError
from dovetail.kernels.device import GpuDevice
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cuda.code.code import is_whole
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.driver.driver import Driver
from dovetail.targets.cuda.runs.run import steps_of
from dovetail.targets.gpu.kernel import GpuKernel

__all__ = ["FOLDERS", "disassembled", "listing", "texts", "tool"]

FOLDERS = ("/usr/local/cuda/bin",)
"""Where the toolkit is installed by default."""


def tool(name: str) -> str | None:
    """The path of a program: on the PATH, in the toolkit's folder, or in one of NVIDIA's wheels; None where there is
    none."""
    for folder in (None, *FOLDERS, *_wheels()):
        path = shutil.which(name, path=folder)
        if path is not None:
            return path
    return None


def _wheels() -> Iterator[str]:
    """Folders of programs in wheels, wherever Python imports from: ours may be installed elsewhere, or not at all."""
    for root in dict.fromkeys(sys.path):
        yield from map(str, sorted(Path(root).glob("nvidia/*/bin")))


_SECONDS = 120


def listing(plan: Plan, step: Step, notation: str, device: Callable[[], Driver]) -> str:
    """The kernels of a step for a device, or for an H200 without one: as llvm, ptx or sass."""
    here = _here(device)
    kernels = _kernels(plan, step, H200 if here is None else here.description)
    return "\n\n".join(_written(kernel, notation, here).strip("\n") for kernel in kernels)


def texts(plan: Plan, device: Callable[[], Driver]) -> Iterator[str | None]:
    """For each step the LLVM of its kernels; None in the bind phase and on the host."""
    here = _here(device)
    kernels = _by_step(plan, H200 if here is None else here.description)
    for step in plan.steps:
        own = kernels[step.name] if step.phase == "run" else ()
        yield "\n\n".join(one.text.strip("\n") for one in own) or None


def _here(device: Callable[[], Driver]) -> Driver | None:
    try:
        return device()
    except UnsupportedError:
        return None


def _kernels(plan: Plan, step: Step, device: GpuDevice) -> tuple[GpuKernel, ...]:
    name = step.value.op.name
    if step.phase == "bind":
        hint = "it runs once, as NumPy, when parameters are bound"
        raise UnsupportedError(f"{name} has no code: it depends on parameters alone", hint=hint)
    kernels = _by_step(plan, device)[step.name]
    if not kernels:
        raise UnsupportedError(f"{name} has no code: no kernel takes it", hint="it runs as NumPy on the host")
    return kernels


def _by_step(plan: Plan, device: GpuDevice) -> dict[str, tuple[GpuKernel, ...]]:
    """The kernels that run each step, which several steps may share."""
    by_step: dict[str, tuple[GpuKernel, ...]] = {}
    joined: list[str] = []
    for step, kernels in steps_of(plan, device=device):
        joined.append(step.name)
        if kernels is not None:
            by_step |= dict.fromkeys(joined, kernels)
            joined.clear()
    return by_step


def _written(kernel: GpuKernel, notation: str, device: Driver | None) -> str:
    if notation == "llvm":
        return kernel.text
    architecture = H200.architecture if device is None else device.architecture
    ptx = to_ptx(kernel.text, architecture)
    if notation == "ptx":
        return ptx
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        # Where the driver's linker would ignore instructions, ptxas has the code that runs.
        if device is not None and not (is_whole(ptx) and tool("ptxas")):
            file.write_bytes(device.assembled(ptx))
        else:
            source = Path(folder) / "kernel.ptx"
            source.write_text(ptx, encoding="ascii")
            _run(_tool("ptxas"), f"-arch={architecture}", str(source), "-o", str(file))
        return disassembled(file)


def disassembled(file: Path) -> str:
    """The machine code in a file, as text."""
    by_name = {"nvdisasm": ("-c",), "cuobjdump": ("-sass",)}
    for name, options in by_name.items():
        program = tool(name)
        if program is not None:
            return _run(program, *options, str(file))
    raise UnsupportedError(
        "no disassembler: neither nvdisasm nor cuobjdump is found",
        hint="pip install nvidia-cuda-nvdisasm, or put one of CUDA's toolkit on the PATH; ptx needs none",
    )


def _tool(name: str) -> str:
    program = tool(name)
    if program is None:
        raise UnsupportedError(f"{name} is not found", hint="pip install nvidia-cuda-nvcc, or run it where a device is")
    return program


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise UnsupportedError(f"{Path(command[0]).name} failed: {done.stderr.strip()[:500]}", hint="ptx needs none")
    return done.stdout
