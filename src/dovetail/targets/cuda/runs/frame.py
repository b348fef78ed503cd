"""A frame: one set of shapes with its memory on the device, its launches with their arguments, and their graph.

A frame has fixed memory for what a run keeps to itself. Addresses that change from run to run, those of device arrays
and of outputs that the caller keeps, are written into the arguments of the launches that use them, and into the nodes
of the graph: nothing is captured again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from dovetail.errors import BindError
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.loops.persistent.stuck import PLACE
from dovetail.kernels.spec import ALIGNMENT
from dovetail.plan.alias import Alias, is_dense
from dovetail.plan.plan import Step
from dovetail.targets.cuda.driver.driver import DEFAULT_STREAM, PreparedLaunch
from dovetail.targets.cuda.driver.memory import CudaBuffer, PinnedBuffer, stored_bytes
from dovetail.targets.cuda.driver.streams import Event, OwnStream
from dovetail.targets.cuda.runs.bound_plan import Base, BoundPlan, LoadedKernel
from dovetail.targets.cuda.runs.graph import LaunchGraph
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.runtime.arrays.address import address
from dovetail.targets.runtime.arrays.device_array import DeviceArray
from dovetail.targets.runtime.arrays.feeds import actual_leaf
from dovetail.targets.runtime.calls.interpreter import evaluate_values

Inputs: TypeAlias = Mapping[str, Array | DeviceArray]

MOST_PINNED = 1 << 26
"""Bytes that pass through pinned memory; more are copied from and to the caller's arrays."""
_STAGING, _STATUS, _WORKSPACE, _COUNTER, _WORD = "staging", "status", "workspace", "counter", 8


class DeviceFrame:
    """Runs of one set of shapes, one after the other."""

    def __init__(self, bound: BoundPlan, inputs: Inputs, *, to_host: bool, graph: LaunchGraph | None = None) -> None:
        """`graph` is one of the same launches with other sizes, which is updated where all of it can be."""
        self.bound, self.to_host, self.graph = bound, to_host, None if bound.is_fixed else graph
        plan, driver = bound.plan, bound.driver
        self.plan, self.driver = plan, driver
        self.inputs = frozenset(plan.graph.inputs)
        memory = self.memory = bound.kept.copy()
        memory.solve([actual_leaf(v, inputs[v.attrs["name"]]) for v in plan.graph.inputs])
        memory.solve(bound.symbolic)
        for constraint in plan.graph.constraints:
            constraint.bind(memory.sizes)
        self.staged: dict[Value, int] = {}
        """Inputs that come from the host, and where they are in the staging memory."""
        end = 0
        for value in plan.graph.inputs:
            array = inputs[value.attrs["name"]]
            if not isinstance(array, DeviceArray):
                self.staged[value] = end
                end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        there = {d.output: d.input for d in plan.donations if bound.inputs[d.input] not in self.staged}
        self.taken = frozenset(there)
        """Outputs that take the memory of a device array."""
        # A run from host arrays to host arrays shares no memory with others: it waits for none of them.
        self.own = OwnStream(driver) if to_host and len(self.staged) == len(plan.graph.inputs) else None
        self.stream = DEFAULT_STREAM if self.own is None else self.own.handle
        workspaces = [memory.number(one.kernel.workspace_bytes) for one in bound.loaded]
        self.buffers: dict[Base, CudaBuffer] = {}
        own = {_STAGING: end, "arena": memory.number(plan.arena_size), _WORKSPACE: max(workspaces, default=0)}
        for name, count in own.items():
            self.buffers[name] = bound.new(count)
        if to_host:
            for root in bound.fresh.values():
                self.buffers[root] = bound.new(memory.number(root.tensor.bytes))
        if self.own is not None:
            # Buffers of the pool may still be read by work on the default stream.
            driver.wait_for(DEFAULT_STREAM)
        self.pinned = PinnedBuffer(driver, end) if 0 < end <= MOST_PINNED else None
        self.staging = {} if self.pinned is None else self._staged_in(self.pinned, inputs)
        """Inputs that come from the host by name, as arrays in pinned memory."""
        self.uploaded = None if self.pinned is None or to_host else Event(driver)
        """Passed when the device has read the pinned memory of the last run."""
        self.flag = PinnedBuffer(driver, _WORD)
        """The error flag: kernels that refuse their operands set it."""
        self.flag.array[:] = 0
        self.status = self.flag.array.view(np.int64)
        self.counter: CudaBuffer | None = None
        """Counters of the blocks that come to barriers of the grid, and the words that these send to each other."""
        self.counters: dict[int, int] = {}
        """Where the counter of each such launch is, by the number of the launch."""
        self.addresses: dict[Base, int] = {**bound.fixed, _STATUS: self.flag.address}
        counters = 0
        for index, one in enumerate(bound.loaded):
            if one.kernel.counters:
                self.counters[index] = counters
                counters += -(-max(PLACE + _WORD, one.kernel.counter_bytes) // ALIGNMENT) * ALIGNMENT
        if counters:
            zeros = np.zeros(counters, np.uint8)
            for first in self.counters.values():
                zeros[first + PLACE :][:_WORD].view(np.uint64)[:] = driver.stop_word()
            self.counter = bound.allocator.uploaded(zeros)
            driver.wait_for(DEFAULT_STREAM)
            self.addresses[_COUNTER] = self.counter.address
        self.addresses |= {base: buffer.address for base, buffer in self.buffers.items()}
        self.uses: dict[Base, list[tuple[int, int, int]]] = {}
        """Launch, argument and offset for each pointer into a base whose address may change."""
        self.launches = [self._prepared(index, one) for index, one in enumerate(bound.loaded)]
        self.changed: set[int] = set(range(len(self.launches)))
        """Launches whose arguments the graph does not have yet."""
        self.down = self._downloads()
        total = sum(self.down.values())
        self.landing = PinnedBuffer(driver, total) if to_host and total <= MOST_PINNED else None
        self.landed = {} if self.landing is None else self._landed_in(self.landing)
        """Outputs that go to the host by name: where they are, and arrays in pinned memory."""
        self.runs = 0

    def _staged_in(self, pinned: PinnedBuffer, inputs: Inputs) -> dict[str, Array]:
        staged: dict[str, Array] = {}
        for value, offset in self.staged.items():
            array = inputs[value.attrs["name"]]
            there = pinned.array[offset : offset + array.nbytes].view(value.dtype.numpy)
            staged[value.attrs["name"]] = there.reshape(array.shape)
        return staged

    def _landed_in(self, landing: PinnedBuffer) -> dict[str, tuple[Base, int, Array]]:
        landed: dict[str, tuple[Base, int, Array]] = {}
        end = 0
        for name, count in self.down.items():
            value = self.plan.graph.outputs[name]
            if name not in self.taken:
                there = landing.array[end : end + self.memory.number(value.tensor.bytes)].view(value.dtype.numpy)
                base, offset = self._located(self.plan.locate(value))
                landed[name] = base, offset, there.reshape(self.shape(value))
                end += count
        return landed

    def _prepared(self, index: int, one: LoadedKernel) -> PreparedLaunch:
        arguments: list[int] = []
        for name in one.kernel.kernel.pointers:
            base, offset = self._argument(index, one.kernel, name)
            if base not in self.bound.fixed:
                self.uses.setdefault(base, []).append((index, len(arguments), offset))
            address = self.addresses.get(base)
            arguments.append(0 if address is None else address + offset)
        return one.launch(arguments, self.memory.number)

    def _argument(self, index: int, kernel: GpuKernel, name: str) -> tuple[Base, int]:
        if name in kernel.workspace:
            return _WORKSPACE, self.memory.number(kernel.workspace[name])
        if name in kernel.checks:
            return _STATUS, 0
        if name in kernel.counters:
            return _COUNTER, self.counters[index]
        if name in kernel.packed:
            return kernel.packed[name].key, 0
        return self._located(self.plan.locate(kernel.bindings[name]))

    def _located(self, alias: Alias) -> tuple[Base, int]:
        """The base that an alias is in, and its offset there."""
        base, start = self._base(alias.root)
        return base, start + self.memory.number(alias.offset)

    def _base(self, root: Value) -> tuple[Base, int]:
        end = self.bound.apart.get(root)
        if end is not None:
            return end, 0
        slot = self.plan.slots.get(root)
        if slot is not None and slot.donor is not None:
            return self._base(slot.donor)
        if slot is not None and slot.pool != "heap":
            return slot.pool, self.memory.number(slot.offset)
        if root in self.staged:
            return _STAGING, self.staged[root]
        if root not in self.addresses and root not in self.inputs:
            self._add(root)
        return root, 0

    def _add(self, root: Value) -> None:
        """Memory for a tensor outside of the pools: one that no kernel reads, or whose slot is on the heap."""
        slot = self.plan.slots.get(root)
        if slot is None or root in self.memory.own:
            content, start = self.memory.place(root)
            self.buffers[root] = self.bound.allocator.uploaded(content[start:])
            self.driver.wait_for(DEFAULT_STREAM)
        else:
            self.buffers[root] = self.bound.new(self.memory.number(slot.size))
        self.addresses[root] = self.buffers[root].address

    def _downloads(self) -> dict[str, int]:
        """Bytes of the landing memory for each output that goes to the host in one piece."""
        sizes: dict[str, int] = {}
        for name, value in self.plan.graph.outputs.items():
            if is_dense(value.tensor, self.plan.locate(value).strides):
                sizes[name] = -(-self.memory.number(value.tensor.bytes) // ALIGNMENT) * ALIGNMENT
        return sizes

    def move(self, base: Base, address: int) -> None:
        """Write the address of a base into all arguments that point into it."""
        if self.addresses.get(base) != address:
            self.addresses[base] = address
            for launch, argument, offset in self.uses.get(base, ()):
                self.launches[launch].set(argument, address + offset)
                self.changed.add(launch)

    def address(self, alias: Alias) -> int:
        """Where the first element of an alias is."""
        base, offset = self._located(alias)
        return self.addresses[base] + offset

    def shape(self, value: Value) -> tuple[int, ...]:
        return tuple(map(self.memory.number, value.tensor.shape))

    def put(self, inputs: Inputs) -> None:
        """Point to device arrays, and copy arrays of the host to the device."""
        for name, value in self.bound.inputs.items():
            array = inputs[name]
            if isinstance(array, DeviceArray):
                self.move(value, array.address)
        if not self.staged:
            return
        if self.uploaded is not None and self.runs:
            self.uploaded.synchronize()
        target = self.addresses[_STAGING]
        for name, there in self.staging.items():
            there[...] = inputs[name]
        for value, offset in self.staged.items() if self.pinned is None else ():
            array = inputs[value.attrs["name"]]
            assert isinstance(array, np.ndarray), "the key of a frame says which inputs are on the host"
            if array.nbytes:
                dense = np.ascontiguousarray(array)
                self._copy("cuMemcpyHtoDAsync_v2", target + offset, dense.ctypes.data, dense.nbytes)
                # Work from pageable memory is copied before this returns, and `dense` may go.
        if self.pinned is not None:
            self._copy("cuMemcpyHtoDAsync_v2", target, self.pinned.address, self.pinned.array.nbytes)
            if self.uploaded is not None:
                self.uploaded.record(self.stream)

    def renew(self) -> None:
        """Give outputs on the device new memory where the caller has that of the last run."""
        if not self.to_host:
            for root in self.bound.fresh.values():
                if root not in self.buffers:
                    self.buffers[root] = self.bound.new(self.memory.number(root.tensor.bytes))
                    self.move(root, self.buffers[root].address)

    def launch(self) -> None:
        """Enqueue all kernels: one by one in the first run, then as a graph; steps without a kernel wait for them."""
        self.runs += 1
        if not self.bound.captures:
            return self._launch_each()
        if self.graph is None:
            if self.runs == 1:
                return self._launch_each()
            self.graph = LaunchGraph(self.driver, self.launches)
            self.changed.clear()
        for index in sorted(self.changed):
            self.graph.update(index, self.launches[index])
        self.changed.clear()
        self.graph.launch(self.stream)

    def _launch_each(self) -> None:
        launches = iter(self.launches)
        for one in self.bound.work:
            if isinstance(one, LoadedKernel):
                next(launches).enqueue(self.stream)
            else:
                self.on_host(one.step)

    def on_host(self, step: Step) -> None:
        """Copy operands to the host, evaluate the step, and copy its results back."""
        operands = {v: self.downloaded(v) for v in step.operands}
        results = evaluate_values(step.results, operands, sizes=self.memory.sizes, limit=self.plan.memory_limit)
        for result, array in zip(step.results, results, strict=True):
            if array.size:
                alias = self.plan.locate(result)
                raw = stored_bytes(array, result.dtype, tuple(map(self.memory.number, alias.strides)))
                self._copy("cuMemcpyHtoDAsync_v2", self.address(alias), raw.ctypes.data, raw.nbytes)

    def downloaded(self, value: Value) -> Array:
        """A tensor on the host, in memory of its own, after all that was enqueued before."""
        shape = self.shape(value)
        if 0 in shape:
            return np.empty(shape, value.dtype.numpy)
        alias = self.plan.locate(value)
        if is_dense(value.tensor, alias.strides):
            array = np.empty(shape, value.dtype.numpy)
            self._download(array, self.address(alias))
            return array
        base, start = self._base(alias.root)
        raw = np.empty(self.memory.number(alias.root.tensor.bytes), np.uint8)
        self._download(raw, self.addresses[base] + start)
        strides = tuple(map(self.memory.number, alias.strides))
        return np.array(np.ndarray(shape, value.dtype.numpy, raw, self.memory.number(alias.offset), strides), order="C")

    def _download(self, target: Array, address: int) -> None:
        self._copy("cuMemcpyDtoHAsync_v2", target.ctypes.data, address, target.nbytes)
        self.driver.wait_for(self.stream)

    def _copy(self, name: str, target: int, source: int, count: int) -> None:
        if count and target != source:
            self.driver.call(name, target, source, count, self.stream)

    def results(self) -> dict[str, Array]:
        """The outputs on the host by name, but for those that take the memory of a device array; all is waited for."""
        for base, offset, there in self.landed.values():
            if there.nbytes:
                target = address(there)
                self._copy("cuMemcpyDtoHAsync_v2", target, self.addresses[base] + offset, there.nbytes)
        self.driver.wait_for(self.stream)
        results: dict[str, Array] = {}
        for name, value in self.plan.graph.outputs.items():
            if name in self.landed:
                results[name] = self.landed[name][2].copy()
            elif name not in self.taken:
                results[name] = self.downloaded(value)
        return results

    def kept(self, name: str, value: Value, inputs: Inputs) -> DeviceArray:
        """Return an output on the device: in memory of its own, or the array of its donated input."""
        donation = self.bound.donated.get(name)
        if donation is not None:
            donated = inputs[donation.input]
            assert isinstance(donated, DeviceArray), "the program has checked it"
            return donated
        root = self.bound.fresh.get(name)
        buffer = self._dense(value) if root is None else self.buffers.pop(root)
        check = self.check if self.bound.is_checked else None
        return DeviceArray(self.bound.lease(buffer, check), self.shape(value), value.dtype)

    def check(self) -> None:
        """Raise what a kernel has refused: for results on the device, once the host reads one."""
        if self.status[0]:
            self.status[0] = 0
            raise BindError(
                f"an index was out of range in a run of {self.plan.graph.name} whose outputs stay on the device",
                hint='run it with outputs="host", which says which index',
            )

    def overwrite(self, inputs: Inputs) -> None:
        """Copy donated outputs that no kernel computed in place to the device arrays of their inputs."""
        moved: list[tuple[DeviceArray, CudaBuffer]] = []
        for donation in self.bound.donated.values():
            target = inputs[donation.input]
            if donation.reason and isinstance(target, DeviceArray):
                # An input may be the source of one copy and the target of another: all are read first.
                moved.append((target, self._dense(self.plan.graph.outputs[donation.output])))
        for target, buffer in moved:
            self._copy("cuMemcpyDtoDAsync_v2", target.address, buffer.address, target.nbytes)
            self.bound.pool.free(buffer)

    def _dense(self, value: Value) -> CudaBuffer:
        """A dense copy of a tensor on the device."""
        count = self.memory.number(value.tensor.bytes)
        buffer = self.bound.new(count)
        alias = self.plan.locate(value)
        if is_dense(value.tensor, alias.strides):
            if count:
                self._copy("cuMemcpyDtoDAsync_v2", buffer.address, self.address(alias), count)
        else:
            buffer.copy_from_host(self.downloaded(value))
        return buffer

    def release(self) -> None:
        """Give the memory back to the pool."""
        for base, buffer in self.buffers.items():
            if isinstance(base, str) or base in self.bound.fresh.values():
                self.bound.pool.free(buffer)
        self.buffers.clear()


__all__ = ["DeviceFrame", "Inputs"]
