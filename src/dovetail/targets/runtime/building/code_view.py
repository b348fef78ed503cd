"""The code of kernels for people: the modules that are compiled for a step, in the notations of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from dovetail.errors import UnsupportedError
from dovetail.kernels.spec import Job
from dovetail.plan.plan import Plan, Step
from dovetail.targets.runtime.backend import Backend
from dovetail.targets.runtime.building.build import builder_of
from dovetail.targets.runtime.building.compiler import Module
from dovetail.targets.target import CodeView, Notation

ModuleText: TypeAlias = Callable[[Module], str]
"""A module in one notation."""


def code_view(backend: Backend, notations: Mapping[Notation, ModuleText]) -> CodeView:
    """The code of a backend's kernels; the first notation is the text that its compiler compiles."""

    def listed(plan: Plan, step: Step, notation: Notation) -> str:
        return listing(plan, step, notations[notation], backend)

    def written(plan: Plan) -> Iterator[str | None]:
        return texts(plan, backend)

    return CodeView(backend.target, tuple(notations), listed, written)


def listing(plan: Plan, step: Step, write: ModuleText, backend: Backend) -> str:
    """The kernel of a step, then its shared functions; for a branch or a loop the kernels of its bodies."""
    name = step.value.op.name
    if step.phase == "bind":
        hint = "it runs once, as NumPy, when parameters are bound"
        raise UnsupportedError(f"{name} has no code: it depends on parameters alone", hint=hint)
    built = builder_of(plan, backend).job(step)
    if built is None:
        raise UnsupportedError(f"{name} has no code: no compiled kernel takes it", hint="it runs as NumPy on the host")
    jobs = [built, *built.variants] if isinstance(built, Job) else [entry.job for entry in built.entries]
    modules = {module.name: module for job in jobs for module in reversed(backend.code.modules(job))}
    return "\n\n".join(write(module).strip("\n") for module in modules.values())


def texts(plan: Plan, backend: Backend) -> Iterator[str | None]:
    """For each step the text of its own kernel; None in the bind phase and on the host."""
    builder = builder_of(plan, backend)
    known: dict[int, tuple[object, str]] = {}
    for step in plan.steps:
        job = builder.job(step) if step.phase == "run" else None
        if not isinstance(job, Job):
            yield None
            continue
        kernel = job.kernel
        if id(kernel) not in known:
            # Equal steps share one kernel object; the entry keeps it alive, so that its id stays its own.
            known[id(kernel)] = (kernel, backend.code.modules(job)[-1].text.strip("\n"))
        yield known[id(kernel)][1]


__all__ = ["ModuleText", "code_view", "listing", "texts"]
