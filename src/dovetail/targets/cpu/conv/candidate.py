"""Kernels that may serve a convolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from dovetail.codegen.llvm.kernel import KernelCode
from dovetail.dataclass import dataclass
from dovetail.declare.machine import Cost
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused
from dovetail.kernels.problems.convolution import ConvProblem
from dovetail.kernels.spec import Job, Number, Packed, SharedFunction, Template, Tiling, Variant


class ConvTiler(Protocol):
    """How the work of one kernel is tiled, for sizes that are known now or later."""

    @property
    def problem(self) -> ConvProblem: ...

    def __call__(self, number: Number) -> Tiling | None: ...

    def tiling(self, of: ConvProblem) -> Tiling | None:
        """The tiling where all spatial sizes are known; None where a condition of the kernel refuses them."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel that may serve a convolution; its code is generated once it is wanted."""

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

    def job(self) -> Job | Refused:
        """The kernel with its work tiled for the sizes as they are."""
        tiling = self.tiler.tiling(self.tiler.problem)
        if tiling is None:
            return Refused("sizes_suit_the_kernel")
        return Job(self._template(tiling.sizes, tiling.scratch), self.bindings, tiling.launch)

    def offer(self, cost: Callable[[], Cost] | None = None) -> Offer:
        """The kernel as a row of the selection table offers it."""
        return Offer(self.job, cost, self.name, None if self.is_known else self.variant)

    def _template(self, sizes: tuple[Size, ...], scratch: Size) -> Template:
        made = self.code().template(self.bindings, sizes, scratch)
        return replace(made, variant=self.name, shared=(*made.shared, *self.shared))
