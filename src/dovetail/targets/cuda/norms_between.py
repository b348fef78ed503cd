"""RMS norms between two products have no launch: the product before leaves squares, the one after scales its sums.

What passes from one to the other, rows times gains and squares, is in the workspace. The kernel of the second follows
that of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bf16
from dovetail.ir.value import Value
from dovetail.kernels.choice import StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.contract_norms import scaled_product, squared_product
from dovetail.kernels.gpu.head_rows import STATUS
from dovetail.kernels.gpu.scaled_rows import GAIN, RowSquares
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.cuda.footprints import Footprints, aligned
from dovetail.targets.cuda.gpu_kernel import GpuKernel, Kernels
from dovetail.targets.cuda.head_steps import HeadReader, HeadSteps
from dovetail.targets.cuda.normed_products import normed_by
from dovetail.targets.cuda.row_launches import MOST_STEPS, ROW_STAGES

Pair: TypeAlias = tuple[Kernel, Kernel, RowSquares]


@dataclass(slots=True)
class NormsBetween:
    """Finds the norms of a plan whose rows a product makes and another one reads."""

    memory: Footprints
    locations: TensorLocations
    device: GpuDevice
    kept: Callable[..., GpuKernel]
    known: dict[Hashable, Pair | None] = field(default_factory=dict[Hashable, "Pair | None"])
    headed: dict[Hashable, Kernel | None] = field(default_factory=dict[Hashable, "Kernel | None"])
    """Second products with the steps after them."""

    def joined(self, steps: Sequence[tuple[Step, Kernels]]) -> list[tuple[Step, Kernels]]:
        """The kernels of each step, without those of such norms."""
        found = [*steps]
        for index in range(1, len(steps) - 1):
            one, norm, other = (self._alone(found[at]) for at in (index - 1, index, index + 1))
            if one is None or norm is None or other is None:
                continue
            pair = self._pair(one, norm, other, found[index + 2 : index + 2 + MOST_STEPS], index + 1)
            if pair is not None:
                first, second, last = pair
                found[index - 1] = (found[index - 1][0], (first,))
                for at in range(index, last + 1):
                    found[at] = (found[at][0], (second,) if at == last else None)
        return found

    @staticmethod
    def _alone(step: tuple[Step, Kernels]) -> tuple[Step, GpuKernel] | None:
        """A step with its one kernel."""
        return None if step[1] is None or len(step[1]) != 1 else (step[0], step[1][0])

    def _pair(
        self,
        one: tuple[Step, GpuKernel],
        norm: tuple[Step, GpuKernel],
        other: tuple[Step, GpuKernel],
        following: Sequence[tuple[Step, Kernels]],
        last: int,
    ) -> tuple[GpuKernel, GpuKernel, int] | None:
        """The kernels of both products, and the number of the last step that the second one has, where `last` is its
        own; None where the norm between them needs a kernel."""
        (before, first), (between, small), (after, second) = one, norm, other
        rows = normed_by(between, self.locations)
        if rows is None or not first.kernel.maps or not second.kernel.maps or small.has_more or small.checks:
            return None
        x, gain = rows
        (result,) = between.results
        if x.dtype is not bf16 or before.results != (x,) or self.memory.readers.get(result) != 1:
            return None
        if not self.memory.is_whole(result) or any([k.workspace or k.checks or k.counters for k in (first, second)]):
            return None
        key = id(first.kernel), id(small.kernel), id(second.kernel)
        if key not in self.known:
            self.known[key] = self._made(before, first, between, gain, after)
        made = self.known[key]
        if made is None:
            return None
        first_kernel, second_kernel, squares = made
        *starts, end = aligned(*squares.workspace.values())
        places = dict(zip(squares.workspace, starts, strict=True))
        others = {n: v for n, v in second.bindings.items() if v is not result}
        squared = self._kernel((*key, "squares"), first_kernel, {**first.bindings, GAIN: gain}, first, places, end)
        headed = self._headed(key, other, between, squares, following)
        if headed is None:
            return squared, self._kernel((*key, "scales"), second_kernel, others, second, places, end), last
        kernel, heads, count = headed
        bindings = {**{n: v for n, v in others.items() if n in kernel.pointers}, **heads.bindings}
        scaled = self._kernel((*key, heads.parts), kernel, bindings, second, places, end)
        return squared, replace(scaled, checks=(STATUS.pointer,) if heads.is_checked else ()), last + count

    def _headed(
        self,
        key: Hashable,
        other: tuple[Step, GpuKernel],
        between: Step,
        squares: RowSquares,
        following: Sequence[tuple[Step, Kernels]],
    ) -> tuple[Kernel, HeadSteps, int] | None:
        """The kernel of the second product with the steps after it, which have a launch by tokens; None where they
        keep it."""
        after = other[0]
        count = next((i + 1 for i, (_, kernels) in enumerate(following) if kernels is not None), 0)
        kernels = following[count - 1][1] if count else None
        if not kernels or kernels[0].kernel.name != ROW_STAGES or len(after.results) != 1:
            return None
        steps = [step for step, _ in following[:count]]
        heads = HeadReader(self.memory, self.locations, after.results[0]).read(steps)
        if heads is None:
            return None
        known = key, heads.parts
        if known not in self.headed:
            problem = StepProblem(after, self.locations, self.device)
            eps = float(between.value.attrs["eps"])
            job = scaled_product(problem, between.value, squares, eps, heads.parts, heads.bindings)
            self.headed[known] = job.kernel if job is not None and isinstance(job.kernel, Kernel) else None
        kernel = self.headed[known]
        return None if kernel is None else (kernel, heads, count)

    def _made(self, before: Step, first: GpuKernel, between: Step, gain: Value, after: Step) -> Pair | None:
        left = squared_product(StepProblem(before, self.locations, self.device), gain)
        if left is None:
            return None
        job, squares = left
        problem = StepProblem(after, self.locations, self.device)
        scaled = scaled_product(problem, between.value, squares, float(between.value.attrs["eps"]))
        if scaled is None or not isinstance(job.kernel, Kernel) or not isinstance(scaled.kernel, Kernel):
            return None
        # A result may take the memory of an operand.
        return replace(job.kernel, shared=first.kernel.shared), scaled.kernel, squares

    def _kernel(
        self,
        key: Hashable,
        kernel: Kernel,
        bindings: Mapping[str, Value],
        was: GpuKernel,
        places: Mapping[str, Size],
        end: Size,
    ) -> GpuKernel:
        made = self.kept(key, bindings, lambda: kernel, places, was.packed)
        return replace(made, workspace_bytes=end)


__all__ = ["NormsBetween"]
