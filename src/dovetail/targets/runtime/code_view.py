"""The code of kernels for people: the text that is compiled for a step, or the assembly that it becomes."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.errors import UnsupportedError
from dovetail.kernels.spec import Job
from dovetail.plan.plan import Plan, Step
from dovetail.targets.runtime.backend import Backend
from dovetail.targets.runtime.build import builder_of
from dovetail.targets.target import CodeView, Notation

LLVM = Notation("llvm", "LLVM", "LLVM, as it is compiled")
ASM = Notation("asm", "assembly", "assembly for this host")


def listing(plan: Plan, step: Step, notation: Notation, backend: Backend) -> str:
    """The kernel of a step, then its shared functions; for a branch or a loop the kernels of its bodies."""
    name = step.value.op.name
    if step.phase == "bind":
        hint = "it runs once, as NumPy, when parameters are bound"
        raise UnsupportedError(f"{name} has no code: it depends on parameters alone", hint=hint)
    made = builder_of(plan, backend).job(step)
    if made is None:
        raise UnsupportedError(f"{name} has no code: no compiled kernel takes it", hint="it runs as NumPy on the host")
    jobs = [made, *made.variants] if isinstance(made, Job) else [entry.job for entry in made.entries]
    modules = {module.name: module for job in jobs for module in reversed(backend.code.modules(job))}
    texts = [m.text if notation is LLVM else backend.code.compiler.assembly(m) for m in modules.values()]
    return "\n\n".join(text.strip("\n") for text in texts)


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


def code_view(backend: Backend) -> CodeView:
    """The code of a backend whose kernels are LLVM."""
    return CodeView(
        backend.target,
        (LLVM, ASM),
        lambda plan, step, notation: listing(plan, step, notation, backend),
        lambda plan: texts(plan, backend),
    )


__all__ = ["ASM", "LLVM", "code_view", "listing", "texts"]
