"""The jobs of a plan and their machine code as bytes, so that another process need not write and compile kernels.

A job is spelled field by field as JSON: numbers and text as they are, everything else as a list that starts with its
kind. What it holds of the plan's values is told by their numbers in the walk. Of a kernel only that is kept which runs
need: its text is machine code already.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, cast

from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.size_text import parse_size
from dovetail.ir.value import Value
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import Job, Template
from dovetail.plan.plan import Plan
from dovetail.targets.runtime.build import Ready, Writer, compiled, kernels_of
from dovetail.targets.runtime.code_cache import Module, adopt, modules_of, object_of, written
from dovetail.targets.runtime.control.plan import Control
from dovetail.targets.runtime.store import Store

_LENGTH = struct.Struct("<Q")
_CONTROL = "control"
_ROOM = ("dovetail.kernels.", "dovetail.targets.cpu.")
"""Where the dataclasses are declared that jobs hold."""


class NotKept(Exception):
    """Something that cannot be spelled, so that a plan is compiled in every process."""


def to_bytes(plan: Plan, jobs: Sequence[Job | Control | None]) -> bytes:
    """Jobs whose kernels were compiled in this process, with their code."""
    number = {value: index for index, value in enumerate(plan.graph.values)}
    # Steps that are alike share a kernel: it is written once.
    kernels = {id(job.kernel): job for job in kernels_of(jobs)}
    bare = {at: _bare(job.kernel) for at, job in kernels.items()}
    told = [_bared(job, bare) if isinstance(job, Job) else job for job in jobs]
    spelled = [_CONTROL if isinstance(job, Control) else _spell(job, number) for job in told]
    modules = {m.name: m for job in kernels.values() for m in modules_of(job)}
    objects = [object_of(name) for name in modules]
    listed = [[m.name, m.is_shared, len(made)] for m, made in zip(modules.values(), objects, strict=True)]
    head = json.dumps({"jobs": spelled, "modules": listed}, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *objects])


def from_bytes(plan: Plan, content: bytes, store: Store | None = None) -> Ready:
    """The jobs in a string of bytes that `to_bytes` made of an equal plan, with their code in memory.

    What branches or loops has plans of its own inside: its kernels are written anew, and their code is in the store.
    """
    start = _LENGTH.size + _LENGTH.unpack_from(content)[0]
    head = json.loads(content[_LENGTH.size : start])
    objects: dict[Module, bytes] = {}
    for name, is_shared, size in head["modules"]:
        objects[Module(name, "", is_shared=is_shared)] = content[start : start + size]
        start += size
    adopt(objects)
    steps, values = plan.phase("run"), plan.graph.values
    writer = Writer(plan) if _CONTROL in head["jobs"] else None
    jobs = [
        writer.control(step) if writer is not None and spelled == _CONTROL else _read(spelled, values)
        for step, spelled in zip(steps, head["jobs"], strict=True)
    ]
    return compiled(jobs, store)


def _spell(item: Any, number: Mapping[Value, int]) -> Any:
    """Something that a job holds as JSON."""
    if item is None or isinstance(item, bool | int | str | float):
        return item
    if isinstance(item, Kernel | Template):
        item = _bare(item)
    if isinstance(item, Dim):
        return ["size", str(item)]
    if isinstance(item, Value):
        return _spell_value(item, number)
    if isinstance(item, tuple):
        return ["tuple", *[_spell(part, number) for part in cast("tuple[Any, ...]", item)]]
    if isinstance(item, Mapping):
        pairs = cast("Mapping[str, Any]", item)
        return ["map", *[[name, _spell(part, number)] for name, part in pairs.items()]]
    kind = f"{type(item).__module__}.{type(item).__qualname__}"
    if not is_dataclass(item) or not kind.startswith(_ROOM) or "<" in kind:
        raise NotKept(f"a {kind}")
    return [kind, *[_spell(getattr(item, field.name), number) for field in fields(item)]]


def _spell_value(value: Value, number: Mapping[Value, int]) -> Any:
    if value in number:
        return ["value", number[value]]
    if value.op is leaf.ITEM and value.operands[0] in number:
        return ["item", number[value.operands[0]], value.attrs["index"]]
    raise NotKept(f"{value.op.name}, which is not in the graph")


def _bared(job: Job, bare: Mapping[int, Template]) -> Job:
    """A job whose kernels have no text."""
    forms = tuple([replace(form, kernel=bare[id(form.kernel)]) for form in job.forms])
    return replace(job, kernel=bare[id(job.kernel)], forms=forms)


def _bare(kernel: Kernel | Template) -> Template:
    """What runs need to know of a kernel; its name is that of its code."""
    name = written(kernel)[0] if isinstance(kernel, Kernel) else kernel.name
    return Template(name, "", (), tuple(kernel.pointers), tuple(kernel.sizes), kernel.scratch)


def _read(spelled: Any, values: Sequence[Value]) -> Any:
    if not isinstance(spelled, list):
        return spelled
    kind, *parts = cast("list[Any]", spelled)
    return _READERS[kind](parts, values) if kind in _READERS else _kind(kind)(*[_read(p, values) for p in parts])


@cache
def _kind(name: str) -> type[Any]:
    """A kind of thing that kernels are described with: a dataclass of their room, and nothing else."""
    module, _, kind = name.rpartition(".")
    found: Any = getattr(import_module(module), kind) if module.startswith(_ROOM) else None
    if not isinstance(found, type) or not is_dataclass(found):
        raise ValueError(f"{name} is nothing that a job holds")
    return found


def _read_tuple(parts: list[Any], values: Sequence[Value]) -> tuple[Any, ...]:
    return tuple([_read(part, values) for part in parts])


def _read_map(parts: list[Any], values: Sequence[Value]) -> dict[str, Any]:
    return {str(name): _read(part, values) for name, part in parts}


def _read_value(parts: list[Any], values: Sequence[Value]) -> Value:
    return values[int(parts[0])]


def _read_item(parts: list[Any], values: Sequence[Value]) -> Value:
    return leaf.item(values[int(parts[0])], int(parts[1]))


def _read_size(parts: list[Any], _: Sequence[Value]) -> Size:
    return parse_size(parts[0])


_READERS: Mapping[str, Callable[[list[Any], Sequence[Value]], Any]] = {
    "size": _read_size,
    "value": _read_value,
    "item": _read_item,
    "tuple": _read_tuple,
    "map": _read_map,
}
