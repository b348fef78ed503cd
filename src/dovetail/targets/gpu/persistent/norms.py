"""Fuse norms of layers that repeat into the products that read them: a persistent kernel then has fewer levels."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

from dovetail.dataclass import dataclass
from dovetail.kernels.choice import Refused
from dovetail.kernels.loops.analysis import pointers_in
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.loops.launch_fusion.constants_ahead import with_constants_ahead
from dovetail.kernels.loops.launch_fusion.row_prologue import RowKernel, with_row_prologue
from dovetail.kernels.loops.persistent.bodies import ROWS, has_rows
from dovetail.kernels.request import Request
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.footprints import Footprints, taken
from dovetail.targets.gpu.launch_fusion.launch_choices import FITS, IS_WHOLE, ONE_READER, Need
from dovetail.targets.gpu.launch_fusion.near_constants import rooms_of_constants
from dovetail.targets.gpu.loops import SHAPE, with_even_vectors
from dovetail.targets.gpu.persistent.repetition import Repetition
from dovetail.targets.gpu.select import Selection, make_kernels

READS_ROWS = Need(
    "product_reads_the_rows",
    "one operand that is the result, in no memory of the product",
    "multiply the rows as they are",
)


@dataclass(frozen=True, slots=True)
class NormedTiles:
    """Finds norms whose rows the tiles of one product read, and joins the two."""

    memory: Footprints
    selection: Selection
    known: dict[Hashable, GpuKernel | None]
    """Kernels by what they are made of: layers repeat."""
    kept: Callable[..., GpuKernel]

    def join(self, steps: list[tuple[Step, Kernels]], again: Repetition, *, joins: bool = True) -> None:
        """Give products of layers the kernel of the step before them, if it `joins` them, and their constants."""
        for index in range(max(1, again.first), again.first + again.covered if joins else 0):
            (step, kernels), (after, others) = steps[index - 1], steps[index]
            if kernels is None or others is None or len(kernels) != 1 or len(others) != 1:
                continue
            joined = self.joined(step, kernels[0], after, others[0], keeps=False)
            if not isinstance(joined, Refused):
                steps[index - 1], steps[index] = (step, None), (after, (joined,))
        self._bring(steps, again)

    def _bring(self, steps: list[tuple[Step, Kernels]], again: Repetition) -> None:
        """Let constants such as gains come with the weights of products, before blocks wait for others."""
        for index in again.steps:
            step, kernels = steps[index]
            if kernels is None or len(kernels) != 1 or not has_rows(kernels[0].kernel):
                continue
            (kernel,) = kernels
            constants = {n: v for n, v in kernel.bindings.items() if n not in pointers_in(kernel.kernel.early)}
            rooms = rooms_of_constants(constants, self.selection.locations)
            if rooms:
                key = "constants with weights", kernel.kernel.identity
                kept = self.kept(key, kernel.bindings, partial(with_constants_ahead, kernel.kernel, rooms))
                steps[index] = step, (replace(kernel, kernel=kept.kernel, code=kept.code),)

    def joined(
        self,
        step: Step,
        small: GpuKernel,
        after: Step,
        large: GpuKernel,
        *,
        keeps: bool,
    ) -> GpuKernel | Refused:
        """A product that computes the rows of the step before it, and writes them where others read them too, if it
        `keeps` them; refused where it cannot."""
        read = self.memory.read_of(step, large)
        if len(read) != 1 or read[0][1] not in step.results or taken(step) or {*step.results} & {*taken(after)}:
            return READS_ROWS.refused(f"{len(read)} operands{', in place' if len(read) == 1 else ''}")
        if small.has_more or small.checks:
            return IS_WHOLE.refused("a step in several")
        ((pointer, result),) = read
        whole = all([self.memory.is_whole(v) for v in step.results])
        width = result.shape[-1]
        if not whole or large.workspace or not isinstance(width, int):
            return IS_WHOLE.refused("a product in parts" if large.workspace else "a part of a tensor")
        keep = self.memory.readers.get(result, 0) > 1
        if keep and not keeps:
            return ONE_READER.refused(f"{self.memory.readers.get(result, 0)} readers")
        by_value = {v: name for name, v in large.bindings.items()}
        names = {n: f"before_{n}" if v is result else by_value.get(v, f"before_{n}") for n, v in small.bindings.items()}
        key = "normed tile", small.kernel.identity, large.kernel.identity, pointer, keep, *names.items()
        own = next(n for n, v in small.bindings.items() if v is result)
        bindings = {n: v for n, v in large.bindings.items() if n != pointer}
        bindings |= {names[n]: v for n, v in small.bindings.items() if keep or v is not result}
        if key not in self.known:
            composed = partial(self._composed, step, large.kernel, width, pointer, names)
            kernel = composed(result=own, keep=keep)
            self.known[key] = None if kernel is None else self.kept(key, bindings, lambda: kernel)
        joined = self.known[key]
        read_before = tuple(
            [names[n] for n in small.bindings if names[n] in bindings and n not in small.kernel.written]
        )
        if joined is None:
            return FITS.refused("others, or rows that a warp does not have")
        return replace(joined, bindings=bindings, packed=large.packed, checks=large.checks, reread=read_before)

    def _composed(
        self,
        step: Step,
        kernel: Kernel,
        width: int,
        pointer: str,
        names: dict[str, str],
        *,
        result: str,
        keep: bool,
    ) -> Kernel | None:
        launch = kernel.launch
        if launch is None or not has_rows(kernel):
            return None
        warps = launch.block // SHAPE.lanes
        shape = replace(SHAPE, threads=launch.block, row_warps=warps, row_threads=launch.block, row_registers=True)
        selection = replace(self.selection, locations=with_even_vectors(self.selection.locations, step, width))
        kernels = make_kernels(step, selection, Request(shape=shape))
        rows = RowKernel.of(kernels[0].kernel, width) if len(kernels) == 1 else None
        if rows is None:
            return None
        device = self.selection.device
        known = device.timings.gemv
        composed = with_row_prologue(kernel, rows, pointer, names, result=result, room=ROWS, keep=keep, timings=known)
        fits = (
            composed is not None and composed.launch is not None and composed.launch.shared_bytes <= device.shared_bytes
        )
        return composed if fits else None


__all__ = ["NormedTiles"]
