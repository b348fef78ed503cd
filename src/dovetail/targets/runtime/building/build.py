"""The kernels of a plan: selected for each step, compiled and loaded."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.loops.policy import LoopTarget
from dovetail.kernels.spec import Job, TensorLocations, Variant
from dovetail.plan.plan import Plan, Step
from dovetail.progress import phase
from dovetail.targets.runtime.backend import Backend, Select
from dovetail.targets.runtime.building.attempt import attempt
from dovetail.targets.runtime.building.code_cache import BackgroundCompiler, LoadedFunction
from dovetail.targets.runtime.building.step_signature import rebound, step_signature
from dovetail.targets.runtime.building.store import CodeStore
from dovetail.targets.runtime.building.weights import Weights
from dovetail.targets.runtime.control.plan import Control, KernelEntry, make_control


@dataclass(frozen=True, slots=True)
class Built:
    """The jobs of a plan's steps, None for host steps, and the addresses of their kernels and variants.

    A branch or a loop has no kernel of its own; its bodies have.
    """

    jobs: tuple[Job | Control | None, ...]
    entries: tuple[tuple[int, ...], ...]
    functions: tuple[LoadedFunction, ...]
    """Keeps the code of all addresses in memory."""


def build(plan: Plan, backend: Backend, store: CodeStore | None = None) -> Built:
    """Select, compile and load the kernels of the run phase; code that the store has is not compiled."""
    jobs, background = compiled(plan, backend, store)
    return loaded(jobs, backend, store, background)


def compiled(
    plan: Plan, backend: Backend, store: CodeStore | None = None
) -> tuple[list[Job | Control | None], BackgroundCompiler]:
    """Select and compile the kernels of the run phase; their code is not loaded."""
    builder, background = builder_of(plan, backend), BackgroundCompiler(backend.code, store)
    jobs: list[Job | Control | None] = []
    steps = plan.phase("run")
    with phase("compile") as progress:
        try:
            for number, step in enumerate(steps, 1):
                progress.at(number, len(steps), step.value.op.name)
                jobs.append(builder.job(step))
                for job in with_kernels(jobs[-1:]):
                    background.add(job)
        finally:
            background.finish()
    return jobs, background


def loaded(
    jobs: Sequence[Job | Control | None],
    backend: Backend,
    store: CodeStore | None = None,
    background: BackgroundCompiler | None = None,
) -> Built:
    """Jobs with their code in memory."""
    return at_addresses(jobs, backend.code.functions(with_kernels(jobs), store, background))


def at_addresses(jobs: Sequence[Job | Control | None], functions: Sequence[LoadedFunction]) -> Built:
    """Jobs with the functions of their kernels, in the order of `with_kernels`."""
    loaded_functions = iter(functions)
    entries = tuple([tuple([next(loaded_functions).address for _ in kernels_of([job])]) for job in jobs])
    for inner, function in zip(_inside(jobs), loaded_functions, strict=True):
        inner.entry = function.address
    return Built(tuple(jobs), entries, tuple(dict.fromkeys(functions)))


def _inside(jobs: Sequence[Job | Control | None]) -> list[KernelEntry]:
    return [entry for job in jobs if isinstance(job, Control) for entry in job.entries]


def kernels_of(jobs: Sequence[Job | Control | None]) -> list[Job | Variant]:
    """The jobs of steps, each followed by its variants."""
    return [kernel for job in jobs if isinstance(job, Job) for kernel in (job, *job.variants)]


def with_kernels(jobs: Sequence[Job | Control | None]) -> list[Job | Variant]:
    """Everything that has a kernel: steps, then the bodies of branches and loops."""
    return [*kernels_of(jobs), *(entry.job for entry in _inside(jobs))]


class JobBuilder:
    """Selects the kernels of a plan. Layers repeat: steps with equal signatures share one selection."""

    def __init__(self, plan: Plan, select: Select, loops: LoopTarget) -> None:
        bound = {result for step in plan.phase("bind") for result in step.results}
        self.locations = TensorLocations(
            plan.locate,
            bound,
            bool(plan.options.get("strict")),
            is_fast=plan.options.get("precision") == "fast",
            in_bf16=plan.options.get("precision") == "bf16",
            target=loops,
            steps=tuple([step.value for step in plan.phase("run")]),
        )
        self._plan = plan
        self._select = select
        self._known: dict[Hashable, tuple[Step, Job]] = {}

    def job(self, step: Step) -> Job | Control | None:
        """The job of a step; None where it runs on the host."""
        signature = step_signature(step, self.locations)
        known = self._known.get(signature)
        job = None if known is None else rebound(known[1], known[0], step)
        if job is None:
            job = attempt(self._select, step, self.locations)
        if job is None:
            return self.control(step)
        self._known.setdefault(signature, (step, job))
        return job

    def control(self, step: Step) -> Control | None:
        """The compiled form of a step that branches or loops; None for other steps."""
        return make_control(step, self.locations, self._select, self._plan)


def builder_of(plan: Plan, backend: Backend) -> JobBuilder:
    """Selects the kernels of a plan for a backend."""
    return JobBuilder(plan, backend.select, backend.loops())


def realigned(plan: Plan, built: Built, params: Mapping[str, Array]) -> Mapping[str, Array]:
    """The parameters, with a copy of each one that a kernel reads as it is and that is not aligned to its dtype.

    Arrays in a mapped file start at any byte. NumPy packs weights, and reads unaligned arrays.
    """
    bindings = [binding for job in built.jobs if isinstance(job, Job) for binding in job.bindings.values()]
    read = {plan.root_of(binding) for binding in bindings if isinstance(binding, Value)}
    has_control = any(isinstance(job, Control) for job in built.jobs)
    names = [str(v.attrs["name"]) for v in plan.graph.parameters if has_control or v in read]
    moved = {name: params[name].copy() for name in names if not params[name].flags.aligned}
    return Weights(params).joined(moved) if moved else params


__all__ = [
    "Built",
    "JobBuilder",
    "at_addresses",
    "build",
    "builder_of",
    "compiled",
    "kernels_of",
    "loaded",
    "realigned",
    "with_kernels",
]
