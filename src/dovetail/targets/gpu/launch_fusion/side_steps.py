"""Horizontal fusion: small steps that need nothing of the launches before them, in one of these with a block more.

A mask that all layers read is a step of the first of them, in which it was a launch, or the start of the attention,
which then was no part of the product after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import Alloc, Kernel, Launch, Loop, Statement, SubGrid, sizes_in
from dovetail.kernels.loops.launch_fusion.composed import Renaming, is_stage
from dovetail.targets.gpu.kernel import GpuKernel, Kernels, StepKernels
from dovetail.targets.gpu.launch_fusion.footprints import Footprints
from dovetail.targets.gpu.select import Selection


@dataclass(frozen=True, slots=True)
class SideSteps:
    """Finds the steps of a plan that an earlier launch can take, where launches depend on each other."""

    memory: Footprints
    selection: Selection
    kept: Callable[..., GpuKernel]

    def joined(self, steps: Sequence[StepKernels]) -> list[StepKernels]:
        """The kernels of each step, with those that share a launch."""
        joined = [*steps]
        if not self.selection.request.starts_early:
            return joined
        for index, (step, kernels) in enumerate(joined):
            small = self._small(kernels)
            host = None if small is None else self._host(joined, index, small)
            if small is not None and host is not None:
                at, large = host
                joined[at], joined[index] = (joined[at][0], (self.joint(large, small),)), (step, None)
        return joined

    def _host(self, steps: Sequence[StepKernels], index: int, small: GpuKernel) -> tuple[int, GpuKernel] | None:
        """The first launch that has room for a block more and after which nothing needs to come before `small`."""
        first = index
        while first and not self._must_wait(steps[first - 1][1], small):
            first -= 1
        hosts = [(at, self._with_room(steps[at][1], small)) for at in range(first, index)]
        return next(((at, large) for at, large in hosts if large is not None), None)

    def _must_wait(self, earlier: Kernels, later: GpuKernel) -> bool:
        """A step on the host has no kernels, and stays where it is."""
        return earlier == () or any([self.memory.must_wait(one, later) for one in earlier or ()])

    def _small(self, kernels: Kernels) -> GpuKernel | None:
        """A kernel of one block that does nothing but compute its results."""
        if kernels is None or len(kernels) != 1:
            return None
        (kernel,) = kernels
        is_one = _is_plain(kernel) and kernel.launch.grid == 1 and not kernel.checks
        return kernel if is_one else None

    def _with_room(self, kernels: Kernels, small: GpuKernel) -> GpuKernel | None:
        """A launch that leaves multiprocessors without a block, and is no small one that others take as it is."""
        if kernels is None or len(kernels) != 1 or not _is_plain(kernels[0]):
            return None
        (kernel,) = kernels
        grid = kernel.launch.grid
        fits = (
            isinstance(grid, int) and 2 * self.selection.device.cluster < grid < self.selection.device.multiprocessors
        )
        return kernel if fits and kernel.launch.block >= small.launch.block else None

    def joint(self, large: GpuKernel, small: GpuKernel) -> GpuKernel:
        """A launch with a block more."""
        by_value = {v: name for name, v in large.bindings.items()}
        names = {n: by_value.get(v, f"other_{n}") for n, v in small.bindings.items()}
        bindings = {**large.bindings, **{names[n]: v for n, v in small.bindings.items()}}
        key = "joint", large.kernel.identity, small.kernel.identity, *names.items()
        joint = self.kept(key, bindings, lambda: in_one_launch(large.kernel, small.kernel, names))
        return replace(joint, checks=large.checks, reread=large.reread)


def _is_plain(of: GpuKernel) -> bool:
    """Whether a kernel is one loop over blocks, which need nothing but registers and some shared memory."""
    kernel, launch = of.kernel, of.launch
    if of.has_more or of.counters or launch.cluster > 1 or launch.cooperative or not isinstance(launch.grid, int):
        return False
    is_loop = len(kernel.body) == 1 and isinstance(kernel.body[0], Loop) and kernel.body[0].kind == "block"
    return is_loop and is_stage(kernel, launch.block, launch.grid)


def in_one_launch(kernel: Kernel, small: Kernel, pointers: Mapping[str, str]) -> Kernel:
    """A kernel with a block more, which runs another one; `pointers` says what that one's are called here."""
    launch, other = kernel.launch, small.launch
    assert launch is not None and other is not None and isinstance(launch.grid, int), "they were scheduled"
    own = Renaming(lambda n: f"{n}_other", pointers).body(small.body)
    body = (*_of_first(kernel.body, launch), SubGrid(1, other.block, launch.grid, own))
    early = _of_first(kernel.early, launch) if kernel.early else ()
    written = (*kernel.written, *(pointers[n] for n in small.written))
    every = dict.fromkeys([*kernel.pointers, *(pointers[n] for n in small.pointers)])
    names = (*(n for n in every if n not in written), *written)
    launch = replace(launch, grid=launch.grid + 1)
    name = f"{kernel.name}_and_{small.name}"
    sizes = sizes_in((*early, *body))
    named = replace(kernel, name=name, pointers=names, written=written, sizes=sizes)
    return replace(named, body=body, early=early, launch=launch, schedule=None)


def _of_first(body: Sequence[Statement], launch: Launch) -> tuple[Statement, ...]:
    """A body for the blocks that were all; shared memory is where early copies find it."""
    assert isinstance(launch.grid, int), "it was checked"
    shared = [s for s in body if isinstance(s, Alloc) and s.space == "shared"]
    rest = [s for s in body if not (isinstance(s, Alloc) and s.space == "shared")]
    return (*shared, SubGrid(launch.grid, launch.block, 0, tuple(rest)))


__all__ = ["SideSteps", "in_one_launch"]
