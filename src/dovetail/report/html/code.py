"""The code of kernels: the text of each once, and which kernel runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dovetail.kernels import llvm
from dovetail.kernels.archetypes import make_job
from dovetail.kernels.job import Job, Places, Template
from dovetail.kernels.vector import Vectors
from dovetail.plan.plan import Plan
from dovetail.targets.cpu.jit import host


@dataclass(frozen=True, slots=True)
class Code:
    """Texts, and for each kernel of the plan the number of its text; -1 where it has none."""

    language: str
    texts: tuple[str, ...]
    of: tuple[int, ...]


def code_of(plan: Plan) -> Code | None:
    """The LLVM text of a plan's kernels; None for a target that has none."""
    if plan.target != "cpu":
        return None
    vectors = Vectors(host().lanes, host().vector_registers)
    bound = {result for step in plan.phase("bind") for result in step.results}
    places = Places(plan.locate, bound, bool(plan.options.get("strict")))
    texts: dict[str, int] = {}
    of: list[int] = []
    for step in plan.steps:
        job = make_job(step, places, vectors) if step.phase == "run" else None
        of.append(-1 if job is None else texts.setdefault(_text(job), len(texts)))
    return Code("LLVM", tuple(texts), tuple(of))


def _text(job: Job) -> str:
    kernel = job.kernel
    return kernel.text if isinstance(kernel, Template) else llvm.function(replace(kernel, name="kernel"))[0]
