"""Which memory kernels read and write, and which of them must therefore wait for each other.

Tensors share memory here only where a step writes over its operand, or a result is in the memory of an input: which
others do is planned once it is known which steps share a launch (`plan.with_launches`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.loops.launch_fusion.composed import Stage
from dovetail.kernels.spec import ALIGNMENT, TensorLocations
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Plan, Step
from dovetail.targets.gpu.kernel import GpuKernel


@dataclass(slots=True)
class Footprints:
    """Where the kernels of a plan read and write."""

    plan: Plan
    locations: TensorLocations
    steps: Sequence[Step] = ()
    """The steps of a run in the order of their kernels; as in the plan where there are none."""
    readers: dict[Value, int] = field(init=False)
    """How many steps read a tensor; an output is read once more."""
    reading: dict[Value, list[int]] = field(init=False)
    """The numbers of the steps that read a tensor."""
    overwritten: dict[Value, Value] = field(init=False)
    """The operand whose memory a result takes."""

    def __post_init__(self) -> None:
        self.readers, self.reading, self.overwritten = {}, {}, {}
        for number, step in enumerate(self.steps or self.plan.phase("run")):
            for root in {self.locations(v).root for v in step.operands}:
                self.readers[root] = self.readers.get(root, 0) + 1
                self.reading.setdefault(root, []).append(number)
            pairs = zip(step.overs, step.results, strict=True) if step.overs else ()
            self.overwritten |= {result: over for over, result in pairs if over is not None}
        for value in self.plan.graph.outputs.values():
            root = self.locations(value).root
            self.readers[root] = self.readers.get(root, 0) + 1

    def inner(self, steps: Sequence[Step]) -> dict[Value, Size]:
        """The results that these steps alone read, and where they are in the workspace."""
        inside: dict[Value, int] = {}
        for step in steps:
            for root in {self.locations(v).root for v in step.operands}:
                inside[root] = inside.get(root, 0) + 1
        # A kernel that works in place finds its operand where its result is.
        overwritten = {over for step in steps for over in taken(step)}
        apart = [v for step in steps if not taken(step) for v in step.results]
        own = [v for v in apart if self.readers.get(v) == inside.get(v) and v not in overwritten]
        dense = [v for v in own if v.tensor.is_static and self.is_whole(v)]
        return dict(zip(dense, aligned(*(v.tensor.bytes for v in dense)), strict=False))

    def read_by(self, step: Step, some: Set[int], last: int) -> bool:
        """Whether the results of a step are read by some steps alone, and by those after the last of these."""
        readers = [number for result in step.results for number in self.reading.get(result, ())]
        return all([number in some or number > last for number in readers])

    def are_repeatable(self, small: Sequence[GpuKernel], large: GpuKernel, inner: Mapping[Value, Size]) -> bool:
        """Whether each block of a kernel may run others first, whatever other blocks do: nothing is read that another
        one writes later, and nothing is written twice. Each block has inner tensors of its own."""
        writes = [self.written(one) - {*inner} for one in (*small, large)]
        for index, one in enumerate(small):
            reads = [v for n, v in one.bindings.items() if n not in one.kernel.written]
            if any(self.storages(reads) & later - {*inner} for later in writes[index:]):
                return False
        return not any(x & y for i, x in enumerate(writes) for y in writes[:i])

    def is_whole(self, value: Value) -> bool:
        """Whether a tensor is no part of another one, and has no gaps."""
        at = self.locations(value)
        return at.root is value and is_dense(value.tensor, at.strides)

    def must_wait(self, earlier: GpuKernel, later: GpuKernel) -> bool:
        """Whether a kernel reads or overwrites what an earlier one writes, or overwrites what it reads."""
        if earlier.workspace and later.workspace:
            return True
        return bool(self.written(earlier) & self.used(later) or self.used(earlier) & self.written(later))

    def levels(self, kernels: Sequence[GpuKernel]) -> list[int]:
        """For each kernel a level above those of all earlier ones that it must wait for."""
        levels: list[int] = []
        for waits in self.waits(kernels):
            levels.append(max([levels[i] + 1 for i in waits], default=0))
        return levels

    def waits(self, kernels: Sequence[GpuKernel]) -> list[frozenset[int]]:
        """For each kernel the numbers of the earlier ones that it must wait for."""
        sets = [(self.used(one), self.written(one)) for one in kernels]
        waits: list[frozenset[int]] = []
        for index, (uses, writes) in enumerate(sets):
            before = enumerate(sets[:index])
            waits.append(frozenset([i for i, (used, wrote) in before if wrote & uses or used & writes]))
        return waits

    def used(self, kernel: GpuKernel) -> set[Value]:
        """The memory that a kernel reads or writes."""
        return self.storages(kernel.bindings.values())

    def written(self, kernel: GpuKernel) -> set[Value]:
        """The memory that a kernel writes."""
        return self.storages([v for n, v in kernel.bindings.items() if n in kernel.kernel.written])

    def read_where_written(
        self, stages: Sequence[Stage], pointers: Mapping[str, str], large: GpuKernel, bindings: Mapping[str, Value]
    ) -> dict[str, str]:
        """For each pointer that stages write the one through which a kernel reads the same memory from its start."""
        read = [pointers[n] for n in large.kernel.pointers if n not in large.kernel.written and pointers[n] in bindings]
        same_memory: dict[str, str] = {}
        for stage in stages:
            for name in [stage.pointers[n] for n in stage.kernel.written if stage.pointers[n] in bindings]:
                memory = self.storage(bindings[name])
                same = [n for n in read if self.storage(bindings[n]) is memory]
                starts = [self.locations(bindings[n]).offset == 0 for n in (name, *same)]
                if len(same) == 1 and all(starts):
                    same_memory[name] = same[0]
        return same_memory

    def storages(self, values: Iterable[Value]) -> set[Value]:
        """The memory of tensors."""
        return {self.storage(v) for v in values}

    def storage(self, value: Value) -> Value:
        """The tensor or input in whose memory a tensor is: that at the start of a chain of results in place."""
        root = self.plan.root_of(value)
        while True:
            slot = self.plan.slots.get(root)
            over = self.overwritten.get(root, None if slot is None else slot.donor)
            if over is None:
                return root
            root = self.plan.root_of(over)

    def read_of(self, step: Step, kernel: GpuKernel) -> list[tuple[str, Value]]:
        """The results of a step that a kernel reads, or views of them, by its pointers."""
        return [(name, v) for name, v in kernel.bindings.items() if self.plan.root_of(v) in step.results]


def taken(step: Step) -> list[Value]:
    """The operands whose memory a step takes for its results."""
    return [over for over in step.overs if over is not None]


def aligned(*counts: Size) -> list[Size]:
    """Where arrays of these sizes start, one after the other, and the end of all."""
    starts: list[Size] = [0]
    for count in counts:
        starts.append(starts[-1] + (count + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT)
    return starts


__all__ = ["Footprints", "aligned", "taken"]
