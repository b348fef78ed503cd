"""Plans on an NVIDIA GPU: each step of the run phase is one kernel or two, all on one stream.

The bind phase runs on the host, and so does a step that no kernel family takes: its operands are copied to the host and
its results back, which the report prices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.errors import UnsupportedError
from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.tile import H200
from dovetail.kernels.loops.split_reduce import SplitLimits
from dovetail.kernels.spec import TensorLocations
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cuda.driver import Device, Launchable, driver
from dovetail.targets.cuda.loops import LOOPS
from dovetail.targets.cuda.runner import CudaRunner, Launch, OnHost
from dovetail.targets.cuda.select import GpuKernel, make_kernels
from dovetail.targets.runtime.memory import Memory


def locations_of(plan: Plan) -> TensorLocations:
    """Where the tensors of a plan are."""
    bound = {result for step in plan.phase("bind") for result in step.results}
    return TensorLocations(plan.locate, bound, bool(plan.options.get("strict")), target=LOOPS)


def steps_of(
    plan: Plan, split: SplitLimits | None = None, device: GpuDevice = H200
) -> tuple[tuple[Step, tuple[GpuKernel, ...]], ...]:
    """The kernels of each step of the run phase, in its order; none where the step runs on the host."""
    locations = locations_of(plan)
    found = tuple([(step, make_kernels(step, locations, split, device)) for step in plan.phase("run")])
    late = {name for step in plan.phase("run") for name in fresh_symbols(step.value)}
    if late:
        raise UnsupportedError(
            f"{plan.graph.name} has sizes that a run finds while it runs: {', '.join(sorted(late))}",
            hint='compile it with target="cpu" to run it',
        )
    return found


def kernels_of(
    plan: Plan, split: SplitLimits | None = None, device: GpuDevice = H200
) -> tuple[tuple[Step, GpuKernel], ...]:
    """The kernels of the run phase, in its order."""
    return tuple([(step, kernel) for step, kernels in steps_of(plan, split, device) for kernel in kernels])


class CudaGraph:
    """A plan and its kernels, which are compiled when the plan is bound: only then a device is needed."""

    def __init__(self, plan: Plan, device: Callable[[], Device] = driver) -> None:
        self.plan = plan
        self.device = device

    def bind(self, params: Mapping[str, Array]) -> CudaRunner:
        """Run the bind phase on the host, compile the kernels, and upload parameters and constants."""
        plan = self.plan
        device = self.device()
        steps = steps_of(plan, device=device.description)
        memory = Memory(plan, prove=False)
        memory.give(plan.graph.parameters, params, bare=True)
        memory.reserve("bound", plan.bound_size)
        memory.reserve("scratch", plan.scratch_size)
        memory.run(plan.phase("bind"))
        memory.release("scratch")
        loaded: dict[str, Launchable] = {}
        work: list[Launch | OnHost] = []
        for step, kernels in steps:
            for made in kernels:
                if made.text not in loaded:
                    loaded[made.text] = device.load(made.kernel, made.text)
                work.append(Launch(made, loaded[made.text]))
            if not kernels:
                work.append(OnHost(step))
        return CudaRunner(plan, device, memory, params, tuple(work))


__all__ = ["CudaGraph", "kernels_of", "locations_of", "steps_of"]
