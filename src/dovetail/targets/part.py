"""What a saved program has for one kind of processor, and how a target makes and runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array


@dataclass(frozen=True, slots=True)
class Part:
    """Machine code, what is said of it, and the arrays that it reads, packed for it."""

    isa: str
    """The name of the set of instructions."""
    needs: tuple[str, ...]
    """What the processor has to have, as the system lists it."""
    rank: int
    """Of the parts that run, the one of the highest rank is taken."""
    said: Mapping[str, Any]
    """Plain data: how steps call the code, and which array is what."""
    code: bytes
    arrays: tuple[Array, ...]


__all__ = ["Part"]
