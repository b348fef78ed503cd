"""Norms of layers that repeat as the start of the products that read them: levels of a resident kernel less."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

from dovetail.dataclass import dataclass
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import pointers_in
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.loops.launch_fusion.constants_ahead import with_constants_ahead
from dovetail.kernels.loops.launch_fusion.row_gather import RowGather, with_gathered_rows
from dovetail.kernels.loops.launch_fusion.row_prologue import RowKernel, with_row_prologue
from dovetail.kernels.loops.persistent.bodies import ROWS, has_rows
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.even_vectors import with_even_vectors
from dovetail.targets.gpu.launch_fusion.footprints import Footprints, taken
from dovetail.targets.gpu.launch_fusion.launch_choices import FITS, IS_WHOLE, ONE_READER, Need
from dovetail.targets.gpu.launch_fusion.near_constants import rooms_of_constants
from dovetail.targets.gpu.loops import SHAPE
from dovetail.targets.gpu.persistent.repetition import Repetition
from dovetail.targets.gpu.select import make_kernels

READS_ROWS = Need(
    "product_reads_the_rows",
    "one operand that is the result, in no memory of the product",
    "multiply the rows as they are",
)


@dataclass(frozen=True, slots=True)
class NormedTiles:
    """Finds norms whose rows the tiles of one product read, and joins the two."""

    memory: Footprints
    locations: TensorLocations
    device: GpuDevice
    known: dict[Hashable, GpuKernel | None]
    """Kernels by what they are made of: layers repeat."""
    kept: Callable[..., GpuKernel]

    def join(self, found: list[tuple[Step, Kernels]], again: Repetition, *, joins: bool = True) -> None:
        """Give products of layers the kernel of the step before them, if it `joins` them, and their constants."""
        for index in range(max(1, again.first), again.first + again.covered if joins else 0):
            (step, kernels), (after, others) = found[index - 1], found[index]
            if kernels is None or others is None or len(kernels) != 1 or len(others) != 1:
                continue
            joined = self.joined(step, kernels[0], after, others[0], keeps=False)
            if not isinstance(joined, Refused):
                found[index - 1], found[index] = (step, None), (after, (joined,))
        self._bring(found, again)

    def _bring(self, found: list[tuple[Step, Kernels]], again: Repetition) -> None:
        """Let constants such as gains come with the weights of products, before blocks wait for others."""
        for index in again.steps:
            step, kernels = found[index]
            if kernels is None or len(kernels) != 1 or not has_rows(kernels[0].kernel):
                continue
            (made,) = kernels
            constants = {n: v for n, v in made.bindings.items() if n not in pointers_in(made.kernel.early)}
            rooms = rooms_of_constants(constants, self.locations)
            if rooms:
                key = "constants with weights", id(made.kernel)
                kept = self.kept(key, made.bindings, partial(with_constants_ahead, made.kernel, rooms))
                found[index] = step, (replace(made, kernel=kept.kernel, code=kept.code),)

    def joined(
        self,
        step: Step,
        small: GpuKernel,
        after: Step,
        large: GpuKernel,
        *,
        keeps: bool,
        gather: tuple[Value, GpuKernel] | None = None,
    ) -> GpuKernel | Refused:
        """A product that computes the rows of the step before it, and writes them where others read them too, if it
        `keeps` them, from rows of a table that it finds itself, if `gather` says how these were found; refused where
        it cannot."""
        read = [(name, v) for name, v in large.bindings.items() if v in step.results]
        if len(read) != 1 or taken(step) or {*step.results} & {*taken(after)}:
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
        found = None if gather is None else self._gathered(*gather, small, width)
        if gather is not None and found is None:
            return FITS.refused("rows of a table that are not found one by one")
        own_key = () if gather is None else (id(gather[1].kernel),)
        key = "normed tile", id(small.kernel), id(large.kernel), pointer, keep, *own_key, *names.items()
        own = next(n for n, v in small.bindings.items() if v is result)
        bindings = {n: v for n, v in large.bindings.items() if n != pointer}
        bindings |= {names[n]: v for n, v in small.bindings.items() if keep or v is not result}
        checks = large.checks
        if gather is not None:
            bindings = {n: v for n, v in bindings.items() if v is not gather[0]}
            bindings |= {f"gather_{n}": v for n, v in gather[1].bindings.items() if v is not gather[0]}
            checks = (*checks, *(f"gather_{n}" for n in gather[1].checks))
        if key not in self.known:
            composed = partial(self._composed, step, large.kernel, width, pointer, names)
            kernel = composed(result=own, keep=keep, gather=found)
            self.known[key] = None if kernel is None else self.kept(key, bindings, lambda: kernel)
        made = self.known[key]
        read_before = tuple(
            [names[n] for n in small.bindings if names[n] in bindings and n not in small.kernel.written]
        )
        if made is None:
            return FITS.refused("others, or rows that a warp does not have")
        return replace(made, bindings=bindings, packed=large.packed, checks=checks, reread=read_before)

    @staticmethod
    def _gathered(rows: Value, made: GpuKernel, small: GpuKernel, width: int) -> tuple[str, RowGather] | None:
        """The pointer through which a kernel reads rows that another one finds, and how that does."""
        read = [n for n, v in small.bindings.items() if v is rows]
        found = RowGather.of(made.kernel, width)
        return (read[0], found) if found is not None and len(read) == 1 else None

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
        gather: tuple[str, RowGather] | None,
    ) -> Kernel | None:
        launch = kernel.launch
        if launch is None or not has_rows(kernel):
            return None
        warps = launch.block // SHAPE.lanes
        shape = replace(SHAPE, threads=launch.block, row_warps=warps, row_threads=launch.block, row_registers=True)
        plain = replace(self.device, dependent_launches=False)
        kernels = make_kernels(step, with_even_vectors(self.locations, step, width), None, plain, shape)
        rows = RowKernel.of(kernels[0].kernel, width) if len(kernels) == 1 else None
        if rows is None:
            return None
        if gather is not None:
            own = {n: f"gather_{n}" for n in gather[1].pointers}
            rows, names = with_gathered_rows(rows, gather[1], gather[0], own), names | {n: n for n in own.values()}
        timings = self.device.timings.gemv
        made = with_row_prologue(kernel, rows, pointer, names, result=result, room=ROWS, keep=keep, timings=timings)
        fits = made is not None and made.launch is not None and made.launch.shared_bytes <= self.device.shared_bytes
        return made if fits else None


__all__ = ["NormedTiles"]
