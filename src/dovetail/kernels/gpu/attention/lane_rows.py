"""The rows that a lane has of its warp's queries in an attention, the names of what it keeps of them, and how lanes
combine that."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32, i64
from dovetail.kernels.gpu.gemm.fragments import LANE
from dovetail.kernels.loops.ir import Call, Extent, FromLane, Name, Set, Statement


@dataclass(frozen=True, slots=True)
class LaneRow:
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


FRAGMENT_ROWS = (LaneRow(0), LaneRow(1))
FMA_ROWS = tuple([LaneRow(number) for number in range(8)])
"""Those of a lane that multiplies by multiply-adds."""


def with_lane(name: str, op: str, apart: int) -> list[Statement]:
    """Combine what a lane keeps under a name with that of the lane whose number differs by one bit."""
    other = f"other_{name}"
    lane = Call("bit_xor", (LANE, Extent(apart)), i64)
    return [FromLane(other, name, lane, f32), Set(name, Call(op, (Name(name, f32), Name(other, f32)), f32))]


__all__ = ["FMA_ROWS", "FRAGMENT_ROWS", "LaneRow", "with_lane"]
