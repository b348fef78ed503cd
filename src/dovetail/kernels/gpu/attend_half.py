"""The rows that a lane has of its warp's queries in an attention, and the names of what it keeps of them."""

from __future__ import annotations

from dovetail.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Half:
    """One of the rows that a lane has of its warp's 16: two of them, or more without tensor cores."""

    number: int

    @property
    def most(self) -> str:
        return f"most{self.number}"

    @property
    def total(self) -> str:
        return f"total{self.number}"

    @property
    def shrunk(self) -> str:
        return f"shrunk{self.number}"

    @property
    def query(self) -> str:
        return f"query{self.number}"


HALVES = (Half(0), Half(1))
FMA_ROWS = tuple([Half(number) for number in range(8)])
"""Those of a lane that multiplies by multiply-adds."""

__all__ = ["FMA_ROWS", "HALVES", "Half"]
