"""The jobs of a plan and their machine code as bytes, so that another process need not select and compile kernels.

A job is spelled field by field as JSON: numbers and text as they are, everything else as a list that starts with its
kind. Values of the plan are stored as their indices in the walk, sizes as indices into a table of those that are known
later: sizes of tiles repeat, and as text they are longer than any that people write. A stored kernel has no text: it is
machine code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache
from typing import Any, TypeAlias, cast

from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Atom, Compound, Dim, Monomial, Symbol
from dovetail.ir.value import Value
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import Job, Template
from dovetail.plan.plan import Plan, Step
from dovetail.targets.runtime.backend import Backend
from dovetail.targets.runtime.building.build import Built, builder_of, kernels_of, loaded
from dovetail.targets.runtime.building.compiler import Module
from dovetail.targets.runtime.building.store import CodeStore
from dovetail.targets.runtime.control.plan import Control
from dovetail.targets.runtime.registry import Registry

_LENGTH = struct.Struct("<Q")
_CONTROL = "control"


class NotSerializable(Exception):
    """A job holds something that is not a registered record, so that each process compiles the plan."""


def to_bytes(plan: Plan, jobs: Sequence[Job | Control | None], backend: Backend) -> bytes:
    """Jobs whose kernels are in memory, with their code."""
    content, distinct = spelled_jobs(plan, jobs, backend)
    objects = [backend.code.object_of(name) for name in distinct]
    listed = [[m.name, m.is_shared, len(code)] for m, code in zip(distinct.values(), objects, strict=True)]
    head = json.dumps({**content, "modules": listed}, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *objects])


def spelled_jobs(
    plan: Plan, jobs: Sequence[Job | Control | None], backend: Backend
) -> tuple[dict[str, Any], dict[str, Module]]:
    """Jobs as JSON, and the modules of their code by name; those of branches and loops are not among them."""
    writer = JsonWriter({value: index for index, value in enumerate(plan.graph.values)}, backend.records)
    # Steps with equal signatures share a kernel: its modules are written once.
    kernels = {id(job.kernel): job for job in kernels_of(jobs)}
    modules = {at: backend.code.modules(job) for at, job in kernels.items()}
    bare = {at: _bare(job.kernel, modules[at][-1].name) for at, job in kernels.items()}
    stored = [_with_bare_kernels(job, bare) if isinstance(job, Job) else job for job in jobs]
    spelled = [_CONTROL if isinstance(job, Control) else writer.spell(job) for job in stored]
    content = {"jobs": spelled, "sizes": writer.sizes}
    return content, {m.name: m for each in modules.values() for m in each}


def read_jobs(
    plan: Plan, content: Mapping[str, Any], records: Registry, control: Callable[[Step], Control | None]
) -> list[Job | Control | None]:
    """The jobs that `spelled_jobs` spelled of an equal plan; `control` makes those of branches and loops."""
    reader = Reader(plan.graph.values, records, read_sizes(content["sizes"]))
    return [
        control(step) if one == _CONTROL else reader.read(one)
        for step, one in zip(plan.phase("run"), content["jobs"], strict=True)
    ]


def from_bytes(plan: Plan, content: bytes, backend: Backend, store: CodeStore | None = None) -> Built:
    """Read the jobs that `to_bytes` wrote of an equal plan, with their code in memory.

    Kernels inside branches and loops are selected again, and their code is in the store.
    """
    start = _LENGTH.size + _LENGTH.unpack_from(content)[0]
    head = json.loads(content[_LENGTH.size : start])
    builder = cache(lambda: builder_of(plan, backend))
    jobs = read_jobs(plan, head, backend.records, lambda step: builder().control(step))
    objects: dict[Module, bytes] = {}
    for name, is_shared, size in head["modules"]:
        objects[Module(name, "", is_shared=is_shared)] = content[start : start + size]
        start += size
    functions = backend.code.adopt(objects)
    built = loaded(jobs, backend, store)
    return replace(built, functions=tuple(dict.fromkeys([*built.functions, *functions])))


def _with_bare_kernels(job: Job, bare: Mapping[int, Template]) -> Job:
    variants = tuple([replace(variant, kernel=bare[id(variant.kernel)]) for variant in job.variants])
    return replace(job, kernel=bare[id(job.kernel)], variants=variants)


def _bare(kernel: Kernel | Template, name: str) -> Template:
    """A kernel without its text: what runs need. `name` is that of its code."""
    variant = kernel.variant if isinstance(kernel, Template) else ""
    return Template(name, "", (), tuple(kernel.pointers), tuple(kernel.sizes), kernel.scratch, variant=variant)


@dataclass(frozen=True, slots=True)
class JsonWriter:
    """Spells what jobs hold as JSON."""

    number: Mapping[Value, int]
    records: Registry
    sizes: list[Any] = field(default_factory=list[Any])
    """The sizes that were spelled, each after those that it is made of."""
    _size_indices: dict[Dim, int] = field(default_factory=dict[Dim, int])

    def spell(self, item: Any) -> Any:
        if item is None or isinstance(item, bool | int | str | float):
            return item
        if isinstance(item, Dim):
            return ["size", self._size(item)]
        if isinstance(item, Value):
            return self._value(item)
        if isinstance(item, tuple):
            return ["tuple", *[self.spell(part) for part in cast("tuple[Any, ...]", item)]]
        if isinstance(item, Mapping):
            pairs = cast("Mapping[str, Any]", item)
            return ["map", *[[name, self.spell(part)] for name, part in pairs.items()]]
        kind = cast("type[Any]", type(item))
        name = self.records.name_of(kind)
        if name is None:
            raise NotSerializable(f"a {kind.__module__}.{kind.__qualname__}")
        return [name, *[self.spell(getattr(item, f.name)) for f in fields(item) if f.init]]

    def _size(self, size: Dim) -> int:
        """The index of a size in the table."""
        index = self._size_indices.get(size)
        if index is None:
            terms = [[coefficient, *map(self._atom, monomial)] for monomial, coefficient in size.terms]
            index = self._size_indices[size] = len(self.sizes)
            self.sizes.append(terms)
        return index

    def _atom(self, atom: Atom) -> Any:
        if isinstance(atom, Symbol):
            return atom.name
        return [atom.kind, self.spell(atom.left), self.spell(atom.right)]

    def _value(self, value: Value) -> Any:
        if value in self.number:
            return ["value", self.number[value]]
        if value.op is leaf.ITEM and value.operands[0] in self.number:
            return ["item", self.number[value.operands[0]], value.attrs["index"]]
        raise NotSerializable(f"{value.op.name}, which is not in the graph")


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads what `JsonWriter` spelled. A kind that is neither built in nor registered is refused."""

    values: Sequence[Value]
    records: Registry
    sizes: Sequence[Dim]

    def read(self, spelled: Any) -> Any:
        if not isinstance(spelled, list):
            return spelled
        kind, *parts = cast("list[Any]", spelled)
        reader = _BUILT_IN.get(kind)
        return self.records.kind(kind)(*map(self.read, parts)) if reader is None else reader(self, parts)

    def read_tuple(self, parts: list[Any]) -> tuple[Any, ...]:
        return tuple([self.read(part) for part in parts])

    def read_map(self, parts: list[Any]) -> dict[str, Any]:
        return {str(name): self.read(part) for name, part in parts}

    def read_value(self, parts: list[Any]) -> Value:
        return self.values[int(parts[0])]

    def read_item(self, parts: list[Any]) -> Value:
        return leaf.item(self.values[int(parts[0])], int(parts[1]))

    def read_size(self, parts: list[Any]) -> Dim:
        return self.sizes[int(parts[0])]


def read_sizes(table: Sequence[Any]) -> list[Dim]:
    """The sizes of a table that `JsonWriter` filled. Their terms are in order, and are not sorted again."""
    sizes: list[Dim] = []

    def part(spelled: Any) -> Dim | int:
        return spelled if isinstance(spelled, int) else sizes[int(spelled[1])]

    def atom(spelled: Any) -> Atom:
        if isinstance(spelled, str):
            return Symbol(spelled)
        kind, left, right = spelled
        return Compound(kind, part(left), part(right))

    def monomial(spelled: Sequence[Any]) -> Monomial:
        return tuple([atom(one) for one in spelled])

    for terms in table:
        sizes.append(Dim(tuple([(monomial(atoms), int(coefficient)) for coefficient, *atoms in terms])))
    return sizes


_Read: TypeAlias = Callable[[Reader, list[Any]], Any]
_BUILT_IN: Mapping[str, _Read] = {
    "size": Reader.read_size,
    "value": Reader.read_value,
    "item": Reader.read_item,
    "tuple": Reader.read_tuple,
    "map": Reader.read_map,
}

__all__ = [
    "JsonWriter",
    "NotSerializable",
    "Reader",
    "from_bytes",
    "read_jobs",
    "read_sizes",
    "spelled_jobs",
    "to_bytes",
]
