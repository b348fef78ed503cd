"""Steps of a region after its anchor, as a kernel of the loop language that goes over finished rows.

The anchor's kernel stores a few rows of f32 results in its workspace. The epilogue reads them and the other operands of
the region, and writes the results of the region, whatever their dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.loops.ir import Kernel

ROWS, PITCH, COUNT = "rows", "rows_pitch", "rows_count"
"""The finished rows, the bytes from one to the next, and the elements of each."""
RESULT = "y"
"""The pointer of the first result."""


@dataclass(frozen=True, slots=True)
class RowEpilogue:
    """The function that applies the steps, and the pointers and sizes of its words after those of the rows."""

    function: str
    pointers: tuple[str, ...]
    """Operands, then results."""
    sizes: tuple[str, ...]
    axes: tuple[str, ...]
    """The names of the result's axes: each pointer has a stride along each."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Pointers besides the first result, which every kernel has."""
        return tuple([name for name in self.pointers if name != RESULT])

    @property
    def strides(self) -> tuple[str, ...]:
        """The names of all strides and offsets."""
        return tuple([f"{name}_{axis}" for name in self.pointers for axis in (*self.axes, "offset")])


@dataclass(frozen=True, slots=True)
class RowSteps:
    """The loops over some rows, what their pointers point to, and strides and offsets in bytes by name."""

    kernel: Kernel
    bindings: Mapping[str, Value]
    """Operands and results, less the first result."""
    strides: Mapping[str, Size]
    axes: tuple[str, ...]


__all__ = ["COUNT", "PITCH", "RESULT", "ROWS", "RowEpilogue", "RowSteps"]
