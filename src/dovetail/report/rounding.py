"""What kernels round before they multiply, and how far that is from float64."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.report.paint import Line, Piece, line
from dovetail.report.record import Kernel

_TO_BF16 = "to bf16"
_EXPECTED = 0.0024
"""Of products of numbers that are all over the place: 2^-8 at most for each factor, 0.17 % in the mean of squares."""


def rounding_lines(kernels: Iterable[Kernel], mark: int) -> list[Line]:
    """A line for each way of rounding, with the error of its products where that is known."""
    found: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        if kernel.rounding:
            found.setdefault(kernel.rounding, []).append(kernel)
    lines: list[Line] = []
    for rounding, some in found.items():
        head = Piece(f"{'ROUNDED':<{mark}}", "warn")
        lines.append(line(head, f"{len(some):>3} × {rounding}{_error(rounding, some)}", hang=mark + 2))
    return lines


def _error(rounding: str, kernels: list[Kernel]) -> str:
    errors = sorted([kernel.error for kernel in kernels if kernel.error is not None])
    if errors:
        least, most = (f"{error:.2%}" for error in (errors[0], errors[-1]))
        several = least if least == most else f"{least} to {most}"
        return f": products are {several} off float64, with these weights and random activations"
    return f": products are about {_EXPECTED:.2%} off float64" if rounding.endswith(_TO_BF16) else ""


__all__ = ["rounding_lines"]
