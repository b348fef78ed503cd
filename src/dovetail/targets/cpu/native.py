"""Plans as compiled code: a table of kernels that one compiled function goes through.

What changes with the sizes of a run is a frame: the words that kernels are given, as offsets from a few bases. What a
run needs for itself is a lane: an arena, the words with the bases added, the table. Frames and lanes are kept and used
again. A step without a kernel runs on the host, with NumPy in the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dovetail.ir import leaf
from dovetail.ir.dim import Size, evaluate
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.archetypes import make_job
from dovetail.kernels.job import Packed
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.codes import addresses
from dovetail.targets.cpu.crew import Crew, crew
from dovetail.targets.cpu.crew_text import KIND_COMPILED, KIND_HOST, STEP_WORDS
from dovetail.targets.feeds import found_leaf
from dovetail.targets.recent import Recent
from dovetail.targets.reference.memory import Memory

WORTH_SHARING = 16_384
"""Work of a chunk of tiles below which handing it to another thread costs more than it brings."""
MOST_FRAMES = 16
"""For how many sets of sizes the words are kept."""

NOTHING, ARENA, BOUND, FIRST_INPUT = 0, 1, 2, 3
"""The bases that words are counted from."""


class NativeGraph:
    """A plan with the code of its kernels."""

    def __init__(self, plan: Plan, *, threads: int | None = None) -> None:
        self.plan = plan
        self.crew = crew(threads)
        self.steps = plan.phase("run")
        self.jobs = [make_job(step, plan.locate) for step in self.steps]
        found = iter(addresses([j for j in self.jobs if j is not None]))
        self.entries = [0 if job is None else next(found) for job in self.jobs]

    @property
    def on_host(self) -> tuple[Step, ...]:
        """The steps that have no kernel."""
        return tuple(s for s, job in zip(self.steps, self.jobs, strict=True) if job is None)

    def bind(self, params: Mapping[str, Array]) -> NativeRunner:
        """Run the bind phase on these parameters, and lay out what kernels want in a layout of their own."""
        plan = self.plan
        memory = Memory(plan, prove=False)
        memory.give(plan.graph.parameters, params, bare=True)
        memory.reserve("bound", plan.bound_size)
        memory.reserve("scratch", plan.scratch_size)
        memory.run(plan.phase("bind"))
        memory.release("scratch")
        return NativeRunner(self, memory, params)


@dataclass(slots=True)
class Frame:
    """The words of all kernels for one set of sizes: each is an offset from a base."""

    sizes: dict[str, int]
    bases: Array
    offsets: Array
    table: Array
    """The table of steps; their arguments count from the first word."""
    arena: int
    scratch: int
    lanes: list[Lane] = field(default_factory=list["Lane"])


class Lane:
    """What one run at a time needs for itself."""

    def __init__(self, frame: Frame, memory: Memory, threads: int) -> None:
        self.memory = memory
        self.words = np.empty(frame.offsets.size, np.int64)
        self.table = frame.table.copy()
        self.table[:, 1] = self.words.ctypes.data + 8 * self.table[:, 1]
        self.scratch = memory.allocate(max(64, frame.scratch * threads))


class NativeRunner:
    """A compiled plan with its parameters; several threads may run it at once."""

    def __init__(self, graph: NativeGraph, kept: Memory, params: Mapping[str, Array]) -> None:
        self.graph = graph
        self.kept = kept
        self.inputs = graph.plan.graph.inputs
        self.names = [str(v.attrs["name"]) for v in self.inputs]
        self.symbolic = [
            found_leaf(v, params[v.attrs["name"]]) for v in graph.plan.graph.parameters if not v.tensor.is_static
        ]
        self.packed: dict[tuple[Value, str], Array] = {}
        for job in graph.jobs:
            for point in () if job is None else job.points.values():
                if isinstance(point, Packed) and (point.value, point.layout) not in self.packed:
                    self.packed[point.value, point.layout] = point.pack(kept.view(point.value))
        self.frames: Recent[Frame] = Recent(MOST_FRAMES)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, in memory that the caller owns."""
        arrays = [
            np.asarray(inputs[name], v.dtype.numpy, order="C") for name, v in zip(self.names, self.inputs, strict=True)
        ]
        frame = self.frames.get(tuple(a.shape for a in arrays), lambda: self._frame(arrays))
        lane = frame.lanes.pop() if frame.lanes else self._lane(frame)
        memory = lane.memory
        bases = [0, memory.pools["arena"].ctypes.data, 0, *(a.ctypes.data for a in arrays)]
        np.add(np.array(bases, np.int64)[frame.bases], frame.offsets, out=lane.words)
        for value, array in zip(self.inputs, arrays, strict=True):
            memory.own[value] = array.reshape(-1).view(np.uint8)
        self._go(frame, lane)
        outputs = self.graph.plan.graph.outputs
        results = {name: memory.copied(v) for name, v in outputs.items()}
        for value in self.inputs:
            del memory.own[value]
        frame.lanes.append(lane)
        return results

    def _go(self, frame: Frame, lane: Lane) -> None:
        team: Crew = self.graph.crew
        count = len(self.graph.steps)
        at = 0
        while at < count:
            at = team.run(lane.table.ctypes.data, at, count, lane.scratch.ctypes.data, frame.scratch)
            if at < count:
                lane.memory.run([self.graph.steps[at]])
                at += 1

    def _lane(self, frame: Frame) -> Lane:
        memory = self.kept.copy()
        memory.sizes = dict(frame.sizes)
        memory.pools["arena"] = memory.allocate(frame.arena)
        return Lane(frame, memory, self.graph.crew.workers + 1)

    def _frame(self, arrays: Sequence[Array]) -> Frame:
        plan = self.graph.plan
        memory = self.kept.copy()
        memory.give(plan.graph.inputs, dict(zip(self.names, arrays, strict=True)))
        memory.solve(self.symbolic)
        for constraint in plan.graph.constraints:
            constraint.bind(memory.sizes)
        sizes = memory.sizes
        bases: list[int] = []
        offsets: list[int] = []
        table = np.zeros((max(1, len(self.graph.steps)), STEP_WORDS), np.int64)
        scratch = 0
        for row, (job, entry) in enumerate(zip(self.graph.jobs, self.graph.entries, strict=True)):
            if job is None:
                table[row, 4] = KIND_HOST
                continue
            tiles = _number(job.tiles, sizes)
            table[row] = [entry, len(offsets), tiles, self._chunk(tiles, _number(job.work, sizes)), KIND_COMPILED, 0]
            scratch = max(scratch, _number(job.scratch, sizes))
            for name in job.kernel.pointers:
                base, offset = self._place(job.points[name], memory)
                bases.append(base)
                offsets.append(offset)
            bases += [NOTHING] * len(job.sizes)
            offsets += [_number(size, sizes) for size in job.sizes]
        return Frame(
            sizes,
            np.array(bases, np.int64),
            np.array(offsets, np.int64),
            table,
            _number(plan.arena_size, sizes),
            -(-scratch // 64) * 64,
        )

    def _chunk(self, tiles: int, work: int) -> int:
        """How many tiles are claimed at once: enough to be worth it, few enough that all threads end together."""
        threads = self.graph.crew.workers + 1
        worth = -(-WORTH_SHARING // max(1, work))
        return max(1, worth, tiles // (8 * threads))

    def _place(self, point: Value | Packed, memory: Memory) -> tuple[int, int]:
        """The base of a tensor's address, and how far behind it the first element lies."""
        if isinstance(point, Packed):
            return NOTHING, self.packed[point.value, point.layout].ctypes.data
        alias = self.graph.plan.locate(point)
        offset = _number(alias.offset, memory.sizes)
        if alias.root.op is leaf.INPUT:
            return FIRST_INPUT + self.inputs.index(alias.root), offset
        slot = self.graph.plan.slots.get(alias.root)
        if slot is not None and slot.pool == "arena":
            return ARENA, offset + _number(slot.offset, memory.sizes)
        buffer, start = memory.place(alias.root)
        return NOTHING, int(buffer.ctypes.data) + start + offset


def _number(size: Size, sizes: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else evaluate(size, sizes)


__all__ = ["NativeGraph", "NativeRunner"]
