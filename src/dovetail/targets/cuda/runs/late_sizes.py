"""Runs of plans with sizes that a run finds while it runs, such as how many elements are not 0.

The steps that find a size have no kernel: they run on the host. Launches after them get their arguments once all their
sizes are known, so that nothing is prepared between runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.errors import BindError
from dovetail.ir.literal import Array
from dovetail.ir.solve import Found
from dovetail.ir.value import Value
from dovetail.plan.alias import Alias, is_dense
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cuda.driver.driver import DEFAULT_STREAM, Driver
from dovetail.targets.cuda.driver.memory import CudaBuffer, PinnedBuffer, stored_bytes
from dovetail.targets.cuda.runs.bound_plan import BoundPlan, LoadedKernel, OnHost
from dovetail.targets.runtime.arrays.feeds import actual_leaf
from dovetail.targets.runtime.arrays.memory import Memory
from dovetail.targets.runtime.calls.interpreter import evaluate_values

_WORD = 8


class LateSizesRunner:
    """A plan on the device whose sizes are not all known before a run; results go to the host."""

    def __init__(
        self,
        plan: Plan,
        device: Driver,
        kept: Memory,
        params: Mapping[str, Array],
        work: tuple[LoadedKernel | OnHost, ...],
    ) -> None:
        self.bound = BoundPlan(plan, device, kept, params, work)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name on the host."""
        run = _Run(self.bound, inputs)
        try:
            for one in self.bound.work:
                if isinstance(one, LoadedKernel):
                    run.launch(one)
                else:
                    run.on_host(one.step)
            results = {name: run.downloaded(value) for name, value in self.bound.plan.graph.outputs.items()}
        finally:
            run.release()
        if run.refused:
            self._refuse(inputs)
        for donation in self.bound.donated.values():
            target = inputs[donation.input]
            target[...] = results[donation.output]
            results[donation.output] = target
        return results

    def _refuse(self, inputs: Mapping[str, Array]) -> None:
        """Raise what a kernel has refused: the run is repeated by its meaning."""
        plan, memory = self.bound.plan, self.bound.kept.copy()
        memory.give(plan.graph.inputs, inputs)
        memory.solve(self.bound.symbolic)
        memory.reserve("arena", plan.arena_size)
        memory.run(plan.phase("run"))
        raise BindError(f"a kernel of {plan.graph.name} refused its operands", hint="check what indices are made from")


class _Run:
    """One run: its sizes, as far as they are known, and its buffers."""

    def __init__(self, bound: BoundPlan, inputs: Mapping[str, Array]) -> None:
        self.bound, self.plan = bound, bound.plan
        self.memory = bound.kept.copy()
        self.buffers: dict[Value | str, CudaBuffer] = {}
        self._solve([actual_leaf(v, inputs[name]) for name, v in bound.inputs.items()])
        self._solve(bound.symbolic)
        for name, value in bound.inputs.items():
            dense = np.ascontiguousarray(inputs[name], value.dtype.numpy)
            self.buffers[value] = bound.new(dense.nbytes)
            self.buffers[value].copy_from_host(dense)
        self.buffers["arena"] = bound.new(self.memory.number(self.plan.arena_size))
        self.flag = PinnedBuffer(bound.driver, _WORD)
        self.flag.array[:] = 0

    @property
    def refused(self) -> bool:
        """Whether a kernel has set the error flag; all work is done by then."""
        return bool(self.flag.array.any())

    def _solve(self, facts: list[Found]) -> None:
        self.memory.solve(facts)
        for constraint in self.plan.graph.constraints:
            constraint.bind(self.memory.sizes)

    def launch(self, one: LoadedKernel) -> None:
        """Enqueue a kernel, whose sizes are known by now."""
        kernel, number = one.kernel, self.memory.number
        workspace = self._workspace(number(kernel.workspace_bytes)) if kernel.workspace else 0
        pointers: list[int] = []
        for name in kernel.kernel.pointers:
            if name in kernel.workspace:
                pointers.append(workspace + number(kernel.workspace[name]))
            elif name in kernel.checks:
                pointers.append(self.flag.address)
            elif name in kernel.packed:
                pointers.append(self.bound.fixed[kernel.packed[name].key])
            else:
                pointers.append(self.address(self.plan.locate(kernel.bindings[name])))
        one.launch(pointers, number).enqueue(DEFAULT_STREAM)

    def _workspace(self, count: int) -> int:
        """The address of the workspace; kernels that run later may need more."""
        buffer = self.buffers.get("workspace")
        if buffer is None or buffer.nbytes < count:
            if buffer is not None:
                self.bound.pool.free(buffer)
            buffer = self.buffers["workspace"] = self.bound.new(count)
        return buffer.address

    def on_host(self, step: Step) -> None:
        """Copy operands to the host, evaluate the step, and copy its results back, whose sizes are known then."""
        operands = {v: self.downloaded(v) for v in step.operands}
        results = evaluate_values(step.results, operands, sizes=self.memory.sizes, limit=self.plan.memory_limit)
        self._solve([Found(step.name, r.tensor, a.shape) for r, a in zip(step.results, results, strict=True)])
        for result, array in zip(step.results, results, strict=True):
            if array.size:
                alias = self.plan.locate(result)
                raw = stored_bytes(array, result.dtype, tuple(map(self.memory.number, alias.strides)))
                buffer, offset = self._place(alias)
                buffer.upload(raw, offset)

    def downloaded(self, value: Value) -> Array:
        """A tensor on the host, in memory of its own, after all that was enqueued before."""
        number = self.memory.number
        shape = tuple(map(number, value.tensor.shape))
        if 0 in shape:
            return np.empty(shape, value.dtype.numpy)
        alias = self.plan.locate(value)
        if alias.root in self.bound.fixed or not self._is_here(alias.root):
            return self.memory.copied(value)
        buffer, start = self._place(alias)
        if is_dense(value.tensor, alias.strides):
            array = np.empty(shape, value.dtype.numpy)
            buffer.download(array.reshape(-1), start)
            return array
        raw = np.empty(number(alias.root.tensor.bytes), np.uint8)
        offset = number(alias.offset)
        buffer.download(raw, start - offset)
        strides = tuple(map(number, alias.strides))
        return np.array(np.ndarray(shape, value.dtype.numpy, raw, offset, strides), order="C")

    def _is_here(self, root: Value) -> bool:
        """Whether a root is in memory of this run; parameters, constants and what is bound are in the host's too."""
        slot = self.plan.slots.get(root)
        return root in self.bound.inputs.values() or (slot is not None and slot.pool != "bound")

    def address(self, alias: Alias) -> int:
        root = alias.root
        slot = self.plan.slots.get(root)
        fixed = self.bound.fixed.get(root)
        if fixed is not None:
            return fixed + self.memory.number(alias.offset)
        if slot is not None and slot.pool == "bound":
            return self.bound.fixed["bound"] + self.memory.number(slot.offset) + self.memory.number(alias.offset)
        buffer, offset = self._place(alias)
        return buffer.address + offset

    def _place(self, alias: Alias) -> tuple[CudaBuffer, int]:
        """The buffer of this run that holds an alias, and the offset of its first element."""
        number = self.memory.number
        root = self.bound.apart.get(alias.root, alias.root)
        slot = self.plan.slots.get(root)
        if slot is not None and slot.donor is not None:
            root, slot = slot.donor, None
        start = 0
        base: Value | str = root
        if slot is not None and slot.pool != "heap" and root not in self.bound.fresh.values():
            base, start = slot.pool, number(slot.offset)
        if base not in self.buffers:
            self.buffers[base] = self.bound.new(number(root.tensor.bytes))
        return self.buffers[base], start + number(alias.offset)

    def release(self) -> None:
        """Give the memory back, after all work is done."""
        self.bound.driver.wait_for(DEFAULT_STREAM)
        for buffer in self.buffers.values():
            self.bound.pool.free(buffer)
        self.buffers.clear()


__all__ = ["LateSizesRunner"]
