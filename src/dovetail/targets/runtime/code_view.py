"""The code of kernels for people: the modules that are compiled for a step, or the assembly they become here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dovetail.codegen.llvm import loops as llvm
from dovetail.errors import UnsupportedError
from dovetail.kernels.spec import Job, Template
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.jit import assembly
from dovetail.targets.runtime.build import Writer
from dovetail.targets.runtime.code_cache import Module, modules_of
from dovetail.targets.target import CodeView, Notation

LLVM = Notation("llvm", "LLVM", "LLVM, as it is compiled")
ASM = Notation("asm", "assembly", "assembly for this host")


def listing(plan: Plan, step: Step, notation: Notation) -> str:
    """The kernel of a step, then the functions that it shares with others. Control flow lists those of its bodies."""
    name = step.value.op.name
    if step.phase == "bind":
        hint = "it runs once, as NumPy, when parameters are bound"
        raise UnsupportedError(f"{name} has no code: it depends on parameters alone", hint=hint)
    made = Writer(plan).job(step)
    if made is None:
        raise UnsupportedError(f"{name} has no code: no compiled kernel takes it", hint="it runs as NumPy on the host")
    jobs = [made, *made.forms] if isinstance(made, Job) else [coded.job for coded in made.codes]
    modules = {module.name: module for job in jobs for module in reversed(modules_of(job))}
    return "\n\n".join(_written(module, notation) for module in modules.values())


def _written(module: Module, notation: Notation) -> str:
    text = module.text if notation is LLVM else assembly(module.text, optimize=module.optimize)
    return text.strip("\n")


def texts(plan: Plan) -> Iterator[str | None]:
    """For each step the LLVM text of its own kernel; None in the bind phase and on the host."""
    writer = Writer(plan)
    known: dict[int, tuple[object, str]] = {}
    for step in plan.steps:
        job = writer.job(step) if step.phase == "run" else None
        if not isinstance(job, Job):
            yield None
            continue
        kernel = job.kernel
        if id(kernel) not in known:
            # Equal steps share one kernel object; the entry keeps it alive, so that its id stays its own.
            own = kernel.text if isinstance(kernel, Template) else llvm.function(replace(kernel, name="kernel"))[0]
            known[id(kernel)] = (kernel, own)
        yield known[id(kernel)][1]


CODE = CodeView("cpu", (LLVM, ASM), listing, texts)

__all__ = ["ASM", "CODE", "LLVM", "listing", "texts"]
