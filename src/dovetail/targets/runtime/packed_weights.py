"""What kernels read in a layout of their own, made when parameters are bound; originals that nobody reads then go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels.spec import Job, Packed
from dovetail.plan.alias import Alias
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.page_advice import give_back, trim, unload
from dovetail.targets.runtime.launch_frame import Section
from dovetail.targets.runtime.memory import Memory
from dovetail.targets.runtime.packed_weight_cache import SHELF
from dovetail.targets.runtime.weights import Cell, Weights

WORTH_TRIMMING = 1 << 20

Key: TypeAlias = tuple[Value | str, ...]
Again: TypeAlias = Callable[[], Array]
"""Makes the content of a root again."""


@runtime_checkable
class Reversible(Protocol):
    """A layout that tells what was laid out, to the last bit."""

    def holds(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether every element of tensors of these shapes is laid out."""
        ...

    def unpack(self, packed: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
        """The tensors of these shapes that were packed."""
        ...


class Packs:
    """What kernels want packed. Steps with forms have that made which sizes ask for, and their originals stay."""

    def __init__(self, plan: Plan, sections: Sequence[Section], kept: Memory, params: Mapping[str, Array]) -> None:
        self.plan, self.kept = plan, kept
        self.cells = params.cells if isinstance(params, Weights) else {}
        self.made: dict[Key, Array] = {}
        self._lock = threading.Lock()
        jobs = [job for part in sections for job in part.jobs if isinstance(job, Job) and not job.forms]
        points = {p.key: p for job in jobs for p in job.points.values() if isinstance(p, Packed)}
        if points:
            self.made.update(zip(points, _by_two(self._laid_out, list(points.values())), strict=True))
        if isinstance(params, Weights):
            _let_go(plan, sections, kept, params, _routes(plan, points, self.made))

    def __call__(self, point: Packed) -> Array:
        """A layout, made when it is asked for first."""
        with self._lock:
            found = self.made.get(point.key)
            if found is None:
                found = self.made[point.key] = self._laid_out(point)
            return found

    def _laid_out(self, point: Packed) -> Array:
        values = (point.value, *point.beside)
        owners = [_owners(self.plan, value, self.cells) for value in values]
        pack = partial(_pack, point, self.kept)
        if any(o is None for o in owners):
            return pack()
        layout = (point.layout, *[_place(self.plan, value) for value in values])
        return SHELF.get(layout, [cell for o in owners for cell in o or ()], pack)


def _by_two(lay_out: Callable[[Packed], Array], points: Sequence[Packed]) -> list[Array]:
    """Each laid out, by two threads: to copy arrays does not take Python's lock."""
    made: dict[Key, Array] = {}
    failed: list[BaseException] = []
    waiting = iter(points)
    lock = threading.Lock()

    def work() -> None:
        while not failed:
            with lock:
                point = next(waiting, None)
            if point is None:
                return
            try:
                made[point.key] = lay_out(point)
            except BaseException as error:
                failed.append(error)

    other = threading.Thread(target=work)
    other.start()
    work()
    other.join()
    if failed:
        raise failed[0]
    return [made[point.key] for point in points]


def _pack(point: Packed, kept: Memory) -> Array:
    return point.pack(*(kept.view(v) for v in (point.value, *point.beside)))


def _owners(plan: Plan, value: Value, cells: Mapping[str, Cell]) -> list[Cell] | None:
    """The cells that decide what a tensor holds; None where an array has none."""
    found = [cells.get(str(v.attrs["name"])) for v in walk([plan.locate(value).root]) if v.op is leaf.PARAM]
    return None if None in found else [cell for cell in found if cell is not None]


def _place(plan: Plan, value: Value) -> tuple[object, ...]:
    """Which part of its root a tensor is, and how the root is computed; parameters are told by cells, not by names."""
    at = plan.locate(value)
    root = at.root.tensor if at.root.op is leaf.PARAM else at.root
    return (root, at.offset, at.strides, value.tensor)


def _let_go(
    plan: Plan, sections: Sequence[Section], kept: Memory, params: Weights, routes: Mapping[Value, Again]
) -> None:
    """Give up every original that no step of a run reads, if it can be made again from what is packed."""
    read = _read(plan, sections)
    freed = 0
    for value in plan.graph.parameters:
        if value not in read and value in routes:
            original = kept.own.pop(value)
            unload(original)
            freed += original.nbytes
            kept.again[value] = routes[value]
            params.cells[str(value.attrs["name"])].let_go(routes[value])
    for root, slot in plan.slots.items():
        if slot.pool == "bound" and root not in read:
            start, size = kept.number(slot.offset), kept.number(slot.size)
            give_back(kept.pools["bound"], start, start + size)
    if freed >= WORTH_TRIMMING:
        trim()


def _read(plan: Plan, sections: Sequence[Section]) -> set[Value]:
    """The roots that a run reads where they lie."""
    found = {plan.locate(v).root for v in plan.graph.outputs.values()}
    for part in sections:
        for step, job in zip(part.steps, part.jobs, strict=True):
            # What a kernel refuses is computed by the host from all operands, and forms are packed when they run.
            told = isinstance(job, Job) and not job.is_checked and not job.forms
            given = job.points.values() if isinstance(job, Job) and told else step.operands
            found |= {plan.locate(v).root for v in given if isinstance(v, Value)}
    return found


def _routes(plan: Plan, points: Mapping[Key, Packed], packed: Mapping[Key, Array]) -> dict[Value, Again]:
    """For roots whose whole content is in what was packed, how it is made again."""
    found: dict[Value, Again] = {}
    for key, point in points.items():
        values = (point.value, *point.beside)
        shapes = [cast("tuple[int, ...]", v.shape) for v in values if v.dtype is f32 and v.tensor.is_static]
        if len(shapes) < len(values) or not isinstance(point.pack, Reversible) or not point.pack.holds(shapes):
            continue
        for index, value in enumerate(values):
            _add_route(found, plan.locate(value), value, partial(_unpacked, point.pack, packed[key], shapes, index))
    for step in reversed(plan.phase("bind")):
        if step.value.op is ops.concat and step.value in found and step.value.tensor.is_static:
            _add_parts(found, plan, step)
    return found


def _add_parts(found: dict[Value, Again], plan: Plan, step: Step) -> None:
    """What was joined can be cut apart."""
    axis = int(step.value.attrs["axis"]) + step.value.rank
    start = 0
    for operand in step.operands:
        size = operand.shape[axis]
        assert isinstance(size, int), "the whole is static"
        cut = (*[slice(None)] * axis, slice(start, start + size))
        _add_route(found, plan.locate(operand), operand, partial(_cut, found[step.value], cut))
        start += size


def _add_route(found: dict[Value, Again], at: Alias, value: Value, content: Again) -> None:
    if at.root not in found and _is_whole(value, at):
        found[at.root] = partial(_rebuilt, at, value, content)


def _is_whole(value: Value, at: Alias) -> bool:
    """Whether a view shows every element of its root once."""
    if at.offset != 0 or not value.tensor.is_static or not at.root.tensor.is_static:
        return False
    axes = [(stride, size) for stride, size in zip(at.strides, value.shape, strict=True) if size != 1]
    dense = value.dtype.itemsize
    for stride, size in sorted(cast("list[tuple[int, int]]", axes)):
        if stride != dense:
            return False
        dense *= size
    return dense == at.root.tensor.bytes


def _unpacked(pack: Reversible, packed: Array, shapes: Sequence[tuple[int, ...]], index: int) -> Array:
    return pack.unpack(packed, shapes)[index]


def _cut(whole: Again, cut: tuple[slice, ...]) -> Array:
    return whole()[cut]


def _rebuilt(at: Alias, value: Value, content: Again) -> Array:
    """The root of a view that holds this content."""
    sizes: list[tuple[int, ...]] = [cast(Any, s) for s in (at.root.shape, value.shape, at.strides)]
    root = np.empty(sizes[0], at.root.dtype.numpy)
    np.ndarray(sizes[1], value.dtype.numpy, root, 0, sizes[2])[...] = content()
    return root


__all__ = ["Packs"]
