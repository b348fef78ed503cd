"""Plans as compiled code: tables of kernels that one compiled function goes through.

A step without a kernel runs on the host, with NumPy in the same memory. Branches and loops are tables within tables;
where something in a body runs on the host, they are decided there, and the body is a compiled plan of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dovetail.ir.dim import Size
from dovetail.ir.literal import Array
from dovetail.ir.solve import solve_symbols
from dovetail.ir.value import Value
from dovetail.passes.specialize import symbols_of
from dovetail.plan.marks import Mark
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.page_advice import reserve
from dovetail.targets.cpu.threads.pool import crew
from dovetail.targets.cpu.threads.trace_buffer import Sheet
from dovetail.targets.runtime.buffer_pool import Spare
from dovetail.targets.runtime.build import Ready, aligned, make_ready
from dovetail.targets.runtime.control.frame import bind_bodies
from dovetail.targets.runtime.control.host import Bodies
from dovetail.targets.runtime.control.plan import Control
from dovetail.targets.runtime.feeds import found_leaf
from dovetail.targets.runtime.launch_frame import Frame, Section, make_frame, sections
from dovetail.targets.runtime.lru import Recent
from dovetail.targets.runtime.memory import Memory
from dovetail.targets.runtime.memory_limit import check_fits
from dovetail.targets.runtime.packed_weights import Packs
from dovetail.targets.runtime.prepared_call import Calls, Shapes, can_prepare
from dovetail.targets.runtime.store import Store

MOST_FRAMES = 32
"""For how many sets of sizes the words of sections are kept."""


class NativeGraph:
    """A plan with the code of its kernels."""

    def __init__(
        self, plan: Plan, *, threads: int | None = None, store: Store | None = None, ready: Ready | None = None
    ) -> None:
        """`store` keeps machine code for other processes; `ready` is what one of them has made of this plan."""
        self.plan = plan
        self.crew = crew(threads, store)
        self.ready = make_ready(plan, store) if ready is None else ready
        self.sections = sections(plan.phase("run"), self.ready.jobs, self.ready.entries)
        self.bodies = Bodies(lambda body: NativeGraph(body, threads=threads, store=store))

    @property
    def on_host(self) -> tuple[Step, ...]:
        """The steps that have no kernel."""
        return tuple(s for part in self.sections for s, job in zip(part.steps, part.jobs, strict=True) if job is None)

    def bind(self, params: Mapping[str, Array]) -> NativeRunner:
        """Run the bind phase on these parameters, and lay out what kernels want in a layout of their own."""
        plan = self.plan
        params = aligned(plan, self.ready, params)
        memory = Memory(plan, prove=False)
        memory.give(plan.graph.parameters, params, bare=True)
        size = memory.number(plan.bound_size)
        check_fits(size, f"what {plan.graph.name} keeps when it is bound", plan.memory_limit)
        memory.pools["bound"] = reserve(size)
        memory.reserve("scratch", plan.scratch_size)
        memory.run(plan.phase("bind"))
        memory.release("scratch")
        return NativeRunner(self, memory, params)


@dataclass(frozen=True, slots=True)
class _Known:
    """What the shapes of inputs tell: symbols, and sizes that were computed from them."""

    sizes: dict[str, int]
    numbers: dict[Size, int] = field(default_factory=dict[Size, int])


class NativeRunner:
    """A compiled plan with its parameters; several threads may run it at once."""

    def __init__(self, graph: NativeGraph, kept: Memory, params: Mapping[str, Array]) -> None:
        self.graph = graph
        self.plan = graph.plan
        self.kept = kept
        self.inputs = graph.plan.graph.inputs
        self.names = [str(v.attrs["name"]) for v in self.inputs]
        self.symbolic = [
            found_leaf(v, params[v.attrs["name"]]) for v in graph.plan.graph.parameters if not v.tensor.is_static
        ]
        self.constraints = graph.plan.graph.constraints
        found = symbols_of(graph.plan.graph)[1]
        self.late = [c for c in self.constraints if not found.isdisjoint(c.symbols)]
        """What must hold of sizes that are found while a plan runs."""
        self.packed = Packs(graph.plan, graph.sections, kept, params)
        controls = [job for part in graph.sections for job in part.jobs if isinstance(job, Control)]
        self.insides = bind_bodies(controls, kept)
        self.bindings: Recent[_Known] = Recent(MOST_FRAMES)
        self.frames: Recent[Frame] = Recent(MOST_FRAMES)
        self.spare = Spare()
        self.calls = Calls(graph.plan, graph.crew) if can_prepare(graph.plan, graph.sections) else None

    def run(
        self,
        inputs: Mapping[str, Array],
        sizes: Mapping[str, int] | None = None,
        *,
        marks: list[Mark] | None = None,
    ) -> dict[str, Array]:
        """The outputs by name, in memory that the caller owns. Arrays of donated inputs are overwritten.

        `sizes` binds symbols beside the shapes. `marks` is given when each step ran.
        """
        if marks is None and (found := self.quick(inputs, sizes)) is not None:
            return found
        arrays = [
            np.asarray(inputs[name], v.dtype.numpy, order="C") for name, v in zip(self.names, self.inputs, strict=True)
        ]
        memory = self.known(arrays, (tuple(a.shape for a in arrays), tuple(sorted((sizes or {}).items()))))
        for value, array in zip(self.inputs, arrays, strict=True):
            memory.own[value] = array.reshape(-1).view(np.uint8)
        size = memory.number(self.plan.arena_size)
        arena = memory.pools["arena"] = self.spare.take(size, memory.allocate)
        for index, section in enumerate(self.graph.sections):
            self._section(index, section, memory, marks)
            self._check_found(memory.sizes)
        results = memory.results(inputs)
        self.spare.give(arena)
        return results

    def quick(self, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> dict[str, Array] | None:
        """The outputs by name where all is prepared; None asks for a run that looks at everything, and says why."""
        return None if self.calls is None else self.calls.run(self, inputs, sizes)

    def known(self, arrays: Sequence[Array], shapes: Shapes) -> Memory:
        """Memory with the parameters, and the sizes that these shapes tell; what does not fit is refused."""
        memory = self.kept.copy()
        known = self.bindings.get(shapes, lambda: _Known(self._sizes(arrays, dict(shapes[1]))))
        memory.sizes = dict(known.sizes)
        memory.numbers = known.numbers
        return memory

    def frame(self, index: int, memory: Memory, apart: Mapping[Value, Value] | None = None) -> Frame:
        """The frame of a section; see `make_frame`."""
        key = (index, apart is None, tuple(sorted(memory.sizes.items())))
        section, threads = self.graph.sections[index], self.graph.crew.workers + 1
        return self.frames.get(
            key, lambda: make_frame(section, self.plan, memory, self.packed, threads, apart or {}, self.insides)
        )

    @property
    def threads(self) -> int:
        """How many threads a run may use."""
        return self.graph.crew.workers + 1

    def run_marked(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], Sequence[Mark]]:
        """The outputs by name, and when each step ran."""
        marks: list[Mark] = []
        return self.run(inputs, marks=marks), marks

    def _section(self, index: int, section: Section, memory: Memory, marks: list[Mark] | None) -> None:
        team = self.graph.crew
        threads = team.workers + 1
        frame = self.frame(index, memory)
        status = np.zeros(1, np.int64)
        words = frame.words(memory, status)
        scratch = self.spare.take(frame.bytes, memory.allocate)
        table = frame.rows(words, status, scratch)
        sheet = None if marks is None else Sheet(section.steps, threads)
        count = len(section.steps)
        at = 0
        while at < count:
            where = 0 if sheet is None else sheet.address
            at = team.run(table.ctypes.data, at, count, scratch.ctypes.data, frame.scratch, where)
            if at < count:
                started = time.perf_counter_ns()
                self._on_host(section.steps[at], memory, int(status[0]))
                status[0] = 0
                if sheet is not None:
                    sheet.on_host(at, started)
                at += 1
        if sheet is not None and marks is not None:
            marks.extend(sheet.marks())
        self.spare.give(scratch)

    def _on_host(self, step: Step, memory: Memory, said: int) -> None:
        if not self.graph.bodies.run(step, memory, said):
            memory.run([step])

    def _check_found(self, sizes: Mapping[str, int]) -> None:
        for constraint in self.late:
            constraint.bind(sizes)

    def _sizes(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> dict[str, int]:
        """The symbols that the shapes tell, once they are known to fit."""
        given = [found_leaf(v, a) for v, a in zip(self.inputs, arrays, strict=True)]
        found = solve_symbols([*given, *self.symbolic], {**self.kept.sizes, **sizes})
        for constraint in self.constraints:
            constraint.bind(found)
        return found


__all__ = ["NativeGraph", "NativeRunner"]
