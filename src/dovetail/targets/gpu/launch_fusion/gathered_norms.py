"""A norm that finds the rows of a table itself: the launch before it, which copied them, is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.kernels.families.rows import ROWS
from dovetail.kernels.loops.launch_fusion.row_gather import RowGather, with_gathered_rows
from dovetail.kernels.loops.launch_fusion.row_prologue import RowKernel, launched_rows
from dovetail.ops import gather
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.footprints import Footprints, taken

_OF_GATHER = "gather_"
"""Before the names of pointers that finding rows needs."""


@dataclass(frozen=True, slots=True)
class GatheredNorms:
    """Finds norms of rows that the step before them gathers."""

    memory: Footprints
    kept: Callable[..., GpuKernel]

    def joined(self, before: tuple[Step, Kernels], after: tuple[Step, Kernels]) -> GpuKernel | None:
        """The norm that finds its rows; None where the two stay apart."""
        (step, gathers), (norm, others) = before, after
        if step.value.op is not gather or not gathers or not others or len(gathers) != 1 or len(others) != 1:
            return None
        (large,), (small,) = gathers, others
        (rows,) = step.results
        if small.kernel.name != ROWS or small.has_more or small.checks or large.has_more or taken(step) or taken(norm):
            return None
        read = [n for n, v in small.bindings.items() if v is rows]
        if len(read) != 1 or self.memory.readers.get(rows) != 1 or not self.memory.is_whole(rows):
            return None
        if self.memory.is_overwritten(large, rows, small):
            return None
        width = rows.shape[-1]
        of = RowGather.of(large.kernel, width) if isinstance(width, int) else None
        warps = RowKernel.of(small.kernel, width) if isinstance(width, int) else None
        if of is None or warps is None:
            return None
        names = {n: f"{_OF_GATHER}{n}" for n in of.pointers}
        bindings = {n: v for n, v in small.bindings.items() if n != read[0]}
        bindings |= {names[n]: v for n, v in large.bindings.items() if v is not rows}
        key = "gathered norm", id(small.kernel), id(large.kernel), read[0]
        made = self.kept(
            key, bindings, lambda: launched_rows(with_gathered_rows(warps, of, read[0], names), small.kernel)
        )
        return replace(made, checks=tuple([names[n] for n in large.checks]))


__all__ = ["GatheredNorms"]
