"""Which kernel serves each step, for every machine of the golden: what a change to selection is compared by.

`python -m tests.codegen.choices FILE [MODEL.onnx …]` writes a line for each distinct step of the benchmark models, the
exporters' files, the kernel tests and the models named; `diff` of two files lists the choices that differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dovetail.declare.machine import estimate
from dovetail.ir.dim import Size, symbols
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Job, Template
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.backend import backend_for
from dovetail.targets.runtime.backend import Backend
from dovetail.targets.runtime.building.build import builder_of
from tests.codegen.generated import MACHINES, corpus, exporters, workloads
from tests.codegen.normal import unmarked

ASSUMED = (1, 7, 20, 56, 128, 300)
"""Each symbol counts as each of these: kernels of symbolic sizes are chosen when sizes are known."""


def choices(plan: Plan, device: CpuDevice) -> Iterator[str]:
    """The steps of a plan, each with the kernel that serves it."""
    backend = backend_for(device)
    builder = builder_of(plan, backend)
    for step in plan.phase("run"):
        job = builder.job(step)
        if not isinstance(job, Job):
            chosen = "host" if job is None else "control"
        elif job.variants:
            chosen = " ".join(f"{n}:{_late(job, n, backend)}" for n in ASSUMED)
        else:
            chosen = _name(job)
        yield f"{_said(step)} -> {chosen}"


def _late(job: Job, assumed: int, backend: Backend) -> str:
    return _name(job.chosen(lambda size: sized(size, assumed), backend.machine)[1])


def sized(size: Size, assumed: int) -> int:
    """A size where each symbol counts as a number."""
    return size if isinstance(size, int) else estimate(size, dict.fromkeys(symbols(size), assumed))


def _name(job: Job) -> str:
    kernel = job.kernel
    variant = f" ({kernel.variant})" if isinstance(kernel, Template) and kernel.variant else ""
    return f"{unmarked(kernel.name)}{variant}"


def _said(step: Step) -> str:
    given = ", ".join(str(v.type) for v in step.value.operands)
    attrs = ", ".join(f"{name}={a}" for name, a in step.value.attrs.items() if isinstance(a, (int, str, tuple)))
    return f"{step.value.op.name}({given}) [{attrs}] -> {step.value.type}"


def main(arguments: Sequence[str]) -> None:
    file, *models = arguments or sys.exit(__doc__)
    sources = [*workloads(), *exporters(), *(exporters(map(Path, models)) if models else ()), *corpus()]
    lines: dict[str, None] = {}
    for source, plan in sources:
        for machine, device in MACHINES.items():
            lines |= dict.fromkeys(f"{machine} {source} {line}" for line in choices(plan, device))
    Path(file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} choices")


if __name__ == "__main__":
    main(sys.argv[1:])
