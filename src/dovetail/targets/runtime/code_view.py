"""The code of a step's kernel for people: the modules that are compiled for it, or the assembly they become here."""

from __future__ import annotations

from dovetail.errors import UnsupportedError
from dovetail.kernels.spec import Job
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.jit import assembly
from dovetail.targets.runtime.build import Writer
from dovetail.targets.runtime.code_cache import Module, modules_of
from dovetail.targets.target import Notation


def listing(plan: Plan, step: Step, form: Notation) -> str:
    """The kernel that the step runs, then what it shares with others. What branches has those of its bodies."""
    name = step.value.op.name
    if step.phase == "bind":
        hint = "it runs once, as NumPy, when parameters are bound"
        raise UnsupportedError(f"{name} has no code: it depends on parameters alone", hint=hint)
    made = Writer(plan).job(step)
    if made is None:
        raise UnsupportedError(f"{name} has no code: no compiled kernel takes it", hint="it runs as NumPy on the host")
    jobs = [made, *made.forms] if isinstance(made, Job) else [coded.job for coded in made.codes]
    modules = {module.name: module for job in jobs for module in reversed(modules_of(job))}
    return "\n\n".join(_written(module, form) for module in modules.values())


def _written(module: Module, form: Notation) -> str:
    text = module.text if form == "llvm" else assembly(module.text, optimize=module.optimize)
    return text.strip("\n")


__all__ = ["listing"]
