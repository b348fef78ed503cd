"""Saved programs of the CPU target: a part for this processor, and a runner of it. LLVM is not needed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dovetail.errors import LoadError
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import Template
from dovetail.plan.plan import Plan, Step
from dovetail.settings import Settings
from dovetail.targets.cpu.cores import is_arm, x86_features
from dovetail.targets.cpu.image import Image, LoadedImage
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.cpu.records import RECORDS
from dovetail.targets.part import Part
from dovetail.targets.runtime.arrays.memory import Memory
from dovetail.targets.runtime.arrays.page_advice import reserve
from dovetail.targets.runtime.building.build import at_addresses, with_kernels
from dovetail.targets.runtime.building.code_cache import LoadedFunction
from dovetail.targets.runtime.building.packed_weights import packed_bindings
from dovetail.targets.runtime.building.serial import Reader, read_jobs
from dovetail.targets.runtime.control.plan import Control

_POOL = "pool."


def chosen(parts: Mapping[str, tuple[Sequence[str], int]], where: str) -> str:
    """Of the sets of instructions, with what each needs and its rank, the best that this processor has."""
    if is_arm() or not sys.platform.startswith("linux"):
        raise LoadError(f"{where} is for x86-64 Linux", hint="compile the model on this system")
    has = x86_features()
    fitting = [name for name, (needs, _) in parts.items() if has.issuperset(needs)]
    if not fitting:
        lacks = [
            f"{name} needs {', '.join(sorted(set(needs) - has))}"
            for name, (needs, _) in sorted(parts.items(), key=lambda item: item[1][1])
        ]
        raise LoadError(
            f"this processor cannot run {where}: {'; '.join(lacks)}",
            hint="save the program with a set of instructions that it has: --isa avx2, or --isa sse",
        )
    return max(fitting, key=lambda name: parts[name][1])


def runner_of(plan: Plan, part: Part, params: Mapping[str, Array], settings: Settings) -> NativeRunner:
    """The plan with the code and the packed weights of a part."""
    said = part.said
    image = LoadedImage(Image.of_dict(part.code, said["image"]))
    jobs = read_jobs(plan, said, RECORDS, lambda step: _control(plan, step, said["device"]))
    functions = [LoadedFunction(image.address(_name_of(job.kernel)), image, b"") for job in with_kernels(jobs)]
    graph = NativeGraph(
        plan, threads=settings.threads or None, built=at_addresses(jobs, functions), pool_code=_PoolCode(image)
    )
    memory = Memory(plan, prove=False)
    memory.sizes = {str(name): int(size) for name, size in said["bound_sizes"].items()}
    values = plan.graph.values
    for index, array in said["own"]:
        memory.own[values[index]] = part.arrays[array]
    memory.pools["bound"] = reserve(memory.number(plan.bound_size))
    for start, array in said["pool"]:
        content = part.arrays[array]
        memory.pools["bound"][start : start + content.size] = content
    keys = packed_bindings(graph.sections)
    packed = dict(zip(keys, [part.arrays[index] for index in said["packed"]], strict=True))
    return NativeRunner(graph, memory, params, packed)


class _PoolCode:
    """The code of thread pools in an image."""

    def __init__(self, image: LoadedImage) -> None:
        self._image = image

    def address(self, function: str) -> int:
        return self._image.address(_POOL + function)


def _name_of(kernel: Kernel | Template) -> str:
    if isinstance(kernel, Template):
        return kernel.name
    from dovetail.targets.cpu.compiler import written  # kernels of branches and loops are written again

    return written(kernel)[0]


def _control(plan: Plan, step: Step, device: Any) -> Control | None:
    """Branches and loops are selected again, for the device they were compiled for; their code is in the image."""
    from dovetail.targets.cpu.backend import backend_for  # few programs branch or loop
    from dovetail.targets.cpu.claims import CLAIMS
    from dovetail.targets.runtime.building.build import builder_of

    plan = replace(plan, rules=CLAIMS.memory)
    return builder_of(plan, backend_for(Reader((), RECORDS, ()).read(device))).control(step)


__all__ = ["chosen", "runner_of"]
