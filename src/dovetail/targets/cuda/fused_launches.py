"""Fewer launches: small steps that follow each other become one, and one whose result the next step reads joins it.

A launch takes about two microseconds whatever it does. The steps of a plan stay what they are; several of them share a
kernel, which the last of them has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.composed import COPY_BYTES, Stage, as_stages, is_stage, takes_prologue, with_prologue
from dovetail.kernels.loops.gpu_schedule import GpuShape
from dovetail.kernels.loops.ir import Alloc, Kernel, Launch
from dovetail.kernels.spec import ALIGNMENT, Packed, TensorLocations
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cuda.gpu_kernel import GpuKernel, Kernels
from dovetail.targets.cuda.loops import SHAPE
from dovetail.targets.cuda.resident_runs import ResidentRuns
from dovetail.targets.cuda.select import finished, make_kernels

STAGE_SHAPE = replace(SHAPE, row_warps=SHAPE.threads // SHAPE.lanes)
"""Stages of one kernel all have the same number of threads."""
TURNS = 2
"""Tiles of a stage for each block of its cluster, at most: more of them gain from blocks of their own."""
MOST_STAGES = 16
AHEAD_BYTES = 16 << 10
"""Bytes of a constant that is copied to shared memory before it is needed, at most."""
AT_ONCE = 2
"""Blocks for each multiprocessor up to which a kernel takes a prologue: they run at once, and none computes it late."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that a kernel reads or writes."""

    base: Hashable
    """What the bytes are part of: a pool of memory, or a tensor outside of them."""
    first: Size = 0
    end: Size | None = None
    """None where all of the base counts."""

    def meets(self, other: Span) -> bool:
        if self.base != other.base:
            return False
        if self.end is None or other.end is None:
            return True
        known = [n for n in (self.first, self.end, other.first, other.end) if isinstance(n, int)]
        return len(known) < 4 or (known[0] < known[3] and known[2] < known[1])


@dataclass(slots=True)
class LaunchFusion:
    """Finds the steps of a plan that share a launch."""

    plan: Plan
    locations: TensorLocations
    device: GpuDevice
    readers: dict[Value, int] = field(init=False)
    """How many steps read a tensor; an output is read once more."""
    known: dict[Hashable, GpuKernel] = field(default_factory=dict[Hashable, GpuKernel])
    """Shared kernels by what they are made of: layers repeat."""
    stages: dict[Hashable, Kernel | None] = field(default_factory=dict[Hashable, Kernel | None])
    """Kernels as stages, by the kernel of the step and the shape of its blocks."""

    def __post_init__(self) -> None:
        self.readers = {}
        for step in self.plan.phase("run"):
            for root in {self.locations(v).root for v in step.operands}:
                self.readers[root] = self.readers.get(root, 0) + 1
        for value in self.plan.graph.outputs.values():
            root = self.locations(value).root
            self.readers[root] = self.readers.get(root, 0) + 1

    def fused(self, steps: Sequence[tuple[Step, tuple[GpuKernel, ...]]]) -> tuple[tuple[Step, Kernels], ...]:
        """The kernels of each step, with those that are shared."""
        found: list[tuple[Step, Kernels]] = [*steps]
        for index in range(len(steps) - 1):
            joined = self._joined(steps[index], steps[index + 1])
            if joined is not None:
                found[index], found[index + 1] = (steps[index][0], None), (steps[index + 1][0], (joined,))
        if self.device.cooperative:
            found = ResidentRuns(self.plan, self.locations, self.device, self._must_wait, self._inner).fused(found)
        for run in self._runs(found):
            made = self._as_stages([found[i] for i in run])
            for i in run:
                found[i] = (found[i][0], (made,) if i == run[-1] else None)
        return tuple(found)

    def _joined(
        self, before: tuple[Step, tuple[GpuKernel, ...]], after: tuple[Step, tuple[GpuKernel, ...]]
    ) -> GpuKernel | None:
        """A step with the one before it as its prologue; None where that cannot be."""
        (step, kernels), (next_step, others) = before, after
        if len(kernels) != 1 or len(others) != 1 or len(step.results) != 1 or self._is_small(next_step, others):
            return None
        (small,), (large,), result = kernels, others, step.results[0]
        reads = [name for name, v in large.bindings.items() if v is result]
        if len(reads) != 1 or _taken(step) or result in _taken(next_step):
            return None
        count = product(result.shape)
        if not isinstance(count, int) or not self._is_whole(result) or _has_more(small) or large.workspace:
            return None
        if small.checks:
            return None  # each block would tell the status again
        (read,) = reads
        grid = _launch(large.kernel).grid
        if not isinstance(grid, int) or grid > AT_ONCE * self.device.multiprocessors:
            return None
        if not takes_prologue(large.kernel, read):
            return None
        prologue = self._in_one_block(step, small, _launch(large.kernel).block)
        if prologue is None or self._meet(self._spans(small, False), self._spans(large, True)):
            return None
        by_value = {v: name for name, v in large.bindings.items()}
        names = {n: f"before_{n}" if v is result else by_value.get(v, f"before_{n}") for n, v in small.bindings.items()}
        keep = self.readers.get(result, 0) > 1
        bindings = {n: v for n, v in large.bindings.items() if n != read}
        bindings |= {names[n]: v for n, v in small.bindings.items() if keep or v is not result}
        made = self._kept(
            (id(small.kernel), id(large.kernel), keep, *names.values()),
            bindings,
            lambda: with_prologue(
                large.kernel, prologue, read, names, count, keep=keep, ahead=self._ahead(small, prologue, large.kernel)
            ),
            packed=large.packed,
        )
        fits = _launch(made.kernel).shared_bytes <= self.device.shared_bytes
        return replace(made, checks=large.checks) if fits else None

    def _ahead(self, small: GpuKernel, prologue: Kernel, large: Kernel) -> dict[str, Alloc]:
        """The constants of a prologue, such as the gains of a norm, that fit shared memory: a kernel that copies its
        weights before the one before it has ended copies them too."""
        found: dict[str, Alloc] = {}
        for name in prologue.pointers if large.early else ():
            value = small.bindings[name]
            at, count = self.locations(value), product(value.shape)
            if not self.locations.is_constant(value) or not isinstance(count, int):
                continue
            nbytes = count * value.dtype.itemsize
            fits = 0 < nbytes <= AHEAD_BYTES and nbytes % COPY_BYTES == 0 and is_dense(value.tensor, at.strides)
            if fits and self.locations.alignment({name: value})[name] % COPY_BYTES == 0:
                found[name] = Alloc(f"ahead_{name}", value.dtype, count, "shared")
        return found

    def _is_whole(self, value: Value) -> bool:
        """Whether a tensor is no part of another one, and has no gaps."""
        at = self.locations(value)
        return at.root is value and is_dense(value.tensor, at.strides)

    def _in_one_block(self, step: Step, small: GpuKernel, threads: int) -> Kernel | None:
        """The kernel of a step as one block of `threads` threads runs it."""
        rows = product(step.results[0].shape[:-1])
        warps = threads // SHAPE.lanes
        # One row is shared by all threads, and of several each has a warp.
        longest = SHAPE.thread_elements if rows == 1 else SHAPE.warp_elements
        shape = replace(SHAPE, threads=threads, row_warps=warps, row_threads=threads, warp_elements=longest)
        return self._stage(step, small, shape, warps)

    def _stage(self, step: Step, made: GpuKernel, shape: GpuShape, most: int) -> Kernel | None:
        key = id(made.kernel), shape
        if key not in self.stages:
            plain = replace(self.device, dependent_launches=False)
            kernels = [again.kernel for again in make_kernels(step, self.locations, None, plain, shape)]
            fits = len(kernels) == 1 and is_stage(kernels[0], shape.threads, most)
            self.stages[key] = kernels[0] if fits else None
        return self.stages[key]

    def _runs(self, steps: Sequence[tuple[Step, Kernels]]) -> Iterator[list[int]]:
        """Steps that follow each other and are small."""
        run: list[int] = []
        for index, (step, kernels) in enumerate([*steps, (None, None)]):
            small = step is not None and kernels is not None and self._is_small(step, kernels)
            if small and len(run) < MOST_STAGES:
                run.append(index)
                continue
            if len(run) > 1:
                yield run
            run = [index] if small else []

    def _is_small(self, step: Step, kernels: tuple[GpuKernel, ...]) -> bool:
        if len(kernels) != 1 or _has_more(kernels[0]) or kernels[0].counters:
            return False
        return self._stage(step, kernels[0], STAGE_SHAPE, TURNS * self.device.cluster) is not None

    def _as_stages(self, steps: Sequence[tuple[Step, Kernels]]) -> GpuKernel:
        """One kernel for several small steps."""
        made: list[tuple[GpuKernel, Kernel]] = []
        for step, kernels in steps:
            assert kernels is not None, "a run has small steps alone"
            stage = self._stage(step, kernels[0], STAGE_SHAPE, TURNS * self.device.cluster)
            assert stage is not None, "it was checked"
            made.append((kernels[0], stage))
        inner = self._inner([step for step, _ in steps])
        names: dict[Value | str, str] = {}
        stages: list[Stage] = []
        bindings: dict[str, Value] = {}
        workspace: dict[str, Size] = {}
        levels = self._levels([one for one, _ in made], inner)
        for (one, kernel), level in zip(made, levels, strict=True):
            own: dict[str, str] = {}
            for name in kernel.pointers:
                bound: Value | str = name if name in one.checks else one.bindings[name]
                own[name] = names.setdefault(bound, f"x{len(names)}")
                if isinstance(bound, str):
                    continue
                at = self.locations(bound)
                if at.root in inner:
                    workspace[own[name]] = inner[at.root] + at.offset
                else:
                    bindings[own[name]] = bound
            stages.append(Stage(kernel, own, level))
        placed = {*bindings, *workspace}
        checks = tuple(dict.fromkeys(own for s in stages for own in s.pointers.values() if own not in placed))
        key = tuple([(id(s.kernel), tuple(s.pointers.items()), s.level) for s in stages])

        def composed() -> Kernel:
            kernel = as_stages("stages", stages, self.device.cluster)
            # Tensors take the memory of others within the kernel: nothing is known to be apart, or not to change.
            constant = {name for name, v in bindings.items() if self.locations.is_constant(v)}
            return replace(kernel, shared=tuple([n for n in kernel.pointers if n not in constant]))

        found = self._kept(key, bindings, composed, workspace)
        return replace(found, checks=checks, workspace_bytes=_aligned(*(v.tensor.bytes for v in inner))[-1])

    def _inner(self, steps: Sequence[Step]) -> dict[Value, Size]:
        """The results that these steps alone read, and where they are in the workspace.

        In the arena they would take the memory of others that are not needed any more, and stages would wait for each
        other although they need nothing of each other.
        """
        inside: dict[Value, int] = {}
        for step in steps:
            for root in {self.locations(v).root for v in step.operands}:
                inside[root] = inside.get(root, 0) + 1
        # A kernel that works in place finds its operand where its result is.
        taken = {over for step in steps for over in _taken(step)}
        apart = [v for step in steps if not _taken(step) for v in step.results]
        found = [v for v in apart if self.readers.get(v) == inside.get(v) and v not in taken]
        dense = [v for v in found if v.tensor.is_static and self._is_whole(v)]
        return dict(zip(dense, _aligned(*(v.tensor.bytes for v in dense)), strict=False))

    def _kept(
        self,
        key: Hashable,
        bindings: Mapping[str, Value],
        make: Callable[[], Kernel],
        workspace: Mapping[str, Size] = MappingProxyType({}),
        packed: Mapping[str, Packed] = MappingProxyType({}),
    ) -> GpuKernel:
        """A shared kernel, made once for equal layers."""
        constants = tuple([self.locations.is_constant(v) for v in bindings.values()])
        key = key, constants, tuple(self.locations.alignment(bindings).items())
        if key not in self.known:
            self.known[key] = finished(make(), bindings, self.locations, self.device, workspace, packed)
        return replace(self.known[key], bindings=bindings, workspace=workspace, packed=packed)

    def _must_wait(self, earlier: GpuKernel, later: GpuKernel, inner: Mapping[Value, Size]) -> bool:
        """Whether a kernel reads or overwrites what an earlier one writes, or overwrites what it reads."""
        if earlier.workspace and later.workspace:
            return True
        wrote, writes = self._spans(earlier, True, inner), self._spans(later, True, inner)
        reads, read = self._spans(later, False, inner), self._spans(earlier, False, inner)
        return self._meet(wrote, reads) or self._meet(read, writes)

    def _levels(self, kernels: Sequence[GpuKernel], inner: Mapping[Value, Size]) -> list[int]:
        """For each kernel a level above those of all earlier ones that it must wait for."""
        spans = [(self._spans(one, False, inner), self._spans(one, True, inner)) for one in kernels]
        levels: list[int] = []
        for index, (reads, writes) in enumerate(spans):
            waits = [
                levels[i] + 1
                for i, (read, wrote) in enumerate(spans[:index])
                if self._meet(wrote, reads) or self._meet(read, writes)
            ]
            levels.append(max(waits, default=0))
        return levels

    def _spans(self, made: GpuKernel, written: bool, inner: Mapping[Value, Size] = MappingProxyType({})) -> list[Span]:
        """What a kernel writes, or all that it uses."""
        return [self._span(v, inner) for n, v in made.bindings.items() if not written or n in made.kernel.written]

    def _span(self, value: Value, inner: Mapping[Value, Size]) -> Span:
        root = self.locations(value).root
        slot = self.plan.slots.get(root)
        while slot is not None and slot.donor is not None:
            root = slot.donor
            slot = self.plan.slots.get(root)
        if slot is None or slot.pool == "heap" or root in inner:
            return Span(root)
        return Span(slot.pool, slot.offset, slot.offset + slot.size)

    @staticmethod
    def _meet(some: Sequence[Span], others: Sequence[Span]) -> bool:
        return any(x.meets(y) for x in some for y in others)


def _taken(step: Step) -> list[Value]:
    """The operands whose memory a step takes for its results."""
    return [over for over in step.overs if over is not None]


def _aligned(*counts: Size) -> list[Size]:
    """Where arrays of these sizes start, one after the other, and the end of all."""
    found: list[Size] = [0]
    for count in counts:
        found.append(found[-1] + (count + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT)
    return found


def _has_more(made: GpuKernel) -> bool:
    """Whether a kernel has a workspace or packed weights."""
    return bool(made.workspace or made.packed)


def _launch(kernel: Kernel) -> Launch:
    assert kernel.launch is not None, "it was scheduled"
    return kernel.launch


__all__ = ["LaunchFusion"]
