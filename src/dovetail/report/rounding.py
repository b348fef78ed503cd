"""What kernels round before they multiply, and how far that is from float64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dovetail.report.paint import Line, Piece, line
from dovetail.report.record import Kernel

_EXPECTED: Mapping[str, float] = MappingProxyType({"to bytes": 0.005, "to bf16": 0.0024, "to f16": 0.001})
"""The error of products of normal numbers, as a part of their norm."""

NOTHING = "nothing: these products stay f32"
"""Of a kernel that was to round and cannot."""


def rounding_lines(kernels: Iterable[Kernel], mark: int) -> list[Line]:
    """A line for each way of rounding, with the error of its products: measured on weights, or else what to expect."""
    found: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        if kernel.rounding:
            found.setdefault(kernel.rounding, []).append(kernel)
    head = Piece(f"{'ROUNDED':<{mark}}", "warn")
    return [
        line(head, f"{len(some):>3} × {rounding_text(rounding, some)}", hang=mark + 2)
        for rounding, some in found.items()
    ]


def rounding_text(rounding: str, kernels: list[Kernel]) -> str:
    """What some kernels round, and the error of their products."""
    if rounding == NOTHING:
        return f"{rounding} ({', '.join(sorted({kernel.op for kernel in kernels}))})"
    errors = sorted([kernel.error for kernel in kernels if kernel.error is not None])
    if errors:
        least, most = (f"{error:.2%}" for error in (errors[0], errors[-1]))
        several = least if least == most else f"{least} to {most}"
        return f"{rounding}: products are {several} off float64, with these weights and random activations"
    return f"{', '.join(map(_expected, rounding.split(', ')))} off float64"


def _expected(rounding: str) -> str:
    error = next((error for end, error in _EXPECTED.items() if rounding.endswith(end)), None)
    return rounding if error is None else f"{rounding}: products are about {error:.2%}"


__all__ = ["NOTHING", "rounding_lines", "rounding_text"]
