"""What an NVIDIA GPU says of itself."""

from __future__ import annotations

from dovetail.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """What a GPU says of itself."""

    name: str
    capability: tuple[int, int]
    driver: str
    """The newest CUDA that the driver runs, such as 12.8."""
    multiprocessors: int
    memory_bytes: int
    clock_hertz: float
    memory_bytes_per_second: float
    """By the memory's clock and the width of its bus: what no program reaches."""
    l2_bytes: int
    shared_bytes: int


__all__ = ["Card"]
