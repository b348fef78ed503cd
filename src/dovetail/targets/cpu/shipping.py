"""Programs of the CPU target in a form that other machines run: code of any set of instructions, weights packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.errors import UnsupportedError
from dovetail.ir.literal import Array
from dovetail.ops.control import FAMILY as CONTROL
from dovetail.plan.plan import Plan
from dovetail.targets.cpu import fp16_fallback
from dovetail.targets.cpu.backend import backend_for
from dovetail.targets.cpu.compiler import LlvmCompiler
from dovetail.targets.cpu.image import link
from dovetail.targets.cpu.isa import NATIVE, Host, host_of, needs_of
from dovetail.targets.cpu.jit import machine_code
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.cpu.threads.pool import pool_object
from dovetail.targets.part import Part
from dovetail.targets.runtime.building.build import at_addresses, compiled, with_kernels
from dovetail.targets.runtime.building.code_cache import CodeCache, LoadedFunction
from dovetail.targets.runtime.building.packed_weights import packed_bindings, read_roots
from dovetail.targets.runtime.building.serial import JsonWriter, NotSerializable, spelled_jobs
from dovetail.targets.runtime.building.store import CodeStore

POOL = "pool"
"""What the code of thread pools is called in an image."""


def parts(plan: Plan, params: Mapping[str, Array], isas: Sequence[str], store: CodeStore | None) -> list[Part]:
    """A part for each set of instructions."""
    return [_part(plan, params, name, store) for name in isas]


def _part(plan: Plan, params: Mapping[str, Array], name: str, store: CodeStore | None) -> Part:
    here = host_of(name)
    backend = backend_for(here.device, CodeCache(LlvmCompiler(here)))
    jobs, background = compiled(plan, backend, store)
    for step, job in zip(plan.phase("run"), jobs, strict=True):
        if job is None and step.value.op in CONTROL:
            raise UnsupportedError(
                f"{step.name} branches or loops with steps that run on the host, and is compiled while it runs",
                hint="compile the model where it runs",
            )
    modules = {m.name: m for job in with_kernels(jobs) for m in background.modules(job)}
    objects = {n: background.objects.get(n) or backend.code.compile(m, store) for n, m in modules.items()}
    try:
        spelled, _ = spelled_jobs(plan, jobs, backend)
    except NotSerializable as error:
        raise UnsupportedError(
            f"a program that holds {error} cannot be saved", hint="compile it where it runs"
        ) from error
    if not here.device.has("f16_conversion"):
        objects["fp16"] = machine_code(fp16_fallback.TEXT, vectorize=False, store=store, here=here)
    image = link({**objects, POOL: pool_object(store, here)})
    nowhere = LoadedFunction(0, _Nowhere(), b"")
    built = at_addresses(jobs, [nowhere] * len(with_kernels(jobs)))
    runner = NativeGraph(plan, built=built).bind(params)
    arrays: list[Array] = []
    device = JsonWriter({}, backend.records).spell(here.device)
    said: dict[str, Any] = {
        **spelled,
        "image": image.as_dict(),
        "device": device,
        **_bound(runner, arrays),
    }
    return Part(name, needs_of(here), _rank(name, here), said, image.code, tuple(arrays))


class _Nowhere:
    """Code for another machine, which is not in memory."""

    def address(self, function: str) -> int:
        return 0


def _rank(name: str, here: Host) -> int:
    return 2 * here.vector_bits + (name == NATIVE)


def _bound(runner: NativeRunner, arrays: list[Array]) -> dict[str, Any]:
    """What the bind phase left that runs read; arrays are added to the list, and called by their indices."""
    plan, memory, sections = runner.plan, runner.bound, runner.graph.sections

    def index_of(array: Array) -> int:
        arrays.append(np.ascontiguousarray(array))
        return len(arrays) - 1

    number = {value: index for index, value in enumerate(plan.graph.values)}
    own: list[list[int]] = []
    pool: list[list[int]] = []
    for root in sorted(read_roots(plan, sections), key=lambda v: number.get(v, -1)):
        slot = plan.slots.get(root)
        if slot is not None and slot.pool == "bound":
            start, size = memory.number(slot.offset), memory.number(slot.size)
            pool.append([start, index_of(memory.pools["bound"][start : start + size])])
        elif root in memory.own or root in memory.whole:
            held = memory.own[root] if root in memory.own else memory.whole[root]
            own.append([number[root], index_of(held.reshape(-1).view(np.uint8))])
    packed = [index_of(runner.packed(binding)) for binding in packed_bindings(sections).values()]
    sizes = dict(memory.sizes)
    return {"own": own, "pool": pool, "packed": packed, "bound_sizes": sizes}


__all__ = ["POOL", "parts"]
