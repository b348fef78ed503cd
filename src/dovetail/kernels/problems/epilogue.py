"""What becomes of the sums of an anchor: steps in registers, or a function of finished rows.

Steps that read nothing but the sum are vector code: in registers where they are few, else in a pass over L1 before a
result is stored. The function reads rows of f32 results that the anchor's kernel has finished in its workspace, and the
other operands of the region by strides, and writes the results, whatever their dtypes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import copysign
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.loops.ir import Kernel

ROWS, PITCH, COUNT = "rows", "rows_pitch", "rows_count"
"""The finished rows, the bytes from one to the next, and the elements of each."""
RESULT = "y"
"""The pointer of the first result."""

Operand: TypeAlias = int | float
"""The number of an earlier step, of which 0 is the sum, or a literal as a float."""
Steps: TypeAlias = tuple[tuple[str, tuple[Operand, ...]], ...]
"""Elementwise primitives of f32 on a sum, in their order, each with its operands."""
FUNCTIONS = frozenset({"sigmoid", "tanh", "erf"})
"""Those of many instructions."""
MOST_IN_REGISTERS = 2
"""Instructions that a register tile applies to its sums, besides clamps."""
RELU: Steps = (("relu", (0,)),)


@dataclass(frozen=True, slots=True)
class RowSteps:
    """The loops over some rows, what their pointers point to, and strides and offsets in bytes by name."""

    kernel: Kernel
    bindings: Mapping[str, Value]
    """Operands and results, less the first result."""
    strides: Mapping[str, Size]
    axes: tuple[str, ...]


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
class Epilogue:
    """Whether there is a bias, whether a tensor is added then, and the steps: vector code, or a function of rows."""

    steps: Steps = ()
    bias: bool = False
    residual: bool = False
    rows: RowEpilogue | None = None

    def absent(self, *residual: str) -> frozenset[str]:
        """The arguments that a kernel does without: bias, residual, and sizes of the residual by name."""
        without: list[str] = [] if self.bias else ["b"]
        without += [] if self.residual else ["r", *residual]
        return frozenset(without)

    @property
    def before_residual(self) -> Epilogue:
        """What is done before the residual is added: all of it where there is none."""
        return replace(self, steps=(), residual=False) if self.residual else self

    @property
    def marks(self) -> str:
        """What a register tile does itself, as a part of its name: all that its text depends on."""
        steps = self.in_registers
        digest = hashlib.blake2b(repr(steps).encode(), digest_size=8).hexdigest()
        named = "relu" if steps == RELU else f"steps_{digest}"
        marks = (("bias", self.bias), ("residual", self.residual), (named, bool(steps)))
        return "".join(f".{mark}" for mark, holds in marks if holds)

    @property
    def in_registers(self) -> Steps:
        """The steps, if register tiles apply them themselves."""
        return () if self.finishes else self.steps

    @property
    def finishes(self) -> bool:
        """Whether steps are applied where results are stored, in a pass of its own over L1."""
        return not _fit_registers(self.steps)


def bound_of(op: str, operands: Sequence[Operand]) -> float | None:
    """What a step clamps an earlier one by; None for other steps. To clamp by -0.0 takes more than a comparison."""
    if op == "relu":
        return 0.0
    bound = operands[-1]
    if op not in ("maximum", "minimum") or isinstance(operands[0], float) or not isinstance(bound, float):
        return None
    return None if bound == 0.0 and copysign(1.0, bound) < 0 else bound


def _fit_registers(steps: Steps) -> bool:
    """Whether steps are few instructions, clamps left out; a product that is added is one with the sum."""
    counted = [op for op, operands in steps if bound_of(op, operands) is None]
    products = {i for i, (op, _) in enumerate(steps, 1) if op == "mul"}
    joined = sum(op == "add" and not products.isdisjoint(operands) for op, operands in steps)
    return len(counted) - joined <= MOST_IN_REGISTERS and FUNCTIONS.isdisjoint(counted)


__all__ = [
    "COUNT",
    "PITCH",
    "RELU",
    "RESULT",
    "ROWS",
    "Epilogue",
    "Operand",
    "RowEpilogue",
    "RowSteps",
    "Steps",
    "bound_of",
]
