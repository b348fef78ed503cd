"""Plans as compiled code: launch tables of kernels that a thread pool runs.

A step without a kernel runs on the host, with NumPy in the same memory. Branches and loops are tables within tables; a
branch or a loop with host steps in its bodies runs on the host, and each body is a compiled plan of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import cast

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.fact import Constraint
from dovetail.ir.literal import Array
from dovetail.ir.solve import solve_symbols
from dovetail.ir.value import Value
from dovetail.passes.specialize import symbols_of
from dovetail.plan.marks import Mark
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.measure.calibration import BUILT_IN
from dovetail.targets.cpu.threads.pool import thread_pool
from dovetail.targets.cpu.threads.trace_buffer import TraceBuffer
from dovetail.targets.runtime.arrays.array_library import NUMPY, ArrayLibrary
from dovetail.targets.runtime.arrays.buffer import BufferPool
from dovetail.targets.runtime.arrays.feeds import Shaped, actual_leaf
from dovetail.targets.runtime.arrays.memory import Memory
from dovetail.targets.runtime.arrays.memory_limit import check_fits
from dovetail.targets.runtime.arrays.page_advice import reserve
from dovetail.targets.runtime.building.build import Built, build, realigned
from dovetail.targets.runtime.building.compiler import LoadedCode
from dovetail.targets.runtime.building.lru import LRU
from dovetail.targets.runtime.building.packed_weights import PackedWeights, PackKey, needed_steps
from dovetail.targets.runtime.building.store import CodeStore
from dovetail.targets.runtime.calls.launch_frame import Frame, Section, make_frame, sections
from dovetail.targets.runtime.calls.prepared_call import PreparedCalls, RunPrepared, Shapes, can_prepare
from dovetail.targets.runtime.control.frame import bind_bodies
from dovetail.targets.runtime.control.host import Bodies, HostControl, LoneLoop
from dovetail.targets.runtime.control.plan import Control

MOST_FRAMES = 32
"""Sets of sizes for which a runner holds frames (LRU)."""


class NativeGraph:
    """A plan with the code of its kernels."""

    def __init__(
        self,
        plan: Plan,
        *,
        threads: int | None = None,
        store: CodeStore | None = None,
        built: Built | None = None,
        pool_code: LoadedCode | None = None,
    ) -> None:
        """`store` has machine code of other processes; `built` is this plan as one of them compiled it.

        `pool_code` is that of the thread pool, from a program that was saved.
        """
        self.plan = plan
        self.pool = thread_pool(threads, store, pool_code)
        self.built = _built(plan, store) if built is None else built
        self.sections = sections(plan.phase("run"), self.built.jobs, self.built.entries)
        self.host_control = HostControl(lambda body: NativeGraph(body, threads=threads, store=store), plan)

    @property
    def on_host(self) -> tuple[Step, ...]:
        """The steps that have no kernel."""
        return tuple(s for part in self.sections for s, job in zip(part.steps, part.jobs, strict=True) if job is None)

    def bind(self, params: Mapping[str, Array]) -> NativeRunner:
        """Run the bind phase on these parameters, and pack the weights of kernels."""
        plan = self.plan
        params = realigned(plan, self.built, params)
        memory = Memory(plan, prove=False)
        memory.give(plan.graph.parameters, params, bare=True)
        size = memory.number(plan.bound_size)
        check_fits(size, f"the bound memory of {plan.graph.name}", plan.memory_limit)
        memory.pools["bound"] = reserve(size)
        steps = needed_steps(plan, self.sections)
        if steps:
            memory.reserve("scratch", plan.scratch_size)
            memory.run(steps)
            memory.release("scratch")
        return NativeRunner(self, memory, params)


def _built(plan: Plan, store: CodeStore | None) -> Built:
    from dovetail.targets.cpu.backend import BACKEND  # selection and LLVM, which a saved program goes without

    return build(plan, BACKEND, store)


@dataclass(frozen=True, slots=True)
class _Known:
    """The symbols that input shapes determine, and sizes computed from them."""

    sizes: dict[str, int]
    numbers: dict[Size, int] = field(default_factory=dict[Size, int])


class NativeRunner:
    """A compiled plan with its parameters; several threads may run it at once."""

    def __init__(
        self,
        graph: NativeGraph,
        bound: Memory,
        params: Mapping[str, Array],
        packed: Mapping[PackKey, Array] | None = None,
    ) -> None:
        """`packed` are the weights of a program that was saved, packed already."""
        self.graph = graph
        self.plan = graph.plan
        self.bound = bound
        self.inputs = graph.plan.graph.inputs
        self.names = [str(v.attrs["name"]) for v in self.inputs]
        self.dtypes = tuple(enumerate(v.dtype.numpy for v in self.inputs))
        self.symbolic = [
            actual_leaf(v, params[v.attrs["name"]]) for v in graph.plan.graph.parameters if not v.tensor.is_static
        ]
        self.constraints = graph.plan.graph.constraints
        fresh = symbols_of(graph.plan.graph)[1] if self.constraints else set[str]()
        self.late = [c for c in self.constraints if not fresh.isdisjoint(c.symbols)]
        """Constraints on sizes that are known only while a plan runs."""
        self.packed = PackedWeights(graph.plan, graph.sections, bound, params, packed)
        controls = [job for part in graph.sections for job in part.jobs if isinstance(job, Control)]
        self.bodies = bind_bodies(controls, bound)
        self.known_sizes: LRU[_Known] = LRU(MOST_FRAMES)
        self.frames: LRU[Frame] = LRU(MOST_FRAMES)
        self.buffers = BufferPool(bound.allocator)
        self.host_bodies: Bodies = {}
        self.is_one_step = len(graph.plan.phase("run")) == 1 and not graph.plan.donations
        self.lone_loop: LoneLoop | None = None
        """The plan as one loop that runs in chunks, once it has run."""
        self.checked: LRU[list[Constraint | None]] = LRU(MOST_FRAMES)
        """Sizes that late constraints allow."""
        self.calls = PreparedCalls(graph.plan, graph.pool) if can_prepare(graph.plan, graph.sections) else None
        self.foreign_calls: dict[ArrayLibrary, PreparedCalls] = {}
        """Prepared calls with arrays of other libraries."""

    def run(
        self,
        inputs: Mapping[str, Array],
        sizes: Mapping[str, int] | None = None,
        *,
        marks: list[Mark] | None = None,
    ) -> dict[str, Array]:
        """The outputs by name, in memory that the caller owns. Arrays of donated inputs are overwritten.

        `sizes` binds symbols in addition to the shapes. `marks` collects when each step ran.
        """
        if marks is None and (results := self.quick(inputs, sizes)) is not None:
            return results
        arrays = [
            np.asarray(inputs[name], v.dtype.numpy, order="C") for name, v in zip(self.names, self.inputs, strict=True)
        ]
        shapes = tuple(a.shape for a in arrays), tuple(sorted((sizes or {}).items()))
        return self._run(inputs, arrays, shapes, marks)

    def _run(
        self, inputs: Mapping[str, Array], arrays: Sequence[Array], shapes: Shapes, marks: list[Mark] | None
    ) -> dict[str, Array]:
        """A run, section by section."""
        memory = self.known(arrays, shapes)
        memory.whole |= zip(self.inputs, arrays, strict=True)
        size = memory.number(self.plan.arena_size)
        arena = self.buffers.allocate(size)
        memory.pools["arena"] = arena.array
        for index, section in enumerate(self.graph.sections):
            self._section(index, section, memory, marks)
            self._check_sizes(memory.sizes)
        results = memory.results(inputs)
        self.buffers.free(arena)
        if self.is_one_step and self.lone_loop is None:
            self.lone_loop = self.graph.host_control.lone_loop(self.host_bodies)
        return results

    def quick(self, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> dict[str, Array] | None:
        """The outputs of arrays that need no conversion; None where `run` must check them, or say what is wrong."""
        if self.calls is not None:
            return self.calls.run(self, inputs, sizes)
        if self.plan.donations or inputs.__class__ is not dict or len(inputs) != len(self.names):
            return None
        arrays = cast(list[Array], [inputs.get(name) for name in self.names])
        by_input = NUMPY.shapes(arrays, self.dtypes)
        if by_input is None:
            return None
        shapes = by_input, tuple(sorted(sizes.items())) if sizes else ()
        if self.lone_loop is not None:
            results, known = self.lone_loop.run(arrays, self._known(arrays, shapes).sizes)
            self._check_sizes(known)
            return results
        return self._run(inputs, arrays, shapes, None)

    def launcher(self, library: ArrayLibrary) -> RunPrepared | None:
        """Runs prepared calls on arrays of a library, in the order of the inputs; None where there are none."""
        if self.calls is None:
            return None
        calls = self.calls if library is self.calls.library else self.foreign_calls.get(library)
        if calls is None:
            calls = self.foreign_calls.setdefault(library, PreparedCalls(self.plan, self.graph.pool, library))
        return partial(calls.launch, self)

    def known(self, arrays: Sequence[Shaped], shapes: Shapes) -> Memory:
        """Memory with the parameters and the sizes of these shapes; shapes that do not fit are refused."""
        memory = self.bound.copy()
        known = self._known(arrays, shapes)
        memory.sizes = dict(known.sizes)
        memory.numbers = known.numbers
        return memory

    def _known(self, arrays: Sequence[Shaped], shapes: Shapes) -> _Known:
        return self.known_sizes.get(shapes, lambda: _Known(self._sizes(arrays, dict(shapes[1]))))

    def frame(self, index: int, memory: Memory, apart: Mapping[Value, Value] | None = None) -> Frame:
        """The frame of a section; see `make_frame`."""
        key = (index, apart is None, tuple(sorted(memory.sizes.items())))
        section, threads = self.graph.sections[index], self.graph.pool.threads
        return self.frames.get(
            key,
            lambda: make_frame(
                section,
                self.plan,
                memory,
                self.packed,
                threads,
                apart or {},
                self.bodies,
                machine=BUILT_IN,
            ),
        )

    @property
    def threads(self) -> int:
        """The threads of a run."""
        return self.graph.pool.threads

    def run_marked(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], Sequence[Mark]]:
        """The outputs by name, and when each step ran."""
        marks: list[Mark] = []
        return self.run(inputs, marks=marks), marks

    def _section(self, index: int, section: Section, memory: Memory, marks: list[Mark] | None) -> None:
        if marks is None and not any(section.jobs):
            for step in section.steps:
                self.on_host(step, memory, 0)
            return
        pool = self.graph.pool
        frame = self.frame(index, memory)
        status = np.zeros(1, np.int64)
        args = frame.launch_args(memory, status)
        scratch = self.buffers.allocate(frame.bytes)
        table = frame.rows(args, status, scratch.array)
        trace = None if marks is None else TraceBuffer(section.steps, pool.threads)
        count = len(section.steps)
        at = 0
        while at < count:
            where = 0 if trace is None else trace.address
            at = pool.run(table.ctypes.data, at, count, scratch.address, frame.scratch, where)
            if at < count:
                started = time.perf_counter_ns()
                self.on_host(section.steps[at], memory, int(status[0]))
                status[0] = 0
                if trace is not None:
                    trace.on_host(at, started)
                at += 1
        if trace is not None and marks is not None:
            marks.extend(trace.marks())
        self.buffers.free(scratch)

    def on_host(self, step: Step, memory: Memory, status: int) -> None:
        """Run one step with NumPy in the same memory; raises the error that a kernel reports as a status."""
        if not self.graph.host_control.run(step, memory, self.host_bodies, status):
            memory.run([step])

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        if self.late:
            self.checked.get(frozenset(sizes.items()), lambda: [c.bind(sizes) for c in self.late])

    def _sizes(self, arrays: Sequence[Shaped], sizes: Mapping[str, int]) -> dict[str, int]:
        """The symbols that the shapes determine, after all constraints are checked."""
        known = [actual_leaf(v, a) for v, a in zip(self.inputs, arrays, strict=True)]
        solved = solve_symbols([*known, *self.symbolic], {**self.bound.sizes, **sizes})
        for constraint in self.constraints:
            constraint.bind(solved)
        return solved


__all__ = ["NativeGraph", "NativeRunner"]
