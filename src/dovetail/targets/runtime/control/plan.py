"""Branches and loops with compiled bodies: a plan for each body, with a kernel for each of its steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph, Subgraph, walk_into
from dovetail.ir.inline import inline
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.kernels.families.move import make_copy
from dovetail.kernels.loops.policy import TilePolicy
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.ops.control import if_, scan_, while_
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.alias import Strides, is_dense
from dovetail.plan.plan import Plan, Step, make_plan
from dovetail.targets.runtime.backend import Select
from dovetail.targets.runtime.building.attempt import attempt

MOST_DEPTH = 8
"""Levels of nested bodies, at most; deeper ones run on the host."""

ArgumentRole: TypeAlias = Literal["carry", "slice", "whole"]
"""What an argument of a body is: carried from the trip before, a slice along the first axis, or a whole operand."""


@dataclass(slots=True, eq=False)
class KernelEntry:
    """A kernel inside a body, and its address once it is compiled."""

    job: Job
    entry: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class CompiledBody:
    """A body in which each step has a kernel."""

    plan: Plan
    operands: tuple[Value, ...]
    """The outer values that its arguments take."""
    roles: tuple[ArgumentRole, ...]
    known: tuple[int, ...]
    """The indices of arguments that are known at bind time."""
    steps: tuple[KernelEntry | Control, ...]
    dense: tuple[KernelEntry | None, ...]
    """For each argument the copy into the dense layout that the body reads; None where it is dense."""
    in_place: tuple[Value | None, ...]
    """For each result the root that is computed directly in the result's memory."""
    results: tuple[KernelEntry | None, ...]
    """For each of the others the copy into the result's memory."""

    @property
    def arguments(self) -> tuple[Value, ...]:
        return self.plan.graph.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(self.plan.graph.outputs.values())

    @property
    def read(self) -> set[Value]:
        """The roots that kernels read as they are, not packed."""
        jobs = [step.job for step in self.steps if isinstance(step, KernelEntry)]
        bindings = [binding for job in jobs for binding in job.bindings.values() if isinstance(binding, Value)]
        bindings += [v for step in self.steps if isinstance(step, Control) for v in step.step.operands]
        return {self.plan.root_of(v) for v in (*bindings, *self.outputs)}


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """A step that branches or loops. The bodies are those of its branches, or the condition and the body of a loop."""

    step: Step
    bodies: tuple[CompiledBody | None, ...]
    ends: tuple[KernelEntry, ...] = ()
    """For each carry of a loop the copy of its last value into the result."""
    pitches: tuple[Size, ...] = ()
    """For each scanned operand the stride between slices, in bytes."""

    @property
    def entries(self) -> Iterator[KernelEntry]:
        """Every kernel inside."""
        yield from self.ends
        for body in self.bodies:
            if body is not None:
                yield from (c for c in (*body.dense, *body.results) if c is not None)
                for step in body.steps:
                    if isinstance(step, Control):
                        yield from step.entries
                    else:
                        yield step


def body_graph(body: Subgraph, known: Collection[int] = ()) -> Graph:
    """A body as a graph whose inputs are its arguments; those that are known at bind time are its parameters."""
    leaves = [(leaf.param if i in known else leaf.input)(f"a{i}", t) for i, t in enumerate(body.arguments)]
    results = {f"r{i}": v for i, v in enumerate(inline(body, leaves))}
    return Graph.of(results, name="body", inputs=[v for v in leaves if v.op is leaf.INPUT])


def make_control(step: Step, locations: TensorLocations, select: Select, outer: Plan, depth: int = 0) -> Control | None:
    """The compiled form of a step that branches or loops; None for other steps, and where a body runs on the host.

    One side of a branch may be left to the host.
    """
    value = step.value
    if value.op not in (if_, scan_, while_) or depth == MOST_DEPTH or any(fresh_symbols(value)):
        return None
    if value.op is if_:
        compiler = _BodyCompiler(
            value.operands[1:], ("whole",) * (len(value.operands) - 1), locations, select, outer, depth
        )
        branches = (compiler.compiled(value.attrs["then"]), compiler.compiled(value.attrs["otherwise"]))
        return None if branches == (None, None) else Control(step, branches)
    count = int(value.attrs["carries"])
    scanned = int(value.attrs["scanned"]) if value.op is scan_ else 0
    numbers = range(len(value.operands))
    roles: list[ArgumentRole] = ["carry" if i < count else "slice" if i < count + scanned else "whole" for i in numbers]
    compiler = _BodyCompiler(value.operands, tuple(roles), locations, select, outer, depth)
    ends = [_copy(v, v.tensor, locations(v).strides, locations.target.tiles) for v in step.results[:count]]
    bodies = [compiler.compiled(value.attrs[name]) for name in ("condition", "body") if name in value.attrs]
    if None in bodies or None in ends:
        return None
    pitches = [locations(v).strides[0] for v in value.operands[count : count + scanned]]
    return Control(step, tuple(bodies), tuple(c for c in ends if c is not None), tuple(pitches))


def _copy(value: Value, type: TensorType, strides: Strides, tiles: TilePolicy) -> KernelEntry | None:
    return KernelEntry(make_copy(value, type, strides, tiles)) if type.dtype.itemsize in (1, 2, 4, 8) else None


@dataclass(frozen=True, slots=True)
class _BodyCompiler:
    """Compiles bodies: their operands, and how kernels are selected."""

    operands: tuple[Value, ...]
    roles: tuple[ArgumentRole, ...]
    locations: TensorLocations
    select: Select
    outer: Plan
    depth: int

    def compiled(self, body: Subgraph) -> CompiledBody | None:
        """The compiled body; None where a step of it runs on the host."""
        if any(name for value in walk_into(body.results) for name in fresh_symbols(value)):
            return None
        plan = make_plan(body_graph(body), target=self.outer.target, rules=self.outer.rules)
        if any(slot.pool == "heap" for slot in plan.slots.values()):
            return None
        known = [
            i for i, role in enumerate(self.roles) if role == "whole" and self.locations.is_bound(self.operands[i])
        ]
        inputs = plan.graph.inputs
        bound = {r for step in plan.phase("bind") for r in step.results} | {inputs[i] for i in known}
        inner = replace(self.locations, locate=plan.locate, bound=bound, refused={}, costs={})
        in_place = roots_in_place(plan)
        steps = [self._step(step, inner, in_place) for step in plan.phase("run")]
        dense = [None if i in known else self._dense(i) for i in range(len(inputs))]
        outputs = list(plan.graph.outputs.values())
        results = [
            None if at is not None else _copy(v, v.tensor, plan.locate(v).strides, self.locations.target.tiles)
            for v, at in zip(outputs, in_place, strict=True)
        ]
        sizes = [v.dtype.itemsize for v in (*inputs, *outputs)]
        if None in steps or max(sizes, default=1) > 8:
            return None
        kernels = tuple(s for s in steps if s is not None)
        copies = (tuple(dense), tuple(in_place), tuple(results))
        return CompiledBody(plan, self.operands, self.roles, tuple(known), kernels, *copies)

    def _step(
        self, step: Step, locations: TensorLocations, in_place: Sequence[Value | None]
    ) -> KernelEntry | Control | None:
        if step.overs and any(r in in_place for r in step.results):
            # It is computed in the result's memory, so not in place.
            step = replace(step, overs=())
        job = attempt(self.select, step, locations)
        return (
            KernelEntry(job)
            if job is not None
            else make_control(step, locations, self.select, self.outer, self.depth + 1)
        )

    def _dense(self, index: int) -> KernelEntry | None:
        operand, role = self.operands[index], self.roles[index]
        strides = self.locations(operand).strides
        if role == "carry":
            return _copy(operand, operand.tensor, strides, self.locations.target.tiles)
        skipped = 1 if role == "slice" else 0
        type = TensorType(operand.dtype, operand.shape[skipped:])
        if is_dense(type, strides[skipped:]):
            return None
        return _copy(operand, type, strides[skipped:], self.locations.target.tiles)


def roots_in_place(plan: Plan) -> list[Value | None]:
    """For each result of a body the root that can be computed in the result's memory; None where it is copied.

    A root that is several results is computed in the memory of the first.
    """
    roots: list[Value | None] = []
    for value in plan.graph.outputs.values():
        at = plan.locate(value)
        slot = plan.slots.get(at.root)
        whole = at.offset == 0 and at.root.tensor.bytes == value.tensor.bytes and is_dense(value.tensor, at.strides)
        own = slot is not None and slot.pool == "arena" and whole and at.root not in roots
        roots.append(at.root if own else None)
    return roots
