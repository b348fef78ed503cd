"""Whether layers that repeat are passes of one kernel or launches: the lower estimate decides, and both are told.

What a kernel computes and reads takes as long either way, but for two things: products of a resident kernel are by
warps, at half the rate of warpgroups, and weights that it copies ahead arrive in part while blocks wait. The rest is
what lies between two kernels: a launch, or a hop from one level of a resident kernel to the next.
"""

from __future__ import annotations

from itertools import pairwise

from dovetail.dataclass import dataclass
from dovetail.declare.cost import estimate, kernel_cost
from dovetail.declare.machine import Machine
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.tile import GROUP_CYCLES, MULTIPLY_CYCLES
from dovetail.kernels.loops.ir import GridBarrier, Kernel, SubGrid
from dovetail.plan.plan import Step
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.gpu_kernel import GpuKernel, Kernels
from dovetail.targets.cuda.resident_runs import Steps
from dovetail.targets.target import Considered

IS_FASTER = "resident_is_faster"
"""The condition that the estimates decide."""


@dataclass(frozen=True, slots=True)
class Residency:
    """What was chosen for the layers of a plan, and why."""

    passes: int = 0
    """Layers that repeat."""
    launched_seconds: float | None = None
    """All passes as launches."""
    resident_seconds: float | None = None
    """The same as one kernel; None where a condition refuses it before it has levels."""
    levels: str = ""
    """What blocks wait at in a pass."""
    refused: Refused | None = None
    """Why layers are launches; None where they are passes of one kernel."""

    @property
    def rows(self) -> tuple[Considered, Considered]:
        """Both ways, as a report tells them."""
        taken, why = self.refused is None, self.refused or Refused("")
        told = f"{self.passes} passes of one kernel" + (f", {self.levels}" if self.levels else "")
        estimates = [t for t in (self.resident_seconds, self.launched_seconds) if t is not None]
        chosen = (self.resident_seconds if taken else self.launched_seconds) or min(estimates, default=0.0)
        ratios = [None if not (t and chosen) else t / chosen for t in (self.resident_seconds, self.launched_seconds)]
        return (
            Considered(
                "resident", taken, "" if taken else told, self.resident_seconds, "layers",
                why.condition, why.found, why.expected, ratio=ratios[0],
            ),
            Considered(
                "launches", not taken, told if taken else "", self.launched_seconds, "layers", ratio=ratios[1]
            ),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prices:
    """Estimates of the passes of a plan on a device."""

    device: GpuDevice
    machine: Machine = CLAIMS.machine

    def launched(self, steps: Steps) -> float:
        """Seconds of steps as launches."""
        waits = self.device.waits
        launch = waits.dependent_launch if self.device.dependent_launches else waits.launch
        return sum([len(kernels or ()) for _, kernels in steps]) * launch + self.work(steps)

    def resident(self, steps: Steps, kernel: Kernel) -> float:
        """Seconds of a pass of a kernel whose parts are those of steps."""
        waits, (words, barriers) = self.device.waits, hops(kernel)
        hidden = waits.hidden * sum([self._reading(step) for step, kernels in steps if _copies_ahead(kernels)])
        return words * waits.words + barriers * waits.barrier + self.work(steps) - hidden

    def work(self, steps: Steps) -> float:
        """Seconds that steps compute, or read what no kernel has just written."""
        return sum([max(self._reading(step), self._computing(step, kernels)) for step, kernels in steps])

    def _reading(self, step: Step) -> float:
        return estimate(kernel_cost(step.value).given) / self.machine.bytes_per_second

    def _computing(self, step: Step, kernels: Kernels) -> float:
        """All blocks of a turn compute at the same time, each at the rate of its multiprocessor."""
        cost = kernel_cost(step.value)
        flops = estimate(cost.flops)
        grids = [_grid(made) for made in kernels or ()]
        if not flops or not grids:
            return 0.0
        blocks = max(1, *grids)
        turns = -(-blocks // self.device.multiprocessors)
        rate = self.machine.peak(cost.dtype, cost.kind) / self.device.multiprocessors
        by_warps = not any(made.kernel.maps for made in kernels or ())
        slower = MULTIPLY_CYCLES / GROUP_CYCLES if by_warps and cost.kind.startswith("contract") else 1.0
        return turns * flops / blocks * slower / rate


def hops(kernel: Kernel) -> tuple[int, int]:
    """Levels of a pass after which blocks wait for words, and those after which they wait at a barrier of the grid."""
    ordered = [s for s in kernel.body if isinstance(s, (SubGrid, GridBarrier))]
    ends = [
        s
        for before, s in pairwise(ordered)
        if isinstance(s, GridBarrier) and isinstance(before, SubGrid)
    ]
    barriers = sum([s.number is not None for s in ends])
    return len(ends) - barriers, barriers


def levels_told(kernel: Kernel) -> str:
    words, barriers = hops(kernel)
    return f"{words} hops by words and {barriers} barriers of the grid in each"


def compared(launched: float, resident: float) -> Refused | None:
    """Why a resident kernel is not taken; None where its estimate is lower."""
    if resident < launched:
        return None
    return Refused(IS_FASTER, f"{resident * 1e6:.1f} µs", f"less than {launched * 1e6:.1f} µs, as launches")


def _grid(made: GpuKernel) -> int:
    launch = made.kernel.launch
    return launch.grid if launch is not None and isinstance(launch.grid, int) else 1


def _copies_ahead(kernels: Kernels) -> bool:
    return any(made.kernel.early for made in kernels or ())


__all__ = ["IS_FASTER", "Prices", "Residency", "compared", "hops", "levels_told"]
