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
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.contract_norms import scaled_product, squared_product
from dovetail.kernels.gpu.head_rows import STATUS
from dovetail.kernels.gpu.scaled_rows import GAIN, RowSquares
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.problems.contraction import find_products
from dovetail.kernels.spec import TensorLocations
from dovetail.library import rms_norm
from dovetail.plan.plan import Step
from dovetail.targets.cuda.footprints import Footprints, aligned
from dovetail.targets.cuda.gpu_kernel import GpuKernel, Kernels
from dovetail.targets.cuda.head_steps import HeadReader, HeadSteps
from dovetail.targets.cuda.launch_choices import BETWEEN, HEADS, IS_WHOLE, ONE_READER, LaunchChoices, Need
from dovetail.targets.cuda.normed_products import normed_by
from dovetail.targets.cuda.row_launches import MOST_STEPS, ROW_STAGES

Pair: TypeAlias = tuple[Kernel, Kernel, RowSquares]
ARE_COPIED = Need(
    "products_copy_by_tensor_maps",
    "a product before and one after it, both with rows for tiles that one thread copies by tensor maps",
    "more rows; products of few rows norm what they read",
)
IS_NARROW = Need("rows_are_bf16", "bf16", "compute in bf16")
MAKES_ROWS = Need(
    "a_product_makes_the_rows", "the product before it, with what is added to it", "let a product write what is normed"
)
HAS_TILES = Need(
    "tiles_keep_squares_and_scales",
    "products without batches and parts of k, whose rows are those of the norm and whose left operand it is",
    "rows in one matrix, and enough of them that k is not cut",
)
HAS_NORM = Need("a_norm_is_between_products", "a norm between two products before it", "see what refuses the norm")
HAS_HEADS = Need(
    "a_tile_is_a_head", "tiles with the columns of one head, and nothing else in the product", "heads of 64 or 128"
)


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
    told: LaunchChoices = field(default_factory=LaunchChoices)

    def joined(self, steps: Sequence[tuple[Step, Kernels]]) -> list[tuple[Step, Kernels]]:
        """The kernels of each step, without those of such norms."""
        found = [*steps]
        for index in range(len(steps) - 1):
            one, norm, other = (self._alone(found[at]) if at >= 0 else None for at in (index - 1, index, index + 1))
            if norm is None or norm[0].value.op is not rms_norm or norm[1].kernel.name == ROW_STAGES:
                continue
            following = found[index + 2 : index + 2 + MOST_STEPS]
            if one is None or other is None:
                pair = IS_WHOLE.refused("others next to it") if index else MAKES_ROWS.refused("nothing before it")
            else:
                pair = self._pair(one, norm, other, following, index + 1)
            self.told.tell([norm[0]], BETWEEN, pair if isinstance(pair, Refused) else None)
            if isinstance(pair, Refused):
                self.told.tell(_heads_in(following), HEADS, HAS_NORM.refused("a norm with a launch"))
                continue
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
    ) -> tuple[GpuKernel, GpuKernel, int] | Refused:
        """The kernels of both products, and the number of the last step that the second one has, where `last` is its
        own; refused where the norm between them needs a kernel."""
        (before, first), (between, small), (after, second) = one, norm, other
        rows = normed_by(between, self.locations)
        if isinstance(rows, Refused):
            return rows
        x, gain = rows
        (result,) = between.results
        if x.dtype is not bf16:
            return IS_NARROW.refused(str(x.dtype))
        makes = StepProblem(before, self.locations, self.device).once(find_products)
        if before.results != (x,) or isinstance(makes, Refused):
            return MAKES_ROWS.refused(f"{before.value.op.name} before it")
        if not first.kernel.maps or not second.kernel.maps:
            lacks = " and ".join([s.value.op.name for s, k in (one, other) if not k.kernel.maps])
            return ARE_COPIED.refused(f"none in {lacks}")
        if self.memory.readers.get(result) != 1:
            return ONE_READER.refused(f"{self.memory.readers.get(result, 0)} readers")
        if small.has_more or small.checks or not self.memory.is_whole(result):
            return IS_WHOLE.refused("a norm in several")
        if any([k.workspace or k.checks or k.counters for k in (first, second)]):
            return IS_WHOLE.refused("a product in parts")
        key = id(first.kernel), id(small.kernel), id(second.kernel)
        if key not in self.known:
            self.known[key] = self._made(before, first, between, gain, after)
        made = self.known[key]
        if made is None:
            return HAS_TILES.refused("other tiles")
        first_kernel, second_kernel, squares = made
        *starts, end = aligned(*squares.workspace.values())
        places = dict(zip(squares.workspace, starts, strict=True))
        others = {n: v for n, v in second.bindings.items() if v is not result}
        squared = self._kernel((*key, "squares"), first_kernel, {**first.bindings, GAIN: gain}, first, places, end)
        headed = self._headed(key, other, between, squares, following)
        self.told.tell(_heads_in(following), HEADS, headed if isinstance(headed, Refused) else None)
        if isinstance(headed, Refused):
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
    ) -> tuple[Kernel, HeadSteps, int] | Refused:
        """The kernel of the second product with the steps after it, which have a launch by tokens; refused where they
        keep it."""
        after, steps = other[0], _heads_in(following)
        if not steps or len(after.results) != 1:
            return IS_WHOLE.refused("other steps")
        heads = HeadReader(self.memory, self.locations, after.results[0]).read(steps)
        if isinstance(heads, Refused):
            return heads
        known = key, heads.parts
        if known not in self.headed:
            problem = StepProblem(after, self.locations, self.device)
            eps = float(between.value.attrs["eps"])
            job = scaled_product(problem, between.value, squares, eps, heads.parts, heads.bindings)
            self.headed[known] = job.kernel if job is not None and isinstance(job.kernel, Kernel) else None
        kernel = self.headed[known]
        return HAS_HEADS.refused("other tiles") if kernel is None else (kernel, heads, len(steps))

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


def _heads_in(following: Sequence[tuple[Step, Kernels]]) -> list[Step]:
    """The steps after a product that share a launch by tokens."""
    count = next((i + 1 for i, (_, kernels) in enumerate(following) if kernels is not None), 0)
    kernels = following[count - 1][1] if count else None
    is_shared = kernels and kernels[0].kernel.name == ROW_STAGES
    return [step for step, _ in following[:count]] if is_shared else []


__all__ = ["NormsBetween"]
