"""Branches and loops whose bodies are compiled: each body planned, with a kernel for each of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph, Subgraph, walk_into
from dovetail.ir.inline import inline
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.move import make_copy
from dovetail.kernels.loops.policy import TilePolicy
from dovetail.kernels.spec import Job, Places
from dovetail.ops.control import if_, scan_, while_
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.alias import Strides, is_dense
from dovetail.plan.plan import Plan, Step, make_plan
from dovetail.targets.cpu.claims import CLAIMS
from dovetail.targets.cpu.select import make_job

MOST_DEPTH = 8
"""Bodies within bodies, at most; deeper ones run on the host."""

Role: TypeAlias = Literal["carry", "slice", "whole"]
"""What an argument of a body is of its operand: what the trip before gave, a slice along the first axis, or all."""


@dataclass(slots=True, eq=False)
class Coded:
    """A kernel and its entry, which is known once it is compiled."""

    job: Job
    entry: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """A body whose every step has a kernel."""

    plan: Plan
    operands: tuple[Value, ...]
    """What its arguments are given by, outside."""
    roles: tuple[Role, ...]
    known: tuple[int, ...]
    """The arguments that are known before a run."""
    steps: tuple[Coded | Control, ...]
    dense: tuple[Coded | None, ...]
    """For each argument how it is brought into the dense layout that the body reads; None where it lies so."""
    made: tuple[Value | None, ...]
    """For each result the root that is made where the result is wanted."""
    results: tuple[Coded | None, ...]
    """For each of the others how it is brought there."""

    @property
    def arguments(self) -> tuple[Value, ...]:
        return self.plan.graph.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(self.plan.graph.outputs.values())

    @property
    def read(self) -> set[Value]:
        """Where what kernels point to lies, what they have in a layout of their own left out."""
        jobs = [step.job for step in self.steps if isinstance(step, Coded)]
        points = [point for job in jobs for point in job.points.values() if isinstance(point, Value)]
        points += [v for step in self.steps if isinstance(step, Control) for v in step.step.operands]
        return {self.plan.locate(v).root for v in (*points, *self.outputs)}


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """A step that branches or loops. The bodies are those of its branches, or the condition and the body of a loop."""

    step: Step
    bodies: tuple[Inside | None, ...]
    ends: tuple[Coded, ...] = ()
    """For each carry of a loop how the last one is brought to where it is wanted."""
    pitches: tuple[Size, ...] = ()
    """How far apart the slices of each operand lie that a loop goes along."""

    @property
    def codes(self) -> Iterator[Coded]:
        """Every kernel inside."""
        yield from self.ends
        for body in self.bodies:
            if body is not None:
                yield from (c for c in (*body.dense, *body.results) if c is not None)
                for step in body.steps:
                    if isinstance(step, Control):
                        yield from step.codes
                    else:
                        yield step


def body_graph(body: Subgraph) -> Graph:
    """A body as a graph whose inputs are its arguments."""
    inputs = [leaf.input(f"a{i}", t) for i, t in enumerate(body.arguments)]
    results = {f"r{i}": v for i, v in enumerate(inline(body, inputs))}
    return Graph.of(results, name="body", inputs=inputs)


def make_control(step: Step, places: Places, vectors: CpuDevice, depth: int = 0) -> Control | None:
    """A step that branches or loops, compiled; None where it is none, or something in it runs on the host.

    Of a branch one side may be left to the host.
    """
    value = step.value
    if value.op not in (if_, scan_, while_) or depth == MOST_DEPTH or any(fresh_symbols(value)):
        return None
    if value.op is if_:
        given = _Given(value.operands[1:], ("whole",) * (len(value.operands) - 1), places, vectors, depth)
        branches = (given.inside(value.attrs["then"]), given.inside(value.attrs["otherwise"]))
        return None if branches == (None, None) else Control(step, branches)
    count = int(value.attrs["carries"])
    scanned = int(value.attrs["scanned"]) if value.op is scan_ else 0
    numbers = range(len(value.operands))
    roles: list[Role] = ["carry" if i < count else "slice" if i < count + scanned else "whole" for i in numbers]
    given = _Given(value.operands, tuple(roles), places, vectors, depth)
    ends = [_copy(v, v.tensor, places(v).strides, places.target.tiles) for v in step.results[:count]]
    bodies = [given.inside(value.attrs[name]) for name in ("condition", "body") if name in value.attrs]
    if None in bodies or None in ends:
        return None
    pitches = [places(v).strides[0] for v in value.operands[count : count + scanned]]
    return Control(step, tuple(bodies), tuple(c for c in ends if c is not None), tuple(pitches))


def _copy(value: Value, type: TensorType, strides: Strides, tiles: TilePolicy) -> Coded | None:
    return Coded(make_copy(value, type, strides, tiles)) if type.dtype.itemsize in (1, 2, 4, 8) else None


@dataclass(frozen=True, slots=True)
class _Given:
    """What a body is given, and how it is compiled."""

    operands: tuple[Value, ...]
    roles: tuple[Role, ...]
    places: Places
    vectors: CpuDevice
    depth: int

    def inside(self, body: Subgraph) -> Inside | None:
        """A body compiled; None where something in it runs on the host."""
        if any(name for value in walk_into(body.results) for name in fresh_symbols(value)):
            return None
        plan = make_plan(body_graph(body), target=CLAIMS)
        if any(slot.pool == "heap" for slot in plan.slots.values()):
            return None
        known = [i for i, role in enumerate(self.roles) if role == "whole" and self.places.is_bound(self.operands[i])]
        inputs = plan.graph.inputs
        bound = {r for step in plan.phase("bind") for r in step.results} | {inputs[i] for i in known}
        inner = Places(plan.locate, bound, self.places.strict, target=self.places.target)
        made = made_in_place(plan)
        steps = [self._step(step, inner, made) for step in plan.phase("run")]
        dense = [None if i in known else self._dense(i) for i in range(len(inputs))]
        outputs = list(plan.graph.outputs.values())
        results = [
            None if at is not None else _copy(v, v.tensor, plan.locate(v).strides, self.places.target.tiles)
            for v, at in zip(outputs, made, strict=True)
        ]
        sizes = [v.dtype.itemsize for v in (*inputs, *outputs)]
        if None in steps or max(sizes, default=1) > 8:
            return None
        kept = tuple(s for s in steps if s is not None)
        return Inside(plan, self.operands, self.roles, tuple(known), kept, tuple(dense), tuple(made), tuple(results))

    def _step(self, step: Step, places: Places, made: Sequence[Value | None]) -> Coded | Control | None:
        if step.over is not None and any(r in made for r in step.results):
            # It is made elsewhere, and so not over what it reads.
            step = replace(step, over=None)
        job = make_job(step, places, self.vectors)
        return Coded(job) if job is not None else make_control(step, places, self.vectors, self.depth + 1)

    def _dense(self, index: int) -> Coded | None:
        operand, role = self.operands[index], self.roles[index]
        strides = self.places(operand).strides
        if role == "carry":
            return _copy(operand, operand.tensor, strides, self.places.target.tiles)
        skipped = 1 if role == "slice" else 0
        type = TensorType(operand.dtype, operand.shape[skipped:])
        if is_dense(type, strides[skipped:]):
            return None
        return _copy(operand, type, strides[skipped:], self.places.target.tiles)


def made_in_place(plan: Plan) -> list[Value | None]:
    """For each result of a body the root that can be made where the result is wanted, or None where it is copied.

    A root that is several results is made where the first is wanted.
    """
    found: list[Value | None] = []
    for value in plan.graph.outputs.values():
        at = plan.locate(value)
        slot = plan.slots.get(at.root)
        whole = at.offset == 0 and at.root.tensor.bytes == value.tensor.bytes and is_dense(value.tensor, at.strides)
        own = slot is not None and slot.pool == "arena" and whole and at.root not in found
        found.append(at.root if own else None)
    return found
