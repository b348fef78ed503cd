"""A plan on the device with its parameters: runs, captured graphs of runs that come again, results that stay there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

import numpy as np

from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.spec import ALIGNMENT
from dovetail.plan.alias import Alias, is_dense
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cuda.capture import Captured, capture
from dovetail.targets.cuda.driver import Device, Launchable
from dovetail.targets.cuda.memory import NAME, CudaAllocator, CudaBuffer
from dovetail.targets.cuda.select import GpuKernel
from dovetail.targets.runtime.buffer import BufferPool
from dovetail.targets.runtime.device_array import DeviceArray, Lease
from dovetail.targets.runtime.feeds import found_leaf
from dovetail.targets.runtime.interpreter import evaluate_values
from dovetail.targets.runtime.memory import Memory
from dovetail.targets.runtime.prepared_call import chained, fresh_results

MOST_GRAPHS = 16
"""Captured graphs that a runner holds: one for each set of shapes and addresses that comes again."""
MOST_COUNTED = 256
"""Sets of shapes and addresses that are counted before they are captured."""
_STATUS, _WORD = "status", 8

Inputs: TypeAlias = Mapping[str, Array | DeviceArray]
Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel of a step, loaded."""

    kernel: GpuKernel
    function: Launchable


@dataclass(frozen=True, slots=True)
class OnHost:
    """A step without a kernel."""

    step: Step


class CudaRunner:
    """A plan on the device with its parameters."""

    def __init__(
        self, plan: Plan, device: Device, kept: Memory, params: Mapping[str, Array], work: tuple[Launch | OnHost, ...]
    ) -> None:
        self.plan, self.kept, self.work = plan, kept, work
        self.launches = [one for one in work if isinstance(one, Launch)]
        self.driver = device
        self.allocator = CudaAllocator(device)
        self.pool: BufferPool[CudaBuffer] = BufferPool(self.allocator)
        self.symbolic = [
            found_leaf(v, params[v.attrs["name"]]) for v in plan.graph.parameters if not v.tensor.is_static
        ]
        self.fresh = fresh_results(plan)
        self.apart = chained(plan, self.fresh.values())
        self.donated = {d.output: d for d in plan.donations}
        self.is_checked = any(launch.kernel.checks for launch in self.launches)
        self.fixed: dict[Value | str, CudaBuffer] = {}
        inputs = set(plan.graph.inputs)
        for launch in self.launches:
            for value in launch.kernel.bindings.values():
                root = plan.locate(value).root
                if root not in inputs and root not in plan.slots and root not in self.fixed:
                    content, start = kept.place(root)
                    self.fixed[root] = self.allocator.uploaded(content[start:])
        self.fixed["bound"] = self.allocator.uploaded(kept.pools["bound"])
        self.fixed[_STATUS] = self.allocator.uploaded(np.zeros(_WORD, np.uint8))
        self.captures = len(work) == len(self.launches) and not plan.donations
        self.names = tuple(str(v.attrs["name"]) for v in plan.graph.inputs)
        self.graphs: dict[Key, Captured] = {}
        self.seen: Counter[Key] = Counter()
        self.lock = Lock()

    @property
    def device(self) -> str:
        """The device that holds what stays there."""
        return NAME

    def to_device(self, array: Array, value: Value) -> DeviceArray:
        """A copy of an array in the memory of the device."""
        found = self._new(array.nbytes)
        found.copy_from_host(np.ascontiguousarray(array))
        return DeviceArray(self._lease(found), array.shape, value.dtype)

    def quick(self, inputs: Inputs) -> dict[str, Array] | None:
        """The outputs on the host of a run that came before with these shapes; None where it is new."""
        found = self._replayed(inputs, to_host=True)
        return (
            None if found is None else {name: array for name, array in found.items() if isinstance(array, np.ndarray)}
        )

    def quick_on_device(self, inputs: Inputs) -> dict[str, DeviceArray] | None:
        """The outputs on the device of a run that came before; None where it is new. Nothing is waited for."""
        found = self._replayed(inputs, to_host=False)
        return (
            None if found is None else {name: array for name, array in found.items() if isinstance(array, DeviceArray)}
        )

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """The outputs by name on the host, but for those that take the memory of a device array."""
        self._capture(inputs, to_host=True)
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
        self._check(inputs)
        return found

    def run_on_device(self, inputs: Inputs) -> dict[str, DeviceArray]:
        """The outputs by name on the device. Nothing is waited for, but where a kernel may refuse its operands."""
        self._capture(inputs, to_host=False)
        run = _Run(self, inputs)
        run.launch()
        found = {name: run.kept(name, value) for name, value in self.plan.graph.outputs.items()}
        run.overwrite()
        self._check(inputs)
        return found

    def _check(self, inputs: Inputs) -> None:
        """Raise what a kernel has refused, such as an index out of range: the run is repeated by its meaning."""
        if not self.is_checked:
            return
        word = np.zeros(1, np.int64)
        status = self.fixed[_STATUS]
        status.copy_to_host(word)
        if not word[0]:
            return
        status.copy_from_host(np.zeros(_WORD, np.uint8))
        memory = self.kept.copy()
        given = {name: x.numpy() if isinstance(x, DeviceArray) else x for name, x in inputs.items()}
        memory.give(self.plan.graph.inputs, given)
        memory.solve(self.symbolic)
        memory.reserve("arena", self.plan.arena_size)
        memory.run(self.plan.phase("run"))

    def _key(self, inputs: Inputs, to_host: bool) -> Key | None:
        """Shapes, dtypes and addresses of inputs: what a captured graph is made for."""
        found: list[object] = [to_host]
        for name in self.names:
            x = inputs.get(name)
            if isinstance(x, DeviceArray):
                found += (x.shape, x.dtype, x.address)
            elif isinstance(x, np.ndarray):
                found += (x.shape, x.dtype)
            else:
                return None
        return tuple(found) if len(inputs) == len(self.names) else None

    def _replayed(self, inputs: Inputs, *, to_host: bool) -> dict[str, Array | DeviceArray] | None:
        """The outputs of a run that was captured; None where it was not, or cannot run again yet."""
        if not self.graphs or (key := self._key(inputs, to_host)) is None:
            return None
        with self.lock:
            found = self.graphs.get(key)
            return None if found is None else found.replay(inputs)

    def _capture(self, inputs: Inputs, *, to_host: bool) -> None:
        """Capture a run that comes for the second time: inputs are checked by now."""
        key = self._key(inputs, to_host)
        if not self.captures or key is None:
            return
        with self.lock:
            self.seen[key] += 1
            if self.seen[key] == 2:
                made = capture(self.driver, _Run(self, inputs), to_host=to_host)
                if made is not None:
                    self.graphs[key] = made
                    if len(self.graphs) > MOST_GRAPHS:
                        self.graphs.pop(next(iter(self.graphs)))
            if len(self.seen) > MOST_COUNTED:
                self.seen.clear()

    def _new(self, nbytes: int) -> CudaBuffer:
        return self.pool.allocate(max(nbytes, ALIGNMENT))

    def _lease(self, buffer: CudaBuffer) -> Lease:
        pool = self.pool
        return Lease(buffer, lambda: pool.free(buffer))


class _Run:
    """One run: its sizes and its buffers."""

    def __init__(self, runner: CudaRunner, inputs: Inputs) -> None:
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

    def launch(self, stream: int = 0) -> None:
        """Launch every kernel; what has none runs on the host."""
        for one in self.runner.work:
            if isinstance(one, Launch):
                self._launch(one, stream)
            else:
                self._on_host(one.step)

    def _launch(self, one: Launch, stream: int) -> None:
        memory, made = self.memory, one.kernel
        kernel = made.kernel
        assert kernel.launch is not None, "it was scheduled"
        pointers = [self._pointer(made, name) for name in kernel.pointers]
        sizes = [memory.number(size) for size in kernel.sizes]
        shape = kernel.launch
        arguments = [*pointers, *sizes]
        one.function.launch(
            memory.number(shape.grid), shape.block, arguments, shared_bytes=shape.shared_bytes, stream=stream
        )

    def _pointer(self, made: GpuKernel, name: str) -> int:
        if name in made.workspace:
            return self.buffer("workspace").address + self.memory.number(made.workspace[name])
        if name in made.checks:
            return self.buffer(_STATUS).address
        return self._address(self.plan.locate(made.bindings[name]))

    def _on_host(self, step: Step) -> None:
        """Copy operands to the host, evaluate the step, and copy its results back."""
        given = {v: self.downloaded(v) for v in step.operands}
        made = evaluate_values(step.results, given, sizes=self.memory.sizes, limit=self.plan.memory_limit)
        for result, array in zip(step.results, made, strict=True):
            dense = np.ascontiguousarray(array, result.dtype.numpy)
            if dense.nbytes:
                alias = self.plan.locate(result)
                buffer, start = self._place(alias.root)
                buffer.upload(dense.reshape(-1).view(np.uint8), start + self.memory.number(alias.offset))

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
        shape = self.shape(value)
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
        return DeviceArray(lease, self.shape(value), value.dtype)

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

    def dense_outputs(self) -> dict[str, tuple[int, tuple[int, ...], Value]] | None:
        """The address and shape of every output; None where one is not dense."""
        found: dict[str, tuple[int, tuple[int, ...], Value]] = {}
        for name, value in self.plan.graph.outputs.items():
            alias = self.plan.locate(value)
            shape = self.shape(value)
            if 0 in shape or not is_dense(value.tensor, alias.strides):
                return None
            found[name] = (self._address(alias), shape, value)
        return found

    def input_buffer(self, name: str) -> CudaBuffer:
        """The memory of the device that holds an input."""
        (value,) = [v for v in self.plan.graph.inputs if v.attrs["name"] == name]
        return self.buffer(value)

    def owner(self, name: str) -> CudaBuffer | None:
        """The buffer that an output has for itself; None where it shares one."""
        root = self.runner.fresh.get(name)
        return None if root is None else self.buffer(root)

    def status(self) -> CudaBuffer | None:
        """The error flag of runs; None where no kernel sets it."""
        return self.buffer(_STATUS) if self.runner.is_checked else None

    def reset_status(self) -> None:
        """Clear the error flag."""
        self.buffer(_STATUS).copy_from_host(np.zeros(_WORD, np.uint8))

    def shape(self, value: Value) -> tuple[int, ...]:
        return tuple(map(self.memory.number, value.tensor.shape))

    def buffer(self, key: Value | str) -> CudaBuffer:
        fixed = self.runner.fixed.get(key)
        return _buffer_of(self.leases[key]) if fixed is None else fixed

    def _place(self, root: Value) -> tuple[CudaBuffer, int]:
        """The buffer that holds a root, and where in it the root starts."""
        end = self.runner.apart.get(root)
        if end is not None:
            return self.buffer(end), 0
        slot = self.plan.slots.get(root)
        if slot is not None and slot.donor is not None:
            return self.buffer(slot.donor), 0
        if slot is not None and slot.pool != "heap":
            return self.buffer(slot.pool), self.memory.number(slot.offset)
        if root not in self.leases and root not in self.runner.fixed:
            if slot is None or root in self.memory.own:
                content, start = self.memory.place(root)
                self.leases[root] = Lease(self.runner.allocator.uploaded(content[start:]))
            else:
                self.leases[root] = self._leased(self.memory.number(slot.size))
        return self.buffer(root), 0

    def _address(self, alias: Alias) -> int:
        buffer, start = self._place(alias.root)
        return buffer.address + start + self.memory.number(alias.offset)


def _buffer_of(lease: Lease) -> CudaBuffer:
    buffer = lease.buffer
    assert isinstance(buffer, CudaBuffer), "arrays of other devices are refused before"
    return buffer


__all__ = ["CudaRunner", "Launch", "OnHost"]
