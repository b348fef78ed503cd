"""A small model of a machine: what work and traffic take on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Dim, Size, substitute, symbols
from dovetail.ir.dtype import DType
from dovetail.ops.primitive import MAP

ASSUMED_SIZE = 128
"""What an unbound symbol counts as in an estimate."""


NOISE = 0.25
"""Estimates of two kernels for one step that differ by less are equal. The convolution that measurements prefer has an
estimate up to 23 % above the lowest: the model leaves out page walks, prefetch and how stores are spread."""


def preferred(seconds: Sequence[float]) -> int:
    """The index of the first estimate that no other undercuts by more than the model's noise."""
    most = min(seconds) * (1 + NOISE)
    return next(i for i, one in enumerate(seconds) if one <= most)


def base_kind(kind: str) -> str:
    """The kind that another one refines: "conv" of "conv.depthwise"."""
    return kind.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point work and memory traffic of one kernel."""

    flops: Size
    bytes: Size
    given: Size = 0
    """Those of the bytes that no kernel has just written: parameters, constants and inputs."""
    dense: Size = 0
    """Those of the flops that run at the rate of the kind; the rest runs as a map."""
    kind: str = MAP
    """What decides which share of the peak its dense work reaches, as ops declare it: contract, conv.depthwise."""
    dtype: DType | None = None
    """What it computes in; None counts as f32."""
    rows: Size = 0
    """Results of reductions: each starts and ends a loop, and adds up the lanes of a vector."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level of memory: how many bytes stay in it between two kernels, and how fast they are read."""

    size: int
    bytes_per_second: float
    passed_per_second: float | None = None
    """Of tensors that one kernel writes and the next one reads, on another thread as likely as not; None is as read."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The share of the peak that kernels of each kind come to."""

    kinds: Mapping[str, float] = field(default_factory=dict[str, float])
    """A kind that is not listed reaches what the kind reaches that it refines, else all of the peak."""
    epilogue: float | None = None
    """The share of elementwise work on the accumulators of a convolution; None is that of a map."""

    def of(self, kind: str) -> float:
        found = self.kinds.get(kind)
        return self.kinds.get(base_kind(kind), 1.0) if found is None else found


@dataclass(frozen=True, slots=True)
class Peak:
    """A peak that differs from the machine's: of one kind of work in one dtype."""

    kind: str
    """Kinds that refine it are meant too."""
    dtype: str
    flops_per_second: float


@dataclass(frozen=True, slots=True)
class HostStep:
    """What a step of a device costs that runs on the host: copies there and back, and NumPy between them."""

    seconds: float
    """Of a step without elements: the host waits for the device, and the device for the host. A call of NumPy within a
    loop or a branch takes about as long: it is looked up and checked."""
    bytes_per_second: float

    def of(self, cost: Cost, sizes: Mapping[str, Size] | None = None, *, calls: Size = 1) -> float:
        """The time of a step that is some calls of NumPy."""
        return self.seconds * max(1.0, estimate(calls, sizes)) + estimate(cost.bytes, sizes) / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Machine:
    """Peak arithmetic, the bandwidth of main memory and of the levels before it, and what starting a kernel costs."""

    flops_per_second: float
    """Of f32, and of every kind and dtype that `peaks` does not list."""
    bytes_per_second: float
    launch_seconds: float
    levels: tuple[Level, ...] = ()
    """The nearest first; what fits none is in main memory."""
    given_per_second: float | None = None
    """Bytes a second of parameters and inputs, which a run has evicted from caches; None is by the levels."""
    reach: Reach = field(default_factory=Reach)
    peaks: tuple[Peak, ...] = ()
    """Where arithmetic has a peak of its own: matrix units for narrow dtypes, half the rate for f64."""
    row_seconds: float = 0.0
    """What a result of a reduction takes, however short its row is."""
    overlap: float = 1.0
    """The share of the shorter of work and traffic that overlaps with the longer."""
    source: str = "built-in"
    """Where the figures come from."""
    is_host: bool = False
    """Whether they are this host's, so that a step costs what the kernel variant for this processor does."""
    host_step: HostStep | None = None
    """Of a device: what a step without a kernel costs; None where it costs what the op does."""
    joined: tuple[str, ...] = ()
    """Ops that the kernel before or after them can compute: they decide between choices that cost the same."""

    def seconds(self, cost: Cost, sizes: Mapping[str, Size] | None = None) -> float:
        """The time of one kernel."""
        return self.overlapped(self.work(cost, sizes), self.traffic(cost, sizes))

    def work(self, cost: Cost, sizes: Mapping[str, Size] | None = None) -> float:
        """Seconds of arithmetic, at the share of the peak that its kind reaches."""
        flops, dense = estimate(cost.flops, sizes), estimate(cost.dense, sizes)
        is_conv = base_kind(cost.kind) == "conv"
        other = self.reach.epilogue if is_conv and self.reach.epilogue is not None else self.reach.of(MAP)
        slower, rest_slower = self._slower(cost.kind, cost.dtype), self._slower(MAP, cost.dtype)
        work = dense / self.reach.of(cost.kind) * slower + (flops - dense) / other * rest_slower
        return work / self.flops_per_second + estimate(cost.rows, sizes) * self.row_seconds

    def traffic(self, cost: Cost, sizes: Mapping[str, Size] | None = None) -> float:
        """Seconds of reading and writing."""
        given = estimate(cost.given, sizes)
        return self.moving(estimate(cost.bytes, sizes) - given) + self._given(given)

    def overlapped(self, work: float, traffic: float) -> float:
        """Seconds of a kernel with this much arithmetic and traffic, which overlap in part."""
        return max(work, traffic) + (1 - self.overlap) * min(work, traffic) + self.launch_seconds

    def bound(self, work: float, traffic: float, bytes: float) -> str:
        """What limits a kernel that moves this many bytes: compute, launch, or the level that holds them."""
        if self.launch_seconds >= max(work, traffic):
            return "launch"
        if work >= traffic:
            return "compute"
        level = self._level(bytes)
        return "memory" if level is None else f"L{min(self.levels.index(level), 2) + 1}"

    def floor(self, cost: Cost, sizes: Mapping[str, Size] | None = None) -> float:
        """The roofline: what no kernel of this work and traffic can stay below."""
        given = estimate(cost.given, sizes)
        made = estimate(cost.bytes, sizes) - given
        return max(self.least_work(cost, sizes), self._through(made) + self._given(given))

    def least_work(self, cost: Cost, sizes: Mapping[str, Size] | None = None) -> float:
        """Seconds of arithmetic at the peak."""
        flops, dense = estimate(cost.flops, sizes), estimate(cost.dense, sizes)
        work = dense * self._slower(cost.kind, cost.dtype) + (flops - dense) * self._slower(MAP, cost.dtype)
        return work / self.flops_per_second

    def peak(self, dtype: DType | None = None, kind: str = MAP) -> float:
        """Flops a second that work of a kind can reach in a dtype."""
        if dtype is not None:
            base = base_kind(kind)
            for peak in self.peaks:
                if peak.dtype == dtype.name and peak.kind in (kind, base):
                    return peak.flops_per_second
        return self.flops_per_second

    def _slower(self, kind: str, dtype: DType | None) -> float:
        """By how much the peak of a kind and dtype stays below the machine's."""
        return self.flops_per_second / self.peak(dtype, kind) if self.peaks else 1.0

    def moving(self, bytes: float) -> float:
        """Seconds to write or read a tensor of a run; of one that is larger than a level, a part is found there."""
        return self._through(bytes, passed=True)

    def _through(self, bytes: float, *, passed: bool = False) -> float:
        seconds, below = 0.0, 0
        for level in self.levels:
            if bytes > below:
                rate = (level.passed_per_second if passed else None) or level.bytes_per_second
                seconds += (min(bytes, level.size) - below) / rate
                below = max(below, level.size)
        return seconds + max(0.0, bytes - below) / self.bytes_per_second

    def bandwidth(self, bytes: float) -> float:
        """Bytes a second from the level that holds this many bytes."""
        level = self._level(bytes)
        return self.bytes_per_second if level is None else level.bytes_per_second

    def passing(self, bytes: float) -> float:
        """Bytes a second from kernel to kernel for a tensor of this many bytes."""
        level = self._level(bytes)
        return self.bytes_per_second if level is None else level.passed_per_second or level.bytes_per_second

    def _level(self, bytes: float) -> Level | None:
        for level in self.levels:
            if bytes <= level.size:
                return level
        return None

    def streaming(self, bytes: int) -> Machine:
        """The machine for a model with this many bytes of parameters: no smaller level holds them."""
        return replace(self, given_per_second=self.bandwidth(bytes))

    def flat(self, bytes: int) -> Machine:
        """A machine that moves every tensor of a run as it does one of this many bytes.

        Then two kernels are never cheaper than one that does the same, only because each has less to hold.
        """
        given = self.given_per_second or self.bytes_per_second
        return replace(self, bytes_per_second=self.passing(bytes), given_per_second=given, levels=())

    def _given(self, bytes: float) -> float:
        return bytes / self.given_per_second if self.given_per_second else self._through(bytes)


def estimate(size: Size, sizes: Mapping[str, Size] | None = None) -> int:
    """A size as a number; unbound symbols count as ASSUMED_SIZE."""
    if size.__class__ is int:
        return size  # type: ignore[return-value]
    if isinstance(size, Dim):
        known = sizes or {}
        assumed: dict[str, Size] = {name: known.get(name, ASSUMED_SIZE) for name in symbols(size)}
        size = substitute(size, assumed)
    return size if isinstance(size, int) else 0


__all__ = [
    "ASSUMED_SIZE",
    "MAP",
    "NOISE",
    "Cost",
    "Level",
    "Machine",
    "Peak",
    "Reach",
    "base_kind",
    "estimate",
    "preferred",
]
