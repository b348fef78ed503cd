"""Plans on an NVIDIA GPU: each step of the run phase is one kernel, all on one stream.

The bind phase runs on the host. A plan with a step that no kernel family takes is refused, with the names of the steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dovetail.errors import UnsupportedError
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cuda.driver import Buffer, Driver, Function, Module, driver
from dovetail.targets.cuda.loops import LOOPS
from dovetail.targets.cuda.ptx_compiler import architecture_of, to_ptx
from dovetail.targets.cuda.select import GpuKernel, make_kernel
from dovetail.targets.runtime.feeds import found_leaf
from dovetail.targets.runtime.memory import Memory


def kernels_of(plan: Plan) -> tuple[tuple[Step, GpuKernel], ...]:
    """The kernels of the run phase, in its order."""
    bound = {result for step in plan.phase("bind") for result in step.results}
    locations = TensorLocations(plan.locate, bound, bool(plan.options.get("strict")), target=LOOPS)
    found = [(step, make_kernel(step, locations)) for step in plan.phase("run")]
    missing = sorted({step.value.op.name for step, kernel in found if kernel is None})
    if missing:
        raise UnsupportedError(
            f"{plan.graph.name} is planned for cuda, and there are no cuda kernels yet for {', '.join(missing)}",
            hint='compile it with target="cpu" or target="reference" to run it',
        )
    return tuple([(step, kernel) for step, kernel in found if kernel is not None])


class CudaGraph:
    """A plan and its kernels, which are compiled when the plan is bound: only then a device is needed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def bind(self, params: Mapping[str, Array]) -> CudaRunner:
        """Run the bind phase on the host, compile the kernels, and upload parameters and constants."""
        plan = self.plan
        kernels = kernels_of(plan)
        device = driver()
        memory = Memory(plan, prove=False)
        memory.give(plan.graph.parameters, params, bare=True)
        memory.reserve("bound", plan.bound_size)
        memory.reserve("scratch", plan.scratch_size)
        memory.run(plan.phase("bind"))
        memory.release("scratch")
        architecture = architecture_of(device.capability)
        modules: dict[str, Module] = {}
        launches: list[_Launch] = []
        for _, made in kernels:
            if made.text not in modules:
                modules[made.text] = Module(device, to_ptx(made.text, architecture))
            module = modules[made.text]
            launches.append(_Launch(made, module, module.function(made.kernel.name)))
        return CudaRunner(plan, device, memory, params, tuple(launches))


@dataclass(frozen=True, slots=True)
class _Launch:
    kernel: GpuKernel
    module: Module
    """Loaded for as long as its function is called."""
    function: Function


class CudaRunner:
    """A plan on the device with its parameters."""

    def __init__(
        self, plan: Plan, device: Driver, kept: Memory, params: Mapping[str, Array], launches: tuple[_Launch, ...]
    ) -> None:
        self.plan, self.device, self.kept, self.launches = plan, device, kept, launches
        self.symbolic = [
            found_leaf(v, params[v.attrs["name"]]) for v in plan.graph.parameters if not v.tensor.is_static
        ]
        self.fixed: dict[Value | str, Buffer] = {}
        inputs = set(plan.graph.inputs)
        for launch in launches:
            for value in launch.kernel.bindings.values():
                root = plan.locate(value).root
                if root not in inputs and root not in plan.slots and root not in self.fixed:
                    content, start = kept.place(root)
                    self.fixed[root] = self._uploaded(content[start:])
        self.fixed["bound"] = self._uploaded(kept.pools["bound"])

    def _uploaded(self, content: Array) -> Buffer:
        found = Buffer(self.device, content.nbytes)
        found.upload(np.ascontiguousarray(content))
        return found

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name: inputs are uploaded, every step is launched, outputs are downloaded."""
        plan, memory = self.plan, self.kept.copy()
        memory.give(plan.graph.inputs, inputs)
        memory.solve(self.symbolic)
        for constraint in plan.graph.constraints:
            constraint.bind(memory.sizes)
        buffers: dict[Value | str, Buffer] = dict(self.fixed)
        for value in plan.graph.inputs:
            buffers[value] = self._uploaded(memory.own[value])
        buffers["arena"] = Buffer(self.device, memory.number(plan.arena_size))
        for launch in self.launches:
            kernel = launch.kernel.kernel
            assert kernel.launch is not None, "it was scheduled"
            pointers = [self._address(launch.kernel.bindings[name], memory, buffers) for name in kernel.pointers]
            sizes = [memory.number(size) for size in kernel.sizes]
            launch.function.launch(memory.number(kernel.launch.grid), kernel.launch.block, [*pointers, *sizes])
        self.device.synchronize()
        found = {name: self._downloaded(v, memory, buffers) for name, v in plan.graph.outputs.items()}
        for donation in plan.donations:
            inputs[donation.input][...] = found[donation.output]
            found[donation.output] = inputs[donation.input]
        return found

    def _place(self, root: Value, memory: Memory, buffers: dict[Value | str, Buffer]) -> tuple[Buffer, int]:
        """The buffer that holds a root, and where in it the root starts."""
        slot = self.plan.slots.get(root)
        if slot is not None and slot.donor is not None:
            return buffers[slot.donor], 0
        if slot is not None and slot.pool != "heap":
            return buffers[slot.pool], memory.number(slot.offset)
        if root not in buffers:
            if slot is None or root in memory.own:
                content, start = memory.place(root)
                buffers[root] = self._uploaded(content[start:])
            else:
                buffers[root] = Buffer(self.device, memory.number(slot.size))
        return buffers[root], 0

    def _address(self, value: Value, memory: Memory, buffers: dict[Value | str, Buffer]) -> int:
        alias = self.plan.locate(value)
        buffer, start = self._place(alias.root, memory, buffers)
        return buffer.address + start + memory.number(alias.offset)

    def _downloaded(self, value: Value, memory: Memory, buffers: dict[Value | str, Buffer]) -> Array:
        shape = tuple(map(memory.number, value.tensor.shape))
        if 0 in shape:
            return np.empty(shape, value.dtype.numpy)
        alias = self.plan.locate(value)
        buffer, _ = self._place(alias.root, memory, buffers)
        raw = np.empty(buffer.count, np.uint8)
        buffer.download(raw)
        self.device.synchronize()
        _, start = self._place(alias.root, memory, buffers)
        strides = tuple(map(memory.number, alias.strides))
        view = np.ndarray(shape, value.dtype.numpy, raw, start + memory.number(alias.offset), strides)
        return np.array(view, order="C")


__all__ = ["CudaGraph", "CudaRunner", "kernels_of"]
