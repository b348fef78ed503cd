"""A small model of a machine: what work and traffic take on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from dovetail.ir.dim import Dim, Size, substitute, symbols

ASSUMED_SIZE = 128
"""What an unbound symbol counts as in an estimate."""

Kind = Literal["map", "contract", "conv", "conv_3x3", "conv_apart"]
"""What decides how much of the peak a kernel reaches with its multiply-adds: products, convolutions, those of them that
can do with fewer multiply-adds than they stand for, and those whose sums share no factors."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point work and memory traffic of one kernel."""

    flops: Size
    bytes: Size
    given: Size = 0
    """Those of the bytes that no kernel has just written: parameters, constants and inputs."""
    dense: Size = 0
    """Those of the flops that are multiply-adds of contractions."""
    kind: Kind = "map"


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

    contract: float = 1.0
    conv: float = 1.0
    conv_3x3: float = 1.0
    conv_apart: float = 1.0
    map: float = 1.0
    epilogue: float | None = None
    """What is done to the sums of a convolution while they lie in registers; None is as in a map."""

    def of(self, kind: Kind) -> float:
        match kind:
            case "contract":
                return self.contract
            case "conv":
                return self.conv
            case "conv_3x3":
                return self.conv_3x3
            case "conv_apart":
                return self.conv_apart
            case "map":
                return self.map


@dataclass(frozen=True, slots=True)
class Machine:
    """Peak arithmetic, the bandwidth of main memory and of the levels before it, and what starting a kernel costs."""

    flops_per_second: float
    bytes_per_second: float
    launch_seconds: float
    levels: tuple[Level, ...] = ()
    """The nearest first; what fits none lies in main memory."""
    given_per_second: float | None = None
    """Bytes a second of parameters and inputs, which a whole run has passed over since; None asks the levels."""
    reach: Reach = field(default_factory=Reach)
    overlap: float = 1.0
    """The share of the shorter of work and traffic that is hidden behind the longer."""
    source: str = "built-in"
    """Where the figures come from."""

    def seconds(self, cost: Cost, sizes: Mapping[str, Size] | None = None) -> float:
        """The time of one kernel."""
        flops, dense = estimate(cost.flops, sizes), estimate(cost.dense, sizes)
        is_conv = cost.kind not in ("map", "contract")
        other = self.reach.epilogue if is_conv and self.reach.epilogue is not None else self.reach.map
        work = (dense / self.reach.of(cost.kind) + (flops - dense) / other) / self.flops_per_second
        given = estimate(cost.given, sizes)
        traffic = self.moving(estimate(cost.bytes, sizes) - given) + self._given(given)
        return max(work, traffic) + (1 - self.overlap) * min(work, traffic) + self.launch_seconds

    def floor(self, cost: Cost, sizes: Mapping[str, Size] | None = None) -> float:
        """The roofline: what no kernel of this work and traffic can stay below."""
        given = estimate(cost.given, sizes)
        made = estimate(cost.bytes, sizes) - given
        traffic = made / self.bandwidth(made) + self._given(given)
        return max(estimate(cost.flops, sizes) / self.flops_per_second, traffic)

    def moving(self, bytes: float) -> float:
        """Seconds to write or read a tensor of a run."""
        return bytes / self.passing(bytes)

    def bandwidth(self, bytes: float) -> float:
        """Bytes a second that are read of the level that holds so many."""
        level = self._level(bytes)
        return self.bytes_per_second if level is None else level.bytes_per_second

    def passing(self, bytes: float) -> float:
        """Bytes a second from kernel to kernel, if they move so many."""
        level = self._level(bytes)
        return self.bytes_per_second if level is None else level.passed_per_second or level.bytes_per_second

    def _level(self, bytes: float) -> Level | None:
        for level in self.levels:
            if bytes <= level.size:
                return level
        return None

    def streaming(self, bytes: int) -> Machine:
        """The machine for a model with so many bytes of parameters: they lie in no level that is smaller."""
        return replace(self, given_per_second=self.bandwidth(bytes))

    def flat(self, bytes: int) -> Machine:
        """A machine that moves every tensor of a run as it does one of so many bytes.

        Then two kernels are never cheaper than one that does the same, only because each has less to hold.
        """
        given = self.given_per_second or self.bytes_per_second
        return replace(self, bytes_per_second=self.passing(bytes), given_per_second=given, levels=())

    def _given(self, bytes: float) -> float:
        return bytes / (self.given_per_second or self.bandwidth(bytes))


def estimate(size: Size, sizes: Mapping[str, Size] | None = None) -> int:
    """A size as a number; symbols that nobody bound count as ASSUMED_SIZE."""
    if size.__class__ is int:
        return size  # type: ignore[return-value]
    if isinstance(size, Dim):
        known = sizes or {}
        assumed: dict[str, Size] = {name: known.get(name, ASSUMED_SIZE) for name in symbols(size)}
        size = substitute(size, assumed)
    return size if isinstance(size, int) else 0


__all__ = ["ASSUMED_SIZE", "Cost", "Kind", "Level", "Machine", "Reach", "estimate"]
