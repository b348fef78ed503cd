"""Cards of every generation as their drivers describe them, on the simulated device."""

from __future__ import annotations

from collections.abc import Mapping

from tests.targets.cuda.fake_driver import FakeLibrary
from tests.targets.cuda.simulated import SimulatedDriver

_NUMBERS = 75, 76, 16, 97, 38, 13, 36, 37
"""Of attributes: the capability, multiprocessors, shared memory of a block, L2, clock, that of memory, and its bus."""
CARDS: Mapping[str, tuple[int, ...]] = {
    "a100": (8, 0, 108, 163 << 10, 40 << 20, 1_410_000, 1_215_000, 5120),
    "l4": (8, 9, 58, 99 << 10, 48 << 20, 2_040_000, 6_251_000, 192),
    "h200": (9, 0, 132, 227 << 10, 50 << 20, 1_980_000, 3_201_000, 6144),
    "b200": (10, 0, 148, 227 << 10, 126 << 20, 1_965_000, 3_996_000, 8192),
    "b300": (10, 3, 148, 227 << 10, 126 << 20, 1_920_000, 3_996_000, 8192),
    "rtx5090": (12, 0, 170, 99 << 10, 96 << 20, 2_407_000, 14_001_000, 512),
}
"""By name: what the driver of each says."""


def card(name: str) -> SimulatedDriver:
    """The driver of a card."""
    library = FakeLibrary()
    library.attributes |= dict(zip(_NUMBERS, CARDS[name], strict=True))
    return SimulatedDriver(library)


__all__ = ["CARDS", "card"]
