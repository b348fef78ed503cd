"""Whether layers that repeat are passes of one kernel or launches: the lower estimate decides, and both are reported.

What a kernel computes and reads takes the same time in both, but for two things: products of a persistent kernel are by
warps, with a tile of their own, and weights that it copies ahead arrive in part while blocks wait. The rest is what is
between two kernels: a launch, or a hop from one level of a persistent kernel to the next (`LaunchTimings`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest

from dovetail.dataclass import dataclass
from dovetail.declare.cost import estimate, kernel_cost
from dovetail.kernels.choice import Refused
from dovetail.kernels.loops.ir import GridBarrier, Kernel, KernelKind, SubGrid
from dovetail.kernels.loops.persistent.bodies import has_rows
from dovetail.kernels.loops.persistent.passes import part_in, starts_late
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.persistent.exchange import RECEIVED_BYTES
from dovetail.targets.gpu.persistent.repetition import LaunchedSteps
from dovetail.targets.gpu.select import Selection
from dovetail.targets.target import Considered

KIND = "layers"
"""Of the rows of a report."""
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
    steps: Sequence[int] = ()
    """The numbers of the steps of these passes in the plan."""

    @property
    def judged(self) -> Residency:
        """The same, refused where launches take no longer."""
        launched, persistent = self.launched_seconds, self.resident_seconds
        if launched is None or persistent is None or persistent < launched:
            return self
        seconds = f"{persistent * 1e6:.1f} µs, {self.levels}"
        expected = f"less than {launched * 1e6:.1f} µs, as launches"
        return replace(self, refused=Refused(IS_FASTER, seconds, expected))

    @property
    def rows(self) -> tuple[Considered, Considered]:
        """Both variants, as rows of a report."""
        taken, why = self.refused is None, self.refused
        chosen = self.resident_seconds if taken else self.launched_seconds
        slower = f"{self.passes} passes of one kernel are faster, with {self.levels}"

        def row(name: str, refused: Refused | None, reason: str, seconds: float | None) -> Considered:
            ratio = None if seconds is None or not chosen else seconds / chosen
            plain = Considered(name, not reason, reason, seconds, KIND)
            return replace(plain if refused is None else Considered.of(name, refused, KIND, seconds), ratio=ratio)

        return (
            row("resident", why, "", self.resident_seconds),
            row("launches", None, slower if taken else "", self.launched_seconds),
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """Estimates of the passes of a plan on a device."""

    selection: Selection

    def launched(self, steps: LaunchedSteps) -> float:
        """Seconds of steps as launches."""
        waits = self.selection.device.timings.launches
        launch = waits.dependent_launch if self.selection.request.starts_early else waits.launch
        return sum([len(kernels or ()) for _, kernels in steps]) * launch + self.work(steps)

    def least(self, steps: LaunchedSteps) -> float:
        """Seconds of the same steps as a persistent kernel with a level for each of their kernels, before there is one:
        blocks send what is small enough."""
        waits = sum([self._hop(step, kernel) for step, kernels in steps for kernel in kernels or ()])
        return waits + self.work(steps) - self._hidden(steps)

    def hoped(self, steps: LaunchedSteps) -> float:
        """The same before products of many rows are made as parts: their weights are near, and they norm the rows that
        they read. Their work is that of launches."""
        waits, own = 0.0, [(step, kernel) for step, kernels in steps for kernel in kernels or ()]
        for (step, kernel), after in zip_longest(own, [bool(kernel.kernel.maps) for _, kernel in own[1:]]):
            is_joined = kernel.kernel.kind == KernelKind.ROWS and bool(after)
            near = 0.0 if is_joined else self.selection.device.timings.launches.arrival
            waits += near if is_joined or kernel.kernel.maps else self._hop(step, kernel)
        return waits + self.work(steps) - self._hidden(steps)

    def _hop(self, step: Step, kernel: GpuKernel) -> float:
        """Seconds of the wait for a part."""
        waits = self.selection.device.timings.launches
        large = any([estimate(result.tensor.bytes) > RECEIVED_BYTES for result in step.results])
        # A cache that is updated in place is not read whole by the next kernel.
        if not large or any(over is not None for over in step.overs):
            return waits.message
        return waits.arrival if has_rows(kernel.kernel) else waits.barrier

    def persistent(self, steps: LaunchedSteps, kernel: Kernel) -> float:
        """Seconds of a pass of a kernel whose parts are those of steps."""
        waits, (words, barriers) = self.selection.device.timings.launches, hops(kernel)
        near = min(barriers, sum([has_rows(one.kernel) for _, kernels in steps for one in kernels or ()]))
        waited = words * waits.message + (barriers - near) * waits.barrier + near * waits.arrival
        return waited + self.work(steps) - self._hidden(steps)

    def _hidden(self, steps: LaunchedSteps) -> float:
        """What weights take that are copied while blocks wait."""
        reading = [self._reading(step) for step, kernels in steps if _copies_ahead(kernels)]
        return self.selection.device.timings.launches.hidden * sum(reading)

    def work(self, steps: LaunchedSteps) -> float:
        """Seconds that steps compute, and read what no kernel has just written: little of it overlaps in short ones."""
        return sum([self._reading(step) + self._computing(step, kernels) for step, kernels in steps])

    def _reading(self, step: Step) -> float:
        return estimate(kernel_cost(step.value).given) / self.selection.backend.machine.bytes_per_second

    def _computing(self, step: Step, kernels: Kernels) -> float:
        """By the estimate of its tiles, or at the peak: kernels without tiles are the same either way."""
        cycles = sum([kernel.kernel.launch.cycles for kernel in kernels or () if kernel.kernel.launch is not None])
        if cycles:
            return cycles / self.selection.device.hertz
        return self.selection.backend.machine.least_work(kernel_cost(step.value))


def hops(kernel: Kernel) -> tuple[int, int]:
    """Levels of a pass after which blocks wait for words, and those after which they wait at a barrier of the grid."""
    every = [s if isinstance(s, GridBarrier) or starts_late(s) else part_in(s) for s in kernel.body]
    ordered = [s for s in every if isinstance(s, (SubGrid, GridBarrier))]
    ends = [s for before, s in pairwise(ordered) if isinstance(s, GridBarrier) and isinstance(before, SubGrid)]
    barriers = sum([s.number is not None for s in ends])
    return len(ends) - barriers, barriers


def levels_text(kernel: Kernel) -> str:
    words, barriers = hops(kernel)
    return f"{words} hops by words and {barriers} barriers of the grid in each"


def _copies_ahead(kernels: Kernels) -> bool:
    return any(kernel.kernel.early for kernel in kernels or ())


__all__ = ["IS_FASTER", "Prices", "Residency", "hops", "levels_text"]
