"""What a back end brings to what all GPUs share: it is one record, and nothing here imports a back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.dataclass import dataclass
from dovetail.declare.machine import Machine
from dovetail.kernels.loops.ir import Kernel


@dataclass(frozen=True, slots=True)
class GpuBackend:
    """The back end for the GPUs of one maker."""

    printer: Callable[[Kernel, Mapping[str, int], str], str]
    """The text of a scheduled kernel, given the bytes that each pointer is a multiple of, and an architecture."""
    machine: Machine
    """What its cards do in a second: by that rows of the selection table without an estimate of their own are priced,
    and kernels without tiles."""


__all__ = ["GpuBackend"]
