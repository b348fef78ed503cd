"""What a plan needs to run: the kernel of each step, written and compiled."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Form, Job, Places
from dovetail.plan.plan import Plan, Step
from dovetail.progress import phase
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.cpu.select import make_job
from dovetail.targets.runtime.code_cache import Ahead, addresses
from dovetail.targets.runtime.control.plan import Coded, Control, make_control
from dovetail.targets.runtime.step_signature import carried, look_of
from dovetail.targets.runtime.store import Store
from dovetail.targets.runtime.weights import Weights


@dataclass(frozen=True, slots=True)
class Ready:
    """The jobs of a plan's steps, None for those that run on the host; where the code of each and of its forms starts.

    What branches or loops has no code of its own, but that of its bodies.
    """

    jobs: tuple[Job | Control | None, ...]
    entries: tuple[tuple[int, ...], ...]


def make_ready(plan: Plan, store: Store | None = None) -> Ready:
    """The jobs of the run phase, compiled; code that the store has is taken from there."""
    writer, ahead = Writer(plan), Ahead(store)
    jobs: list[Job | Control | None] = []
    steps = plan.phase("run")
    with phase("compile") as told:
        try:
            for number, step in enumerate(steps, 1):
                told.at(number, len(steps), step.value.op.name)
                jobs.append(writer.job(step))
                for job in _written(jobs[-1:]):
                    ahead.add(job)
        finally:
            ahead.finish()
        return compiled(jobs, store, ahead)


def compiled(jobs: Sequence[Job | Control | None], store: Store | None = None, ahead: Ahead | None = None) -> Ready:
    """Jobs with their code."""
    found = iter(addresses(_written(jobs), store, ahead))
    entries = tuple([tuple([next(found) for _ in kernels_of([job])]) for job in jobs])
    for coded, entry in zip(_inside(jobs), found, strict=True):
        coded.entry = entry
    return Ready(tuple(jobs), entries)


def _inside(jobs: Sequence[Job | Control | None]) -> list[Coded]:
    return [coded for job in jobs if isinstance(job, Control) for coded in job.codes]


def kernels_of(jobs: Sequence[Job | Control | None]) -> list[Job | Form]:
    """The jobs of steps, each with its forms behind it."""
    return [kernel for job in jobs if isinstance(job, Job) for kernel in (job, *job.forms)]


def _written(jobs: Sequence[Job | Control | None]) -> list[Job | Form]:
    """Everything that has a kernel: that of steps, then that inside of what branches or loops."""
    return [*kernels_of(jobs), *(coded.job for coded in _inside(jobs))]


class Writer:
    """Writes the kernels of a plan, for this host unless `device` says otherwise.

    Layers repeat: of steps that are alike one is written.
    """

    def __init__(self, plan: Plan, device: CpuDevice | None = None) -> None:
        bound = {result for step in plan.phase("bind") for result in step.results}
        self.vectors = device or host_device()
        strict = bool(plan.options.get("strict"))
        self.places = Places(plan.locate, bound, strict, target=loops_of(self.vectors))
        self._known: dict[Hashable, tuple[Step, Job]] = {}

    def job(self, step: Step) -> Job | Control | None:
        """What a step becomes; None where it runs on the host."""
        look = look_of(step, self.places)
        known = self._known.get(look)
        job = None if known is None else carried(known[1], known[0], step)
        if job is None:
            job = make_job(step, self.places, self.vectors)
        if job is None:
            return self.control(step)
        self._known.setdefault(look, (step, job))
        return job

    def control(self, step: Step) -> Control | None:
        """The same of a step that branches or loops."""
        return make_control(step, self.places, self.vectors)


def aligned(plan: Plan, ready: Ready, params: Mapping[str, Array]) -> Mapping[str, Array]:
    """The parameters; those that kernels read where they lie are moved if no element of their dtype could lie there.

    Arrays in a mapped file start at any byte. What is laid out anew is read by NumPy, which does not mind.
    """
    points = [point for job in ready.jobs if isinstance(job, Job) for point in job.points.values()]
    read = {plan.locate(point).root for point in points if isinstance(point, Value)}
    by_code = any(isinstance(job, Control) for job in ready.jobs)
    names = [str(v.attrs["name"]) for v in plan.graph.parameters if by_code or v in read]
    moved = {name: params[name].copy() for name in names if not params[name].flags.aligned}
    return Weights(params).joined(moved) if moved else params
