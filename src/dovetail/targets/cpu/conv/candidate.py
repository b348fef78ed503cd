"""A step read as a convolution, the kernels that may serve it, and what each costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import log2
from typing import TypeAlias

from dovetail.codegen.llvm.kernel import KernelCode
from dovetail.dataclass import dataclass
from dovetail.declare.machine import Cost
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem
from dovetail.kernels.spec import Job, Packed, Priced, SharedFunction, SizeFunction, Template, Tiling, Variant
from dovetail.targets.cpu.conv.epilogue import WithEpilogue, with_epilogue
from dovetail.targets.cpu.conv.policy import ISSUE


@dataclass(frozen=True, slots=True)
class Effort:
    """For each image and group: vector FMAs at the rate of the peak, empty lanes included, and vectors that are packed
    or transposed. Counts follow the register tiles; they are not fitted to single layers."""

    fmas: float
    moved: float
    lanes: int
    taps: int = 0
    """Weights of a filter and channel, where they are not those of the window."""


def transposed(vectors: float, lanes: int) -> float:
    """Vectors that are transposed, in units of a copied one: each takes log₂ lanes shuffles."""
    return vectors * log2(lanes)


def rate(rows: int, columns: int) -> float:
    """The share of the FMA rate that a register tile of rows × columns reaches: enough accumulators hide the latency of
    an FMA, and each step loads a row and a column for their products."""
    accumulators = rows * columns
    return min(1.0, accumulators / ISSUE.accumulators, accumulators / (rows + columns) / ISSUE.fmas_per_load)


class ConvTiler(ABC):
    """How the work of one kernel is tiled: a dataclass, for sizes that are known now or later."""

    __slots__ = ()
    problem: ConvProblem

    def __call__(self, number: SizeFunction) -> Tiling | None:
        """The tiling once sizes are known; None where a condition refuses them."""
        of = self.problem.known(number)
        return None if self.declines(of) is not None else self.tiling(of)

    def priced(self, number: SizeFunction) -> Priced | None:
        """The cost of sizes that no condition refuses."""
        of = self.problem.known(number)
        return None if self.declines(of) is not None else Priced(conv_cost(of, self), lambda: self.tiling(of))

    def declines(self, of: ConvProblem) -> Refused | None:
        """The condition that refuses spatial sizes, which are known; None where all hold."""
        return None

    @abstractmethod
    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling where all spatial sizes are known."""

    @abstractmethod
    def effort(self, of: ConvProblem) -> Effort:
        """What each image and group costs where spatial sizes are known."""


def conv_cost(of: ConvProblem, tiler: ConvTiler) -> Cost:
    """The cost of a kernel where spatial sizes are known: the machine model turns it into seconds."""
    effort = tiler.effort(of)
    each = 2 * effort.lanes
    dense, moved = round(each * effort.fmas), round(each * effort.moved)
    weights = 4 * of.groups * of.filters * of.channels * (effort.taps or of.geometry.taps)
    (height, width), (rows, columns) = of.geometry.sizes, of.geometry.out
    count = of.images * of.groups
    bytes = 4 * count * (height * width * of.channels + rows * columns * of.filters) + weights
    return Cost(count * (dense + moved), bytes, weights, count * dense, "conv")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel that may serve a convolution; its code is generated once it is needed."""

    bindings: Mapping[str, Value | Packed]
    tiler: ConvTiler
    code: Callable[[], KernelCode]
    name: str
    """What reports call it."""
    shared: tuple[SharedFunction, ...] = ()
    """Functions that its code calls besides those that it comes with: the epilogue on rows."""

    @property
    def is_known(self) -> bool:
        """Whether sizes tell now whether it is the one."""
        return self.tiler.problem.geometry.is_known

    def variant(self) -> Variant:
        """The kernel, for sizes that are known later."""
        return Variant(self._template((), 0), self.bindings, self.tiler)

    def job(self) -> Job:
        """The kernel with its work tiled for the sizes as they are."""
        tiling = self.tiler.tiling(self.tiler.problem)
        return Job(self._template(tiling.sizes, tiling.scratch), self.bindings, tiling.launch)

    def offer(self) -> Offer:
        """The kernel as a row of the selection table offers it."""
        if not self.is_known:
            return Offer(self.job, None, self.name, self.variant)
        return Offer(self.job, lambda: conv_cost(self.tiler.problem, self.tiler), self.name)

    def _template(self, sizes: tuple[Size, ...], scratch: Size) -> Template:
        template = self.code().template(self.bindings, sizes, scratch)
        return replace(template, variant=self.name, shared=(*template.shared, *self.shared))


Candidates: TypeAlias = Sequence[Candidate] | Refused
"""The kernels of a row of the selection table, or the condition that refuses the convolution."""

LEVEL = Refused("operands_of_the_epilogue_have_the_layout_of_the_result", "other strides")


def between(condition: str, number: int, least: int, most: int | None = None) -> Refused | None:
    """Whether a number is within limits."""
    if number >= least and (most is None or number <= most):
        return None
    return Refused(condition, str(number), f"at least {least}" if most is None else f"{least} to {most}")


def convolution_of(of: StepProblem[CpuDevice]) -> tuple[WithEpilogue, ConvProblem] | Refused:
    """A step as a convolution."""
    plain = Convolution.of(of.value)
    if plain is None:
        return Refused("step_is_a_convolution", of.value.op.name, "one, with an epilogue that kernels apply")
    if not plain.is_dense:
        return Refused("convolution_is_of_f32", str(of.value.type), "f32 along one or two axes")
    conv = with_epilogue(plain, of)
    return conv if isinstance(conv, Refused) else (conv, conv.convolution.problem(of.locations))


def with_bound_weights(of: StepProblem[CpuDevice]) -> tuple[WithEpilogue, ConvProblem] | Refused:
    """A step as a convolution with weights that are known when parameters are bound."""
    read = of.once(convolution_of)
    if isinstance(read, Refused) or read[0].convolution.has_bound_weights(of.locations):
        return read
    return Refused("weights_are_bound", "weights of a run", "parameters, which are packed before the run")


def with_weights_of_a_run(of: StepProblem[CpuDevice]) -> tuple[WithEpilogue, ConvProblem] | Refused:
    """A step as a convolution with weights that a run computes, or is given."""
    read = of.once(convolution_of)
    if isinstance(read, Refused) or not read[0].convolution.has_bound_weights(of.locations):
        return read
    return Refused("weights_are_of_a_run", "parameters", "weights that change, which are packed in the run")
