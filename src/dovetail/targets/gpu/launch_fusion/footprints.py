"""Which bytes of memory kernels read and write, and which of them must therefore wait for each other."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import field
from types import MappingProxyType

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.loops.launch_fusion.composed import Stage
from dovetail.kernels.spec import ALIGNMENT, TensorLocations
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Plan, Step
from dovetail.targets.gpu.kernel import GpuKernel


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
        return not _is_before(self.end, other.first) and not _is_before(other.end, self.first)


def _is_before(end: Size, first: Size) -> bool:
    """Whether bytes are known to end before others start, whatever sizes a run has."""
    return isinstance(end, int) and isinstance(first, int) and end <= first


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
        """The results that these steps alone read, and where they are in the workspace.

        In the arena they would take the memory of others that are not needed any more, and stages would wait for each
        other although they need nothing of each other.
        """
        inside: dict[Value, int] = {}
        for step in steps:
            for root in {self.locations(v).root for v in step.operands}:
                inside[root] = inside.get(root, 0) + 1
        # A kernel that works in place finds its operand where its result is.
        overwritten = {over for step in steps for over in taken(step)}
        apart = [v for step in steps if not taken(step) for v in step.results]
        found = [v for v in apart if self.readers.get(v) == inside.get(v) and v not in overwritten]
        dense = [v for v in found if v.tensor.is_static and self.is_whole(v)]
        return dict(zip(dense, aligned(*(v.tensor.bytes for v in dense)), strict=False))

    def read_by(self, step: Step, some: Set[int], last: int) -> bool:
        """Whether the results of a step are read by some steps alone, and by those after the last of these."""
        found = [number for result in step.results for number in self.reading.get(result, ())]
        return all([number in some or number > last for number in found])

    def are_repeatable(self, small: Sequence[GpuKernel], large: GpuKernel, inner: Mapping[Value, Size]) -> bool:
        """Whether each block of a kernel may run others first, whatever other blocks do: nothing is read that another
        one writes later, and nothing is written twice. Each block has inner tensors of its own."""
        writes = [self._outside(one, True, inner) for one in (*small, large)]
        for index, one in enumerate(small):
            reads = self._outside(one, False, inner)
            if any(meet(reads, later) for later in writes[index:]):
                return False
        return not any(meet(x, y) for i, x in enumerate(writes) for y in writes[:i])

    def _outside(self, made: GpuKernel, written: bool, inner: Mapping[Value, Size]) -> list[Span]:
        """What a kernel writes, or reads alone, of memory that all blocks share."""
        names = [n for n in made.bindings if (n in made.kernel.written) == written]
        values = [made.bindings[n] for n in names]
        return [self.span(v, inner) for v in values if self.locations(v).root not in inner]

    def is_whole(self, value: Value) -> bool:
        """Whether a tensor is no part of another one, and has no gaps."""
        at = self.locations(value)
        return at.root is value and is_dense(value.tensor, at.strides)

    def must_wait(self, earlier: GpuKernel, later: GpuKernel, inner: Mapping[Value, Size]) -> bool:
        """Whether a kernel reads or overwrites what an earlier one writes, or overwrites what it reads."""
        if earlier.workspace and later.workspace:
            return True
        wrote, writes = self.spans(earlier, True, inner), self.spans(later, True, inner)
        reads, read = self.spans(later, False, inner), self.spans(earlier, False, inner)
        return meet(wrote, reads) or meet(read, writes)

    def levels(self, kernels: Sequence[GpuKernel], inner: Mapping[Value, Size]) -> list[int]:
        """For each kernel a level above those of all earlier ones that it must wait for."""
        levels: list[int] = []
        for waits in self.waits(kernels, inner):
            levels.append(max([levels[i] + 1 for i in waits], default=0))
        return levels

    def waits(self, kernels: Sequence[GpuKernel], inner: Mapping[Value, Size]) -> list[frozenset[int]]:
        """For each kernel the numbers of the earlier ones that it must wait for."""
        spans = [(self.spans(one, False, inner), self.spans(one, True, inner)) for one in kernels]
        found: list[frozenset[int]] = []
        for index, (reads, writes) in enumerate(spans):
            before = enumerate(spans[:index])
            found.append(frozenset([i for i, (read, wrote) in before if meet(wrote, reads) or meet(read, writes)]))
        return found

    def spans(self, made: GpuKernel, written: bool, inner: Mapping[Value, Size] = MappingProxyType({})) -> list[Span]:
        """What a kernel writes, or all that it uses."""
        return [self.span(v, inner) for n, v in made.bindings.items() if not written or n in made.kernel.written]

    def read_where_written(
        self, stages: Sequence[Stage], pointers: Mapping[str, str], large: GpuKernel, bindings: Mapping[str, Value]
    ) -> dict[str, str]:
        """For each pointer that stages write the one through which a kernel reads the same memory from its start."""
        read = [pointers[n] for n in large.kernel.pointers if n not in large.kernel.written and pointers[n] in bindings]
        found: dict[str, str] = {}
        for stage in stages:
            for name in [stage.pointers[n] for n in stage.kernel.written if stage.pointers[n] in bindings]:
                span = self.span(bindings[name])
                same = [n for n in read if self.span(bindings[n]) == span]
                starts = [self.locations(bindings[n]).offset == 0 for n in (name, *same)]
                if len(same) == 1 and all(starts):
                    found[name] = same[0]
        return found

    def span(self, value: Value, inner: Mapping[Value, Size] = MappingProxyType({})) -> Span:
        """The bytes of a tensor."""
        root = self.locations(value).root
        slot = self.plan.slots.get(root)
        while slot is not None and slot.donor is not None:
            root = slot.donor
            slot = self.plan.slots.get(root)
        if slot is None or slot.pool == "heap" or root in inner:
            return Span(root)
        return Span(slot.pool, slot.offset, slot.offset + slot.size)


def taken(step: Step) -> list[Value]:
    """The operands whose memory a step takes for its results."""
    return [over for over in step.overs if over is not None]


def aligned(*counts: Size) -> list[Size]:
    """Where arrays of these sizes start, one after the other, and the end of all."""
    found: list[Size] = [0]
    for count in counts:
        found.append(found[-1] + (count + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT)
    return found


def meet(some: Sequence[Span], others: Sequence[Span]) -> bool:
    """Whether a byte is in both."""
    return any(x.meets(y) for x in some for y in others)


__all__ = ["Footprints", "Span", "aligned", "meet", "taken"]
