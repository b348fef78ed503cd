"""The code of a step's kernel for people: the text that is compiled, or the assembly that it becomes."""

from __future__ import annotations

from dovetail.errors import UnsupportedError
from dovetail.kernels.spec import Job
from dovetail.plan.plan import Plan, Step
from dovetail.targets.runtime.backend import Backend
from dovetail.targets.runtime.build import builder_of
from dovetail.targets.target import Notation


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
    texts = [m.text if notation == "llvm" else backend.code.compiler.assembly(m) for m in modules.values()]
    return "\n\n".join(text.strip("\n") for text in texts)


__all__ = ["listing"]
