"""Products with few tiles and much depth: blocks share the depth, and the step after a product adds up their parts.

A skinny GEMM has fewer tiles than the device has multiprocessors, and each block goes through all of k. In
parts of k there is work for more of them. Sums of parts are in the workspace. A norm or another step that is the only
one to read the result adds them up where it would load it, so that there is no launch more; else a second kernel does.
With that, blocks may also share the rounds of all tiles (`kernels/gpu/gemm/stream_k.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.loops.analysis import uses_tensor_cores
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.loops.launch_fusion.joined_sums import sum_of, takes_sum, with_sum
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.footprints import Footprints, taken
from dovetail.targets.gpu.select import Selection, make_kernels

Kept = Callable[[Hashable, Mapping[str, Value], Callable[[], Kernel], Mapping[str, Size]], GpuKernel]
"""A shared kernel by a key, its tensors, what makes it, and its pointers into the workspace."""
IDLE = 2
"""A step after a product adds up its parts where tiles would leave half of the places for blocks without work."""
_OF_SUM = "sum_"
"""Before the names of pointers that adding up parts needs."""


@dataclass(slots=True)
class SplitProducts:
    """Finds the products of a plan whose depth several blocks share."""

    memory: Footprints
    selection: Selection
    kept: Kept
    known: dict[Hashable, tuple[GpuKernel, ...]] = field(default_factory=dict[Hashable, tuple[GpuKernel, ...]])

    def split(self, steps: Sequence[tuple[Step, Kernels]]) -> list[tuple[Step, Kernels]]:
        """The kernels of each step, with split-K products where their estimate is lower."""
        split = [*steps]
        for index, (step, kernels) in enumerate(steps):
            if kernels is None or len(kernels) != 1 or not self._is_whole(kernels[0]):
                continue
            is_idle = self._is_idle(kernels[0])
            after = split[index + 1] if is_idle and index + 1 < len(split) else None
            joined = None if after is None else self._joined(step, kernels[0], after)
            if joined is not None and after is not None:
                split[index], split[index + 1] = (step, joined[:1]), (after[0], joined[1:])
                continue
            # Where all tensor cores have work, sums of parts take longer than what they save.
            shares = is_idle or not uses_tensor_cores(kernels[0].kernel)
            sum_launch = self.selection.device.timings.gemm.sum_launch
            split[index] = (step, (self._parts(step, kernels[0], sum_launch) if shares else None) or kernels)
        return split

    @staticmethod
    def _is_whole(kernel: GpuKernel) -> bool:
        """Whether a kernel is a product in tiles, each of which a block computes alone."""
        launch = kernel.kernel.launch
        if launch is None or not launch.cycles or kernel.workspace or (kernel.packed and not kernel.kernel.maps):
            return False
        return isinstance(launch.grid, int)

    def _is_idle(self, kernel: GpuKernel) -> bool:
        """Whether tiles leave half of the multiprocessors without work, or of the places that these have for blocks
        without tensor cores, one of which alone does not keep a multiprocessor busy."""
        launch = kernel.kernel.launch
        assert launch is not None and isinstance(launch.grid, int), "it was checked"
        places = 1 if uses_tensor_cores(kernel.kernel) else launch.resident
        return launch.grid * IDLE <= self.selection.device.multiprocessors * places

    def _parts(self, step: Step, whole: GpuKernel, sum_cycles: float) -> tuple[GpuKernel, ...] | None:
        """The kernels of a split-K product, and of the sum; None where one part is faster by the estimates."""
        key = whole.kernel.identity, sum_cycles
        if key not in self.known:
            request = replace(self.selection.request, sum_cycles=sum_cycles)
            self.known[key] = make_kernels(step, self.selection, request)
        kernels = self.known[key]
        if len(kernels) != 2:
            return None
        # Weights are packed in one of both layouts, in both, or in neither.
        own = whole.values
        return tuple(
            [
                replace(
                    one,
                    bindings={n: own[n] for n in one.bindings},
                    packed={n: replace(packed, value=own[n]) for n, packed in one.packed.items()},
                )
                for one in kernels
            ]
        )

    def _joined(self, step: Step, kernel: GpuKernel, after: tuple[Step, Kernels]) -> tuple[GpuKernel, GpuKernel] | None:
        """The kernel of parts, and the one after it, which adds them up; None where that cannot be."""
        next_step, others = after
        if others is None or len(others) != 1 or len(step.results) != 1 or taken(step):
            return None
        (other,), (result,) = others, step.results
        reads = [name for name, v in other.bindings.items() if v is result]
        if len(reads) != 1 or result in taken(next_step) or self.memory.readers.get(result) != 1:
            return None
        if other.workspace or other.packed or other.counters or not self.memory.is_whole(result):
            return None
        if [r.shape for r in next_step.results] != [result.shape]:
            return None  # it might load elements several times
        parts = self._parts(step, kernel, self.selection.device.timings.gemm.joined_sum)
        if parts is None:
            return None
        first, second = parts
        of = sum_of(second.kernel)
        if of is None or not takes_sum(other.kernel, reads[0], of):
            return None
        read = {n: v for n, v in second.bindings.items() if n not in second.kernel.written}
        if self.memory.storages(read.values()) & self.memory.written(other):
            return None  # a row may be written before another one is added up
        names = {name: f"{_OF_SUM}{name}" for name in (*read, *second.workspace)}
        bindings = {n: v for n, v in other.bindings.items() if n != reads[0]}
        bindings |= {names[n]: v for n, v in read.items()}
        workspace = {names[n]: at for n, at in second.workspace.items()}
        key = other.kernel.identity, second.kernel.identity, reads[0]
        joined = self.kept(key, bindings, lambda: with_sum(other.kernel, reads[0], of, names), workspace)
        return first, replace(joined, workspace_bytes=second.workspace_bytes, checks=other.checks)


__all__ = ["SplitProducts"]
