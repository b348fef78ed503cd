"""Plans on an NVIDIA GPU: a step of the run phase is one kernel or two, or a part of one, all on one stream.

The bind phase runs on the host, and so does a step that no kernel family takes: its operands are copied to the host and
its results back, which the report prices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.tile import H200
from dovetail.kernels.loops.split_reduce import SplitLimits
from dovetail.kernels.spec import TensorLocations
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.plan import Plan, Step
from dovetail.settings import OFF, TUNE_OFF
from dovetail.targets.cuda.code.code import modules_of, ptx_of
from dovetail.targets.cuda.code.stored import Steps
from dovetail.targets.cuda.driver.driver import Driver, Function, driver
from dovetail.targets.cuda.library.call import LibraryProduct
from dovetail.targets.cuda.library.choice import LibraryChoice, is_product
from dovetail.targets.cuda.library.cublaslt import place
from dovetail.targets.cuda.persistent.tuning import Tuner
from dovetail.targets.cuda.runs.bound_plan import LoadedKernel, OnHost
from dovetail.targets.cuda.runs.late_sizes import LateSizesRunner
from dovetail.targets.cuda.runs.runner import CudaRunner
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.launches import with_launches
from dovetail.targets.runtime.arrays.memory import Memory
from dovetail.targets.runtime.building.packed_weights import steps_for
from dovetail.targets.runtime.building.step_signature import moved_bindings, step_signature, stored_as
from dovetail.targets.runtime.building.store import CodeStore

if TYPE_CHECKING:
    from dovetail.targets.gpu.launch_fusion.fused_launches import LaunchFusion
    from dovetail.targets.gpu.persistent.choice import Residency
    from dovetail.targets.target import Considered


def locations_of(plan: Plan) -> TensorLocations:
    """Where the tensors of a plan are."""
    from dovetail.targets.gpu.loops import LOOPS

    bound = {result for step in plan.phase("bind") for result in step.results}
    steps = tuple([step.value for step in plan.phase("run")])
    return TensorLocations(plan.locate, bound, bool(plan.options.get("strict")), target=LOOPS, steps=steps)


def steps_of(
    plan: Plan, split: SplitLimits | None = None, device: GpuDevice = H200
) -> tuple[tuple[Step, Kernels], ...]:
    """The kernels of each step of the run phase, in its order; none where the step runs on the host.

    Layers repeat: steps with equal signatures share their kernels. Small steps join a later one, and have None.
    """
    return _fused(plan, split, device)[0]


def residency_of(plan: Plan, device: GpuDevice) -> Residency | None:
    """Whether layers that repeat are passes of one kernel, and why; None where the device has no such kernels."""
    fusion = _fused(plan, None, device)[1]
    return fusion and fusion.residency


def choices_of(
    plan: Plan,
    device: GpuDevice,
    pauses: Callable[[GpuKernel], Sequence[Considered]] = lambda made: (),
    libraries: Callable[[Sequence[Kernels]], Sequence[Sequence[Considered]]] = lambda steps: [() for _ in steps],
) -> Sequence[Sequence[Considered]]:
    """For each step of a run whether a product next to it computes it, whether layers are passes of one kernel, and
    then what `pauses` tells of that kernel; and what `libraries` tells of products."""
    steps, fusion = _fused(plan, None, device)
    shared, products = _shared(steps, fusion, pauses), libraries([kernels for _, kernels in steps])
    return [(*some, *others) for some, others in zip(shared, products, strict=True)]


def _shared(
    steps: Sequence[tuple[Step, Kernels]],
    fusion: LaunchFusion | None,
    pauses: Callable[[GpuKernel], Sequence[Considered]],
) -> Sequence[Sequence[Considered]]:
    """What is told of steps that share launches."""
    found = fusion and fusion.residency
    if fusion is None:
        return [() for _ in steps]
    is_resident = found is not None and found.refused is None
    waits = [row for _, kernels in steps if is_resident for made in kernels or () for row in pauses(made)]
    rows = [] if found is None else [*found.rows, *waits]
    in_passes = {*(() if found is None else found.steps)}
    return [
        (*(() if is_resident and at in in_passes else fusion.told.of(step)), *(rows if at in in_passes else ()))
        for at, (step, _) in enumerate(steps)
    ]


def _fused(
    plan: Plan, split: SplitLimits | None, device: GpuDevice
) -> tuple[tuple[tuple[Step, Kernels], ...], LaunchFusion | None]:
    # A program from the store has its kernels: it does without code generation.
    from dovetail.kernels.gpu.blocks.units import units_of
    from dovetail.targets.gpu.launch_fusion.fused_launches import LaunchFusion
    from dovetail.targets.gpu.select import make_kernels

    locations = locations_of(plan)
    device = with_launches(plan, device)
    known: dict[Hashable, tuple[Step, tuple[GpuKernel, ...]]] = {}
    found: list[tuple[Step, tuple[GpuKernel, ...]]] = []
    for step in plan.phase("run"):
        # The first layer often reads a view of what the others read as it is.
        units = units_of(step.value, locations)
        stored = [stored_as(v, any_format=units is not None) for v in step.operands]
        signature = step_signature(step, locations, sees_views=False), units, *stored
        was = known.get(signature)
        kernels = None if was is None else _rebound(was[1], was[0], step, any_format=units is not None)
        if kernels is None:
            kernels = make_kernels(step, locations, split, device)
            known[signature] = step, kernels
        found.append((step, kernels))
    if not device.cluster or has_late_sizes(plan):
        return tuple(found), None
    fusion = LaunchFusion(plan, locations, device)
    return fusion.fused(found), fusion


def has_late_sizes(plan: Plan) -> bool:
    """Whether a run finds sizes while it runs."""
    return any(True for step in plan.phase("run") for _ in fresh_symbols(step.value))


def _rebound(kernels: tuple[GpuKernel, ...], was: Step, now: Step, *, any_format: bool) -> tuple[GpuKernel, ...] | None:
    """The kernels of a step for one with an equal signature; None where they bind what it does not have."""
    found: list[GpuKernel] = []
    for made in kernels:
        bindings = moved_bindings(made.bindings, was, now, any_format=any_format)
        packed = moved_bindings(made.packed, was, now, any_format=any_format)
        if bindings is None or packed is None:
            return None
        found.append(replace(made, bindings=bindings, packed=packed))
    return tuple(found)


def kernels_of(
    plan: Plan, split: SplitLimits | None = None, device: GpuDevice = H200
) -> tuple[tuple[Step, GpuKernel], ...]:
    """The kernels of the run phase, in its order."""
    return tuple([(step, kernel) for step, kernels in steps_of(plan, split, device) for kernel in kernels or ()])


def wanted_steps(plan: Plan, kernels: Steps) -> Sequence[Step]:
    """The steps of the bind phase that something reads. Weights that kernels read in blocks are never spelled out."""
    if has_late_sizes(plan):
        return plan.phase("bind")
    found = {plan.root_of(v) for v in plan.graph.outputs.values()}
    for step, some in zip(plan.phase("run"), kernels, strict=True):
        on_host = step.operands if some is not None and not some else ()
        bound = [v for made in some or () for v in made.bindings.values()]
        packed = [v for made in some or () for one in made.packed.values() for v in (one.value, *one.beside)]
        found |= {plan.root_of(v) for v in (*on_host, *bound, *packed)}
    return steps_for(plan, found)


class CudaGraph:
    """A plan and its kernels, which are compiled when they are needed: only then a device is."""

    def __init__(
        self,
        plan: Plan,
        device: Callable[[], Driver] = driver,
        store: CodeStore | None = None,
        built: tuple[Steps, dict[str, str]] | None = None,
        tune: str = TUNE_OFF,
        libraries: str = OFF,
    ) -> None:
        """`built` is what another process compiled: kernels by step, and their PTX."""
        self.plan, self.device, self.store, self.tune, self.libraries = plan, device, store, tune, libraries
        self._built = built
        self._lock = Lock()

    def built(self, device: Driver) -> tuple[Steps, dict[str, str]]:
        """The kernels of each step of the run phase, and the PTX of each of their texts."""
        with self._lock:
            if self._built is None:
                self._built = self._compiled(device, device.description)
            return self._built

    def _compiled(self, device: Driver, description: GpuDevice) -> tuple[Steps, dict[str, str]]:
        steps = tuple([kernels for _, kernels in steps_of(self.plan, device=description)])
        return steps, ptx_of([made for kernels in steps for made in kernels or ()], device, self.store)

    def _loaded(self, device: Driver) -> tuple[Steps, Mapping[str, Function]]:
        """The kernels of each step, and each as a function of the device by its text.

        Blocks that wait for each other must all run at once. Where the device does not hold them, layers are launches.
        """
        steps, ptx = self.built(device)
        functions = self._functions(steps, ptx, device)
        every = {made.text: made.kernel.launch for kernels in steps for made in kernels or ()}
        for text, launch in every.items():
            if launch is None or not launch.cooperative or not isinstance(launch.grid, int):
                continue
            if functions[text].blocks_at_once(launch.block, launch.shared_bytes) < launch.grid:
                with self._lock:
                    self._built = self._compiled(device, replace(device.description, cooperative="off"))
                steps, ptx = self._built
                return steps, self._functions(steps, ptx, device)
        return steps, functions

    def _functions(self, steps: Steps, ptx: Mapping[str, str], device: Driver) -> Mapping[str, Function]:
        modules = modules_of(ptx.values(), device, self.store)
        found: dict[str, Function] = {}
        for made in [made for kernels in steps for made in kernels or ()]:
            shape = made.kernel.launch
            assert shape is not None, "it was scheduled"
            if made.text not in found:
                found[made.text] = modules[ptx[made.text]].function(
                    made.kernel.name, shape.shared_bytes, dependent=shape.dependent, cooperative=shape.cooperative
                )
        return found

    def _with_library(
        self, device: Driver, steps: Steps, functions: Mapping[str, Function]
    ) -> tuple[Steps, Mapping[str, Function | LibraryProduct]]:
        """The kernels of each step and what runs each of their texts, with products by cuBLASLt where it is faster."""
        if self.libraries == OFF or not any(map(is_product, steps)):
            return steps, functions
        where = place(device.version // 1000)
        if where is None:
            return steps, functions
        choice = LibraryChoice(self.plan, device, self.store, self.tune, where, self.built(device)[1])

        def load(kernels: Sequence[GpuKernel]) -> Mapping[str, Function]:
            return self._functions((tuple(kernels),), ptx_of(kernels, device, self.store), device)

        return choice.replaced(steps, functions, lambda: locations_of(self.plan), load)

    def bind(self, params: Mapping[str, Array]) -> CudaRunner | LateSizesRunner:
        """Run the bind phase on the host, load the kernels, and upload parameters and constants."""
        plan = self.plan
        device = self.device()
        steps, functions = self._with_library(device, *self._loaded(device))
        memory = Memory(plan, prove=False)
        memory.give(plan.graph.parameters, params, bare=True)
        memory.reserve("bound", plan.bound_size)
        memory.reserve("scratch", plan.scratch_size)
        wanted = wanted_steps(plan, steps)
        memory.run(wanted)
        memory.release("scratch")
        work: list[LoadedKernel | OnHost] = []
        joined: list[Step] = []
        for step, kernels in zip(plan.phase("run"), steps, strict=True):
            if kernels is None:
                joined.append(step)
                continue
            for made in kernels:
                work.append(LoadedKernel(step, made, functions[made.text], tuple(joined)))
                joined.clear()
            if not kernels:
                work.append(OnHost(step))
        memory.skipped = tuple([step for step in plan.phase("bind") if step not in wanted])
        if has_late_sizes(plan):
            return LateSizesRunner(plan, device, memory, params, tuple(work))
        tuner = Tuner(self.tune, self.store, device, self.built(device)[1])
        return CudaRunner(plan, device, memory, params, tuple(work), tuner)


__all__ = ["CudaGraph", "choices_of", "kernels_of", "locations_of", "residency_of", "steps_of"]
