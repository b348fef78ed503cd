"""Plans on an NVIDIA GPU: a step of the run phase is one kernel or two, or a part of one, all on one stream.

The bind phase runs on the host, and so does a step that no kernel family takes: its operands are copied to the host and
its results back, which the report prices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.split_reduce import SplitLimits
from dovetail.kernels.request import Request
from dovetail.plan.plan import Plan, Step
from dovetail.settings import OFF, TUNE_OFF
from dovetail.targets.cuda.code.code import modules_of, ptx_of
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.driver.driver import Driver, KernelFunction, driver
from dovetail.targets.cuda.library.call import LibraryProduct
from dovetail.targets.cuda.library.choice import LibraryChoice, is_product
from dovetail.targets.cuda.library.cublaslt import place
from dovetail.targets.cuda.runs.bound_plan import LoadedKernel, OnHost
from dovetail.targets.cuda.runs.late_sizes import LateSizesRunner
from dovetail.targets.cuda.runs.runner import CudaRunner
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.launches import request_of
from dovetail.targets.gpu.steps import (
    considered,
    has_late_sizes,
    kernels_by_step,
    locations_of,
    needed_steps,
    placed,
)
from dovetail.targets.gpu.stored import StoredSteps
from dovetail.targets.runtime.arrays.memory import Memory
from dovetail.targets.runtime.building.store import CodeStore

if TYPE_CHECKING:
    from dovetail.targets.gpu.persistent.choice import Residency
    from dovetail.targets.gpu.select import Selection
    from dovetail.targets.target import Considered


def selection_of(plan: Plan, device: GpuDevice, request: Request | None = None) -> Selection:
    """What the kernels of a plan are selected for."""
    from dovetail.targets.cuda.backend import backend_of
    from dovetail.targets.gpu.select import Selection

    return Selection(locations_of(plan), device, backend_of(device), request or request_of(plan, device))


def steps_of(
    plan: Plan, split: SplitLimits | None = None, device: GpuDevice = H200, request: Request | None = None
) -> tuple[tuple[Step, Kernels], ...]:
    """The kernels of each step of the run phase, in its order; none where the step runs on the host.

    Layers repeat: steps with equal signatures share their kernels. Small steps join a later one, and have None. Without
    a `request`, the plan and the device decide the request of each.
    """
    return kernels_by_step(plan, selection_of(plan, device, request), split)[0]


def residency_of(plan: Plan, device: GpuDevice) -> Residency | None:
    """Whether layers that repeat are passes of one kernel, and why; None where the device has no such kernels."""
    fusion = kernels_by_step(plan, selection_of(plan, device))[1]
    return fusion and fusion.residency


def choices_of(
    plan: Plan,
    device: GpuDevice,
    libraries: Callable[[Sequence[Kernels]], Sequence[Sequence[Considered]]] = lambda steps: [() for _ in steps],
) -> Sequence[Sequence[Considered]]:
    """For each step of a run whether a product next to it computes it, whether layers are passes of one kernel, and
    the rows of `libraries` for GEMMs."""
    steps, fusion = kernels_by_step(plan, selection_of(plan, device))
    shared, products = considered(steps, fusion), libraries([kernels for _, kernels in steps])
    return [(*some, *others) for some, others in zip(shared, products, strict=True)]


def kernels_of(
    plan: Plan, split: SplitLimits | None = None, device: GpuDevice = H200, request: Request | None = None
) -> tuple[tuple[Step, GpuKernel], ...]:
    """The kernels of the run phase, in its order."""
    steps = steps_of(plan, split, device, request)
    return tuple([(step, kernel) for step, kernels in steps for kernel in kernels or ()])


class CudaGraph:
    """A plan and its kernels, which are compiled when they are needed: only then a device is."""

    def __init__(
        self,
        plan: Plan,
        device: Callable[[], Driver] = driver,
        store: CodeStore | None = None,
        built: tuple[StoredSteps, dict[str, str]] | None = None,
        tune: str = TUNE_OFF,
        libraries: str = OFF,
    ) -> None:
        """`built` is what another process compiled: kernels by step, and their PTX."""
        self.plan, self.device, self.store, self.tune, self.libraries = plan, device, store, tune, libraries
        self._built = built
        self._lock = Lock()

    def built(self, device: Driver) -> tuple[StoredSteps, dict[str, str]]:
        """The kernels of each step of the run phase, and the PTX of each of their texts."""
        with self._lock:
            if self._built is None:
                self._built = self._compiled(device)
            return self._built

    def _compiled(self, device: Driver, *, may_persist: bool = True) -> tuple[StoredSteps, dict[str, str]]:
        plan, description = self.plan, device.description
        request = replace(request_of(plan, description), may_persist=may_persist, traced=device.traced)
        steps = tuple([kernels for _, kernels in steps_of(plan, device=description, request=request)])
        return steps, ptx_of([kernel for kernels in steps for kernel in kernels or ()], device, self.store)

    def _loaded(self, device: Driver) -> tuple[StoredSteps, Mapping[str, KernelFunction]]:
        """The kernels of each step, and each as a function of the device by its text.

        Blocks that wait for each other must all run at once. Where the device does not hold them, layers are launches.
        """
        steps, ptx = self.built(device)
        functions = self._functions(steps, ptx, device)
        every = {kernel.text: kernel.kernel.launch for kernels in steps for kernel in kernels or ()}
        for text, launch in every.items():
            if launch is None or not launch.cooperative or not isinstance(launch.grid, int):
                continue
            if functions[text].blocks_at_once(launch.block, launch.shared_bytes) < launch.grid:
                with self._lock:
                    self._built = self._compiled(device, may_persist=False)
                steps, ptx = self._built
                return steps, self._functions(steps, ptx, device)
        return steps, functions

    def _functions(self, steps: StoredSteps, ptx: Mapping[str, str], device: Driver) -> Mapping[str, KernelFunction]:
        modules = modules_of(ptx.values(), device, self.store)
        functions: dict[str, KernelFunction] = {}
        for kernel in [kernel for kernels in steps for kernel in kernels or ()]:
            shape = kernel.kernel.launch
            assert shape is not None, "it was scheduled"
            if kernel.text not in functions:
                functions[kernel.text] = modules[ptx[kernel.text]].function(
                    kernel.kernel.name, shape.shared_bytes, dependent=shape.dependent, cooperative=shape.cooperative
                )
        return functions

    def _with_library(
        self, device: Driver, steps: StoredSteps, functions: Mapping[str, KernelFunction]
    ) -> tuple[StoredSteps, Mapping[str, KernelFunction | LibraryProduct]]:
        """The kernels of each step and what runs each of their texts, with products by cuBLASLt where it is faster."""
        if self.libraries == OFF or not any(map(is_product, steps)):
            return steps, functions
        where = place(device.version // 1000)
        if where is None:
            return steps, functions
        choice = LibraryChoice(self.plan, device, self.store, self.tune, where, self.built(device)[1])

        def load(kernels: Sequence[GpuKernel]) -> Mapping[str, KernelFunction]:
            return self._functions((tuple(kernels),), ptx_of(kernels, device, self.store), device)

        return choice.replaced(steps, functions, lambda: selection_of(self.plan, device.description), load)

    def bind(self, params: Mapping[str, Array]) -> CudaRunner | LateSizesRunner:
        """Run the bind phase on the host, load the kernels, and upload parameters and constants."""
        device = self.device()
        steps, functions = self._loaded(device)
        plan = placed(self.plan, steps)
        steps, functions = self._with_library(device, steps, functions)
        memory = Memory(plan, prove=False)
        memory.give(plan.graph.parameters, params, bare=True)
        memory.reserve("bound", plan.bound_size)
        memory.reserve("scratch", plan.scratch_size)
        needed = needed_steps(plan, steps)
        memory.run(needed)
        memory.release("scratch")
        work: list[LoadedKernel | OnHost] = []
        joined: list[Step] = []
        for step, kernels in zip(plan.phase("run"), steps, strict=True):
            if kernels is None:
                joined.append(step)
                continue
            for kernel in kernels:
                work.append(LoadedKernel(step, kernel, functions[kernel.text], tuple(joined)))
                joined.clear()
            if not kernels:
                work.append(OnHost(step))
        memory.skipped = tuple([step for step in plan.phase("bind") if step not in needed])
        if has_late_sizes(plan):
            return LateSizesRunner(plan, device, memory, params, tuple(work))
        return CudaRunner(plan, device, memory, params, tuple(work))


__all__ = ["CudaGraph", "choices_of", "kernels_of", "residency_of", "selection_of", "steps_of"]
