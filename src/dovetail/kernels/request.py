"""Where a selected kernel will run: in a launch of its own, or as a part of something larger."""

from __future__ import annotations

from enum import Enum, auto

from dovetail.dataclass import dataclass
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.gpu_schedule import GpuShape
from dovetail.kernels.loops.split_reduce import SplitLimits


class Role(Enum):
    """Where a kernel runs."""

    LAUNCH = auto()
    """It is a launch of its own."""
    WITH_PROLOGUE = auto()
    """It is a launch whose blocks compute what they read first: their weights are whole in shared memory by then."""
    PART = auto()
    """It is a part of a persistent kernel. All its blocks run at once and may wait for each other. Blocks that have
    several tiles take turns, and tensor maps of all passes do not fit the arguments: warps multiply for themselves."""


@dataclass(frozen=True, slots=True)
class Request:
    """Where a kernel will run. What a machine is, its device says."""

    role: Role = Role.LAUNCH
    starts_early: bool = False
    """Whether it starts while the kernel before it still runs: programmatic dependent launch."""
    warps: int = 0
    """Warps of a block of a host, at least, where what it computes first needs them; 0 where its product decides."""
    sum_cycles: float | None = None
    """Cycles to add up the partial sums of a split-K GEMM; None where the device's figure holds."""
    clock_is_low: bool = False
    """Whether kernels next to it use tensor cores, so that the clock is the lower one whatever it does."""
    shape: GpuShape | None = None
    """Threads of a block and what each of them takes; None where that of the target serves."""
    rows: SplitLimits | None = None
    """When long rows are split over blocks; None where multiprocessors decide."""
    may_persist: bool = True
    """Whether layers that repeat may be passes of one persistent kernel: not where a device does not hold its blocks,
    which is known once it is compiled."""
    traced: bool = False
    """Whether a persistent kernel keeps when its blocks come to each of its parts."""

    @property
    def is_launch(self) -> bool:
        """Whether it is a launch that nothing else shares."""
        return self.role is Role.LAUNCH

    def sum_cycles_on(self, device: GpuDevice) -> float:
        """Cycles to add up the partial sums of a split-K GEMM; infinite where none is split."""
        return device.sum_cycles if self.sum_cycles is None else self.sum_cycles


LAUNCH = Request()
"""A launch of its own, which waits until the kernel before it has ended."""

__all__ = ["LAUNCH", "Request", "Role"]
