"""Prepared calls: a run for which only the addresses of inputs and results are missing.

A space is the memory of one run at a time. It keeps, for the shapes that it has met, the words of every kernel with
addresses in that memory. Results are written by their kernels into new arrays, which are the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from dovetail.ir import leaf
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Plan
from dovetail.targets.cpu.address import address
from dovetail.targets.cpu.page_advice import trim
from dovetail.targets.cpu.threads.pool import Crew
from dovetail.targets.runtime.launch_args import FIRST
from dovetail.targets.runtime.launch_frame import Frame, Section
from dovetail.targets.runtime.memory import Memory
from dovetail.targets.runtime.memory_limit import check_fits

MOST_SPACES = 16
"""How many are kept: as many as there are runs at once, up to this."""
MOST_REFUSED = 100
"""After so many runs that the host had to look at again, all runs begin there."""
MOST_SHAPES = 32
"""For how many shapes of inputs a space keeps its words."""

Shapes: TypeAlias = tuple[tuple[tuple[int, ...], ...], tuple[tuple[str, int], ...]]
"""The shapes of the inputs, and symbols that are bound beside them."""
Places: TypeAlias = tuple[tuple[int, int], ...]
"""Words that hold an address: the number of the word, and how far behind the first element it points."""

_NO_SIZES: tuple[tuple[str, int], ...] = ()


class Frames(Protocol):
    """What knows sizes and frames: a runner."""

    def known(self, arrays: Sequence[Array], shapes: Shapes) -> Memory:
        """Memory with the parameters, and the sizes that these shapes tell; what does not fit is refused."""
        ...

    def frame(self, index: int, memory: Memory, apart: Mapping[Value, Value]) -> Frame:
        """The frame of a section; see `make_frame`."""
        ...


@dataclass(frozen=True, slots=True)
class Made:
    """A result that its kernel writes into a new array."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    places: Places


@dataclass(frozen=True, slots=True)
class Call:
    """A run in one space, for one set of shapes."""

    run: Callable[..., int]
    arguments: tuple[int, ...]
    count: int
    words: memoryview
    given: tuple[Places, ...]
    made: tuple[Made, ...]
    copied: tuple[tuple[str, Array], ...]
    """Results that lie in the space, or in memory that all runs share."""
    status: Array
    kept: tuple[Any, ...]
    """What the words point into."""

    def __call__(self, arrays: Sequence[Array]) -> dict[str, Array] | None:
        """The results; None where a kernel met what its meaning refuses."""
        words = self.words
        for array, places in zip(arrays, self.given, strict=True):
            start = address(array)
            for at, offset in places:
                words[at] = start + offset
        results: dict[str, Array] = {}
        for one in self.made:
            new = results[one.name] = np.empty(one.shape, one.dtype)
            start = address(new)
            for at, offset in one.places:
                words[at] = start + offset
        if self.run(*self.arguments) != self.count:
            self.status[0] = 0
            return None
        for name, view in self.copied:
            results[name] = np.array(view, order="C")
        return results


class Space:
    """Memory of one run at a time; it grows with what is asked of it."""

    def __init__(self) -> None:
        self.arena: Array = np.empty(0, np.uint8)
        self.scratch: Array = np.empty(0, np.uint8)
        self.calls: dict[Shapes, Call] = {}

    def reserve(self, arena: int, scratch: int, allocate: Callable[[int], Array]) -> None:
        """So many bytes at least. Words that point into memory that was too small go with it."""
        if self.arena.size < arena or self.scratch.size < scratch or len(self.calls) == MOST_SHAPES:
            self.calls.clear()
        if self.arena.size < arena:
            self.arena = np.empty(0, np.uint8)
            self.arena = allocate(arena)
        if self.scratch.size < scratch:
            self.scratch = allocate(scratch)


class Calls:
    """The prepared calls of one runner. A list of Python's is safe to push and pop from several threads."""

    def __init__(self, plan: Plan, crew: Crew) -> None:
        self.plan = plan
        self.crew = crew
        self.inputs = tuple((str(v.attrs["name"]), v.dtype.numpy) for v in plan.graph.inputs)
        self.fresh = _fresh(plan)
        self.apart = _chained(plan, self.fresh.values())
        self.spaces: list[Space] = []
        self.refused = 0
        self.trimmed = False

    def run(
        self, frames: Frames, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None
    ) -> dict[str, Array] | None:
        """The results by name; None where inputs are not plain arrays, or a kernel met what its meaning refuses."""
        wanted = self.inputs
        if inputs.__class__ is not dict or len(inputs) != len(wanted) or self.refused == MOST_REFUSED:
            return None
        arrays: list[Array] = []
        for name, dtype in wanted:
            array: Any = inputs.get(name)
            if array.__class__ is not np.ndarray or array.dtype is not dtype or not array.flags.c_contiguous:
                return None
            arrays.append(array)
        shapes: Shapes = (tuple([a.shape for a in arrays]), tuple(sorted(sizes.items())) if sizes else _NO_SIZES)
        try:
            space = self.spaces.pop()
        except IndexError:
            space = Space()
        try:
            call = space.calls.get(shapes)
            if call is None:
                call = self._prepare(frames, space, arrays, shapes)
            results = call(arrays)
        finally:
            if len(self.spaces) < MOST_SPACES:
                self.spaces.append(space)
        if results is None:
            self.refused += 1
        elif call.copied:
            return {name: results[name] for name in self.plan.graph.outputs}
        return results

    def _prepare(self, frames: Frames, space: Space, arrays: Sequence[Array], shapes: Shapes) -> Call:
        memory = frames.known(arrays, shapes)
        if memory.again and not self.trimmed:
            # By now callers have dropped what they bound, too.
            self.trimmed = True
            trim()
        frame = frames.frame(0, memory, self.apart)
        space.reserve(memory.number(self.plan.arena_size), frame.bytes, memory.allocate)
        memory.pools["arena"] = space.arena
        outputs = self.plan.graph.outputs
        sized = {name: tuple(map(memory.number, value.shape)) for name, value in outputs.items()}
        roots = {root: name for name, root in self.fresh.items()}
        elsewhere = [root not in roots and root.op is not leaf.INPUT for root in frame.outside]
        starts = [address(memory.place(r)[0]) if e else 0 for r, e in zip(frame.outside, elsewhere, strict=True)]
        status = np.zeros(1, np.int64)
        words = frame.counted_from(address(space.arena), address(status), starts)
        rows = frame.rows(words, status, space.scratch)
        places = {root: _places(frame, FIRST + i) for i, root in enumerate(frame.outside)}
        made = [
            Made(name, sized[name], outputs[name].dtype.numpy, places.get(root, ()))
            for name, root in self.fresh.items()
        ]
        total = sum(int(np.prod(one.shape)) * one.dtype.itemsize for one in made)
        check_fits(total, f"the results of {self.plan.graph.name}", self.plan.memory_limit)
        call = Call(
            self.crew.run,
            (address(rows), 0, len(rows), address(space.scratch), frame.scratch),
            len(rows),
            words.data,
            tuple(places.get(v, ()) for v in self.plan.graph.inputs),
            tuple(made),
            tuple((name, memory.view(value)) for name, value in outputs.items() if name not in self.fresh),
            status,
            (memory, words, rows),
        )
        space.calls[shapes] = call
        return call


def can_prepare(plan: Plan, sections: Sequence[Section]) -> bool:
    """Whether a run is one table of kernels that find no sizes, and no result is a view of an input or donated.

    A prepared call starts again from the inputs where a kernel reports a status, and donated ones are overwritten then.
    """
    return (
        len(sections) == 1
        and not plan.donations
        and all(job is not None for job in sections[0].jobs)
        and not any(True for step in sections[0].steps for _ in fresh_symbols(step.value))
        and not any(plan.locate(v).root.op is leaf.INPUT for v in plan.graph.outputs.values())
    )


def _places(frame: Frame, base: int) -> Places:
    at = np.flatnonzero(frame.bases == base)
    return tuple(zip(at.tolist(), frame.offsets[at].tolist(), strict=True))


def _fresh(plan: Plan) -> dict[str, Value]:
    """Outputs that have a root in the arena to themselves, by name, with the root."""
    found: dict[str, Value] = {}
    roots = Counter(plan.locate(v).root for v in plan.graph.outputs.values())
    for name, value in plan.graph.outputs.items():
        at = plan.locate(value)
        slot = plan.slots.get(at.root)
        whole = at.offset == 0 and at.root.tensor.bytes == value.tensor.bytes and is_dense(value.tensor, at.strides)
        if slot is not None and slot.pool == "arena" and whole and roots[at.root] == 1:
            found[name] = at.root
    return found


def _chained(plan: Plan, roots: Iterable[Value]) -> dict[Value, Value]:
    """These roots and those that they are written over, one after the other; each with the root at the end."""
    over = {step.value: step.over for step in plan.phase("run") if step.over is not None}
    found: dict[Value, Value] = {}
    for root in roots:
        at: Value | None = root
        while at is not None:
            found[at] = root
            at = over.get(at)
    return found


__all__ = ["Call", "Calls", "can_prepare"]
