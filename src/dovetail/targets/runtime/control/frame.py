"""Branches and loops in a frame: their tables, records and launch arguments for one set of sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import BindError
from dovetail.ir.dim import Size
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.kernels.spec import Packed
from dovetail.ops.control import if_, scan_
from dovetail.targets.runtime.arrays.memory import Memory
from dovetail.targets.runtime.calls.launch_args import (
    ABSOLUTE,
    ARGUMENTS,
    STATUS,
    Address,
    LaunchArgs,
    LoopAddress,
    Resolve,
    Resolver,
    pointers_of,
)
from dovetail.targets.runtime.calls.launch_table import KIND_BRANCH, KIND_COMPILED, KIND_LOOP, OFFSETS
from dovetail.targets.runtime.control.plan import CompiledBody, Control, KernelEntry
from dovetail.targets.runtime.control.records import LOOP_RECORD, MOVE_RECORD

NO_LIMIT = 1 << 62
AddressRow: TypeAlias = list[Address]
"""The fields of one step in a launch table."""


@dataclass(frozen=True, slots=True)
class BoundBody:
    """The bind-time values of a body: its constants and packed weights."""

    memory: Memory
    packed: Mapping[tuple[Value | str, ...], Array]


def bind_bodies(controls: Iterable[Control], outer: Memory) -> dict[CompiledBody, BoundBody]:
    """Run the bind phases of all bodies, and pack the weights of their kernels."""
    bound: dict[CompiledBody, BoundBody] = {}
    pending = [(control, outer) for control in controls]
    while pending:
        control, around = pending.pop()
        for body in control.bodies:
            if body is not None:
                bound[body] = _bound(body, around)
                pending += [(step, bound[body].memory) for step in body.steps if isinstance(step, Control)]
    return bound


def _bound(body: CompiledBody, outer: Memory) -> BoundBody:
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
    bindings = [p for step in body.steps if isinstance(step, KernelEntry) for p in step.job.bindings.values()]
    for binding in bindings:
        if isinstance(binding, Packed) and binding.key not in packed:
            packed[binding.key] = binding.pack(*(memory.view(v) for v in (binding.value, *binding.beside)))
    read = body.read
    memory.own = {v: a for v, a in memory.own.items() if v in read}
    return BoundBody(memory, packed)


class ControlLayout:
    """Adds branches and loops to the launch arguments of a frame."""

    def __init__(self, args: LaunchArgs, bound: Mapping[CompiledBody, BoundBody]) -> None:
        self.args = args
        self.bound = bound

    def control(self, control: Control, outer: Resolve) -> tuple[int, int]:
        """The kind of a step that branches or loops, and the index of its record's first word."""
        if control.step.value.op is if_:
            return KIND_BRANCH, self._branch(control, outer)
        return KIND_LOOP, self._loop(control, outer)

    def _branch(self, control: Control, outer: Resolve) -> int:
        step = control.step
        record: list[Address] = [outer(step.operands[0]), (STATUS, 0)]
        targets = [outer(v) for v in step.results]
        for body in control.bodies:
            if body is None or not self._fits(body):
                record += [(ABSOLUTE, -1), (ABSOLUTE, 0)]
                continue
            rows: list[AddressRow] = []
            reads = [self.whole(body, i, outer, rows) for i in range(len(body.operands))]
            rows += self.body(body, reads, targets)
            record += self.table(rows)
        return self.args.add(record)

    def _fits(self, body: CompiledBody) -> bool:
        """Whether the size constraints of a branch hold; where they do not, the host raises the error."""
        try:
            return all(c.bind(self.args.sizes) is None for c in body.plan.graph.constraints)
        except BindError:
            return False

    def _loop(self, control: Control, outer: Resolve) -> int:
        body = control.bodies[-1]
        assert body is not None, "all bodies of a loop are compiled"
        return _Loop(self, control, body, outer).record()

    def whole(self, body: CompiledBody, index: int, outer: Resolve, rows: list[AddressRow]) -> Address:
        """The address of an argument that is a whole operand; adds a row where it must be copied first."""
        if index in body.known:
            own = self.bound[body].memory.own.get(body.arguments[index])
            return ABSOLUTE, 0 if own is None else int(own.ctypes.data)
        at, kernel = outer(body.operands[index]), body.dense[index]
        return at if kernel is None else self.copied(kernel, at, body.arguments[index], rows)

    def copied(self, kernel: KernelEntry, source: Address, argument: Value, rows: list[AddressRow]) -> Address:
        """New memory for an argument; adds a row that copies it there."""
        target = self.args.reserve(self.args.number(argument.tensor.bytes))
        rows.append(self.copy(kernel, source, target))
        return target

    def copy(self, kernel: KernelEntry, source: Address, target: Address) -> AddressRow:
        return self.row(kernel, [target if name == "y" else source for name in kernel.job.kernel.pointers])

    def row(self, kernel: KernelEntry, pointers: Sequence[Address]) -> AddressRow:
        first, tiles, chunk = self.args.launch(kernel.job, pointers)
        return _row(
            function=(ABSOLUTE, kernel.entry),
            arguments=(ARGUMENTS, 8 * first),
            tiles=(ABSOLUTE, tiles),
            chunk=(ABSOLUTE, chunk),
            kind=(ABSOLUTE, KIND_COMPILED),
            status=(STATUS, 0) if kernel.job.is_checked else (ABSOLUTE, 0),
        )

    def table(self, rows: Sequence[AddressRow]) -> list[Address]:
        """The length of a table, and its address."""
        return [(ABSOLUTE, len(rows)), (ARGUMENTS, 8 * self.args.add([field for row in rows for field in row]))]

    def body(self, body: CompiledBody, reads: Sequence[Address], targets: Sequence[Address | None]) -> list[AddressRow]:
        """The steps of a body with its arguments and results at these addresses."""
        resolve = self._resolver(body, reads, targets)
        rows: list[AddressRow] = []
        for step in body.steps:
            if isinstance(step, Control):
                kind, first = self.control(step, resolve)
                rows.append(_row(arguments=(ARGUMENTS, 8 * first), kind=(ABSOLUTE, kind), status=(STATUS, 0)))
            else:
                rows.append(self.row(step, pointers_of(step.job, resolve)))
        for value, kernel, target in zip(body.outputs, body.results, targets, strict=True):
            if kernel is not None and target is not None:
                rows.append(self.copy(kernel, resolve(value), target))
        return rows

    def _resolver(self, body: CompiledBody, reads: Sequence[Address], targets: Sequence[Address | None]) -> Resolve:
        args, plan, bound = self.args, body.plan, self.bound[body]
        arena = args.reserve(args.number(plan.arena_size))
        known = dict(zip(body.arguments, reads, strict=True))
        known |= {r: at for r, at in zip(body.in_place, targets, strict=True) if r is not None and at is not None}
        return Resolver(plan, bound.memory, args.number, lambda weights: bound.packed[weights.key], arena, known.get)


def _row(**fields: Address) -> AddressRow:
    return [fields.get(name, (ABSOLUTE, 0)) for name in OFFSETS]


class _Loop:
    """One loop while it is added."""

    def __init__(self, layout: ControlLayout, control: Control, body: CompiledBody, outer: Resolve) -> None:
        self.layout, self.control, self.body, self.outer = layout, control, body, outer
        self.args = layout.args
        self.value = control.step.value
        self.results = control.step.results
        self.carries = len(control.ends)
        self.limit = self._limit()
        self.moving: list[LoopAddress] = []
        self.before: list[AddressRow] = []
        self.opening: list[AddressRow] = []
        self.end: list[AddressRow] = []

    def _limit(self) -> int:
        """The most trips."""
        limit: Size | None = self.value.attrs["length" if self.value.op is scan_ else "limit"]
        if limit is None:
            limit = self.value.operands[self.carries].shape[0] if self.value.op is scan_ else NO_LIMIT
        return self.args.number(limit)

    def record(self) -> int:
        """The index of the first word of its record."""
        layout, body = self.layout, self.body
        targets: list[Address | None] = []
        reads = [self._argument(i, targets) for i in range(len(body.operands))]
        condition_rows: list[AddressRow] = []
        flag: Address = (ABSOLUTE, 0)
        stacked = self.results[self.carries :]
        if self.value.op is not scan_:
            *stacked, last = stacked
            flag = self.outer(last)
            condition = self.control.bodies[0]
            assert condition is not None, "all bodies of a loop are compiled"
            carries = [
                layout.whole(condition, i, self.outer, []) if i in condition.known else at for i, at in enumerate(reads)
            ]
            condition_rows = layout.body(condition, carries, [flag])
        targets += [self._sliced(v, TensorType(v.dtype, v.shape[1:]).bytes) for v in stacked]
        trip = [*self.opening, *layout.body(body, reads, targets)]
        tables = [layout.table(rows) for rows in (self.before, condition_rows, trip, self.end)]
        moves = self._moves()
        record = [(ABSOLUTE, self.limit), flag, (STATUS, 0), *(field for table in tables for field in table)]
        record += [(ABSOLUTE, len(moves) // len(MOVE_RECORD)), (ARGUMENTS, 8 * self.args.add(moves))]
        assert len(record) == len(LOOP_RECORD), "a field for each name"
        return self.args.add(record)

    def _argument(self, index: int, targets: list[Address | None]) -> Address:
        """The address of an argument; adds to `targets` the address of a carry after the trip."""
        layout, body = self.layout, self.body
        match body.roles[index]:
            case "whole":
                return layout.whole(body, index, self.outer, self.before)
            case "slice":
                pitch = self.control.pitches[index - self.carries]
                at, kernel = self._sliced(body.operands[index], pitch), body.dense[index]
                return at if kernel is None else layout.copied(kernel, at, body.arguments[index], self.opening)
            case "carry":
                return self._carry(index, targets)

    def _carry(self, index: int, targets: list[Address | None]) -> Address:
        """Two buffers alternate: a trip reads what the trip before wrote. A carry that never changes has one."""
        layout, body = self.layout, self.body
        first, kernel = body.operands[index], body.dense[index]
        assert kernel is not None, "a carry is copied to the buffer where it changes"
        here = self.outer(self.results[index])
        self.before.append(layout.copy(kernel, self.outer(first), here))
        if body.outputs[index] is body.arguments[index]:
            targets.append(None)
            return here
        there = self.args.reserve(self.args.number(first.tensor.bytes))
        read, written = LoopAddress(here, there), LoopAddress(there, here)
        self.moving += [read, written]
        targets.append((written, 0))
        self.end.append(layout.copy(self.control.ends[index], (read, 0), here))
        return read, 0

    def _sliced(self, value: Value, pitch: Size) -> Address:
        """The slice of a trip, of slices with this stride."""
        base, start = self.outer(value)
        step = self.args.number(pitch)
        if self.value.attrs.get("reverse"):
            start, step = start + (self.limit - 1) * step, -step
        address = LoopAddress((base, start), (base, start), step)
        self.moving.append(address)
        return address, 0

    def _moves(self) -> list[Address]:
        words: list[Address] = []
        for moving in self.moving:
            (even, start), (odd, begin) = moving.even, moving.odd
            for word, offset in moving.uses:
                words += [(ARGUMENTS, 8 * word), (even, start + offset), (odd, begin + offset), (ABSOLUTE, moving.step)]
        return words
