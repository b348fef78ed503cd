"""Kernels of the loop language as LLVM's text for AMD GPUs, which LLVM compiles to their machine code.

A scheduled kernel becomes `amdgpu_kernel void name(pointers, sizes)`, launched as many blocks (workgroups) of threads.
What only NVIDIA's kernels have is an error here: clusters, tensor maps, barriers in shared memory, persistent kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.codegen.llvm.amdgpu import amdgcn
from dovetail.codegen.llvm.amdgpu.machine import Amdgpu
from dovetail.codegen.llvm.gpu.printer import GpuPrinter, function, notes, parameters
from dovetail.codegen.llvm.gpu.scopes import Scopes
from dovetail.codegen.llvm.maths.remainder import with_exact_remainders
from dovetail.errors import GraphError
from dovetail.kernels.loops.ir import Kernel


def module(kernel: Kernel, alignment: Mapping[str, int], architecture: str) -> str:
    """A scheduled kernel as a whole module; `alignment` gives the bytes that each pointer is a multiple of."""
    machine = Amdgpu(architecture)
    body = GpuPrinter(kernel, machine)
    launch = kernel.launch
    if launch is None or launch.cluster > 1 or launch.dependent or kernel.counter or kernel.maps or kernel.early:
        raise GraphError(f"{kernel.name} as it is scheduled on {architecture}", hint="choose one without clusters")
    body.statements(kernel.body)
    body.text.ret()
    passed = ", ".join(parameters(body, alignment))
    attributes = f"nounwind {amdgcn.threads(launch.block)}"
    head = f"define {amdgcn.KERNEL} void @{kernel.name}({passed}) {attributes}"
    text = function(head, body.text, machine.private)
    library = machine.approximations.library(body.text.uses)
    lines = [machine.header(), library, *body.globals.values(), text, *notes([text]), *Scopes(kernel).notes]
    return with_exact_remainders("\n".join(lines) + "\n")


__all__ = ["module"]
