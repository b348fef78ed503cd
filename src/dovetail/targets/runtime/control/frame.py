"""What branches and loops are given for one set of sizes: tables, records and words inside of a frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dovetail.errors import BindError
from dovetail.ir.dim import Size
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.kernels.spec import Packed, Status
from dovetail.ops.control import if_, scan_
from dovetail.targets.cpu.threads.control_text import MOVE_WORDS
from dovetail.targets.cpu.threads.pool_text import KIND_BRANCH, KIND_COMPILED, KIND_LOOP
from dovetail.targets.runtime.control.plan import Coded, Control, Inside
from dovetail.targets.runtime.launch_args import NOTHING, SELF, STATUS, Moving, Place, Placing, Words, pointed
from dovetail.targets.runtime.memory import Memory

NO_LIMIT = 1 << 62
Row: TypeAlias = list[Place]
"""The words of one step in a table."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a body knows before a run: its constants, and weights in the layouts of its kernels."""

    memory: Memory
    packed: Mapping[tuple[Value | str, ...], Array]


def bind_bodies(controls: Iterable[Control], outer: Memory) -> dict[Inside, Bound]:
    """Run the bind phases of all bodies, and lay out what their kernels want in a layout of their own."""
    found: dict[Inside, Bound] = {}
    pending = [(control, outer) for control in controls]
    while pending:
        control, around = pending.pop()
        for body in control.bodies:
            if body is not None:
                found[body] = _bound(body, around)
                pending += [(step, found[body].memory) for step in body.steps if isinstance(step, Control)]
    return found


def _bound(body: Inside, outer: Memory) -> Bound:
    plan = body.plan
    memory = Memory(plan, prove=False)
    for i in body.known:
        array = np.ascontiguousarray(outer.view(body.operands[i]))
        memory.own[body.arguments[i]] = array.reshape(-1).view(np.uint8)
    memory.reserve("bound", plan.bound_size)
    memory.reserve("scratch", plan.scratch_size)
    memory.run(plan.phase("bind"))
    memory.release("scratch")
    packed: dict[tuple[Value | str, ...], Array] = {}
    points = [p for step in body.steps if isinstance(step, Coded) for p in step.job.points.values()]
    for point in points:
        if isinstance(point, Packed) and point.key not in packed:
            packed[point.key] = point.pack(*(memory.view(v) for v in (point.value, *point.beside)))
    read = body.read
    memory.own = {v: a for v, a in memory.own.items() if v in read}
    return Bound(memory, packed)


class Layout:
    """Lays branches and loops out among the words of a frame."""

    def __init__(self, words: Words, bound: Mapping[Inside, Bound]) -> None:
        self.words = words
        self.bound = bound

    def control(self, control: Control, outer: Placing) -> tuple[int, int]:
        """The kind of a step that branches or loops, and the number of its record's first word."""
        if control.step.value.op is if_:
            return KIND_BRANCH, self._branch(control, outer)
        return KIND_LOOP, self._loop(control, outer)

    def _branch(self, control: Control, outer: Placing) -> int:
        step = control.step
        record: list[Place] = [outer(step.operands[0]), (STATUS, 0)]
        wanted = [outer(v) for v in step.results]
        for body in control.bodies:
            if body is None or not self._fits(body):
                record += [(NOTHING, -1), (NOTHING, 0)]
                continue
            rows: list[Row] = []
            reads = [self.whole(body, i, outer, rows) for i in range(len(body.operands))]
            rows += self.body(body, reads, wanted)
            record += self.table(rows)
        return self.words.add(record)

    def _fits(self, body: Inside) -> bool:
        """Whether what a branch needs of its sizes holds; where it does not, the host says so."""
        try:
            return all(c.bind(self.words.sizes) is None for c in body.plan.graph.constraints)
        except BindError:
            return False

    def _loop(self, control: Control, outer: Placing) -> int:
        body = control.bodies[-1]
        assert body is not None, "a loop is compiled whole"
        return _Loop(self, control, body, outer).record()

    def whole(self, body: Inside, index: int, outer: Placing, rows: list[Row]) -> Place:
        """Where an argument is read that is a whole operand; rows are added where it has to be copied first."""
        if index in body.known:
            own = self.bound[body].memory.own.get(body.arguments[index])
            return NOTHING, 0 if own is None else int(own.ctypes.data)
        place, coded = outer(body.operands[index]), body.dense[index]
        return place if coded is None else self.copied(coded, place, body.arguments[index], rows)

    def copied(self, coded: Coded, source: Place, argument: Value, rows: list[Row]) -> Place:
        """A new place for an argument, and a row that brings it there."""
        target = self.words.reserve(self.words.number(argument.tensor.bytes))
        rows.append(self.copy(coded, source, target))
        return target

    def copy(self, coded: Coded, source: Place, target: Place) -> Row:
        return self.row(coded, [target if name == "y" else source for name in coded.job.kernel.pointers])

    def row(self, coded: Coded, places: Sequence[Place]) -> Row:
        first, tiles, chunk = self.words.arguments(coded.job, places)
        said: Place = (STATUS, 0) if coded.job.is_checked else (NOTHING, 0)
        numbers = ((NOTHING, number) for number in (tiles, chunk, KIND_COMPILED))
        return [(NOTHING, coded.entry), (SELF, 8 * first), *numbers, said]

    def table(self, rows: Sequence[Row]) -> list[Place]:
        """How many rows there are, and where they are laid out."""
        return [(NOTHING, len(rows)), (SELF, 8 * self.words.add([place for row in rows for place in row]))]

    def body(self, body: Inside, reads: Sequence[Place], wanted: Sequence[Place | None]) -> list[Row]:
        """The steps of a body whose arguments and results are at these places."""
        place = self._placing(body, reads, wanted)
        rows: list[Row] = []
        for step in body.steps:
            if isinstance(step, Control):
                kind, first = self.control(step, place)
                rows.append([(NOTHING, 0), (SELF, 8 * first), (NOTHING, 0), (NOTHING, 0), (NOTHING, kind), (STATUS, 0)])
            else:
                rows.append(self.row(step, pointed(step.job, place)))
        for value, coded, target in zip(body.outputs, body.results, wanted, strict=True):
            if coded is not None and target is not None:
                rows.append(self.copy(coded, place(value), target))
        return rows

    def _placing(self, body: Inside, reads: Sequence[Place], wanted: Sequence[Place | None]) -> Placing:
        words, plan, bound = self.words, body.plan, self.bound[body]
        base, start = words.reserve(words.number(plan.arena_size))
        given = dict(zip(body.arguments, reads, strict=True))
        given |= {r: at for r, at in zip(body.made, wanted, strict=True) if r is not None and at is not None}

        def place(point: Value | Packed | Status) -> Place:
            if isinstance(point, Status):
                return STATUS, 0
            if isinstance(point, Packed):
                return NOTHING, int(bound.packed[point.key].ctypes.data)
            alias = plan.locate(point)
            offset = words.number(alias.offset)
            if alias.root in given:
                at, first = given[alias.root]
                return at, first + offset
            slot = plan.slots.get(alias.root)
            if slot is not None and slot.pool == "arena":
                return base, start + words.number(slot.offset) + offset
            buffer, first = bound.memory.place(alias.root)
            return NOTHING, int(buffer.ctypes.data) + first + offset

        return place


class _Loop:
    """One loop while it is laid out."""

    def __init__(self, layout: Layout, control: Control, body: Inside, outer: Placing) -> None:
        self.layout, self.control, self.body, self.outer = layout, control, body, outer
        self.words = layout.words
        self.value = control.step.value
        self.results = control.step.results
        self.carries = len(control.ends)
        self.limit = self._limit()
        self.moving: list[Moving] = []
        self.before: list[Row] = []
        self.opening: list[Row] = []
        self.end: list[Row] = []

    def _limit(self) -> int:
        """How many trips there are, at most."""
        limit: Size | None = self.value.attrs["length" if self.value.op is scan_ else "limit"]
        if limit is None:
            limit = self.value.operands[self.carries].shape[0] if self.value.op is scan_ else NO_LIMIT
        return self.words.number(limit)

    def record(self) -> int:
        """The number of the first word of its record."""
        layout, body = self.layout, self.body
        wanted: list[Place | None] = []
        reads = [self._argument(i, wanted) for i in range(len(body.operands))]
        asks: list[Row] = []
        flag: Place = (NOTHING, 0)
        stacked = self.results[self.carries :]
        if self.value.op is not scan_:
            *stacked, last = stacked
            flag = self.outer(last)
            condition = self.control.bodies[0]
            assert condition is not None, "a loop is compiled whole"
            given = [
                layout.whole(condition, i, self.outer, []) if i in condition.known else at for i, at in enumerate(reads)
            ]
            asks = layout.body(condition, given, [flag])
        wanted += [self._sliced(v, TensorType(v.dtype, v.shape[1:]).bytes) for v in stacked]
        trip = [*self.opening, *layout.body(body, reads, wanted)]
        tables = [layout.table(rows) for rows in (self.before, asks, trip, self.end)]
        moves = self._moves()
        record = [(NOTHING, self.limit), flag, (STATUS, 0), *(place for table in tables for place in table)]
        return self.words.add([*record, (NOTHING, len(moves) // MOVE_WORDS), (SELF, 8 * self.words.add(moves))])

    def _argument(self, index: int, wanted: list[Place | None]) -> Place:
        """Where an argument is read; where a carry is wanted after the trip is added."""
        layout, body = self.layout, self.body
        match body.roles[index]:
            case "whole":
                return layout.whole(body, index, self.outer, self.before)
            case "slice":
                pitch = self.control.pitches[index - self.carries]
                at, coded = self._sliced(body.operands[index], pitch), body.dense[index]
                return at if coded is None else layout.copied(coded, at, body.arguments[index], self.opening)
            case "carry":
                return self._carry(index, wanted)

    def _carry(self, index: int, wanted: list[Place | None]) -> Place:
        """Two places take turns: what one trip writes the next one reads. What never changes stays."""
        layout, body = self.layout, self.body
        first, coded = body.operands[index], body.dense[index]
        assert coded is not None, "a carry is copied to where it changes"
        here = self.outer(self.results[index])
        self.before.append(layout.copy(coded, self.outer(first), here))
        if body.outputs[index] is body.arguments[index]:
            wanted.append(None)
            return here
        there = self.words.reserve(self.words.number(first.tensor.bytes))
        read, written = Moving(here, there), Moving(there, here)
        self.moving += [read, written]
        wanted.append((written, 0))
        self.end.append(layout.copy(self.control.ends[index], (read, 0), here))
        return read, 0

    def _sliced(self, value: Value, pitch: Size) -> Place:
        """The slice of a trip, out of slices that lie so far apart."""
        base, start = self.outer(value)
        step = self.words.number(pitch)
        if self.value.attrs.get("reverse"):
            start, step = start + (self.limit - 1) * step, -step
        found = Moving((base, start), (base, start), step)
        self.moving.append(found)
        return found, 0

    def _moves(self) -> list[Place]:
        found: list[Place] = []
        for moving in self.moving:
            for word, offset in moving.words:
                (one, start), (other, begin) = moving.one, moving.other
                found += [(SELF, 8 * word), (one, start + offset), (other, begin + offset), (NOTHING, moving.step)]
        return found
