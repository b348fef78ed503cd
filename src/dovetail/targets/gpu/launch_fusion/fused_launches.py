"""Fewer launches: small steps that follow each other become one, and one whose result the next step reads joins it.

A launch takes about two microseconds whatever it does. The steps of a plan stay what they are; several of them share a
kernel, which the last of them has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from types import MappingProxyType

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.gpu.attention.row import attends
from dovetail.kernels.loops.gpu_schedule import GpuShape
from dovetail.kernels.loops.ir import Alloc, Kernel, KernelKind
from dovetail.kernels.loops.launch_fusion.block_stages import is_repeatable, takes_stages, with_stages
from dovetail.kernels.loops.launch_fusion.composed import Stage, as_stages, is_stage, takes_prologue, with_prologue
from dovetail.kernels.request import Request
from dovetail.kernels.spec import Packed
from dovetail.plan.plan import Plan, Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.footprints import Footprints, aligned, taken
from dovetail.targets.gpu.launch_fusion.launch_choices import (
    FITS,
    HAS_NONE,
    IS_APART,
    IS_WHOLE,
    PROLOGUE,
    RUN_AT_ONCE,
    LaunchChoices,
    Need,
)
from dovetail.targets.gpu.launch_fusion.near_constants import constants_ahead, rooms_of_constants
from dovetail.targets.gpu.launch_fusion.near_launches import NearLaunches
from dovetail.targets.gpu.launch_fusion.normed_products import LaunchedStep, with_normed_rows
from dovetail.targets.gpu.launch_fusion.norms_between import NormsBetween
from dovetail.targets.gpu.launch_fusion.row_launches import RowLaunches
from dovetail.targets.gpu.launch_fusion.side_steps import SideSteps
from dovetail.targets.gpu.loops import SHAPE
from dovetail.targets.gpu.persistent.choice import Prices, Residency, levels_text
from dovetail.targets.gpu.persistent.norms import NormedTiles
from dovetail.targets.gpu.persistent.products import by_warps, request_of_parts
from dovetail.targets.gpu.persistent.repetition import LaunchedSteps, Repetition, key_of, longest_repetition
from dovetail.targets.gpu.persistent.runs import IS_APART as READ_APART
from dovetail.targets.gpu.persistent.runs import PersistentRuns
from dovetail.targets.gpu.persistent.shared_first import in_order, shared_first
from dovetail.targets.gpu.select import Selection, finished, make_kernels

__all__ = ["LaunchFusion", "Read"]

READS_IT = Need(
    "blocks_read_it_from_shared_memory",
    "a kernel that reads it as one operand, all of it in each block",
    "fewer columns in what the next step reads",
)
KNOWN_SIZES = Need("sizes_are_known", "sizes that are numbers", "compile for fixed sizes")


@dataclass(frozen=True, slots=True)
class Read:
    """What a step reads of the one before it, and what both are bound to as one kernel."""

    pointer: str
    """Through which the step reads it."""
    result: str
    """Through which the one before it writes it."""
    keep: bool
    """Whether others read it too."""
    counts: Mapping[str, int]
    """Elements of each result, by the pointers that write them."""
    names: Mapping[str, str]
    """The pointers of the one before it in the whole kernel."""
    bindings: Mapping[str, Value]
    """The pointers of the whole kernel."""


def read_by_next(
    memory: Footprints,
    before: tuple[Step, tuple[GpuKernel, ...]],
    after: tuple[Step, tuple[GpuKernel, ...]],
) -> Read | Refused | None:
    """What a step reads of the one before it, where blocks may compute that for themselves; refused where they may not,
    and None where it reads nothing.

    Blocks are anywhere while the first one writes results that others read: no block may find these in memory that it
    reads, and none may write what another one still reads.
    """
    (step, (small,)), (next_step, (large,)) = before, after
    read = memory.read_of(step, large)
    if not any(v in step.results for _, v in read):
        return None
    if len(read) != 1:
        return READS_IT.refused(f"{len(read)} operands")
    if taken(step) or {*step.results} & {*taken(next_step)}:
        return IS_APART.refused("a step in place")
    ((pointer, result),) = read
    if not all([memory.is_whole(v) for v in step.results]) or small.has_more or large.workspace:
        return IS_WHOLE.refused("a kernel in parts" if small.has_more or large.workspace else "a part of a tensor")
    if small.checks:
        return IS_WHOLE.refused("a kernel that checks indices")  # each block would tell the status again
    if not takes_prologue(large.kernel, pointer):
        return READS_IT.refused("another kernel")
    if memory.used(small) & memory.written(large):
        return IS_APART.refused("a result over what other blocks still read")
    written = {n: small.bindings[n] for n in small.kernel.written}
    sizes = {n: product(v.shape) for n, v in written.items()}
    counts = {n: count for n, count in sizes.items() if isinstance(count, int)}
    if len(counts) != len(sizes):
        return KNOWN_SIZES.refused("symbols")
    by_value = {v: name for name, v in large.bindings.items()}
    names = {n: f"before_{n}" if v is result else by_value.get(v, f"before_{n}") for n, v in small.bindings.items()}
    keep = memory.readers.get(result, 0) > 1
    bindings = {n: v for n, v in large.bindings.items() if n != pointer}
    bindings |= {names[n]: v for n, v in small.bindings.items() if keep or v is not result}
    own = next(n for n, v in written.items() if v is result)
    return Read(pointer, own, keep, counts, names, bindings)


STAGE_SHAPE = replace(SHAPE, row_warps=SHAPE.threads // SHAPE.lanes)
"""Stages of one kernel all have the same number of threads."""
TURNS = 2
"""Tiles of a stage for each block of its cluster, at most: more of them gain from blocks of their own."""
MOST_STAGES, AT_ONCE = 16, 2
"""Blocks for each multiprocessor up to which a kernel takes a prologue: they run at once, and none computes it late."""


@dataclass(slots=True)
class LaunchFusion:
    """Finds the steps of a plan that share a launch."""

    plan: Plan
    selection: Selection
    order: Sequence[Step] = ()
    """The steps in the order of their kernels; as in the plan where there are none."""
    memory: Footprints = field(init=False)
    known: dict[Hashable, GpuKernel] = field(default_factory=dict[Hashable, GpuKernel])
    """Shared kernels by what they are made of: layers repeat."""
    stages: dict[Hashable, Kernel | None] = field(default_factory=dict[Hashable, Kernel | None])
    """Kernels as stages, by the kernel of the step and the shape of its blocks."""
    normed: dict[Hashable, GpuKernel | None] = field(default_factory=dict[Hashable, GpuKernel | None])
    """Products with the norm before them, by what they are made of."""
    choices: LaunchChoices = field(default_factory=LaunchChoices)
    residency: Residency | None = None
    """What was chosen for layers that repeat; None where that is off."""

    def __post_init__(self) -> None:
        self.memory = Footprints(self.plan, self.selection.locations, self.order)

    def fused(self, steps: Sequence[tuple[Step, tuple[GpuKernel, ...]]]) -> tuple[tuple[Step, Kernels], ...]:
        """The kernels of each step, with those that are shared."""
        known, choices = (self.memory, self.selection, self._kept), self.choices
        alone = self._with_prologues(SideSteps(*known).joined(RowLaunches(*known).shared(steps)), choices)
        alone = NormsBetween(*known, choices=choices).joined(NearLaunches(*known, choices=choices).launched(alone))
        ahead = self.selection.locations, AT_ONCE * self.selection.device.multiprocessors, self._kept
        launched = [(step, constants_ahead(kernels, *ahead)) for step, kernels in self._sharing(alone)]
        if self.selection.device.cooperative == "off" or not self.selection.request.may_persist:
            return tuple(launched)
        own, order = self, shared_first(steps, self.memory)
        if order != sorted(order):
            own = replace(self, order=[steps[number][0] for number in order], normed={}, residency=None)
        joined = own._with_prologues([steps[number] for number in order], LaunchChoices())
        persistent = own._as_passes(joined, [launched[number] for number in order])
        self.residency = own.residency and replace(own.residency, steps=[order[at] for at in own.residency.steps])
        if persistent is None:
            return tuple(launched)
        return tuple(in_order(own._sharing(persistent), order, [step for step, _ in steps]))

    def _with_prologues(self, steps: LaunchedSteps, choices: LaunchChoices) -> list[tuple[Step, Kernels]]:
        """Steps with those that they join."""
        joined_steps = [*steps]
        for index, ((step, kernels), (after, others)) in enumerate(pairwise(steps)):
            if kernels is None or others is None:
                continue
            joined = self._joined((step, kernels), (after, others), choices)
            if isinstance(joined, Refused):
                is_rows = kernels and kernels[0].kernel.kind == KernelKind.ROWS
                choices.record([step] if is_rows else [], PROLOGUE, joined)
            elif joined is not None:
                if joined_steps[index] is not steps[index]:
                    # A step with a prologue is no prologue itself: the step before it would be lost.
                    joined_steps[index - 1] = steps[index - 1]
                    choices.undo(steps[index - 1][0], HAS_NONE.refused("a step that is a prologue itself"))
                joined_steps[index], joined_steps[index + 1] = (step, None), (after, (joined,))
        return joined_steps

    def _sharing(self, steps: LaunchedSteps) -> list[tuple[Step, Kernels]]:
        """Small steps that follow each other with one kernel for all of them."""
        shared = [*steps]
        for run in self._runs(shared):
            kernel = self._as_stages([shared[i] for i in run])
            for i in run:
                shared[i] = (shared[i][0], (kernel,) if i == run[-1] else None)
        return shared

    def _as_passes(self, steps: LaunchedSteps, launched: LaunchedSteps) -> LaunchedSteps | None:
        """Steps with layers as passes of one kernel; None where that cannot be, or takes longer by the estimates."""
        parts = [*steps]
        again = longest_repetition([key_of(kernels) for _, kernels in parts])
        if again is None:
            self.residency = Residency(refused=Refused("layers_repeat", f"{len(steps)} steps", "three equal layers"))
            return None
        prices, covered = Prices(self.selection), [launched[at] for at in again.steps]
        self._judge(
            again, prices.launched(covered), prices.hoped(covered), "a level for each launch, and none for norms"
        )
        if self.residency is None or self.residency.refused is not None:
            return None
        by_warps(parts, again, self.selection)
        composed = self._composed([*parts], steps, launched, again, joins=True)
        if isinstance(composed, Refused) and self.normed and self.residency.refused is None:
            composed = self._composed(parts, steps, launched, again, joins=False)
        if not isinstance(composed, Refused):
            return composed
        self.residency = replace(self.residency, refused=composed)
        return None

    def _composed(
        self,
        parts: list[tuple[Step, Kernels]],
        steps: LaunchedSteps,
        launched: LaunchedSteps,
        again: Repetition,
        *,
        joins: bool,
    ) -> LaunchedSteps | Refused:
        """Layers as one kernel, with or without norms within the products after them."""
        NormedTiles(self.memory, self.selection, self.normed, self._kept).join(parts, again, joins=joins)
        request = request_of_parts(parts, again, self.selection)
        for index in range(1, len(parts)):
            self._take_stages(parts, index, request)
        repeated = longest_repetition([key_of(kernels) for _, kernels in parts])
        if joins and self.normed and repeated is None:
            return Refused("layers_repeat", "norms within products of some layers alone")
        again = repeated or again
        composed = self._as_one(parts, steps, launched, again)
        if isinstance(composed, Refused) and composed.condition == READ_APART and again.covered % again.length:
            # Of a pass that ends early less is in memory of its own: that layer is launched.
            composed = self._as_one(parts, steps, launched, replace(again, covered=again.passes * again.length))
        return composed

    def _as_one(
        self, parts: LaunchedSteps, steps: LaunchedSteps, launched: LaunchedSteps, again: Repetition
    ) -> LaunchedSteps | Refused:
        prices = Prices(self.selection)
        seconds, passes = prices.launched([launched[at] for at in again.steps]), again.covered / again.length
        least = prices.least([parts[at] for at in again.steps])
        refused = self._judge(again, seconds, least, "a level for each kernel")
        if refused is not None:
            return refused  # a kernel of all layers is not made to be thrown away

        def judge(kernel: Kernel, one: LaunchedSteps) -> Refused | None:
            return self._judge(again, seconds, prices.persistent(one, kernel) * passes, levels_text(kernel))

        return PersistentRuns(self.memory, self.selection).fused(parts, steps, again, judge)

    def _judge(self, again: Repetition, launched: float, persistent: float, levels: str) -> Refused | None:
        """Keep both estimates; what refuses passes by them."""
        known = Residency(len(again.every), launched, persistent, levels, None, again.steps)
        self.residency = known.judged if self.selection.device.cooperative == "auto" else known
        return self.residency.refused

    def _joined(self, before: LaunchedStep, after: LaunchedStep, choices: LaunchChoices) -> GpuKernel | Refused | None:
        """A step with the one before it as its prologue, or why not; None where one does not read the other."""
        (step, kernels), (next_step, others) = before, after
        if len(kernels) != 1 or len(others) != 1 or self._is_small(next_step, others):
            return None
        (small,), (large,) = kernels, others
        read, grid = read_by_next(self.memory, before, after), large.launch.grid
        if read is None or isinstance(read, Refused):
            return read
        # Blocks that scale their sums read little more, however many take turns.
        known = self.selection, self.stages, self._kept, choices
        if (normed := with_normed_rows(before, after, read.pointer, *known, keeps=read.keep)) is not None:
            return normed
        at_once = isinstance(grid, int) and grid <= AT_ONCE * self.selection.device.multiprocessors
        prologue = self._in_one_block(step, small, large.launch.block) if at_once else None
        if prologue is None:
            return RUN_AT_ONCE.refused("rows of several blocks" if at_once else f"{grid} blocks")
        # A kernel that copies its weights before the one before it has ended copies gains of a norm too.
        constants = {n: small.bindings[n] for n in prologue.pointers if large.kernel.early}
        ahead = rooms_of_constants(constants, self.selection.locations)
        operands = large.kernel, prologue, read.pointer, read.names, read.counts
        joined = self._kept(
            (small.kernel.identity, large.kernel.identity, read.keep, *read.names.values()),
            read.bindings,
            lambda: with_prologue(*operands, result=read.result, keep=read.keep, ahead=ahead),
            packed=large.packed,
        )
        fits = joined.launch.shared_bytes <= self.selection.device.shared_bytes
        choices.record(
            [step], PROLOGUE, refused := None if fits else FITS.refused(f"{joined.launch.shared_bytes:,} bytes")
        )
        return refused or replace(joined, checks=large.checks)

    def _in_one_block(self, step: Step, small: GpuKernel, threads: int) -> Kernel | None:
        """The kernel of a step as one block of `threads` threads runs it."""
        rows = product(step.results[0].shape[:-1])
        warps = threads // SHAPE.lanes
        # One row is shared by all threads, and of several each has a warp.
        longest = SHAPE.thread_elements if rows == 1 else SHAPE.warp_elements
        shape = replace(SHAPE, threads=threads, row_warps=warps, row_threads=threads, warp_elements=longest)
        return self._stage(step, small, shape, warps)

    def _stage(self, step: Step, kernel: GpuKernel, shape: GpuShape, most: int) -> Kernel | None:
        key = kernel.kernel.identity, shape
        if key not in self.stages:
            request = Request(shape=shape)
            kernels = [again.kernel for again in make_kernels(step, self.selection, request)]
            fits = len(kernels) == 1 and is_stage(kernels[0], shape.threads, most)
            self.stages[key] = kernels[0] if fits else None
        return self.stages[key]

    def _runs(self, steps: LaunchedSteps) -> Iterator[list[int]]:
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
        if len(kernels) != 1 or kernels[0].has_more or kernels[0].counters:
            return False
        return self._stage(step, kernels[0], STAGE_SHAPE, TURNS * self.selection.device.cluster) is not None

    def _take_stages(self, steps: list[tuple[Step, Kernels]], last: int, request: Request) -> None:
        """Let each block of a step run the small steps before it, where nothing needs them before it does."""
        large = self._taker(*steps[last])
        if large is None:
            return
        large = self._as_part(steps[last][0], large, request)
        own: dict[int, tuple[Step, GpuKernel, Kernel]] = {}
        for index in reversed(range(max(0, last - MOST_STAGES), last)):
            step, kernels = steps[index]
            if kernels is None or not self._is_small(step, kernels):
                break
            stage = self._in_one_block(step, kernels[0], large.launch.block)
            if stage is not None and is_repeatable(stage) and self.memory.read_by(step, {*own, last}, last):
                own[index] = (step, kernels[0], stage)
            elif any(self.memory.must_wait(small, kernels[0]) for _, small, _ in own.values()):
                return
        stages = [own[index] for index in sorted(own)]
        joined = self._with_stages(stages, steps[last][0], large) if stages else None
        if joined is not None:
            steps[last] = (steps[last][0], (joined,))
            for index, (step, _, _) in own.items():
                steps[index] = (step, None)

    def _taker(self, step: Step, kernels: Kernels) -> GpuKernel | None:
        """The kernel of an attention whose blocks may run others first: all of them run at once. Blocks of a product
        would each compute what all of them need."""
        attended = attends(step.value, self.selection.locations)
        if kernels is None or len(kernels) != 1 or not attended or self._is_small(step, kernels):
            return None
        kernel, launch = kernels[0], kernels[0].launch
        at_once = isinstance(launch.grid, int) and launch.grid <= self.selection.device.multiprocessors
        return kernel if at_once and not kernel.packed and not kernel.counters and takes_stages(kernel.kernel) else None

    def _as_part(self, step: Step, large: GpuKernel, request: Request) -> GpuKernel:
        """A kernel as a part of a persistent kernel, where more blocks than those of a cluster wait for each other."""
        key = "part", large.kernel.identity
        if key not in self.known:
            kernels = make_kernels(step, self.selection, request)
            fits = (
                len(kernels) == 1
                and kernels[0].bindings.keys() == large.bindings.keys()
                and takes_stages(kernels[0].kernel)
            )
            self.known[key] = kernels[0] if fits else large
        return replace(self.known[key], bindings=large.bindings)

    def _with_stages(
        self, own: Sequence[tuple[Step, GpuKernel, Kernel]], step: Step, large: GpuKernel
    ) -> GpuKernel | None:
        """A kernel whose blocks each run stages first; None where one block would disturb another."""
        inner = self.memory.inner([*(one for one, _, _ in own), step])
        if not self.memory.are_repeatable([small for _, small, _ in own], large, inner):
            return None
        names: dict[Value | str, str] = {}
        bindings: dict[str, Value] = {}
        rooms: dict[str, Alloc] = {}

        def named(kernel: GpuKernel) -> dict[str, str] | None:
            pointers: dict[str, str] = {}
            for name in kernel.kernel.pointers:
                bound: Value | str = "status" if name in kernel.checks else kernel.bindings.get(name, name)
                at = self.selection.locations(bound) if isinstance(bound, Value) else None
                is_inner = at is not None and at.root in inner
                pointers[name] = whole = names.setdefault(at.root if at and is_inner else bound, f"x{len(names)}")
                if at is not None and is_inner:
                    count = product(at.root.shape)
                    if at.offset != 0 or not isinstance(count, int):
                        return None
                    rooms[whole] = Alloc(f"room_{whole}", at.root.dtype, count, "shared")
                elif isinstance(bound, Value):
                    bindings[whole] = bound
            return pointers

        small = [one for _, one, _ in own]
        levels, waits = self.memory.levels(small), self.memory.waits(small)
        stages: list[Stage] = []
        for (_, one, kernel), level, after in zip(own, levels, waits, strict=True):
            pointers = named(one)
            if pointers is None:
                return None
            stages.append(Stage(kernel, pointers, level, after))
        pointers = named(large)
        if pointers is None:
            return None
        checks = tuple([names["status"]] if "status" in names else [])
        workspace = {pointers[name]: at for name, at in large.workspace.items()}
        key = (
            large.kernel.identity,
            tuple(pointers.items()),
            *[(s.kernel.identity, *s.pointers.items(), s.level, s.after) for s in stages],
        )

        def composed() -> Kernel:
            kernel = with_stages(
                large.kernel, pointers, stages, rooms, self.memory.read_where_written(stages, pointers, large, bindings)
            )
            constant = {name for name, v in bindings.items() if self.selection.locations.is_constant(v)}
            return replace(kernel, shared=tuple([n for n in kernel.pointers if n not in constant]))

        joined = self._kept(key, bindings, composed, workspace)
        fits = joined.launch.shared_bytes <= self.selection.device.shared_bytes
        return replace(joined, checks=checks, workspace_bytes=large.workspace_bytes) if fits else None

    def _as_stages(self, steps: LaunchedSteps) -> GpuKernel:
        """One kernel for several small steps."""
        staged: list[tuple[GpuKernel, Kernel]] = []
        for step, kernels in steps:
            assert kernels is not None, "a run has small steps alone"
            stage = self._stage(step, kernels[0], STAGE_SHAPE, TURNS * self.selection.device.cluster)
            assert stage is not None, "it was checked"
            staged.append((kernels[0], stage))
        inner = self.memory.inner([step for step, _ in steps])
        names: dict[Value | str, str] = {}
        stages: list[Stage] = []
        bindings: dict[str, Value] = {}
        workspace: dict[str, Size] = {}
        levels = self.memory.levels([one for one, _ in staged])
        for (one, kernel), level in zip(staged, levels, strict=True):
            own: dict[str, str] = {}
            for name in kernel.pointers:
                bound: Value | str = name if name in one.checks else one.bindings[name]
                own[name] = names.setdefault(bound, f"x{len(names)}")
                if isinstance(bound, str):
                    continue
                at = self.selection.locations(bound)
                if at.root in inner:
                    workspace[own[name]] = inner[at.root] + at.offset
                else:
                    bindings[own[name]] = bound
            stages.append(Stage(kernel, own, level))
        placed = {*bindings, *workspace}
        checks = tuple(dict.fromkeys(own for s in stages for own in s.pointers.values() if own not in placed))
        key = tuple([(s.kernel.identity, tuple(s.pointers.items()), s.level) for s in stages])

        def composed() -> Kernel:
            kernel = as_stages("stages", stages, self.selection.device.cluster)
            # Tensors take the memory of others within the kernel: nothing is known to be apart, or not to change.
            constant = {name for name, v in bindings.items() if self.selection.locations.is_constant(v)}
            return replace(kernel, shared=tuple([n for n in kernel.pointers if n not in constant]))

        joined = self._kept(key, bindings, composed, workspace)
        return replace(joined, checks=checks, workspace_bytes=aligned(*(v.tensor.bytes for v in inner))[-1])

    def _kept(
        self,
        key: Hashable,
        bindings: Mapping[str, Value],
        make: Callable[[], Kernel],
        workspace: Mapping[str, Size] = MappingProxyType({}),
        packed: Mapping[str, Packed] = MappingProxyType({}),
    ) -> GpuKernel:
        """A shared kernel, made once for equal layers."""
        constants = tuple([self.selection.locations.is_constant(v) for v in bindings.values()])
        key = key, constants, tuple(self.selection.locations.alignment(bindings).items())
        if key not in self.known:
            self.known[key] = finished(make(), bindings, self.selection, workspace, packed)
        return replace(self.known[key], bindings=bindings, workspace=workspace, packed=packed)
