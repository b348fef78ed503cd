"""The one table of steps that may run as NumPy on the host, each with the reason. Any other host step fails a model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dovetail.report.measured import Measured

NAMED: Mapping[str, str] = MappingProxyType(
    {
        "fourier": "there is no kernel for it; NumPy's FFT (pocketfft) is compiled code",
        "counting": "the run finds its size, so memory is allocated then; NumPy's arange is compiled code",
        "while": "its body finds a size in every trip; Python counts the trips, and the steps of the body are compiled",
    }
)
"""The reason by op."""


def unnamed(measured: Measured) -> dict[str, float]:
    """Seconds of the ops that ran on the host and are in no line of the table."""
    found: dict[str, float] = {}
    for kernel in measured.kernels:
        if kernel.on_host and kernel.op not in NAMED:
            found[kernel.op] = found.get(kernel.op, 0.0) + kernel.seconds
    return found
