"""Norms and attentions of few rows as the start of the launched products that read them: launches less.

A product whose weights are near (`gemv/near_tile.py`) copies all of them before the kernel before it has ended.
Each of its blocks then norms the rows of its own tile, or attends for them, straight to where products read them, and
blocks of the first columns write what others read too. The product before such a norm is whole: every block would read
all parts of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field, replace

from dovetail.dataclass import dataclass
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.gpu.gemm.block_tile import least_bytes
from dovetail.kernels.loops.analysis import shared_bytes
from dovetail.kernels.loops.ir import Kernel, KernelKind
from dovetail.kernels.loops.launch_fusion.constants_ahead import with_constants_first
from dovetail.kernels.loops.launch_fusion.head_prologue import ROWS, HeadKernel, with_head_prologue
from dovetail.kernels.loops.persistent.bodies import ROWS as NEAR_ROWS
from dovetail.kernels.loops.persistent.bodies import has_rows
from dovetail.kernels.problems.contraction import find_products
from dovetail.kernels.request import Request, Role
from dovetail.kernels.timings.record import GemvTimings
from dovetail.library import attention
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels, StepKernels
from dovetail.targets.gpu.launch_fusion.footprints import Footprints, taken
from dovetail.targets.gpu.launch_fusion.launch_choices import (
    FITS,
    IS_APART,
    IS_WHOLE,
    ONE_READER,
    WITHIN,
    LaunchChoices,
    Need,
)
from dovetail.targets.gpu.launch_fusion.near_constants import rooms_of_constants
from dovetail.targets.gpu.launch_fusion.split_products import SplitProducts
from dovetail.targets.gpu.persistent.norms import NormedTiles
from dovetail.targets.gpu.select import Selection, make_kernels

IS_FASTER = "fewer_launches_are_faster"
"""The condition that the estimates decide."""
OVERLAPS = Need(
    "launches_depend_on_each_other",
    "kernels that start before the one before them has ended",
    "a device of compute capability 9.0 or more",
)
IS_NEAR = Need(
    "weights_are_near",
    "a product by threads with few rows, all weights of whose tile fit shared memory",
    "fewer rows, or fewer columns and a shorter k",
)
IN_HEADS = Need(
    "heads_are_columns_of_rows",
    "heads next to each other in rows of one attention, which a warp has at once",
    "queries of one sequence, and heads that the product reads as they are",
)
_DISTURBED = "a result over what other blocks still read"


@dataclass(slots=True)
class NearLaunches:
    """Finds the steps of a plan that products take where launches depend on each other."""

    memory: Footprints
    selection: Selection
    kept: Callable[..., GpuKernel]
    near: dict[Hashable, GpuKernel | None] = field(default_factory=dict[Hashable, "GpuKernel | None"])
    """Products with weights near, by the kernel that each of them replaces."""
    known: dict[Hashable, GpuKernel | None] = field(default_factory=dict[Hashable, "GpuKernel | None"])
    """Products with the norms that they take, by what they are made of: layers repeat."""
    heads: dict[Hashable, GpuKernel | Refused] = field(default_factory=dict[Hashable, "GpuKernel | Refused"])
    """The same with attentions."""
    choices: LaunchChoices = field(default_factory=LaunchChoices)

    def launched(self, whole: Sequence[StepKernels]) -> list[StepKernels]:
        """The kernels of each step, with split-K products, or with norms and attentions in the products after
        them, where that takes less by the estimates."""
        steps = SplitProducts(self.memory, self.selection, self.kept).split(whole)
        if not self.selection.request.starts_early:
            for at, (step, kernels) in enumerate(whole[:-1]):
                if kernels is not None and (step.value.op is attention or self._is_normed(whole, at + 1)):
                    self.choices.record([step], WITHIN, OVERLAPS.refused("launches in order"))
            return steps
        for index in range(1, len(steps)):
            if not self._is_normed(whole, index):
                continue
            normed = self._normed(whole, steps, index)
            if isinstance(normed, Refused):
                self.choices.record([whole[index - 1][0]], WITHIN, normed)
                continue
            first, is_split = index + 1 - len(normed), steps[index][1] != whole[index][1]
            steps[first : index + 1] = [(steps[first + i][0], kernels) for i, kernels in enumerate(normed)]
            if is_split and index + 1 < len(steps):
                steps[index + 1] = whole[index + 1]  # it added up parts of this product
        for index in range(1, len(steps)):
            (before, attends), (step, kernels) = steps[index - 1 : index + 1]
            if before.value.op is not attention or attends is None:
                continue
            attended = self._attended(steps[index - 1], (step, kernels), whole[index][1])
            if isinstance(attended, Refused):
                self.choices.record([before], WITHIN, attended)
            else:
                steps[index - 1 : index + 1] = [(before, None), (step, (attended,))]
        return [(step, self._lone(step, kernels)) for step, kernels in steps]

    def _is_normed(self, whole: Sequence[StepKernels], index: int) -> bool:
        """Whether a step has a product, and the one before it computes rows."""
        (_, norm), (after, kernels) = whole[index - 1], whole[index]
        if norm is None or len(norm) != 1 or norm[0].kernel.kind != KernelKind.ROWS or not kernels:
            return False
        return not isinstance(self.selection.problem(after).once(find_products), Refused)

    def _lone(self, step: Step, kernels: Kernels) -> Kernels:
        """A product with weights near, or an attention, whose blocks take more than half of the shared memory of a
        multiprocessor: two of them would start where blocks of the kernel before leave room, while others have none."""
        if not kernels or not (
            has_rows(kernels[0].kernel) or (step.value.op is attention and self._may_crowd(kernels))
        ):
            return kernels
        kernel = kernels[0]
        launch = kernel.kernel.launch
        assert launch is not None, "it was scheduled"
        launch = replace(
            launch, shared_bytes=max(least_bytes(1, self.selection.device), shared_bytes(kernel.kernel.body))
        )
        key = "lone", kernel.kernel.identity
        kept = self.kept(key, kernel.bindings, lambda: replace(kernel.kernel, launch=launch))
        return (replace(kernel, kernel=kept.kernel, code=kept.code),)

    def _may_crowd(self, kernels: Sequence[GpuKernel]) -> bool:
        """Whether most multiprocessors have one block of a launch, and none needs two."""
        (kernel, *others), most = kernels, self.selection.device.multiprocessors
        grid = kernel.launch.grid
        is_plain = not others and not kernel.has_more and kernel.launch.cluster == 1
        return is_plain and isinstance(grid, int) and most < 2 * grid <= 2 * most

    def _normed(
        self, whole: Sequence[StepKernels], steps: Sequence[StepKernels], index: int
    ) -> list[Kernels] | Refused:
        """The kernels of a product, of the norm before it and of the product before that, if that one changes; refused
        where they stay as they are."""
        (step, norm), (after, product) = whole[index - 1], whole[index]
        large = self._near(after, product)
        if isinstance(large, Refused):
            return large
        assert norm is not None, "it was checked"
        tiles = NormedTiles(self.memory, self.selection, self.known, self.kept)
        joined = tiles.joined(step, norm[0], after, large, keeps=True)
        if isinstance(joined, Refused):
            return joined
        if self._disturbs(norm[0], large):
            return IS_APART.refused(_DISTURBED)
        now, was = _cycles((joined,)), _cycles(steps[index][1]) + self._launch + self._gemv.norm + self._gemv.norm_row
        first = None
        if steps[index - 1][1] != norm:  # it adds up parts
            before, kernels = whole[index - 2]
            other = self._near(before, kernels)
            first = kernels if isinstance(other, Refused) else (other,)
            now, was = now + _cycles(first), was + _cycles(steps[index - 2][1])
        slower = self._judged(step, now, was)
        if slower is not None:
            return slower
        kernels = (self._ahead(joined),)
        return [None, kernels] if first is None else [first, None, kernels]

    def _attended(self, before: StepKernels, after: StepKernels, whole: Kernels) -> GpuKernel | Refused:
        """A product with weights near whose blocks each compute the attention before it, a warp for each head; refused
        where they do not. `whole` are the kernels of the product as it was."""
        (step, attends), (next_step, products) = before, after
        if attends is None or products is None or len(attends) != 1 or len(products) != 1:
            return IS_WHOLE.refused("others, or none")
        heads = step.results[0].shape[-3]
        plain = self._near(next_step, whole)
        is_plain = products == whole or (isinstance(plain, GpuKernel) and plain.kernel is products[0].kernel)
        warps = heads if isinstance(heads, int) else 0
        (small,), large = attends, self._near(next_step, whole, warps) if is_plain else products[0]
        if isinstance(large, Refused):
            return large
        if not has_rows(large.kernel):
            return IS_NEAR.refused("a product in parts of k")
        (result,) = step.results
        read = [n for n, v in large.bindings.items() if self.selection.locations(v).root is result]
        if len(read) != 1 or self.memory.readers.get(result) != 1:
            return ONE_READER.refused(f"{self.memory.readers.get(result, 0)} readers, {len(read)} in the next step")
        if result in taken(next_step) or taken(step):
            return IS_APART.refused("a step in place")
        if small.has_more or small.checks or small.workspace or len(small.kernel.written) != 1:
            return IS_WHOLE.refused("an attention in parts")
        by_value = {v: name for name, v in large.bindings.items()}
        names = {n: by_value.get(v, f"before_{n}") for n, v in small.bindings.items()}
        key = "attended", small.kernel.identity, large.kernel.identity, *names.items()
        bindings = {n: v for n, v in large.bindings.items() if n != read[0]}
        bindings |= {names[n]: v for n, v in small.bindings.items() if v is not result}
        if key not in self.heads:
            kernel = self._with_heads(result, small.kernel, large.kernel, read[0], names)
            refused = isinstance(kernel, Refused)
            self.heads[key] = kernel if refused else self.kept(key, bindings, lambda: kernel)
        joined = self.heads[key]
        if isinstance(joined, Refused):
            return joined
        if self._disturbs(small, large):
            return IS_APART.refused(_DISTURBED)
        was = _cycles(products) + self._launch + self._gemv.attention + self._gemv.read
        slower = self._judged(step, _cycles((joined,)), was)
        return slower or replace(joined, bindings=bindings, checks=large.checks)

    def _with_heads(
        self, result: Value, small: Kernel, large: Kernel, read: str, names: dict[str, str]
    ) -> Kernel | Refused:
        *lead, heads, queries, width = result.shape
        if not isinstance(heads, int) or not isinstance(queries, int) or not isinstance(width, int):
            return IN_HEADS.refused(f"{heads} heads of {queries} queries, sizes that a run knows")
        row, of = heads * width * result.dtype.itemsize, self.selection.locations(result).strides
        if of[-3:] != (row // heads, row, result.dtype.itemsize) or any([n != 1 for n in lead[:-1]]):
            return IN_HEADS.refused("heads apart")
        if lead and lead[-1] != 1 and (queries % ROWS or of[-4] != queries * row):
            # A tile would have rows of two attentions.
            return IN_HEADS.refused(f"{lead[-1]} sequences of {queries} queries")
        head_kernel = HeadKernel.of(small, heads, queries)
        if head_kernel is None:
            return IN_HEADS.refused("an attention that goes through keys in turns, or with other steps")
        written = small.written[0]
        joined = with_head_prologue(large, head_kernel, read, names, result=written, room=NEAR_ROWS, timings=self._gemv)
        if joined is None or joined.launch is None:
            return IN_HEADS.refused("rows that the product has elsewhere")
        return (
            joined if joined.launch.shared_bytes <= self.selection.device.shared_bytes else FITS.refused(_bytes(joined))
        )

    def _near(self, step: Step, kernels: Kernels, warps: int = 0) -> GpuKernel | Refused:
        """A product with its weights near, with that many warps if it can; refused where it has none, or copies by
        tensor maps."""
        if kernels is None or len(kernels) != 1 or taken(step):
            return IS_NEAR.refused("a product in place" if taken(step) else "other kernels")
        (kernel,) = kernels
        launch, key = kernel.kernel.launch, (kernel.kernel.identity, warps)
        if kernel.packed or kernel.kernel.maps or launch is None or not launch.cycles:
            rows = "weights packed in tiles" if kernel.packed else "no tiles"
            return IS_NEAR.refused("copies by tensor maps, for many rows" if kernel.kernel.maps else rows)
        if key not in self.near:
            others = make_kernels(step, self.selection, Request(Role.WITH_PROLOGUE, starts_early=True, warps=warps))
            fits = len(others) == 1 and has_rows(others[0].kernel)
            self.near[key] = others[0] if fits and others[0].bindings.keys() == kernel.bindings.keys() else None
        other = self.near[key]
        return (
            IS_NEAR.refused("tiles that read weights in turns")
            if other is None
            else replace(other, bindings=kernel.bindings)
        )

    def _ahead(self, product: GpuKernel) -> GpuKernel:
        """A product with the gains of its norm in shared memory before the kernel before it has ended."""
        rooms = rooms_of_constants({n: product.bindings[n] for n in product.reread}, self.selection.locations)
        kernel = with_constants_first(product.kernel, rooms) if rooms else None
        if kernel is None:
            return product
        kept = self.kept(("gains before weights", product.kernel.identity), product.bindings, lambda: kernel)
        return replace(product, kernel=kept.kernel, code=kept.code)

    @property
    def _gemv(self) -> GemvTimings:
        return self.selection.device.timings.gemv

    @property
    def _launch(self) -> float:
        """Cycles of a launch."""
        return self.selection.device.timings.launches.dependent_launch * self.selection.device.hertz

    def _disturbs(self, small: GpuKernel, large: GpuKernel) -> bool:
        """Whether a block that is over may have written what another one still reads."""
        return bool(self.memory.used(small) & self.memory.written(large))

    def _judged(self, step: Step, now: float, was: float) -> Refused | None:
        """What refuses a step within the product after it by the estimates, in cycles; both are recorded."""
        seconds, expected = (cycles / self.selection.device.hertz for cycles in (now, was))
        slower = Refused(
            IS_FASTER,
            f"{seconds * 1e6:.2f} µs",
            f"less than {expected * 1e6:.2f} µs, as launches",
            "fewer rows: their blocks compute it again and again",
        )
        refused = None if now < was else slower
        self.choices.record([step], WITHIN, refused, seconds, expected)
        return refused


def _cycles(kernels: Kernels) -> float:
    return sum([one.kernel.launch.cycles for one in kernels or () if one.kernel.launch is not None])


def _bytes(kernel: Kernel) -> str:
    return f"{0 if kernel.launch is None else kernel.launch.shared_bytes:,} bytes"


__all__ = ["IS_FASTER", "NearLaunches"]
