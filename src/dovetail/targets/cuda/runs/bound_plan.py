"""A plan whose parameters are on the device: what all its runs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import OutOfMemoryError
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.spec import ALIGNMENT, Packed, SizeFunction
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cuda.code.code import in_threads
from dovetail.targets.cuda.driver.driver import DEFAULT_STREAM, Driver, KernelFunction, PreparedLaunch
from dovetail.targets.cuda.driver.memory import NAME, CudaAllocator, CudaBuffer
from dovetail.targets.cuda.driver.streams import MOST_RETURNED, Lending
from dovetail.targets.cuda.driver.tensor_map import matrices_of
from dovetail.targets.cuda.library.call import LibraryLaunch, LibraryProduct
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.runtime.arrays.buffer import BufferPool
from dovetail.targets.runtime.arrays.device_array import Lease
from dovetail.targets.runtime.arrays.feeds import actual_leaf
from dovetail.targets.runtime.arrays.memory import Memory
from dovetail.targets.runtime.calls.result_roots import chained, fresh_results

Base: TypeAlias = Value | str | tuple[Value | str, ...]
"""What an address is known for: a tensor, a pool of memory, or packed weights by their key."""


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel of a step, loaded, or a product by a library in its place."""

    step: Step
    kernel: GpuKernel
    function: KernelFunction | LibraryProduct
    joined: tuple[Step, ...] = ()
    """The steps before this one that the kernel runs too."""

    def launch(self, addresses: Sequence[int], number: SizeFunction) -> PreparedLaunch:
        """Its launch at the sizes of a run, with the address of each pointer; 0 is none yet."""
        if isinstance(self.function, LibraryProduct):
            return LibraryLaunch(self.function, addresses)
        kernel, shape = self.kernel.kernel, self.kernel.launch
        arguments = [*addresses, *[number(size) for size in kernel.sizes]]
        matrices = matrices_of(kernel, number)
        grid = number(shape.grid)
        return PreparedLaunch(self.function, grid, shape.block, shape.shared_bytes, arguments, matrices, kernel.table)


@dataclass(frozen=True, slots=True)
class OnHost:
    """A step without a kernel."""

    step: Step


class BoundPlan:
    """A plan with its kernels and parameters on the device."""

    def __init__(
        self,
        plan: Plan,
        device: Driver,
        kept: Memory,
        params: Mapping[str, Array],
        work: tuple[LoadedKernel | OnHost, ...],
    ) -> None:
        self.plan, self.kept, self.work, self.driver = plan, kept, work, device
        self.loaded = [one for one in work if isinstance(one, LoadedKernel)]
        self.captures = len(work) == len(self.loaded)
        """Whether a run is launches alone, so that a graph can hold it."""
        self.is_fixed = any(isinstance(one.function, LibraryProduct) for one in self.loaded)
        """Whether graphs of a run have nodes that cannot be updated, so that each set of buffers needs its own."""
        self.allocator = CudaAllocator(device)
        self.pool: BufferPool[CudaBuffer] = BufferPool(self.allocator)
        self._lending = Lending(device)
        self.reclaim: Callable[[], None] = device.synchronize
        """Gives memory of earlier runs back to the pool."""
        self.symbolic = [
            actual_leaf(v, params[v.attrs["name"]]) for v in plan.graph.parameters if not v.tensor.is_static
        ]
        self.fresh = fresh_results(plan)
        self.apart = chained(plan, self.fresh.values())
        self.donated = {d.output: d for d in plan.donations}
        self.is_checked = any(one.kernel.checks for one in self.loaded)
        self.inputs = {str(v.attrs["name"]): v for v in plan.graph.inputs}
        self.fixed, self._held = self._uploaded()

    def _uploaded(self) -> tuple[dict[Base, int], CudaBuffer]:
        """The addresses of parameters, constants and packed weights, and the one buffer that holds them."""
        inputs = frozenset(self.inputs.values())
        contents: dict[Base, Array] = {"bound": self.kept.pools["bound"]}
        for one in self.loaded:
            for value in one.kernel.bindings.values():
                root = self.plan.root_of(value)
                is_here = root not in self.plan.slots or root in self.kept.own
                if root not in inputs and is_here and root not in contents:
                    content, start = self.kept.place(root)
                    contents[root] = content[start:]
        contents |= self._packed()
        ends, end = dict[Base, int](), 0
        for root, content in contents.items():
            ends[root] = end
            end += -(-content.nbytes // ALIGNMENT) * ALIGNMENT
        try:
            buffer = self.allocator.allocate(end)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"the parameters of {self.plan.graph.name} take {end:,} bytes of {NAME}, and {error.free:,} are free",
                needed=end,
                free=error.free,
                hint="free device arrays and programs that are not needed, or use a narrower dtype",
            ) from None
        for root, content in contents.items():
            buffer.upload(np.ascontiguousarray(content), ends[root])
        # Runs on streams of their own do not wait for the default stream.
        self.driver.wait_for(DEFAULT_STREAM)
        return {root: buffer.address + at for root, at in ends.items()}, buffer

    def _packed(self) -> dict[Base, Array]:
        """The bytes of packed weights by their keys. Threads share them: NumPy moves elements without the lock."""
        every = {packed.key: packed for one in self.loaded for packed in one.kernel.packed.values()}
        views = [[self.kept.view(v) for v in (packed.value, *packed.beside)] for packed in every.values()]

        def bytes_of(pair: tuple[Packed, list[Array]]) -> Array:
            return np.ascontiguousarray(pair[0].pack(*pair[1])).reshape(-1).view(np.uint8)

        return dict(zip(every, in_threads(bytes_of, zip(every.values(), views, strict=True)), strict=True))

    def new(self, nbytes: int) -> CudaBuffer:
        """Allocate memory of the device; where it is short, free that of earlier runs."""
        count = max(nbytes, ALIGNMENT)
        self._lending.settle(MOST_RETURNED)
        try:
            return self.pool.allocate(count)
        except OutOfMemoryError:
            self.reclaim()
            self._lending.settle()
            self.pool.clear()
            return self.pool.allocate(count)

    def lease(self, buffer: CudaBuffer, check: Callable[[], None] | None = None) -> Lease:
        """An owner of a buffer, which gives it back to the pool."""
        return Lease(buffer, partial(self.pool.free, buffer), check, self._lending)


__all__ = ["Base", "BoundPlan", "LoadedKernel", "OnHost"]
