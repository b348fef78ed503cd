"""Branches and loops on the host, for bodies that have host steps or find sizes while they run.

The NumPy meaning of the op decides; each body is a compiled plan of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, evaluate, symbols
from dovetail.ir.graph import Subgraph
from dovetail.ir.literal import Array
from dovetail.ir.solve import Found
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops.control import FAMILY as CONTROL
from dovetail.ops.control import MOST_TRIPS, check_trips, if_
from dovetail.ops.primitive import Primitive
from dovetail.plan.plan import Plan, Step, make_plan
from dovetail.targets.runtime.arrays.array_library import NUMPY, ArrayLibrary
from dovetail.targets.runtime.arrays.memory import Memory, owned
from dovetail.targets.runtime.calls.interpreter import known_size
from dovetail.targets.runtime.calls.prepared_call import RunPrepared
from dovetail.targets.runtime.control.host_chunks import TripChunk, chunk_of, run_chunks
from dovetail.targets.runtime.control.plan import body_graph
from dovetail.targets.runtime.control.records import ENDLESS


class HostRunner(Protocol):
    """A compiled body."""

    def run(self, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> dict[str, Array]: ...

    def launcher(self, library: ArrayLibrary) -> RunPrepared | None:
        """Runs prepared calls on arrays of a library; None where there are none."""
        ...


class HostExecutable(Protocol):
    """A compiled plan without its parameters."""

    @property
    def plan(self) -> Plan: ...

    @property
    def on_host(self) -> tuple[Step, ...]:
        """The steps that have no kernel."""
        ...

    def bind(self, params: Mapping[str, Array]) -> HostRunner: ...


@dataclass(frozen=True, slots=True)
class BoundHostBody:
    """A compiled body with the arguments that are known at bind time, and the names of the others by index."""

    runner: HostRunner
    taken: tuple[tuple[int, str], ...]
    launch: RunPrepared | None
    order: tuple[int, ...]
    """For each input of the plan the index of its argument."""

    def run(self, arguments: Sequence[Array], sizes: Mapping[str, int]) -> dict[str, Array]:
        """The results by name."""
        if self.launch is not None:
            results = self.launch([arguments[i] for i in self.order], sizes)
            if results is not None:
                return results
        return self.runner.run({name: np.asarray(arguments[i]) for i, name in self.taken}, sizes)


Bodies: TypeAlias = dict[tuple[Value, Subgraph | TripChunk], BoundHostBody]
"""The bodies and chunks that one binding of a plan has run."""


_UNKNOWN = np.empty(0, np.uint8)
"""Stands for an array that a run or the bind phase knows."""


class HostBody:
    """A sub-graph as a function of arrays."""

    def __init__(self, body: Subgraph, bound: BoundHostBody, sizes: Mapping[str, int]) -> None:
        self.body = body
        self.bound = bound
        self.sizes = sizes

    @property
    def results(self) -> tuple[TensorType, ...]:
        """The types of the results, with their sizes as numbers."""
        shapes = [tuple(known_size(s, self.sizes) for s in v.shape) for v in self.body.results]
        return tuple(TensorType(v.dtype, shape) for v, shape in zip(self.body.results, shapes, strict=True))

    def __call__(self, *arguments: Array) -> tuple[Array, ...]:
        results = self.bound.run(arguments, self.sizes)
        return tuple(results[f"r{i}"] for i in range(len(self.body.results)))


@dataclass(frozen=True, slots=True)
class _Chunked:
    """A loop that runs in chunks."""

    chunk: TripChunk
    known: tuple[Array, ...]
    """An array for each operand: that of a constant, or one that stands for what each run or the bind phase knows."""
    viewed: tuple[tuple[int, Value], ...]
    """The operands that each run knows, with their indices."""
    read: tuple[tuple[int, Value], ...]
    """The results that a step or a view reads, with their indices."""
    computed: tuple[tuple[int, Value], ...]
    """The results that are outputs, and that nothing else reads."""
    names: tuple[str, ...]
    """The results of the chunk."""


@dataclass(frozen=True, slots=True)
class LoneLoop:
    """A plan that is one loop in chunks, from its inputs to its outputs: a run needs no memory for tensors."""

    looped: Callable[[Sequence[Array], Mapping[str, int]], tuple[tuple[Array, ...], int]]
    chunked: _Chunked
    viewed: tuple[tuple[int, int], ...]
    """The operands of the loop that are inputs, by their indices."""
    outputs: tuple[tuple[str, int], ...]
    """The outputs, and the index of the result that each is."""

    def run(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> tuple[dict[str, Array], dict[str, int]]:
        """The outputs by name, and all sizes."""
        operands = list(self.chunked.known)
        for operand, index in self.viewed:
            operands[operand] = arrays[index]
        results, trips = self.looped(operands, sizes)
        return {n: owned(results[i]) for n, i in self.outputs}, {**sizes, self.chunked.chunk.length: trips}


class HostControl:
    """The bodies of a plan, each compiled when it is first run."""

    def __init__(self, compile: Callable[[Plan], HostExecutable], outer: Plan) -> None:
        self._compile = compile
        self._outer = outer
        self._compiled: dict[tuple[Subgraph, tuple[int, ...]], HostExecutable] = {}
        self._bound = {r for step in outer.phase("bind") for r in step.results}
        self._chunks: dict[Value, _Chunked | None] = {}
        self._trips: dict[Value, int] = {}
        """How many trips a loop made in the last run: the next one probably makes about as many."""

    def run(self, step: Step, memory: Memory, bodies: Bodies, status: int = 0) -> bool:
        """Run a step that branches or loops, after compiled code set this status; False for other steps."""
        op = step.value.op
        if op not in CONTROL or not isinstance(op, Primitive):
            return False
        if status == ENDLESS:
            check_trips(MOST_TRIPS)
        if self._by_chunks(step, memory, bodies):
            return True
        attrs = {
            name: self._attribute(a, op.kinds[name].name == "fresh", step, memory, bodies)
            for name, a in step.value.attrs.items()
        }
        results = op.compute(*[memory.view(v) for v in step.operands], **attrs)
        arrays = results if isinstance(results, tuple) else (results,)
        named = list(zip(step.results, arrays, strict=True))
        memory.solve([Found(step.name, v.tensor, a.shape) for v, a in named])
        for value, array in named:
            memory.view(value)[...] = array
        return True

    def _by_chunks(self, step: Step, memory: Memory, bodies: Bodies) -> bool:
        """Run a loop whose trips run as compiled code, several at a time; False for other steps."""
        value = step.value
        if value not in self._chunks:
            self._chunks[value] = self._chunked(step)
        chunked = self._chunks[value]
        if chunked is None:
            return False
        chunk = chunked.chunk
        bound = bodies.get((value, chunk))
        if bound is None:
            bound = bodies[value, chunk] = self._body(chunk.body, step, memory)
        operands = list(chunked.known)
        for i, operand in chunked.viewed:
            operands[i] = memory.view(operand)
        arrays, trips = self._looped(chunked, bound, operands, memory.sizes)
        memory.know_size(chunk.length, trips, step)
        for i, result in chunked.read:
            memory.store(result, arrays[i])
        for i, result in chunked.computed:
            memory.computed[result] = arrays[i]
        return True

    def _looped(
        self, chunked: _Chunked, bound: BoundHostBody, operands: Sequence[Array], sizes: Mapping[str, int]
    ) -> tuple[tuple[Array, ...], int]:
        """The results of a loop, and the number of its trips."""
        chunk = chunked.chunk

        def run(operands: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
            results = bound.run(operands, sizes)
            return [results[name] for name in chunked.names]

        arrays = run_chunks(chunk, operands, sizes, run, self._trips.get(chunk.value))
        trips = self._trips[chunk.value] = arrays[chunk.carries].shape[0]
        return arrays, trips

    def lone_loop(self, bodies: Bodies) -> LoneLoop | None:
        """The outer plan as one loop from inputs to outputs, once it has run; None where it is more than that."""
        steps = self._outer.phase("run")
        value = steps[0].value if len(steps) == 1 else None
        chunked = None if value is None else self._chunks.get(value)
        if value is None or chunked is None or chunked.read:
            return None
        inputs = {v: i for i, v in enumerate(self._outer.graph.inputs)}
        computed = {v: i for i, v in chunked.computed}
        outputs = self._outer.graph.outputs
        if any(v not in inputs for _, v in chunked.viewed) or any(v not in computed for v in outputs.values()):
            return None
        looped = partial(self._looped, chunked, bodies[value, chunked.chunk])
        viewed = tuple((i, inputs[v]) for i, v in chunked.viewed)
        return LoneLoop(looped, chunked, viewed, tuple((name, computed[v]) for name, v in outputs.items()))

    def _chunked(self, step: Step) -> _Chunked | None:
        chunk = chunk_of(step.value)
        if chunk is None:
            return None
        compiled, bound = self._compiled_body(chunk.body, step)
        if compiled.on_host:
            return None
        constants = [v.attrs["value"].array if v.op is leaf.CONST else _UNKNOWN for v in step.operands]
        viewed = [i for i, array in enumerate(constants) if array is _UNKNOWN and i not in bound]
        outer = self._outer
        outputs = list(outer.graph.outputs.values())
        donated = {outer.graph.outputs[d.output] for d in outer.donations}
        # An output that a second name, a step, a view or a donation shares needs its place in memory.
        alone = {v for v in step.results if outputs.count(v) == 1 and v not in donated and v not in outer.aliases}
        readers = [*(v for other in outer.steps for v in other.operands), *(v for v in outputs if v not in alone)]
        roots = {outer.root_of(v) for v in readers}
        return _Chunked(
            chunk,
            tuple(constants),
            tuple((i, step.operands[i]) for i in viewed),
            tuple((i, v) for i, v in enumerate(step.results) if v in roots),
            tuple((i, v) for i, v in enumerate(step.results) if v in alone and v not in roots),
            tuple(f"r{i}" for i in range(len(chunk.body.results))),
        )

    def _attribute(self, attr: Any, fresh: bool, step: Step, memory: Memory, bodies: Bodies) -> Any:
        if isinstance(attr, Subgraph):
            key = step.value, attr
            if key not in bodies:
                bodies[key] = self._body(attr, step, memory)
            return HostBody(attr, bodies[key], dict(memory.sizes))
        if isinstance(attr, Dim):
            known = symbols(attr) <= memory.sizes.keys()
            return evaluate(attr, memory.sizes) if known or not fresh else attr
        return attr

    def _body(self, body: Subgraph, step: Step, memory: Memory) -> BoundHostBody:
        """A body whose weights are bound, so that its kernels read them packed."""
        compiled, known = self._compiled_body(body, step)
        operands = _passed(step)
        read = {str(v.attrs["name"]) for v in compiled.plan.graph.parameters}
        params = {f"a{i}": np.array(memory.view(operands[i])) for i in known if f"a{i}" in read}
        taken = tuple((i, f"a{i}") for i in range(len(operands)) if i not in known)
        runner = compiled.bind(params)
        index = {name: i for i, name in taken}
        order = tuple(index[str(v.attrs["name"])] for v in compiled.plan.graph.inputs)
        return BoundHostBody(runner, taken, runner.launcher(NUMPY), order)

    def _compiled_body(self, body: Subgraph, step: Step) -> tuple[HostExecutable, tuple[int, ...]]:
        """A compiled body, and the indices of its arguments that are known at bind time."""
        attrs = step.value.attrs
        first = int(attrs.get("carries", 0)) + int(attrs.get("scanned", 0))
        known = tuple(i for i, v in enumerate(_passed(step)) if i >= first and self._is_bound(v))
        if (body, known) not in self._compiled:
            plan = make_plan(body_graph(body, known), target=self._outer.target, rules=self._outer.rules)
            self._compiled[body, known] = self._compile(plan)
        return self._compiled[body, known], known

    def _is_bound(self, value: Value) -> bool:
        """Whether the bind phase of the outer plan knows an operand."""
        root = self._outer.root_of(value)
        return value.tensor.is_static and (root.op in (leaf.PARAM, leaf.CONST) or root in self._bound)


def _passed(step: Step) -> tuple[Value, ...]:
    """The operands that the bodies of a step take."""
    return step.operands[1 if step.value.op is if_ else 0 :]
