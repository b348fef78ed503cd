"""Prepared calls: runs for which only the addresses of inputs and results are missing.

A workspace is the memory of one run at a time. For each set of input shapes it holds a call: a launch table and launch
arguments with addresses in that memory. Kernels write results into new arrays, which the caller owns, and donated ones
into the arrays of their inputs. The arrays are NumPy's, or those of another library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeAlias

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.plan import Plan, Step
from dovetail.targets.runtime.arrays.address import address
from dovetail.targets.runtime.arrays.array_library import NUMPY, ArrayLibrary
from dovetail.targets.runtime.arrays.buffer import Allocator, HostBuffer
from dovetail.targets.runtime.arrays.feeds import Shaped
from dovetail.targets.runtime.arrays.memory import Memory
from dovetail.targets.runtime.arrays.memory_limit import check_fits
from dovetail.targets.runtime.arrays.page_advice import trim
from dovetail.targets.runtime.arrays.spans import MemorySpans
from dovetail.targets.runtime.backend import Executor
from dovetail.targets.runtime.calls.launch_args import FIRST_OUTSIDE
from dovetail.targets.runtime.calls.launch_frame import Frame, Section
from dovetail.targets.runtime.calls.result_roots import chained, fresh_results

MOST_WORKSPACES = 16
"""Workspaces that a runner holds: one for each concurrent run, up to this."""
MOST_REFUSED = 100
"""Runs that set the error flag, after which the runner prepares no more calls."""
MOST_TESTS = 8
"""How often a call makes a new test of its arrays: those that fail it may come again and again."""
MOST_SHAPES = 32
"""Sets of input shapes for which a workspace holds calls."""

Shapes: TypeAlias = tuple[tuple[tuple[int, ...], ...], tuple[tuple[str, int], ...]]
"""The shapes of the inputs, and symbols that the caller binds."""


class RunPrepared(Protocol):
    """Runs a prepared call."""

    def __call__(self, arrays: Sequence[Any], sizes: Mapping[str, int] | None = None, /) -> dict[str, Any] | None:
        """The results of arrays in the order of the inputs; None where a run must check them."""
        ...


AddressPatches: TypeAlias = tuple[tuple[int, int], ...]
"""Launch arguments that point into an array: the index of each, and its offset from the first element."""

_NO_SIZES: tuple[tuple[str, int], ...] = ()


class Frames(Protocol):
    """Knows sizes and frames: a runner."""

    def known(self, arrays: Sequence[Shaped], shapes: Shapes) -> Memory:
        """Memory with the parameters and the sizes of these shapes; shapes that do not fit are refused."""
        ...

    def frame(self, index: int, memory: Memory, apart: Mapping[Value, Value]) -> Frame:
        """The frame of a section; see `make_frame`."""
        ...

    def on_host(self, step: Step, memory: Memory, status: int) -> None:
        """Run one step with NumPy; raises the error that a kernel reports as a status."""
        ...


@dataclass(frozen=True, slots=True)
class NewResult:
    """A result that its kernel writes into a new array."""

    name: str
    empty: Callable[[], Any]
    """Makes the array."""
    patches: AddressPatches


@dataclass(slots=True, eq=False)
class ShapedCall:
    """A run in one workspace, for one set of shapes, on arrays of one library."""

    library: ArrayLibrary
    run: Callable[..., int]
    arguments: tuple[int, ...]
    count: int
    launch_args: memoryview
    inputs: tuple[tuple[int, AddressPatches], ...]
    """For each input its index, and the launch arguments that point into it."""
    new_results: tuple[NewResult, ...]
    copied: tuple[tuple[str, Array, DType], ...]
    """Results in the workspace, or in memory that all runs share."""
    donated: tuple[tuple[str, int], ...]
    """Results in the arrays of inputs, and the index of each input."""
    moved: tuple[tuple[int, Array], ...]
    """Donated results that kernels write into the workspace, with the index of the input that each is copied to."""
    resume: Resume | None
    """Continues after a step that set the error flag; None where the run starts again from its inputs."""
    status: Array
    referenced: tuple[Any, ...]
    """Memory that the launch arguments point into."""
    starts: list[int] = field(default_factory=list[int])
    """The addresses of the inputs in the last run; empty before the first."""
    fits: Callable[..., bool] | None = None
    """Whether arrays can take the place of those of the last run; None where their shapes must be looked at."""
    tests: int = 0
    """How many times `fits` was replaced."""
    overwritten: MemorySpans | None = None
    """The memory of donated inputs in the last run, where no other input of it shared any; None for not known."""
    is_plain: bool = field(init=False)
    """Whether every result is a new array that a kernel writes."""

    def __post_init__(self) -> None:
        self.is_plain = not (self.copied or self.donated or self.moved)

    def finish(self, stopped: int, arrays: Sequence[Any], results: dict[str, Any], order: Iterable[str]) -> bool:
        """Complete the results of a run that is not plain, or that a kernel stopped; False where it has none."""
        if stopped != self.count:
            if self.resume is None:
                self.status[0] = 0
                return False
            self.resume(self, stopped, arrays, results)
        outputs = dict(results)
        for name, view, dtype in self.copied:
            outputs[name] = self.library.wrap(np.array(view, order="C"), dtype)
        for index, view in self.moved:
            self.library.view(arrays[index])[...] = view
        for name, index in self.donated:
            outputs[name] = arrays[index]
        results.clear()
        results.update({name: outputs[name] for name in order})
        return True


Resume: TypeAlias = Callable[[ShapedCall, int, Sequence[Any], Mapping[str, Any]], None]
"""Takes the call, the step that set the error flag, the inputs, and the new arrays of results."""


_EMPTY = HostBuffer(np.empty(0, np.uint8))


class RunWorkspace:
    """The arena and the scratch memory of one run at a time; both grow with the shapes that they serve."""

    def __init__(self) -> None:
        self.arena = self.scratch = _EMPTY
        self.calls: dict[Shapes, ShapedCall] = {}
        self.last: ShapedCall | None = None
        """The call of the run before."""

    def reserve(self, arena: int, scratch: int, allocator: Allocator[HostBuffer]) -> None:
        """Grow to at least these bytes. Calls that point into memory that was too small are dropped with it."""
        if self.arena.nbytes < arena or self.scratch.nbytes < scratch or len(self.calls) == MOST_SHAPES:
            self.calls.clear()
            self.last = None
        if self.arena.nbytes < arena:
            self.arena = _EMPTY
            self.arena = allocator.allocate(arena)
        if self.scratch.nbytes < scratch:
            self.scratch = allocator.allocate(scratch)


class PreparedCalls:
    """The prepared calls of one runner on arrays of one library.

    Python's lists are safe to push and pop from several threads.
    """

    def __init__(self, plan: Plan, executor: Executor, library: ArrayLibrary = NUMPY) -> None:
        self.plan = plan
        self.executor = executor
        self.library = library
        self.inputs = tuple(str(v.attrs["name"]) for v in plan.graph.inputs)
        self.dtypes = tuple(enumerate(library.dtype(v.dtype) for v in plan.graph.inputs))
        index = {name: i for i, name in enumerate(self.inputs)}
        self.donated = {d.output: index[d.input] for d in plan.donations}
        self.overwritten = frozenset(self.donated.values())
        self.fresh = fresh_results(plan)
        self.apart = chained(plan, self.fresh.values())
        self.workspaces: list[RunWorkspace] = []
        self.refused = 0
        self.trimmed = False

    def run(
        self, frames: Frames, inputs: Mapping[str, Any], sizes: Mapping[str, int] | None = None
    ) -> dict[str, Any] | None:
        """The results by name; None where inputs are not plain arrays, or a kernel set the error flag."""
        if inputs.__class__ is not dict or len(inputs) != len(self.inputs):
            return None
        return self.launch(frames, [inputs.get(name) for name in self.inputs], sizes)

    def launch(
        self, frames: Frames, arrays: Sequence[Any], sizes: Mapping[str, int] | None = None
    ) -> dict[str, Any] | None:
        """Run with arrays in the order of the inputs."""
        if self.refused == MOST_REFUSED:
            return None
        try:
            space = self.workspaces.pop()
        except IndexError:
            space = RunWorkspace()
        try:
            call = space.last
            if call is None or sizes or call.fits is None or not call.fits(*arrays):
                call = self._shaped(frames, space, arrays, sizes)
                if call is None:
                    return None
            args, address, before = call.launch_args, self.library.address, call.starts
            # Weights rarely move: only addresses that changed are checked and written again.
            starts = [*map(address, arrays)]
            if self.overwritten and not self._can_overwrite(call, arrays, starts):
                return None
            if starts != before:
                call.starts = []  # an interrupt leaves the arguments between two runs
                for index, patches in call.inputs:
                    start = starts[index]
                    if not before or start != before[index]:
                        for at, offset in patches:
                            args[at] = start + offset
                call.starts = starts
            results: dict[str, Any] = {}
            for one in call.new_results:
                new = results[one.name] = one.empty()
                start = address(new)
                for at, offset in one.patches:
                    args[at] = start + offset
            stopped = call.run(*call.arguments)
            if (stopped == call.count and call.is_plain) or call.finish(
                stopped, arrays, results, self.plan.graph.outputs
            ):
                return results
        finally:
            if len(self.workspaces) < MOST_WORKSPACES:
                self.workspaces.append(space)
        self.refused += 1
        return None

    def _shaped(
        self, frames: Frames, space: RunWorkspace, arrays: Sequence[Any], sizes: Mapping[str, int] | None
    ) -> ShapedCall | None:
        """The call for arrays that differ from those of the run before; None where one cannot be used as it is."""
        by_input = self.library.shapes(arrays, self.dtypes)
        if by_input is None:
            return None
        shapes: Shapes = (by_input, tuple(sorted(sizes.items())) if sizes else _NO_SIZES)
        call = space.calls.get(shapes)
        if call is None:
            call = self._prepare(frames, space, arrays, shapes)
        elif call is space.last and self.library.like is not None and call.tests < MOST_TESTS and not sizes:
            call.fits = self.library.like(arrays)
            call.tests += 1
            if self.library.comes_again is not None:
                self.library.comes_again(self)
        space.last = call
        return call

    def _prepare(self, frames: Frames, space: RunWorkspace, arrays: Sequence[Shaped], shapes: Shapes) -> ShapedCall:
        memory = frames.known(arrays, shapes)
        if memory.again and not self.trimmed:
            # By now callers have dropped the arrays that they bound.
            self.trimmed = True
            trim()
        frame = frames.frame(0, memory, self.apart)
        space.reserve(memory.number(self.plan.arena_size), frame.bytes, memory.allocator)
        memory.pools["arena"] = space.arena.array
        outputs = self.plan.graph.outputs
        sized = {name: tuple(map(memory.number, value.shape)) for name, value in outputs.items()}
        roots = {root: name for name, root in self.fresh.items()}
        elsewhere = [root not in roots and root.op is not leaf.INPUT for root in frame.outside]
        starts = [address(memory.place(r)[0]) if e else 0 for r, e in zip(frame.outside, elsewhere, strict=True)]
        status = np.zeros(1, np.int64)
        args = frame.relative_to(space.arena.address, address(status), starts)
        rows = frame.rows(args, status, space.scratch.array)
        patches = {root: _patches(frame, FIRST_OUTSIDE + i) for i, root in enumerate(frame.outside)}
        results = [
            NewResult(name, self.library.empty(sized[name], outputs[name].dtype), patches.get(root, ()))
            for name, root in self.fresh.items()
        ]
        total = sum(math.prod(sized[name]) * outputs[name].dtype.itemsize for name in self.fresh)
        check_fits(total, f"the results of {self.plan.graph.name}", self.plan.memory_limit)
        call = ShapedCall(
            self.library,
            self.executor.run,
            (address(rows), 0, len(rows), space.scratch.address, frame.scratch),
            len(rows),
            args.data,
            tuple((i, patches[v]) for i, v in enumerate(self.plan.graph.inputs) if v in patches),
            tuple(results),
            tuple(
                (n, memory.view(v), v.dtype)
                for n, v in outputs.items()
                if n not in self.fresh and n not in self.donated
            ),
            tuple(self.donated.items()),
            tuple((self.donated[d.output], memory.view(outputs[d.output])) for d in self.plan.donations if d.reason),
            self._resume(frames, memory) if self.donated else None,
            status,
            (memory, args, rows),
        )
        space.calls[shapes] = call
        return call

    def _resume(self, frames: Frames, memory: Memory) -> Resume:
        """Steps that set the error flag run on the host, the others go on: inputs may be overwritten already."""
        steps = self.plan.phase("run")
        ends: dict[Value, list[Value]] = {}
        for root, end in self.apart.items():
            ends.setdefault(end, []).append(root)

        def resume(call: ShapedCall, stopped: int, arrays: Sequence[Any], results: Mapping[str, Any]) -> None:
            own = {v: self._bytes(a) for v, a in zip(self.plan.graph.inputs, arrays, strict=True)}
            for name, end in self.fresh.items():
                own |= dict.fromkeys(ends[end], self._bytes(results[name]))
            there = memory.with_own(own)
            table, _, *rest = call.arguments
            while stopped < call.count:
                status, call.status[0] = int(call.status[0]), 0
                frames.on_host(steps[stopped], there, status)
                stopped = call.run(table, stopped + 1, *rest)

        return resume

    def _bytes(self, array: Any) -> Array:
        return self.library.view(array).reshape(-1).view(np.uint8)

    def _can_overwrite(self, call: ShapedCall, arrays: Sequence[Any], starts: Sequence[int]) -> bool:
        """Whether a run may write to donated inputs: each is writable, and shares no memory with another input."""
        can_write = self.library.can_write
        for index in self.overwritten:
            if not can_write(arrays[index]):
                return False
        spans, before = call.overwritten, call.starts
        call.overwritten = None
        if spans is None or not before or not spans.are_at(starts):
            spans, before = MemorySpans.of(self.overwritten, arrays, starts), [-1] * len(starts)
        if spans is None:
            return False
        for index, start in enumerate(starts):
            if start != before[index] and index not in self.overwritten and spans.meet(start, arrays[index].nbytes):
                return False
        call.overwritten = spans
        return True


def can_prepare(plan: Plan, sections: Sequence[Section]) -> bool:
    """Whether a run is one launch table without host steps and new sizes, and no result is a view of an input."""
    return (
        len(sections) == 1
        and all(job is not None for job in sections[0].jobs)
        and not any(True for step in sections[0].steps for _ in fresh_symbols(step.value))
        and not any(_in_memory_of_an_input(plan, name, v) for name, v in plan.graph.outputs.items())
    )


def _in_memory_of_an_input(plan: Plan, name: str, value: Value) -> bool:
    """Whether a result is a view of an input, or of what a run writes into one that is donated for another output."""
    root = plan.root_of(value)
    if root.op is leaf.INPUT:
        return True
    slot = plan.slots.get(root)
    return slot is not None and slot.donor is not None and slot.donor.attrs["name"] != plan.graph.donated.get(name)


def _patches(frame: Frame, base: int) -> AddressPatches:
    at = np.flatnonzero(frame.bases == base)
    return tuple(zip(at.tolist(), frame.offsets[at].tolist(), strict=True))


__all__ = ["PreparedCalls", "RunPrepared", "ShapedCall", "can_prepare"]
