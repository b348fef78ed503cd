"""The collectives of a program as XLA compiled it: kinds, bytes, mesh axes and places, read from its text."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

import numpy as np

from dovetail.ir.graph import Graph
from dovetail.targets.xla.explain.collective import KINDS, Collective
from dovetail.targets.xla.explain.lowered import compiled_text
from dovetail.targets.xla.hlo import Instruction, instructions, tensors, width
from dovetail.targets.xla.placement import Placement

_DTYPES = {
    "pred": "i1",
    "s8": "i8",
    "s16": "i16",
    "s32": "i32",
    "s64": "i64",
    "u8": "ui8",
    "u32": "ui32",
    "u64": "ui64",
}
DeviceGroups = frozenset[frozenset[int]]


def compiled_collectives(graph: Graph, placement: Placement) -> tuple[Collective, ...]:
    """Those of a graph; compiles it for the devices of this process, of which there must be enough."""
    return tuple(read_text(compiled_text(graph, placement), placement))


def read_text(text: str, placement: Placement) -> Iterator[Collective]:
    """The collectives of an HLO module. The text is no interface: what is not understood is left open."""
    for one in instructions(text):
        kind = one.opcode.removesuffix("-start")
        if kind in KINDS:
            yield _collective(one, kind, placement)


def _collective(one: Instruction, kind: str, placement: Placement) -> Collective:
    types = tensors(one.result)
    if one.opcode != kind and kind != "all-reduce":
        types = types[len(types) // 2 :][:1]  # operands come first, and a context may follow
    sizes = [math.prod(shape) * width(dtype) for dtype, shape in types]
    dtype, shape = types[sizes.index(max(sizes))] if types else ("", ())
    groups = _groups(one.line)
    axes = _axes(groups, one.line, placement)
    place = "/".join(one.scopes[:2]) or "the program"
    devices = len(next(iter(groups))) if groups else math.prod(placement.sizes[a] for a in axes)
    return Collective(kind, axes, devices, shape, _DTYPES.get(dtype, dtype), sum(sizes), place, "XLA put it there", ())


def _groups(line: str) -> DeviceGroups:
    """The devices that take part together. XLA has several spellings of them."""
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{(\{.*?\})\}", line)
    if listed is not None:
        groups = re.findall(r"\{([\d,]+)\}", listed[1])
        return frozenset(frozenset(map(int, group.split(","))) for group in groups)
    counted = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if counted is None:
        return frozenset()
    shape = tuple(map(int, counted[3].split(",")))
    devices = np.arange(math.prod(shape)).reshape(shape)
    if counted[4]:
        devices = devices.transpose(tuple(map(int, counted[4].split(","))))
    rows = devices.reshape(int(counted[1]), int(counted[2])).tolist()
    return frozenset(frozenset(row) for row in rows)


def _axes(groups: DeviceGroups, line: str, placement: Placement) -> tuple[str, ...]:
    """The mesh axes whose devices are the groups; none where they are others."""
    names, sizes = list(placement.sizes), list(placement.sizes.values())
    devices = np.arange(placement.devices).reshape(sizes)
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(range(len(names)), count):
            kept = [a for a in range(len(names)) if a not in chosen]
            rows = devices.transpose((*kept, *chosen)).reshape(-1, math.prod(sizes[a] for a in chosen))
            if groups == frozenset(frozenset(row) for row in rows.tolist()):
                return tuple(names[a] for a in chosen)
    meshed = re.search(r"replica_groups=mesh\[(.*?)\] ?\{(.*?)\}", line)
    if meshed is not None:
        listed = re.findall(r"'?(\w+)'?=\d+", meshed[1])
        used = re.findall(r"'(\w+)'", meshed[2])
        return tuple(names[listed.index(a)] for a in used if a in listed and listed.index(a) < len(names))
    return ()


__all__ = ["compiled_collectives", "read_text"]
