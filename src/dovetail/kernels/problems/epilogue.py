"""What becomes of the sums of a convolution: bias, residual and activation."""

from __future__ import annotations

from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.kernels.problems.region_steps import EpilogueSteps
from dovetail.kernels.problems.row_epilogue import RowEpilogue
from dovetail.library.activation import Activation

IN_REGISTERS: tuple[Activation, ...] = ("none", "relu", "relu6", "hard_sigmoid", "hard_swish")
"""Activations of few instructions, which every register tile has; the others are done on finished rows in L1."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Whether there is a bias, whether a tensor is added then, the activation, and steps on finished rows."""

    act: Activation | EpilogueSteps = "none"
    bias: bool = False
    residual: bool = False
    rows: RowEpilogue | None = None
    """Steps that read other tensors or write another dtype: they run on rows in the workspace."""

    def absent(self, *residual: str) -> frozenset[str]:
        """The arguments that a kernel does without: bias, residual, and sizes of the residual by name."""
        without: list[str] = [] if self.bias else ["b"]
        without += [] if self.residual else ["r", *residual]
        return frozenset(without)

    @property
    def before_residual(self) -> Epilogue:
        """What is done before the residual is added: all of it where there is none."""
        return replace(self, act="none", residual=False) if self.residual else self

    @property
    def marks(self) -> str:
        """What a register tile does itself, as a part of its name."""
        act = self.in_registers
        marks = (("bias", self.bias), ("residual", self.residual), (act, act != "none"))
        return "".join(f".{mark}" for mark, holds in marks if holds)

    @property
    def in_registers(self) -> Activation | EpilogueSteps:
        """The activation, if register tiles do it themselves."""
        return "none" if self.finishes else self.act

    @property
    def finishes(self) -> bool:
        """Whether results are activated where they are stored, in a pass of its own over L1."""
        return not isinstance(self.act, EpilogueSteps) and self.act not in IN_REGISTERS
