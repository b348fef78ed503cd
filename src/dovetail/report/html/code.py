"""The code of kernels: the text of each once, and which kernel runs it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from dovetail.codegen.llvm import loops as llvm
from dovetail.ir import leaf
from dovetail.ir.value import Value, attrs_key
from dovetail.kernels.spec import Job, Template, TensorLocations
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.cpu.select import make_job

MOST_TEXTS = 200
"""Kernels beyond these have no code in the page, which would grow without end."""


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
    vectors = host_device()
    bound = {result for step in plan.phase("bind") for result in step.results}
    places = TensorLocations(plan.locate, bound, bool(plan.options.get("strict")), target=loops_of(vectors))
    known: dict[Hashable, int] = {}
    texts: dict[str, int] = {}
    of: list[int] = []
    for step in plan.steps:
        if step.phase == "bind":
            of.append(-1)
            continue
        look = _look(step, places)
        if look not in known:
            job = make_job(step, places, vectors) if len(texts) < MOST_TEXTS else None
            known[look] = -1 if job is None else texts.setdefault(_text(job), len(texts))
        of.append(known[look])
    return Code("LLVM", tuple(texts), tuple(of))


def _look(step: Step, places: TensorLocations) -> Hashable:
    """All of a step that its kernel can depend on. Layers repeat, and a text is written once for all that are alike."""
    value = step.value
    number: dict[Value, int] = {}
    read: list[Hashable] = []
    for operand in value.operands:
        at = places(operand)
        root = at.root if at.root.op is leaf.CONST else (at.root.op, at.root.type, places.is_bound(operand))
        place = number.setdefault(at.root, len(number))
        read.append((operand.type, operand.op, root, place, at.offset, at.strides))
    over = None if step.over is None else number.get(step.over, -1)
    return value.op, value.type, attrs_key(value.attrs), tuple(read), over


def _text(job: Job) -> str:
    kernel = job.kernel
    return kernel.text if isinstance(kernel, Template) else llvm.function(replace(kernel, name="kernel"))[0]
