"""Weights packed for kernels at bind time. Originals that no kernel reads are freed, if they can be unpacked again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, u8
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels.spec import Job, Packed
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.alias import Alias
from dovetail.plan.plan import Plan, Step
from dovetail.targets.runtime.arrays.memory import Memory
from dovetail.targets.runtime.arrays.page_advice import give_back, trim, unload
from dovetail.targets.runtime.building.weights import WeightCell, Weights
from dovetail.targets.runtime.calls.launch_frame import Section

__all__ = ["PACKED_WEIGHTS", "PackKey", "PackedWeights", "needed_steps", "packed_bindings", "read_roots", "steps_for"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One packed array, with weak references to it and to the arrays that it was packed from."""

    owners: tuple[weakref.ref[WeightCell] | weakref.ref[Array], ...]
    packed: weakref.ref[Array]


class PackedWeightCache:
    """Packed arrays by layout and source arrays. It holds no strong reference: an entry dies with its programs."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()

    def get(self, layout: Hashable, cells: Sequence[WeightCell], pack: Callable[[], Array]) -> Array:
        """The packed form of these cells. Writeable arrays are packed again, and shared if equal."""
        constant = all(cell.is_constant for cell in cells)
        # The caller holds the arrays of the cells meanwhile.
        owners = tuple([cell if cell.is_constant else cell.array() for cell in cells])
        key = (layout, *map(id, owners))
        kept = self._find(key, owners)
        if kept is not None and constant:
            return kept
        fresh = pack()
        if kept is not None and _equal(kept, fresh):
            return kept
        self._add(key, owners, fresh)
        return fresh

    def _find(self, key: Hashable, owners: Sequence[WeightCell | Array]) -> Array | None:
        with self._lock:
            entry = self._entries.get(key)
        if entry is None or any(ref() is not owner for ref, owner in zip(entry.owners, owners, strict=True)):
            return None
        return entry.packed()

    def _add(self, key: Hashable, owners: Sequence[WeightCell | Array], packed: Array) -> None:
        def gone(_: object) -> None:
            if self._entries.get(key) is entry:
                self._entries.pop(key, None)

        entry = _Entry(tuple(map(weakref.ref, owners)), weakref.ref(packed, gone))
        with self._lock:
            self._entries[key] = entry

    def __len__(self) -> int:
        return len(self._entries)


def _equal(one: Array, other: Array) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


PACKED_WEIGHTS = PackedWeightCache()


WORTH_TRIMMING = 1 << 20
"""Freed bytes from which the allocator is trimmed."""

PackKey: TypeAlias = tuple[Value | str, ...]
Rebuild: TypeAlias = Callable[[], Array]
"""Rebuilds the content of a root."""


@runtime_checkable
class Reversible(Protocol):
    """A packing that can be undone, to the last bit."""

    def holds(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether the packed array holds every element of tensors of these shapes."""
        ...

    def unpack(self, packed: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
        """The tensors of these shapes that were packed."""
        ...


class PackedWeights:
    """The packed weights of a program. Steps with variants pack when sizes choose one, and their originals stay."""

    def __init__(
        self,
        plan: Plan,
        sections: Sequence[Section],
        bound: Memory,
        params: Mapping[str, Array],
        packed: Mapping[PackKey, Array] | None = None,
    ) -> None:
        """`packed` are the arrays of a program that was saved, packed already; nothing is freed then."""
        self.plan, self.bound = plan, bound
        self.cells = params.cells if isinstance(params, Weights) else {}
        self.arrays: dict[PackKey, Array] = {}
        self._lock = threading.Lock()
        if packed is not None:
            self.arrays.update(packed)
            return
        bindings = packed_bindings(sections)
        # The largest first: threads end together, and the pages of its original are dropped before the others come.
        largest_first = sorted(bindings.values(), key=self._bytes, reverse=True)
        if bindings:
            packed_arrays = _in_two_threads(self._packed, largest_first)
            self.arrays.update(zip([binding.key for binding in largest_first], packed_arrays, strict=True))
        if isinstance(params, Weights):
            _free_originals(plan, sections, bound, params, _routes(plan, bindings, self.arrays))

    def __call__(self, binding: Packed) -> Array:
        """Return a packed array; pack it on first use."""
        with self._lock:
            packed = self.arrays.get(binding.key)
            if packed is None:
                packed = self.arrays[binding.key] = self._packed(binding)
            return packed

    def _bytes(self, binding: Packed) -> int:
        return sum([self.bound.number(value.tensor.bytes) for value in (binding.value, *binding.beside)])

    def _packed(self, binding: Packed) -> Array:
        values = (binding.value, *binding.beside)
        owners = [_owners(self.plan, value, self.cells) for value in values]
        pack = partial(_pack, binding, self.bound)
        if any(o is None for o in owners):
            return pack()
        layout = (binding.layout, *[_part_of_root(self.plan, value) for value in values])
        return PACKED_WEIGHTS.get(layout, [cell for o in owners for cell in o or ()], pack)


def packed_bindings(sections: Sequence[Section]) -> dict[PackKey, Packed]:
    """The weights that are packed when parameters are bound, in the order of the steps that read them."""
    jobs = [job for part in sections for job in part.jobs if isinstance(job, Job) and not job.variants]
    return {p.key: p for job in jobs for p in job.bindings.values() if isinstance(p, Packed)}


def _in_two_threads(pack: Callable[[Packed], Array], bindings: Sequence[Packed]) -> list[Array]:
    """Pack each with two threads: NumPy copies without Python's lock."""
    packed: dict[PackKey, Array] = {}
    failed: list[BaseException] = []
    waiting = iter(bindings)
    lock = threading.Lock()

    def work() -> None:
        while not failed:
            with lock:
                binding = next(waiting, None)
            if binding is None:
                return
            try:
                packed[binding.key] = pack(binding)
            except BaseException as error:
                failed.append(error)

    other = threading.Thread(target=work)
    other.start()
    work()
    other.join()
    if failed:
        raise failed[0]
    return [packed[binding.key] for binding in bindings]


def _pack(binding: Packed, bound: Memory) -> Array:
    views = [bound.view(v) for v in (binding.value, *binding.beside)]
    packed = binding.pack(*views)
    for view in views:
        # Pages of a mapped file are dropped at once: a matrix is in memory twice only while it is packed. An embedding
        # that is the head, too, faults in the rows that it reads.
        unload(view)
    return packed


def _owners(plan: Plan, value: Value, cells: Mapping[str, WeightCell]) -> list[WeightCell] | None:
    """The cells of the parameters that a tensor is computed from; None where an array has none."""
    owners = [cells.get(str(v.attrs["name"])) for v in walk([plan.root_of(value)]) if v.op is leaf.PARAM]
    return None if None in owners else [cell for cell in owners if cell is not None]


def _part_of_root(plan: Plan, value: Value) -> tuple[object, ...]:
    """Which part of its root a tensor is, and how the root is computed. Cells identify parameters, names do not."""
    at = plan.locate(value)
    root = at.root.tensor if at.root.op is leaf.PARAM else at.root
    return (root, at.offset, at.strides, value.tensor)


def _free_originals(
    plan: Plan, sections: Sequence[Section], bound: Memory, params: Weights, routes: Mapping[Value, Rebuild]
) -> None:
    """Free every original that no step of a run reads, if it can be unpacked again."""
    read = read_roots(plan, sections)
    freed = 0
    for value in plan.graph.parameters:
        if value not in read and value in routes:
            original = bound.own.pop(value)
            unload(original)
            freed += original.nbytes
            bound.again[value] = routes[value]
            params.cells[str(value.attrs["name"])].let_go(routes[value])
        elif value not in read:
            # A packed parameter in a mapped file: a later read of the original faults its pages in again.
            unload(bound.own[value])
    for root, slot in plan.slots.items():
        if slot.pool == "bound" and root not in read:
            start, size = bound.number(slot.offset), bound.number(slot.size)
            give_back(bound.pools["bound"], start, start + size)
    if freed >= WORTH_TRIMMING:
        trim()


def read_roots(plan: Plan, sections: Sequence[Section]) -> set[Value]:
    """The roots that a run reads as they are, not packed."""
    roots = {plan.root_of(v) for v in plan.graph.outputs.values()}
    for part in sections:
        for step, job in zip(part.steps, part.jobs, strict=True):
            # The host runs a step again that set the error flag, from all operands; variants pack later.
            final = isinstance(job, Job) and not job.is_checked and not job.variants
            values = job.bindings.values() if isinstance(job, Job) and final else step.operands
            roots |= {plan.root_of(v) for v in values if isinstance(v, Value)}
    return roots


def needed_steps(plan: Plan, sections: Sequence[Section]) -> list[Step]:
    """The steps of the bind phase that something reads. Weights that kernels read in blocks are never spelled out."""
    roots = read_roots(plan, sections)
    for part in sections:
        for job in part.jobs:
            if isinstance(job, Job):
                packed = [b for b in job.bindings.values() if isinstance(b, Packed)]
                roots |= {plan.root_of(v) for b in packed for v in (b.value, *b.beside)}
    return steps_for(plan, roots)


def steps_for(plan: Plan, read: AbstractSet[Value]) -> list[Step]:
    """The steps of the bind phase that these roots come from; those that find a size are always among them."""
    roots = {*read}
    steps: list[Step] = []
    for step in reversed(plan.phase("bind")):
        if any(plan.root_of(result) in roots for result in step.results) or any(fresh_symbols(step.value)):
            steps.append(step)
            roots |= {plan.root_of(v) for v in step.operands}
    return steps[::-1]


def _routes(plan: Plan, bindings: Mapping[PackKey, Packed], packed: Mapping[PackKey, Array]) -> dict[Value, Rebuild]:
    """Functions that rebuild roots whose whole content was packed."""
    routes: dict[Value, Rebuild] = {}
    for key, binding in bindings.items():
        values = (binding.value, *binding.beside)
        # Panels hold f32, whatever they were packed from, and blocks of bytes.
        shapes = [cast("tuple[int, ...]", v.shape) for v in values if v.dtype in (f32, u8) and v.tensor.is_static]
        if len(shapes) < len(values) or not isinstance(binding.pack, Reversible) or not binding.pack.holds(shapes):
            continue
        for index, value in enumerate(values):
            _add_route(routes, plan.locate(value), value, partial(_unpacked, binding.pack, packed[key], shapes, index))
    for step in reversed(plan.phase("bind")):
        if step.value.op is ops.concat and step.value in routes and step.value.tensor.is_static:
            _add_parts(routes, plan, step)
    return routes


def _add_parts(routes: dict[Value, Rebuild], plan: Plan, step: Step) -> None:
    """The operands of a concatenation are slices of it."""
    axis = int(step.value.attrs["axis"]) + step.value.rank
    start = 0
    for operand in step.operands:
        size = operand.shape[axis]
        assert isinstance(size, int), "the whole is static"
        cut = (*[slice(None)] * axis, slice(start, start + size))
        _add_route(routes, plan.locate(operand), operand, partial(_cut, routes[step.value], cut))
        start += size


def _add_route(routes: dict[Value, Rebuild], at: Alias, value: Value, content: Rebuild) -> None:
    if at.root not in routes and _is_whole(value, at):
        routes[at.root] = partial(_rebuilt, at, value, content)


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


def _cut(whole: Rebuild, cut: tuple[slice, ...]) -> Array:
    return whole()[cut]


def _rebuilt(at: Alias, value: Value, content: Rebuild) -> Array:
    """The root of a view that holds this content."""
    sizes: list[tuple[int, ...]] = [cast(Any, s) for s in (at.root.shape, value.shape, at.strides)]
    root = np.empty(sizes[0], at.root.dtype.numpy)
    np.ndarray(sizes[1], value.dtype.numpy, root, 0, sizes[2])[...] = content()
    return root
