"""Plans on an NVIDIA GPU: each step of the run phase is one kernel or two, all on one stream.

The bind phase runs on the host. A plan with a step that no kernel family takes is refused, with the names of the steps.
Inputs and outputs are arrays of the host, which are copied, or arrays of the device, which are used where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dovetail.errors import UnsupportedError
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.loops.split_reduce import SplitLimits
from dovetail.kernels.spec import ALIGNMENT, TensorLocations
from dovetail.plan.alias import Alias, is_dense
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cuda.driver import Device, Launchable, driver
from dovetail.targets.cuda.loops import LOOPS, SPLIT
from dovetail.targets.cuda.memory import NAME, CudaAllocator, CudaBuffer
from dovetail.targets.cuda.select import GpuKernel, make_kernels
from dovetail.targets.runtime.buffer import BufferPool
from dovetail.targets.runtime.device_array import DeviceArray, Lease
from dovetail.targets.runtime.feeds import found_leaf
from dovetail.targets.runtime.memory import Memory
from dovetail.targets.runtime.prepared_call import chained, fresh_results


def locations_of(plan: Plan) -> TensorLocations:
    """Where the tensors of a plan are."""
    bound = {result for step in plan.phase("bind") for result in step.results}
    return TensorLocations(plan.locate, bound, bool(plan.options.get("strict")), target=LOOPS)


def kernels_of(plan: Plan, split: SplitLimits = SPLIT) -> tuple[tuple[Step, GpuKernel], ...]:
    """The kernels of the run phase, in its order."""
    locations = locations_of(plan)
    found = [(step, make_kernels(step, locations, split)) for step in plan.phase("run")]
    missing = sorted({step.value.op.name for step, kernels in found if not kernels})
    if missing:
        raise UnsupportedError(
            f"{plan.graph.name} is planned for cuda, and there are no cuda kernels yet for {', '.join(missing)}",
            hint='compile it with target="cpu" or target="reference" to run it',
        )
    return tuple([(step, kernel) for step, kernels in found for kernel in kernels])


class CudaGraph:
    """A plan and its kernels, which are compiled when the plan is bound: only then a device is needed."""

    def __init__(self, plan: Plan, device: Callable[[], Device] = driver) -> None:
        self.plan = plan
        self.device = device

    def bind(self, params: Mapping[str, Array]) -> CudaRunner:
        """Run the bind phase on the host, compile the kernels, and upload parameters and constants."""
        plan = self.plan
        kernels = kernels_of(plan)
        device = self.device()
        memory = Memory(plan, prove=False)
        memory.give(plan.graph.parameters, params, bare=True)
        memory.reserve("bound", plan.bound_size)
        memory.reserve("scratch", plan.scratch_size)
        memory.run(plan.phase("bind"))
        memory.release("scratch")
        loaded: dict[str, Launchable] = {}
        for _, made in kernels:
            if made.text not in loaded:
                loaded[made.text] = device.load(made.kernel, made.text)
        return CudaRunner(plan, device, memory, params, tuple([_Launch(k, loaded[k.text]) for _, k in kernels]))


@dataclass(frozen=True, slots=True)
class _Launch:
    kernel: GpuKernel
    function: Launchable


class CudaRunner:
    """A plan on the device with its parameters."""

    def __init__(
        self, plan: Plan, device: Device, kept: Memory, params: Mapping[str, Array], launches: tuple[_Launch, ...]
    ) -> None:
        self.plan, self.kept, self.launches = plan, kept, launches
        self.driver = device
        self.allocator = CudaAllocator(device)
        self.pool: BufferPool[CudaBuffer] = BufferPool(self.allocator)
        self.symbolic = [
            found_leaf(v, params[v.attrs["name"]]) for v in plan.graph.parameters if not v.tensor.is_static
        ]
        self.fresh = fresh_results(plan)
        self.apart = chained(plan, self.fresh.values())
        self.donated = {d.output: d for d in plan.donations}
        self.fixed: dict[Value | str, CudaBuffer] = {}
        inputs = set(plan.graph.inputs)
        for launch in launches:
            for value in launch.kernel.bindings.values():
                root = plan.locate(value).root
                if root not in inputs and root not in plan.slots and root not in self.fixed:
                    content, start = kept.place(root)
                    self.fixed[root] = self.allocator.uploaded(content[start:])
        self.fixed["bound"] = self.allocator.uploaded(kept.pools["bound"])

    @property
    def device(self) -> str:
        """The device that holds what stays there."""
        return NAME

    def to_device(self, array: Array, value: Value) -> DeviceArray:
        """A copy of an array in the memory of the device."""
        found = self._new(array.nbytes)
        found.copy_from_host(np.ascontiguousarray(array))
        return DeviceArray(self._lease(found), array.shape, value.dtype)

    def run(self, inputs: Mapping[str, Array | DeviceArray]) -> dict[str, Array]:
        """The outputs by name on the host, but for those that take the memory of a device array."""
        run = _Run(self, inputs)
        run.launch()
        found: dict[str, Array] = {}
        for name, value in self.plan.graph.outputs.items():
            donation = self.donated.get(name)
            given = None if donation is None else inputs[donation.input]
            if isinstance(given, DeviceArray):
                continue
            made = run.downloaded(value)
            if given is not None:
                given[...] = made
            found[name] = made if given is None else given
        run.overwrite()
        return found

    def run_on_device(self, inputs: Mapping[str, Array | DeviceArray]) -> dict[str, DeviceArray]:
        """The outputs by name on the device; nothing is waited for."""
        run = _Run(self, inputs)
        run.launch()
        found = {name: run.kept(name, value) for name, value in self.plan.graph.outputs.items()}
        run.overwrite()
        return found

    def _new(self, nbytes: int) -> CudaBuffer:
        return self.pool.allocate(max(nbytes, ALIGNMENT))

    def _lease(self, buffer: CudaBuffer) -> Lease:
        pool = self.pool
        return Lease(buffer, lambda: pool.free(buffer))


class _Run:
    """One run: its sizes and its buffers."""

    def __init__(self, runner: CudaRunner, inputs: Mapping[str, Array | DeviceArray]) -> None:
        self.runner, self.inputs = runner, inputs
        plan = self.plan = runner.plan
        memory = self.memory = runner.kept.copy()
        memory.solve([found_leaf(v, inputs[v.attrs["name"]]) for v in plan.graph.inputs])
        memory.solve(runner.symbolic)
        for constraint in plan.graph.constraints:
            constraint.bind(memory.sizes)
        self.leases: dict[Value | str, Lease] = {}
        for value in plan.graph.inputs:
            given = inputs[value.attrs["name"]]
            self.leases[value] = (given if isinstance(given, DeviceArray) else runner.to_device(given, value)).lease
        for root in runner.fresh.values():
            self.leases[root] = self._leased(memory.number(root.tensor.bytes))
        self.leases["arena"] = self._leased(memory.number(plan.arena_size))
        scratch = [memory.number(one.kernel.workspace_bytes) for one in runner.launches]
        self.leases["workspace"] = self._leased(max(scratch, default=0))

    def _leased(self, nbytes: int) -> Lease:
        return self.runner._lease(self.runner._new(nbytes))  # pyright: ignore[reportPrivateUsage]

    def launch(self) -> None:
        """Launch every kernel."""
        memory = self.memory
        for one in self.runner.launches:
            made = one.kernel
            kernel = made.kernel
            assert kernel.launch is not None, "it was scheduled"
            pointers = [
                self._buffer("workspace").address + memory.number(made.workspace[name])
                if name in made.workspace
                else self._address(self.plan.locate(made.bindings[name]))
                for name in kernel.pointers
            ]
            sizes = [memory.number(size) for size in kernel.sizes]
            one.function.launch(memory.number(kernel.launch.grid), kernel.launch.block, [*pointers, *sizes])

    def overwrite(self) -> None:
        """Copy donated outputs that no kernel computed in place to the device arrays of their inputs."""
        moved: list[tuple[DeviceArray, Lease]] = []
        for donation in self.runner.donated.values():
            given = self.inputs[donation.input]
            if donation.reason and isinstance(given, DeviceArray):
                # An input may be the source of one copy and the target of another: all are read first.
                moved.append((given, self._dense(self.plan.graph.outputs[donation.output])))
        for given, lease in moved:
            _buffer_of(given.lease).copy_from_device(lease.buffer.address, given.nbytes)

    def downloaded(self, value: Value) -> Array:
        """A tensor on the host, in memory of its own."""
        shape = self._shape(value)
        if 0 in shape:
            return np.empty(shape, value.dtype.numpy)
        alias = self.plan.locate(value)
        buffer, start = self._place(alias.root)
        start += self.memory.number(alias.offset)
        if is_dense(value.tensor, alias.strides):
            found = np.empty(shape, value.dtype.numpy)
            buffer.download(found.reshape(-1).view(np.uint8), start)
            return found
        raw = np.empty(buffer.nbytes, np.uint8)
        buffer.copy_to_host(raw)
        strides = tuple(map(self.memory.number, alias.strides))
        return np.array(np.ndarray(shape, value.dtype.numpy, raw, start, strides), order="C")

    def kept(self, name: str, value: Value) -> DeviceArray:
        """An output on the device: in a buffer of its own, or what was given for its donated input."""
        donation = self.runner.donated.get(name)
        if donation is not None:
            given = self.inputs[donation.input]
            assert isinstance(given, DeviceArray), "the program has checked it"
            return given
        root = self.runner.fresh.get(name)
        lease = self._dense(value) if root is None else self.leases[root]
        return DeviceArray(lease, self._shape(value), value.dtype)

    def _dense(self, value: Value) -> Lease:
        """A dense copy of a tensor on the device."""
        count = self.memory.number(value.tensor.bytes)
        found = self._leased(count)
        alias = self.plan.locate(value)
        if is_dense(value.tensor, alias.strides):
            _buffer_of(found).copy_from_device(self._address(alias), count)
        else:
            _buffer_of(found).copy_from_host(self.downloaded(value))
        return found

    def _shape(self, value: Value) -> tuple[int, ...]:
        return tuple(map(self.memory.number, value.tensor.shape))

    def _buffer(self, key: Value | str) -> CudaBuffer:
        fixed = self.runner.fixed.get(key)
        return _buffer_of(self.leases[key]) if fixed is None else fixed

    def _place(self, root: Value) -> tuple[CudaBuffer, int]:
        """The buffer that holds a root, and where in it the root starts."""
        end = self.runner.apart.get(root)
        if end is not None:
            return self._buffer(end), 0
        slot = self.plan.slots.get(root)
        if slot is not None and slot.donor is not None:
            return self._buffer(slot.donor), 0
        if slot is not None and slot.pool != "heap":
            return self._buffer(slot.pool), self.memory.number(slot.offset)
        if root not in self.leases and root not in self.runner.fixed:
            if slot is None or root in self.memory.own:
                content, start = self.memory.place(root)
                self.leases[root] = Lease(self.runner.allocator.uploaded(content[start:]))
            else:
                self.leases[root] = self._leased(self.memory.number(slot.size))
        return self._buffer(root), 0

    def _address(self, alias: Alias) -> int:
        buffer, start = self._place(alias.root)
        return buffer.address + start + self.memory.number(alias.offset)


def _buffer_of(lease: Lease) -> CudaBuffer:
    buffer = lease.buffer
    assert isinstance(buffer, CudaBuffer), "arrays of other devices are refused before"
    return buffer


__all__ = ["CudaGraph", "CudaRunner", "kernels_of"]
