"""Kernels that may serve a convolution, and the choice between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dovetail.codegen.llvm.kernel import KernelCode
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.problems.convolution import ConvProblem
from dovetail.kernels.spec import Job, Number, Packed, SharedFunction, Template, Tiling, Variant


class ConvTiler(Protocol):
    """How the work of one kernel is tiled, for sizes that are known now or later."""

    @property
    def problem(self) -> ConvProblem: ...

    def __call__(self, number: Number) -> Tiling | None: ...

    def tiling(self, of: ConvProblem) -> Tiling | None:
        """The tiling where all spatial sizes are known; None where another kernel is better."""
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

    def job(self, variants: tuple[Variant, ...] = ()) -> Job | None:
        """The kernel with its work tiled for the sizes as they are."""
        tiling = self.tiler.tiling(self.tiler.problem)
        if tiling is None:
            return None
        return Job(self._template(tiling.sizes, tiling.scratch), self.bindings, tiling.launch, variants=variants)

    def _template(self, sizes: tuple[Size, ...], scratch: Size) -> Template:
        made = self.code().template(self.bindings, sizes, scratch)
        return replace(made, variant=self.name, shared=(*made.shared, *self.shared))


def first_of(candidates: Sequence[Candidate]) -> Job | None:
    """The job of the first that suits; the last one suits all sizes, and where they are not known, the others wait."""
    if all(candidate.is_known for candidate in candidates):
        return next((job for candidate in candidates if (job := candidate.job()) is not None), None)
    return candidates[-1].job(tuple([candidate.variant() for candidate in candidates]))
