"""A kernel that the compiler of a target made by itself, out of steps that the plan has apart."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.ir.value import Value


@dataclass(frozen=True, slots=True)
class Emitted:
    """A kernel as it was read back from what the compiler gave."""

    name: str
    """What the compiler calls it."""
    form: str
    """How it runs: loop fusion, dot."""
    type: str
    """Of its results."""
    values: tuple[Value, ...]
    """Of the plan, operands first; one that several kernels compute again is in each of them."""
    bytes: int | None
    """Of its operands, each read whole, and of its results; None where the compiler does not say."""


__all__ = ["Emitted"]
